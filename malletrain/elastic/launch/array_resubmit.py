"""More held tasks, submitted by a worker as its own user: preemption consumes a pilot's task, and a job that runs for
days would run out of them."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping

from malletrain.wire import messages
from malletrain.wire.errors import WireError
from malletrain.wire.http import Http

log = logging.getLogger("malletrain.elastic")

MAX_TASKS = 1000


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what tells a process that it is inside a pilot: new tasks must not take themselves for
    this one. SLURM_CONF stays: it says which cluster."""
    inside = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "MALLETRAIN_")
    return {k: v for k, v in environ.items() if k == "SLURM_CONF" or not k.startswith(inside)}


class ArrayResubmitter:
    """Runs `sbatch` with this pilot's own script, and registers the array as `mtbatch` does; once for each demand.

    Args:
        url: the daemon's.
        job: the malleable job's number.
        environ: this process's environment.
    """

    def __init__(self, url: str, job: int, environ: Mapping[str, str]) -> None:
        self._url = url
        self._job = job
        self._environ = environ
        self._answered = False

    def __call__(self, tasks: int, say: Callable[[messages.Message], None]) -> None:
        """Begin to meet a demand; 0 is the daemon's word that there is none any more."""
        if tasks == 0:
            self._answered = False
        elif not self._answered:
            self._answered = True
            threading.Thread(target=self._run, args=(min(tasks, MAX_TASKS), say), name="malletrain-top-up").start()

    def _run(self, tasks: int, say: Callable[[messages.Message], None]) -> None:
        try:
            array = self.submit(tasks)
        except (WireError, OSError, subprocess.SubprocessError) as error:
            log.warning("no more tasks could be submitted: %s", error)
            say(messages.ToppedUp(0, 0))
        else:
            say(messages.ToppedUp(array, tasks))

    def submit(self, tasks: int) -> int:
        """The number of a new held array of so many tasks.

        Raises:
            WireError: sbatch refused, or the daemon did; in the second case the array is cancelled again.
        """
        script = self._environ.get("MALLETRAIN_BATCH_SCRIPT", "")
        if not script:
            raise WireError("MALLETRAIN_BATCH_SCRIPT is not set: this pilot was not submitted by mtbatch")
        clean = outside(self._environ)
        directory = self._environ.get("SLURM_SUBMIT_DIR", os.curdir)
        command = ["sbatch", "--parsable", f"--chdir={directory}", f"--array=0-{tasks - 1}", script]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60.0, check=False)
        number = done.stdout.strip().partition(";")[0]
        if done.returncode != 0 or not number.isdecimal():
            raise WireError(f"sbatch: {(done.stderr or done.stdout).strip()[:500]}")
        try:
            with Http(self._url) as daemon:
                daemon.post(f"/v1/jobs/{self._job}/arrays", {"array_id": int(number), "tasks": tasks})
        except WireError:
            subprocess.run(["scancel", number], env=clean, capture_output=True, timeout=60.0, check=False)
            raise
        return int(number)
