"""What a training that failed left behind, read back."""

from __future__ import annotations

import json
import time
from pathlib import Path

from malletrain.study.trial_endings import Ending, TrialEnd
from malletrain.study.trial_spec import TrialSpec, fault_file

#: Of an output file, so much is kept where there is no trace.
TAIL_BYTES = 4000


def read(spec: TrialSpec, run: str, patience_s: float = 0.0) -> TrialEnd | None:
    """The fault that `malletrain.study.trial_main` wrote, waiting up to `patience_s` for a file that a file system of
    several machines shows late; None when there is none."""
    path = fault_file(spec.folder, run)
    end = time.monotonic() + patience_s
    while True:
        try:
            word = json.loads(path.read_text())
            break
        except (OSError, ValueError):
            if time.monotonic() >= end:
                return None
            time.sleep(0.1)
    ending = Ending.OUT_OF_MEMORY if word.get("memory") else Ending.USER_ERROR
    return TrialEnd(ending, str(word.get("message", "")), traceback=str(word.get("traceback", "")))


def tail(path: Path) -> str:
    """The end of an output file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
