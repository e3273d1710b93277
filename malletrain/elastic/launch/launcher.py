"""What a pilot runs: `python -m malletrain.elastic.launch -- COMMAND...`. Standard library only, to start in 50 ms.

It says hello to the daemon with a MUNGE credential, hands the token to the command through an inherited descriptor
(never through arguments or environment, which others can read), and tells the daemon when the command is over, and
how: of a process that was killed nobody else on this node can tell at once.

Exit status: the command's own; 1 when the daemon will not have this pilot, or does not answer within a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from malletrain.elastic import LAUNCHER, WELCOME_FD
from malletrain.wire import messages
from malletrain.wire.errors import WireError
from malletrain.wire.munge import MungeUnavailable
from malletrain.wire.worker_client import DaemonUnreachable, PilotIdentity, Rejected, TokenUnknown, WorkerClient

#: A pilot without a daemon gives its node back after this.
HELLO_S = 60.0

#: A worker that has left waits so long to be ended: the daemon requeues its task, which must still run for that.
LINGER_S = 20.0

#: The last report may take so long.
FAREWELL_S = 5.0

#: Large tensors lie in large pages where the system lends them (madvise(2), MADV_HUGEPAGE; torch, c10/core/impl/
#: alloc_cpu.cpp): a page fault for each 2 MiB instead of each 4 KiB of every new gradient.
MEMORY = {"THP_MEM_ALLOC_ENABLE": "1"}

#: Of a script that was ended by SIGTERM (128 + 15): it left, or was told to.
LEFT = 143


class Launcher:
    """One command, from hello to farewell.

    Args:
        client: speaks for this pilot.
        command: what to run.
        environ: its environment.
    """

    def __init__(self, client: WorkerClient, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._client = client
        self._command = list(command)
        self._environ = dict(environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._told_to_end = threading.Event()

    def run(self) -> int:
        """Returns the exit status to end with.

        Raises:
            WireError: the daemon will not have this pilot, or there is none.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        welcome = self.hello()
        if welcome.mode == "restart":
            from malletrain.elastic.launch.restart import Restarter  # most jobs do without

            return Restarter(self._client, self._command, self._environ, self._told_to_end).run()
        descriptor = leave_welcome(welcome)
        self._environ = {**MEMORY, **self._environ, WELCOME_FD: str(descriptor), LAUNCHER: str(os.getpid())}
        if self._told_to_end.is_set():
            return LEFT
        # A group of its own, so that all that the script started can be ended together.
        self._process = subprocess.Popen(
            self._command, env=self._environ, pass_fds=(descriptor, *pmi(self._environ)), start_new_session=True
        )
        os.close(descriptor)
        status = self._process.wait()
        self._say_exited(status)
        if status in (LEFT, -signal.SIGTERM):
            self._told_to_end.wait(LINGER_S)
        self._end_group()
        return status if status >= 0 else 128 - status

    def hello(self) -> messages.Welcome:
        """Present this pilot; again and again for a minute while there is no answer."""
        end = time.monotonic() + HELLO_S
        while True:
            try:
                return self._client.hello()
            except (DaemonUnreachable, MungeUnavailable) as error:
                if time.monotonic() > end or self._told_to_end.is_set():
                    raise WireError(f"given up after {HELLO_S:.0f} s, the node is free again: {error}") from error
                self._told_to_end.wait(1.0)

    def _say_exited(self, status: int) -> None:
        end = time.monotonic() + FAREWELL_S
        while time.monotonic() < end:
            try:
                self._client.report([messages.Exited(status)])
                return
            except TokenUnknown:
                with contextlib.suppress(WireError):
                    self._client.hello()
                time.sleep(0.2)
            except DaemonUnreachable:
                time.sleep(0.5)
            except Rejected:
                return

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Slurm signals every process of the step; someone else may have signalled this one alone."""
        self._told_to_end.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _end_group(self) -> None:
        """What the script left behind must not hold the node."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def keep_script(descriptor: int) -> str:
    """Where the script can be read, as long as this process lives, that comes to its end at `descriptor`: Slurm lays
    a batch script on the first node of a job alone."""
    kept = os.memfd_create("malletrain-script", os.MFD_CLOEXEC)
    while part := os.read(descriptor, 65536):
        os.write(kept, part)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return f"/proc/{os.getpid()}/fd/{kept}"


def pmi(environ: Mapping[str, str]) -> tuple[int, ...]:
    """The descriptor at which `srun --mpi=pmi2` tells MPI who the processes of the step are, if there is one."""
    number = environ.get("PMI_FD", "")
    if not number.isdecimal():
        return ()
    try:
        os.fstat(int(number))
    except OSError:
        return ()
    return (int(number),)


def leave_welcome(welcome: messages.Welcome) -> int:
    """A descriptor of anonymous memory that holds the welcome; children that inherit it can read it, nobody else."""
    descriptor = os.memfd_create("malletrain-welcome", os.MFD_CLOEXEC)
    os.write(descriptor, json.dumps(messages.to_json(welcome)).encode())
    os.set_inheritable(descriptor, True)
    return descriptor


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) < 2 or given[0] != "--":
        print("usage: python -m malletrain.elastic.launch -- COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    try:
        url = os.environ.get("MALLETRAIN_URL", "")
        # One launcher a node; a step that the script starts inside may number its processes anew.
        environ = {**os.environ, "MALLETRAIN_PART": os.environ.get("SLURM_NODEID", "0")}
        command = given[1:]
        if environ.pop("MALLETRAIN_SCRIPT_FROM", "") == "stdin":
            command[-1] = environ["MALLETRAIN_BATCH_SCRIPT"] = keep_script(sys.stdin.fileno())
        client = WorkerClient(url, PilotIdentity.of(environ))
        return Launcher(client, command, environ).run()
    except (WireError, OSError) as error:
        print(f"malletrain.elastic.launch: {error}", file=sys.stderr)
        return 1
