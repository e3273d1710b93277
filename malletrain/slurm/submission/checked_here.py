"""`mtbatch --check`: a script is checked on this machine, by the job's Python, before it is submitted. Standard
library only."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.submission.sbatch import BatchRequest

#: The module that a pilot's launcher checks with, too.
CHECK = "malletrain.elastic.launch.own_check"


def checked_here(
    request: BatchRequest, environ: Mapping[str, str], warn: Callable[[str], None]
) -> tuple[str, str, str]:
    """The digest, verdict and first sentence of a check of `request.to_check`.

    Args:
        warn: called with what follows for the job, if its script is not equal.

    Raises:
        InvalidInput: the job's Python cannot check.
    """
    command = [request.python, "-P", "-m", CHECK, *request.to_check]
    done = subprocess.run(
        command, env=dict(environ), cwd=request.chdir, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    try:
        found = json.loads(done.stdout)
        digest, verdict, text = str(found["digest"]), str(found["verdict"]), str(found["text"])
    except (ValueError, KeyError, TypeError) as error:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        raise InvalidInput("--check", f"{request.python} cannot check: {said[-1].strip()[:200]}") from error
    if verdict == "different":
        warn(f"--check: different: {text}: the job will stay at its smallest size; `malletrain check` says more")
    elif verdict != "equal":
        warn(f"--check: {verdict}: {text}")
    return digest, verdict, text
