"""The last line that a script has printed, and the file that it is in: what its owner needs of a script that ended
before it had a session to report by. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from malletrain.wire.codec import one_line

#: Seconds that scontrol may take, and that a line may need through srun to the file.
SCONTROL_LIMIT_S, ARRIVAL_LIMIT_S = 5.0, 2.0

#: By so much a file's time may lag behind the clock.
CLOCK_TICK_S = 0.1

#: Bytes of the file's end that are read, and characters of a line.
TAIL_BYTES, MAX_LINE = 8192, 300

_STDERR = re.compile(r"^\s*StdErr=(.+)$", re.MULTILINE)

#: Lines of Slurm's own.
_OF_SLURM = ("srun:", "slurmstepd:")


def last_words(environ: Mapping[str, str], began: float) -> str:
    """The last line of this pilot's standard error, and its file; "" where Slurm or the file does not say. `environ`:
    of the pilot. `began`: when its script did (Unix seconds): an earlier run of the pilot wrote into the same file.
    """
    path = _file_of(environ)
    end = time.monotonic() + ARRIVAL_LIMIT_S
    while path is not None:
        line = _last_line(path, began)
        if line:
            return f"{line} ({path})"
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return ""


def _file_of(environ: Mapping[str, str]) -> Path | None:
    job = environ.get("SLURM_JOB_ID", "")
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", job], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=SCONTROL_LIMIT_S, check=False,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    found = _STDERR.search(shown)
    return Path(found[1]) if job and found else None


def _last_line(path: Path, began: float) -> str:
    try:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno())
            if seen.st_mtime < began - CLOCK_TICK_S:
                return ""
            file.seek(max(0, seen.st_size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_OF_SLURM)]
    return one_line(lines[-1], MAX_LINE) if lines else ""
