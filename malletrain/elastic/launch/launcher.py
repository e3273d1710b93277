"""The launcher: what each pilot runs, `python -m malletrain.elastic.launch -- COMMAND...`.

It authenticates to the daemon with a MUNGE credential, passes the token to the command through an inherited
descriptor (not through arguments or environment, which other users can read), and reports the command's exit status,
so that the daemon learns at once when the command was killed. Standard library only, to start in 50 ms.

Exit status: the command's; NO_DAEMON_STATUS if the daemon rejects this pilot or does not answer within a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from malletrain.elastic import LAUNCHER, WELCOME_FD
from malletrain.elastic.launch import (
    NO_DAEMON_STATUS,
    REQUEUE_TIMEOUT_S,
    TERMINATED_STATUS,
    kill_group,
    shell_status,
    wait_for_child,
    wait_for_event,
)
from malletrain.elastic.launch.own_check import BackgroundCheck
from malletrain.wire import messages
from malletrain.wire.codec import one_line
from malletrain.wire.errors import WireError
from malletrain.wire.munge import MungeUnavailable
from malletrain.wire.worker_client import DaemonUnreachable, PilotIdentity, Rejected, TokenUnknown, WorkerClient

#: A pilot gives its node back if the daemon does not answer for so long.
HELLO_TIMEOUT_S = 60.0

#: Limit on reporting the exit status.
EXIT_REPORT_TIMEOUT_S = 5.0

#: Has torch allocate large tensors in huge pages where the system allows it (madvise(2), MADV_HUGEPAGE; torch,
#: c10/core/impl/alloc_cpu.cpp): a page fault for each 2 MiB instead of each 4 KiB of every new gradient.
HUGE_PAGE_ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1"}

#: The daemon says which worker is lost. Torch's watchdog would end the process where a collective hangs for long, or
#: where a group is aborted because its world has changed.
WATCHDOG_OFF = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}

#: Seconds that scontrol may take, and that a line may need through srun to the file.
SCONTROL_LIMIT_S, ARRIVAL_LIMIT_S = 5.0, 2.0

#: By so much a file's time may lag behind the clock.
CLOCK_TICK_S = 0.1

#: Bytes of the file's end that are read, and characters of a line.
TAIL_BYTES, MAX_LINE = 8192, 300

_STDERR = re.compile(r"^\s*StdErr=(.+)$", re.MULTILINE)

#: Lines of Slurm's own.
_OF_SLURM = ("srun:", "slurmstepd:")


class Launcher:
    """Runs one command as a pilot's worker."""

    def __init__(self, client: WorkerClient, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._client = client
        self._command = list(command)
        self._environ = dict(environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._must_end = threading.Event()
        self._check: BackgroundCheck | None = None

    def run(self) -> int:
        """Run the command to its end; returns the exit status for this process. Raises `WireError`: the environment
        holds what is not valid."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            welcome = self.hello()
        except WireError as error:
            print(f"malletrain.elastic.launch: {error}", file=sys.stderr)
            return NO_DAEMON_STATUS
        if welcome.mode in ("restart", "tasks"):
            from malletrain.elastic.launch.item_worker import ItemWorker  # most jobs need neither
            from malletrain.elastic.launch.restart import Restarter

            kind = Restarter if welcome.mode == "restart" else ItemWorker
            return kind(self._client, self._command, self._environ, self._must_end).run()
        descriptor = leave_welcome(welcome)
        self._check = BackgroundCheck(self._client)
        self._environ = {
            **with_defaults(self._environ),
            **self._check.variables,
            WELCOME_FD: str(descriptor),
            LAUNCHER: str(os.getpid()),
        }
        if self._must_end.is_set():
            return TERMINATED_STATUS
        began = time.time()
        # A process group of its own, so that everything the script starts can be ended together.
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            pass_fds=(descriptor, *pmi_descriptors(self._environ)),
            start_new_session=True,
        )
        os.close(descriptor)
        self._check.start()
        if self._must_end.is_set():  # the signal came before there was a process to pass it to
            self._on_signal(signal.SIGTERM, None)
        status = wait_for_child(self._process)
        self._check.stop()
        self._say_exited(status, last_words(self._environ, began) if 0 < status < 128 else "")
        if status in (TERMINATED_STATUS, -signal.SIGTERM):
            wait_for_event(self._must_end, REQUEUE_TIMEOUT_S)
        kill_group(self._process)  # what the script left running would hold the node
        return shell_status(status)

    def hello(self) -> messages.Welcome:
        """Register this pilot, retrying for `HELLO_TIMEOUT_S` while the daemon does not answer. Raises `WireError`:
        the daemon rejects this pilot or does not answer."""
        end = time.monotonic() + HELLO_TIMEOUT_S
        while True:
            try:
                return self._client.hello()
            except (DaemonUnreachable, MungeUnavailable) as error:
                if time.monotonic() > end or self._must_end.is_set():
                    raise WireError(
                        f"given up after {HELLO_TIMEOUT_S:.0f} s, the node is free again: {error}"
                    ) from error
                self._must_end.wait(1.0)

    def _say_exited(self, status: int, said: str) -> None:
        end = time.monotonic() + EXIT_REPORT_TIMEOUT_S
        while time.monotonic() < end:
            try:
                self._client.report([messages.Exited(status, said)])
                return
            except TokenUnknown:
                with contextlib.suppress(WireError):
                    self._client.hello()
                time.sleep(0.2)
            except DaemonUnreachable:
                time.sleep(0.5)
            except Rejected:
                if not said:
                    return
                said = ""  # an earlier daemon has no name for it

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal. Slurm signals every process of the step, but others may have signalled this one only."""
        self._must_end.set()
        if self._check is not None:
            self._check.stop()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


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
    job, null = environ.get("SLURM_JOB_ID", ""), subprocess.DEVNULL
    ask = ["scontrol", "show", "job", job]
    try:
        shown = subprocess.check_output(
            ask, env=environ, stdin=null, stderr=null, errors="replace", timeout=SCONTROL_LIMIT_S
        )
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


def keep_script(descriptor: int) -> str:
    """Read the batch script from `descriptor`, and return a path at which it can be read while this process runs.
    (Slurm stores a batch script on the first node of a job only.)"""
    kept = os.memfd_create("malletrain-script", os.MFD_CLOEXEC)
    while part := os.read(descriptor, 65536):
        os.write(kept, part)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return f"/proc/{os.getpid()}/fd/{kept}"


def pmi_descriptors(environ: Mapping[str, str]) -> tuple[int, ...]:
    """The descriptor of `srun --mpi=pmi2` that MPI reads the step's processes from, if there is one."""
    number = environ.get("PMI_FD", "")
    if not number.isdecimal():
        return ()
    try:
        os.fstat(int(number))
    except OSError:
        return ()
    return (int(number),)


def leave_welcome(welcome: messages.Welcome) -> int:
    """Write the welcome into anonymous memory; returns its descriptor, which only inheriting children can read."""
    descriptor = os.memfd_create("malletrain-welcome", os.MFD_CLOEXEC)
    os.write(descriptor, json.dumps(messages.to_json(welcome)).encode())
    os.set_inheritable(descriptor, True)
    return descriptor


def with_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for torch. What the site or the user has set stays."""
    return {**HUGE_PAGE_ENVIRONMENT, **WATCHDOG_OFF, **environ}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if len(argv) < 2 or argv[0] != "--":
        print("usage: python -m malletrain.elastic.launch -- COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    try:
        url = os.environ.get("MALLETRAIN_URL", "")
        # There is one launcher a node; a step that the script starts inside numbers its processes again.
        environ = {**os.environ, "MALLETRAIN_PART": os.environ.get("SLURM_NODEID", "0")}
        command = argv[1:]
        if environ.pop("MALLETRAIN_SCRIPT_FROM", "") == "stdin":
            command[-1] = environ["MALLETRAIN_BATCH_SCRIPT"] = keep_script(sys.stdin.fileno())
        client = WorkerClient(url, PilotIdentity.of(environ))
        return Launcher(client, command, environ).run()
    except (WireError, OSError) as error:
        print(f"malletrain.elastic.launch: {error}", file=sys.stderr)
        return 1
