"""Runs a training script as a worker does, with a credential that the tests' coordinator knows.

Environment, to make what cannot be timed from outside: LAG_AT=N[,M]: in round N this worker takes its group for
broken, once M others have committed it, which COMMITTED=N,NAME has them tell; TROUBLE=freeze|kill|term|memory@PLACE
[#N]: it signals itself, or has no memory left, when it comes to a place of `PLACES` for the Nth time (by default the
first). PATIENCE=S: for how long it waits for a daemon in a broken world. LONG=S: what is a long
step. STANDIN=S: gradients are summed by the stand-in for NCCL (`device_stand_in`), connected within S seconds beside
training. NETWORK=PATH: the network namespace that a forked worker enters before it does anything else. POLL=S: how
long a poll of the daemon lasts.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import logging
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from malletrain.elastic import evaluate, runtime
from malletrain.elastic.comm.group import Work
from malletrain.elastic.comm.step_commit import StepCommitter, StepOutcome
from malletrain.elastic.errors import Aborted
from malletrain.elastic.gradients import finiteness
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.launch import worker_start
from malletrain.elastic.link import daemon_link
from malletrain.elastic.resize import lifecycle, reconfigure, state_recovery
from malletrain.wire import worker_client
from tests.elastic import device_stand_in

SIGNALS = {"freeze": signal.SIGSTOP, "kill": signal.SIGKILL, "term": signal.SIGTERM}

#: Where trouble can come: what is called there.
PLACES: dict[str, tuple[ModuleType | type, str]] = {
    "rehearsal": (worker_start, "_call"),
    "warm": (worker_start.PilotContext, "wait_warm"),
    "build": (reconfigure, "make_world_group"),
    "roll": (state_recovery.StateRecovery, "recover"),
    "give": (state_recovery, "send_state"),
    "take": (state_recovery, "receive_state"),
    "entered": (reconfigure.Reconfigurer, "begin_world"),
    "step": (GradientReducer, "arm"),
    "backward": (GradientReducer, "_begin"),
    "sums": (GradientReducer, "_complete"),
    "evaluation": (evaluate, "_fill"),
}

#: Limits that a variable sets, in seconds.
LIMITS = {
    "PATIENCE": (reconfigure, "RECOVERY_SILENCE_LIMIT_S"),
    "LONG": (lifecycle, "LONG_STEP_S"),
    "POLL": (daemon_link, "POLL_WAIT_S"),
}


def tell_commit(number: int, name: str) -> None:
    commit = StepCommitter.commit

    def told(self: StepCommitter, control: torch.Tensor) -> StepOutcome:
        outcome = commit(self, control)
        if self.rounds_done == number + 1:
            (Path(os.environ["MALLETRAIN_TEST_DIR"]) / f"committed-{name}").touch()
        return outcome

    StepCommitter.commit = told  # type: ignore[method-assign]  # wrapped, for this process


def lag_at(number: int, others: int = 0) -> None:
    sum_pass = StepCommitter.sum_pass
    home = Path(os.environ["MALLETRAIN_TEST_DIR"])

    def late(
        self: Any,
        pending: Sequence[Work],
        control: torch.Tensor,
        refuse: Callable[[], None] = lambda: None,
    ) -> None:
        if self.rounds_done == number and not getattr(self, "lagged", False):
            self.lagged = True
            for operation in pending:
                self.wait(operation)
            self.wait(self.start(control))
            end = time.monotonic() + 30.0
            while len(list(home.glob("committed-*"))) < others and time.monotonic() < end:
                time.sleep(0.001)
            self._monitor.fault(self.world.generation, "closed", "made to lag")
            raise Aborted("made to lag")
        sum_pass(self, pending, control, refuse)

    StepCommitter.sum_pass = late  # type: ignore[method-assign]  # wrapped, for this process


def trouble(what: str) -> None:
    kind, _, rest = what.partition("@")
    place, _, number = rest.partition("#")
    if place == "compile":
        from torch._dynamo.output_graph import OutputGraph

        PLACES[place] = (OutputGraph, "call_user_compiler")
    owner, name = PLACES[place]
    original = getattr(owner, name)
    calls: list[None] = []

    def troubled(*args: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) == int(number or 1) and kind == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if len(calls) == int(number or 1):
            os.kill(os.getpid(), SIGNALS[kind])
        return original(*args, **more)

    setattr(owner, name, troubled)


def forked(env: dict[str, str], log: str, arguments: list[str]) -> None:
    """In a child of a process that has imported torch already."""
    os.setsid()
    with Path(log).open("wb") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    if "NETWORK" in env:
        enter_network(env["NETWORK"])
    try:
        main(arguments)
    except SystemExit:
        atexit._run_exitfuncs()  # which multiprocessing's children leave out
        raise


def enter_network(path: str) -> None:
    """Put this thread, and those that it starts, into a network namespace (setns(2); Python's own is of 3.12)."""
    with Path(path).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns", path)


def main(arguments: list[str]) -> None:
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(
        level=os.environ.get("LOG_LEVEL", "INFO"), format="%(relativeCreated)d %(threadName)s %(message)s"
    )
    torch.set_num_threads(1)
    worker_client.credential_for = lambda url: "credential-for-tests"
    if "LAG_AT" in os.environ:
        lag_at(*map(int, os.environ["LAG_AT"].split(",")))
    if "COMMITTED" in os.environ:
        number, _, name = os.environ["COMMITTED"].partition(",")
        tell_commit(int(number), name)
    if "TROUBLE" in os.environ:
        trouble(os.environ["TROUBLE"])
    for name, (module, limit_s) in LIMITS.items():
        if name in os.environ:
            setattr(module, limit_s, float(os.environ[name]))
    if "STANDIN" in os.environ:
        limit = timedelta(seconds=float(os.environ["STANDIN"]))
        found = device_stand_in.carrier(limit)
        setattr(finiteness, "runs_ahead", lambda device: True)  # noqa: B010 - for this process
        setattr(runtime, "find_carrier", lambda model, environ: found)  # noqa: B010 - imported there
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).parent))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)  # as Python itself does, where it is not forked
        raise SystemExit(1) from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
