"""Submits more held array tasks, as the job's user, on the daemon's request: preemption consumes a pilot's task, and
a job that runs for days would run out of them. Standard library only."""

from __future__ import annotations

import logging
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from malletrain.wire import messages
from malletrain.wire.daemon_url import first_url
from malletrain.wire.errors import WireError
from malletrain.wire.http import Http
from malletrain.wire.sbatch_answer import job_id, jobs_marked, likely_job_id

log = logging.getLogger("malletrain.elastic")

MAX_ARRAY_TASKS = 1000

#: The comment in the batch script, as mtbatch writes it.
_COMMENT = re.compile(r'^#SBATCH --comment=(?:"((?:[^"\\]|\\.)*)"|(\S+))$', re.MULTILINE)


def environment_outside_pilot(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of this pilot, which new tasks must not inherit. SLURM_CONF stays: it
    names the cluster; PYTHONPATH is the script's."""
    inside = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "MALLETRAIN_")
    kept = {k: v for k, v in environ.items() if k == "SLURM_CONF" or not k.startswith(inside)}
    scripts_own = environ.get("MALLETRAIN_PYTHONPATH", "")
    return {**kept, "PYTHONPATH": scripts_own} if scripts_own else kept


class ArrayResubmitter:
    """Runs `sbatch` with this pilot's script and registers the array as `mtbatch` does, once for each request."""

    def __init__(self, url: str, job: int, environ: Mapping[str, str]) -> None:
        self._url = first_url(url)
        self._job = job
        self._environ = environ
        self._answered = False

    def __call__(self, tasks: int, say: Callable[[messages.Message], None]) -> None:
        """Start to submit `tasks` in the background. The daemon repeats a request until it is met, then sends 0.
        `say`: called with the result, a `ToppedUp` message."""
        if tasks == 0:
            self._answered = False
        elif not self._answered:
            self._answered = True
            threading.Thread(
                target=self._run, args=(min(tasks, MAX_ARRAY_TASKS), say), name="malletrain-top-up"
            ).start()

    def _run(self, tasks: int, say: Callable[[messages.Message], None]) -> None:
        try:
            array = self.submit(tasks)
        except (WireError, OSError, subprocess.SubprocessError) as error:
            log.warning("no more tasks could be submitted: %s", error)
            say(messages.ToppedUp(0, 0))
        else:
            say(messages.ToppedUp(array, tasks))

    def submit(self, tasks: int) -> int:
        """Submit a held array of `tasks` tasks; returns its job id. Raises `WireError`: sbatch failed, or the daemon
        refused the array, which is cancelled then."""
        script = self._environ.get("MALLETRAIN_BATCH_SCRIPT", "")
        if not script:
            raise WireError("MALLETRAIN_BATCH_SCRIPT is not set: this pilot was not submitted by mtbatch")
        clean = environment_outside_pilot(self._environ)
        directory = self._environ.get("SLURM_SUBMIT_DIR", os.curdir)
        mark = secrets.token_hex(4)
        named = [f"--comment={comment}; {mark}"] if (comment := comment_of_script(script)) else []
        command = ["sbatch", "--parsable", f"--chdir={directory}", *named, f"--array=0-{tasks - 1}", script]
        try:
            done = _run(command, clean)
        except subprocess.TimeoutExpired:
            _cancel(_marked(mark, clean), clean)
            raise
        if done.returncode != 0:
            _cancel(_marked(mark, clean), clean)
            raise WireError(f"sbatch: {(done.stderr or done.stdout).strip()[:500]}")
        number = job_id(done.stdout) or next(iter(_marked(mark, clean)), None) or likely_job_id(done.stdout)
        if number is None:
            raise WireError(
                f"sbatch printed no job id but {done.stdout[:80]!r}: if squeue shows a held array, scancel it"
            )
        if not _limits(script):  # a site may leave it out (pilot.sbatch)
            _run(["scontrol", "update", f"JobId={number}", "TimeLimit=1"], clean)
        try:
            with closing(Http(self._url)) as daemon:
                daemon.post(f"/v1/jobs/{self._job}/arrays", {"array_id": number, "tasks": tasks})
        except WireError:
            _cancel([number], clean)
            raise
        return number


def comment_of_script(script: str) -> str:
    """The comment that the tasks of a batch script have in Slurm; "" where it names none or cannot be read."""
    found = _COMMENT.search(_text(script))
    return re.sub(r"\\(.)", r"\1", found[1] or found[2]) if found else ""


def _limits(script: str) -> bool:
    text = _text(script)
    return not text or "\n#SBATCH --time=" in text


def _text(script: str) -> str:
    try:
        return Path(script).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _marked(mark: str, environ: Mapping[str, str]) -> list[int]:
    """This user's jobs whose comment holds `mark`."""
    done = _run(["squeue", "-a", "-h", "-u", str(os.getuid()), "-o", "%F %k"], environ)
    return jobs_marked(done.stdout, mark)


def _cancel(arrays: Sequence[int], environ: Mapping[str, str]) -> None:
    for array in arrays:
        _run(["scancel", str(array)], environ)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(command), env=dict(environ), capture_output=True, text=True, errors="replace", timeout=60.0, check=False
    )
