"""Restart mode: any script that saves on a signal, relaunched at the new size. Standard library only.

Each pilot's launcher is a member by itself. On a new plan it signals its script, waits for it, and starts it again
with the environment that torchrun gives (PyTorch's "torchrun" manual, Environment Variables): one process a node, the
oldest member's node as MASTER_ADDR. It costs what the script needs to save, start, import and load, every time.

    MALLETRAIN_SIGNAL   the signal that makes the script save and end (TERM)
    MALLETRAIN_GRACE_S  seconds it is given for that before it is killed (60)

What that is, only the script can tell: it creates the file MALLETRAIN_READY after its first step. Without it, the
time to save and end is all that is known of a relaunch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from malletrain.elastic.launch.array_resubmit import ArrayResubmitter
from malletrain.elastic.link.daemon_link import Link
from malletrain.wire import messages
from malletrain.wire.errors import WireError
from malletrain.wire.worker_client import WorkerClient

log = logging.getLogger("malletrain.elastic")

LEFT = 143
LINGER_S = 20.0

#: A script that fails so often in a row, each time within `SOON_S` of its start, will not do better.
MAX_FAILURES = 3
SOON_S = 60.0


class Restarter:
    """One pilot of a job in restart mode; implements `link.Answers`.

    Args:
        client: speaks for this pilot, and has said hello.
        command: the script.
        environ: its environment, to which rank and size are added.
        told_to_end: set when this process was told to end.

    Raises:
        WireError: MALLETRAIN_SIGNAL or MALLETRAIN_GRACE_S cannot be right.
    """

    def __init__(
        self,
        client: WorkerClient,
        command: Sequence[str],
        environ: Mapping[str, str],
        told_to_end: threading.Event,
    ) -> None:
        self._client = client
        self._top_up = ArrayResubmitter(environ.get("MALLETRAIN_URL", ""), client.identity.job, environ)
        self._command = list(command)
        self._environ = dict(environ)
        self._told_to_end = told_to_end
        self._signal = signal_named(environ.get("MALLETRAIN_SIGNAL", "TERM"))
        self._grace_s = seconds_of(environ, "MALLETRAIN_GRACE_S", 60.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._plan = messages.Plan(0)
        self._started_at = 0.0
        self._failures = 0
        self._ready = Path(tempfile.mkdtemp(prefix="malletrain-")) / "ready"
        #: Since when nothing is trained, because of a relaunch that is not over yet; and whether it added nodes.
        self._relaunch: tuple[float, bool] | None = None
        self._link = Link(client, self)

    # --- link.Answers -----------------------------------------------------------------------------------------

    def on_plan(self, plan: messages.Plan) -> None:
        """The main thread sees it."""

    def check_in(self, number: int) -> messages.CheckedIn:
        """The launcher is there as long as the node is."""
        return messages.CheckedIn(number, self._plan.generation, 0, self._process is not None)

    def standing(self) -> messages.Standing | None:
        plan = self._plan
        if not plan.generation or self._process is None:
            return None
        return messages.Standing(plan.generation, plan.members, 0, "", plan.generation)

    def on_top_up(self, tasks: int) -> None:
        self._top_up(tasks, self._link.say)

    def while_away(self) -> messages.Plan | None:
        """Without the daemon nothing is relaunched: what runs, runs on."""
        return None

    # --- the main thread --------------------------------------------------------------------------------------

    def run(self) -> int:
        """From the first plan to the end. Returns the exit status to end with."""
        self._link.start()
        host = own_host(self._environ)
        self._link.say(messages.Warm(f"{host}:{free_port()}"))
        try:
            while True:
                status = self._wait_for_news()
                if status is not None:
                    return status
        finally:
            shutil.rmtree(self._ready.parent, ignore_errors=True)

    def _wait_for_news(self) -> int | None:
        link, plan = self._link, self._link.plan
        if link.end is not None or self._told_to_end.is_set():
            return self._leave(link.end or "told to end", 0)
        if plan is not None and plan.generation > self._plan.generation:
            if self._seat(plan) is not None:
                self._take(plan)
                return None
            if self._process is not None:
                return self._leave(plan.reason, plan.generation)
        if self._process is not None:
            status = self._process.poll()
            if status is not None:
                return self._ended(status)
        if self._relaunch is not None and self._ready.exists():
            began, grew = self._relaunch
            self._relaunch = None
            self._say_switched(time.monotonic() - began, grew=grew)
        with link.changed:
            link.changed.wait(0.1)
        return None

    def _say_switched(self, pause_s: float, *, grew: bool) -> None:
        self._link.say(messages.Switched(self._plan.generation, 0, len(self._plan.members), pause_s, grew))

    def _take(self, plan: messages.Plan) -> None:
        """Stop the script, start it in the new world."""
        before, began = len(self._plan.members), time.monotonic()
        self._stop()
        self._ready.unlink(missing_ok=True)
        self._plan = plan
        rank, size = self._seat(plan) or 0, len(plan.members)
        self._process = subprocess.Popen(
            self._command,
            env={**self._environ, **contract(plan, rank), "MALLETRAIN_READY": str(self._ready)},
            start_new_session=True,
        )
        self._started_at = time.monotonic()
        self._relaunch = (began, size > before) if before else None
        self._say_switched(self._started_at - began if before else 0.0, grew=size > before)

    def _ended(self, status: int) -> int | None:
        """The script is over by itself."""
        self._kill_rest()
        self._process = None
        if status == 0:
            if self._seat(self._plan) == 0:
                self._link.say(messages.Finished({}))
            self._link.flush(10.0)
            return 0
        soon = time.monotonic() - self._started_at < SOON_S
        self._failures = self._failures + 1 if soon else 1
        if self._failures >= MAX_FAILURES:
            self._link.say(
                messages.Failed(0, f"the script ended with status {status}, {self._failures} times in a row")
            )
            self._link.flush(10.0)
            return status if status > 0 else 128 - status
        # Most often because a peer is gone: whoever is left begins again together.
        self._link.say(messages.Fault(self._plan.generation, 0, "closed", f"the script ended with status {status}"))
        return self._wait_for_another()

    def _wait_for_another(self) -> int | None:
        """Until there is a plan to begin again with."""
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            plan = self._link.plan
            if self._link.end is not None or (plan is not None and plan.generation > self._plan.generation):
                return None
            if self._told_to_end.wait(0.1):
                return LEFT
        return 1

    def _leave(self, reason: str, generation: int) -> int:
        self._stop()
        self._link.say(messages.Left(generation, 0))
        self._link.flush(2.0)
        log.info("left: %s", reason)
        self._told_to_end.wait(LINGER_S)
        return LEFT

    def _stop(self) -> None:
        """Let the script save and end; kill it when it takes too long."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, self._signal)
        try:
            self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            log.warning("the script did not end within %g s of %s: killed", self._grace_s, self._signal.name)
        self._kill_rest()
        self._process.wait()
        self._process = None

    def _kill_rest(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _seat(self, plan: messages.Plan) -> int | None:
        names = [seat.worker for seat in plan.members]
        return names.index(self._client.worker) if self._client.worker in names else None


def contract(plan: messages.Plan, rank: int) -> dict[str, str]:
    """The variables that torchrun gives to a process, for one process a node."""
    host, _, port = plan.store.rpartition(":")
    size = str(len(plan.members))
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": size,
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": f"generation-{plan.generation}",
        "TORCHELASTIC_RESTART_COUNT": str(plan.generation),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",
    }


def signal_named(name: str) -> signal.Signals:
    """`TERM`, `SIGUSR2` or a number.

    Raises:
        WireError: there is no such signal.
    """
    try:
        return signal.Signals(int(name)) if name.isdecimal() else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    except (ValueError, KeyError) as error:
        raise WireError(f"MALLETRAIN_SIGNAL is {name!r}: give a signal's name, such as TERM or USR2") from error


def seconds_of(environ: Mapping[str, str], name: str, default: float) -> float:
    """A duration out of the environment.

    Raises:
        WireError: not a number from 0 to a day.
    """
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86400:
        raise WireError(f"{name} is {text!r}: give seconds, from 0 to 86400")
    return value


def own_host(environ: Mapping[str, str]) -> str:
    """The address at which peers reach this node: the one that faces the daemon, unless MALLETRAIN_ADDRESS says."""
    if environ.get("MALLETRAIN_ADDRESS"):
        return environ["MALLETRAIN_ADDRESS"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((urlsplit(environ["MALLETRAIN_URL"]).hostname or "localhost", 9))
        return str(probe.getsockname()[0])


def free_port() -> int:
    """A port that nobody uses now; the script's rank 0 will listen there."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
