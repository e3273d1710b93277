"""Starts the processes of a check as copies of one that has imported what each of them needs: torch takes longer to
import than a short check takes to train.

`python -m malletrain.script_check.forked_runs FOLDER SCRIPT ARGUMENTS...` reads a JSON object a line, the environment
and the log of a process to start, and answers each by the process's number. When one has ended there is a file
`status-NUMBER` in the folder (as subprocess.Popen.returncode has it). Ends once there is nothing more to read.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from malletrain.script_check.checked_script import main, put


class ForkedRun:
    """One process, of which much is asked as of a subprocess.Popen."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self._status = folder / f"status-{pid}"

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return int(self._status.read_text()) if self._status.exists() else None

    def kill(self) -> None:
        """End it, and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            while self.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)
                time.sleep(0.01)


class Starter:
    """Starts processes that have the seed of hashes in common.

    Args:
        folder: of the check.
        command: the script and its arguments.
        environ: which libraries may read as they are imported.
        log: gets what the import prints.
    """

    def __init__(self, folder: Path, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._folder, self._log = folder, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "malletrain.script_check.forked_runs", str(folder), *command],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def start(self, environ: Mapping[str, str], log: Path) -> ForkedRun:
        """Start a process in this environment, whose output goes to `log`.
        Raises OSError: no process can be started; the message has the last lines of why."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"environ": dict(environ), "log": str(log)}), file=self._process.stdin, flush=True)
        answer = cast(IO[str], self._process.stdout).readline()
        if not answer:
            why = self._log.read_text(errors="replace")[-2000:]
            raise OSError(f"no process of the check could be started: {why}")
        return ForkedRun(int(answer), self._folder)

    def end(self) -> None:
        """Start no more."""
        self._process.kill()
        self._process.communicate()


def _started(folder: Path) -> None:
    """Start what is asked for; returns in each process that was started, and ends this one otherwise."""

    def ended(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                put(folder / f"status-{found[0]}", str(os.waitstatus_to_exitcode(found[1])))

    signal.signal(signal.SIGCHLD, ended)
    for line in sys.stdin:
        if pid := os.fork():
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.setpgid(pid, pid)
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(asked["environ"])
        with Path(os.devnull).open("rb") as nothing, Path(asked["log"]).open("wb") as log:
            for number, file in enumerate((nothing, log, log)):
                os.dup2(file.fileno(), number)
        return
    sys.exit()


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - which the first optimizer of a process imports

    _started(Path(sys.argv[1]))
    main(sys.argv[2:])
