"""Restart mode (`mtbatch --elastic=restart`): relaunches any script that saves on a signal at each new size.

Here the launcher is the member of the world. On a new plan it signals its script, waits until that has ended, and
starts it again with torchrun's environment variables (PyTorch's "torchrun" manual, Environment Variables): one
process a node, the oldest member's node as MASTER_ADDR. No script starts before each of the world before has ended:
it would load a checkpoint that is still being written, or the one before. Each resize costs what the script needs to
save, start, import and load.

    MALLETRAIN_SIGNAL   the signal that makes the script save and end (TERM)
    MALLETRAIN_GRACE_S  seconds until a script that has not ended is killed (60)
    MALLETRAIN_READY    a file that the script may create after its first step, so that the cost is measured;
                        otherwise only the time to save and end is known

Standard library only.
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

from malletrain.elastic.comm.addresses import free_port, join_address, own_host, split_address
from malletrain.elastic.launch import (
    REQUEUE_TIMEOUT_S,
    TERMINATED_STATUS,
    kill_group,
    shell_status,
    wait_for_child,
    wait_for_event,
)
from malletrain.elastic.launch.array_resubmit import ArrayResubmitter
from malletrain.elastic.link.daemon_link import Link, LinkHandler
from malletrain.wire import messages
from malletrain.wire.daemon_url import first_url
from malletrain.wire.errors import WireError
from malletrain.wire.worker_client import WorkerClient

log = logging.getLogger("malletrain.elastic")

#: The job fails when its script fails so often in a row, each time within `EARLY_FAILURE_S` of its start. Failures
#: after which a peer was lost do not count, nor those before a longer run.
MAX_FAILURES = 3
EARLY_FAILURE_S = 60.0

#: Seconds that a launcher whose script has failed waits for another plan: longer than the daemon waits for nodes of
#: members that are not heard (`MembershipSettings.fence_s`), after it has missed them.
WAITS_FOR_A_PLAN_S = 180.0


class Restarter(LinkHandler):
    """One pilot of a job in restart mode. Without the daemon its script runs on as it is.

    Args:
        client: this pilot's connection to the daemon, already registered.
        command: the script.
        environ: its environment; torchrun's variables are added.
        must_end: set when this process was asked to end.

    Raises:
        WireError: MALLETRAIN_SIGNAL or MALLETRAIN_GRACE_S is not valid.
    """

    def __init__(
        self,
        client: WorkerClient,
        command: Sequence[str],
        environ: Mapping[str, str],
        must_end: threading.Event,
    ) -> None:
        self._client = client
        self._resubmitter = ArrayResubmitter(environ.get("MALLETRAIN_URL", ""), client.identity.job, environ)
        self._command = list(command)
        self._environ = dict(environ)
        self._must_end = must_end
        self._signal = signal_named(environ.get("MALLETRAIN_SIGNAL", "TERM"))
        self._grace_s = seconds_of(environ, "MALLETRAIN_GRACE_S", 60.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._plan = messages.Plan(0)
        self._started_at = 0.0
        self._failures = self._losses = 0
        self._ready = Path(tempfile.mkdtemp(prefix="malletrain-")) / "ready"
        #: When the relaunch in progress began, and whether it added nodes; None without one.
        self._relaunch: tuple[float, bool] | None = None
        self._must_start = False  #: the script of the plan, once the daemon holds it no more
        self._taking = threading.Lock()
        self._declined = 0  #: the last plan that was not taken because a daemon was told that there is no script here
        self._link = Link(client, self)

    # --- LinkHandler -----------------------------------------------------------------------------------------

    def check_in(self, number: int) -> messages.CheckedIn:
        """Answer for the launcher, which is alive as long as its node is."""
        return messages.CheckedIn(number, self._plan.generation, 0, self._has_script)

    def standing(self) -> messages.Standing | None:
        with self._taking:
            plan = self._plan
            if not plan.generation or not self._has_script:
                self._link.forgo()
                return None
        return messages.Standing(plan.generation, plan.members, 0, "", plan.generation)

    def on_top_up(self, tasks: int) -> None:
        self._resubmitter(tasks, self._link.say)

    # --- the main thread --------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until the job is over or this pilot leaves; returns the exit status for this process."""
        self._link.start()
        try:
            self._begin()
            while True:
                status = self._poll()
                if status is not None:
                    return status
        finally:
            shutil.rmtree(self._ready.parent, ignore_errors=True)

    def _begin(self) -> None:
        self._say_warm()

    def _say_warm(self) -> None:
        """Ask for a seat in the next world."""
        daemon = urlsplit(first_url(self._environ["MALLETRAIN_URL"])).hostname or "localhost"
        host = own_host(daemon, self._environ.get("MALLETRAIN_ADDRESS"), socket.AF_INET)
        self._link.say(messages.Warm(join_address(host, free_port())))

    def _poll(self) -> int | None:
        link, plan = self._link, self._link.plan
        if link.end is not None or self._must_end.is_set():
            return self._leave(link.end or "asked to end", 0)
        if plan is not None and plan.generation > max(self._plan.generation, self._declined):
            if self._seat(plan) is not None:
                self._take(plan)
                return None
            if self._is_member:
                return self._leave(plan.reason, plan.generation)
        status = None if self._process is None else self._process.poll()
        if status is not None:
            return self._ended(status)
        self._tend()
        with link.changed:
            link.changed.wait(0.1)
        return None

    def _tend(self) -> None:
        """Start the script when it is due, and report what it has come to."""
        if self._must_start and not self._link.hold:
            self._start()
        if self._relaunch is not None and self._ready.exists():
            began, grew = self._relaunch
            self._relaunch = None
            self._say_switched(time.monotonic() - began, grew=grew)

    @property
    def _is_member(self) -> bool:
        """Whether a plan without a seat for this pilot means that it leaves."""
        return self._has_script

    @property
    def _has_script(self) -> bool:
        """Whether its script runs, or is about to be started."""
        return self._process is not None or self._must_start

    def _say_switched(self, pause_s: float, *, grew: bool) -> None:
        self._link.say(messages.Switched(self._plan.generation, 0, len(self._plan.members), pause_s, grew))

    def _take(self, plan: messages.Plan) -> None:
        """Stop the script, which is started again in the world of a new plan."""
        before, began = len(self._plan.members), time.monotonic()
        with self._taking:
            if not self._has_script:
                if plan.generation <= self._link.forgone:
                    self._declined = plan.generation
                    self._link.say(messages.Fault(plan.generation, 0, "build", "it has said that it has no script"))
                    return
                self._plan = plan
            self._must_start = True  # from here on: who asks in between is told that there is a script
        self._forgive_failures()
        self._stop()
        self._ready.unlink(missing_ok=True)
        self._plan = plan
        size = len(plan.members)
        self._relaunch = (began, size > before) if before else None
        self._say_switched(time.monotonic() - began if before else 0.0, grew=size > before)

    def _forgive_failures(self) -> None:
        """Before a new world: count no failure of the script that a lost peer may have caused, or that a longer run
        has followed."""
        ran_on = self._process is not None and time.monotonic() - self._started_at >= EARLY_FAILURE_S
        if ran_on or self._link.losses != self._losses:
            self._failures, self._losses = 0, self._link.losses

    def _variables(self) -> dict[str, str]:
        return torchrun_environment(self._plan, self._seat(self._plan) or 0)

    def _start(self) -> None:
        environ = {**self._environ, **self._variables(), "MALLETRAIN_READY": str(self._ready)}
        self._process = subprocess.Popen(self._command, env=environ, start_new_session=True)
        self._must_start, self._started_at = False, time.monotonic()

    def _ended(self, status: int) -> int | None:
        """Handle the end of the script; returns the exit status for this process, or None to go on."""
        kill_group(self._process)
        self._process = None
        if status == 0:
            if self._seat(self._plan) == 0:
                self._link.say(messages.Finished({}))
                return 0 if self._link.deliver_end(self._must_end) else 1
            self._link.flush(10.0)
            return 0
        early = time.monotonic() - self._started_at < EARLY_FAILURE_S
        self._failures = self._failures + 1 if early else 1
        if self._failures >= MAX_FAILURES:
            return self._fail(0, status, " in a row")
        if self._seat(self._plan) == 0:
            self._say_warm()  # another process may have taken the port since the last script listened there
        # Usually because a peer is lost: the remaining members start again together.
        self._link.say(messages.Fault(self._plan.generation, 0, "closed", f"the script ended with status {status}"))
        return self._wait_for_another()

    def _fail(self, step: int, status: int, how: str) -> int:
        """Have the job fail; returns the exit status for this process."""
        said = f"the script ended with status {status}, {self._failures} times{how}"
        self._link.say(messages.Failed(step, said))
        self._link.flush(10.0)
        return shell_status(status)

    def _wait_for_another(self) -> int | None:
        """Wait for a newer plan; returns an exit status if none comes."""
        end = time.monotonic() + WAITS_FOR_A_PLAN_S
        while time.monotonic() < end:
            plan = self._link.plan
            if self._link.end is not None or (plan is not None and plan.generation > self._plan.generation):
                return None
            if self._must_end.wait(0.1):
                return TERMINATED_STATUS
        return 1

    def _leave(self, reason: str, generation: int) -> int:
        if self._link.given_up and self._process is not None:
            kill_group(self._process)  # what it would save is older than what others have trained since
            wait_for_child(self._process)
            self._process = None
        self._stop()
        self._link.say(messages.Left(generation, 0))
        self._link.flush(2.0)
        log.info("left: %s", reason)
        wait_for_event(self._must_end, REQUEUE_TIMEOUT_S)
        return TERMINATED_STATUS

    def _stop(self) -> None:
        """Have the script save and end; kill it after the grace period."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, self._signal)
        try:
            self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            log.warning("the script did not end within %g s of %s: killed", self._grace_s, self._signal.name)
        kill_group(self._process)
        wait_for_child(self._process)
        self._process = None

    def _seat(self, plan: messages.Plan) -> int | None:
        names = [seat.worker for seat in plan.members]
        return names.index(self._client.worker) if self._client.worker in names else None


def torchrun_environment(plan: messages.Plan, rank: int) -> dict[str, str]:
    """The environment variables that torchrun sets, for one process a node."""
    host, port = split_address(plan.store)
    size = str(len(plan.members))
    return {
        **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": f"generation-{plan.generation}",
        "TORCHELASTIC_RESTART_COUNT": str(plan.generation),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",
    }


def signal_named(name: str) -> signal.Signals:
    """Parse a signal: `TERM`, `SIGUSR2` or a number. Raises `WireError`: there is no such signal."""
    try:
        return signal.Signals(int(name)) if name.isdecimal() else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    except (ValueError, KeyError) as error:
        raise WireError(f"MALLETRAIN_SIGNAL is {name!r}: give a signal's name, such as TERM or USR2") from error


def seconds_of(environ: Mapping[str, str], name: str, default: float) -> float:
    """Parse a duration from the environment. Raises `WireError`: it is not a number of seconds from 0 to a day."""
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
