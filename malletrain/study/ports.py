"""Trainings as the study sees them, wherever they run: how they are started and followed, and the ways they end."""

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from malletrain.domain.errors import MalletrainError
from malletrain.study.trial_spec import TrialSpec, fault_file


class Ending(StrEnum):
    """Why a trial is over."""

    COMPLETED = "completed"  #: it has its value
    PRUNED = "pruned"  #: the pruner saw enough of it
    USER_ERROR = "user_error"  #: its own code is wrong; trying again would change nothing
    OUT_OF_MEMORY = "out_of_memory"  #: what it builds does not fit; the same parameters would not fit again
    TIMED_OUT = "timed_out"  #: it has trained for as long as the objective allows
    CANCELLED = "cancelled"  #: somebody cancelled its job
    REFUSED = "refused"  #: it could not be submitted
    PREEMPTED = "preempted"  #: preemption consumed all of its tasks (one pilot preempted is no end: it waits)
    NODE_FAILED = "node_failed"  #: a machine failed, or something killed it from outside
    INTERRUPTED = "interrupted"  #: the study was stopped while it ran
    LOST = "lost"  #: how it ended is not known

    @property
    def by_infrastructure(self) -> bool:
        """Whether it says nothing about the parameters, which are therefore tried once more."""
        return self in (Ending.PREEMPTED, Ending.NODE_FAILED, Ending.INTERRUPTED, Ending.LOST)


#: What a training has used, as its trial keeps it.
FACTS = ("node_seconds", "preemptions", "resizes", "lost_workers")


@dataclass(frozen=True, slots=True)
class Figure:
    """The training has reported `name` = `value` after `samples` samples."""

    name: str
    value: float
    samples: int


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """The training is over. `result` is what the script said of it, `traceback` where it failed."""

    ending: Ending
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    traceback: str = ""


class TrainingEnded(MalletrainError):
    """The training inside an objective has ended without a result; raised by `train` into the objective."""

    def __init__(self, over: TrialEnd) -> None:
        super().__init__(over.reason or over.ending.value)
        self.over = over


class StudyError(MalletrainError):
    """The study cannot go on, or has ended before its time; the message says why, and what to do."""

    exit_status = 1


#: Of an output file, so much is kept where there is no trace.
TAIL_BYTES = 4000


def read_fault(spec: TrialSpec, run: str, patience_s: float = 0.0) -> TrialEnd | None:
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


def tail_of(path: Path) -> str:
    """The end of an output file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


class Run(Protocol):
    """One training that has been started."""

    @property
    def key(self) -> str:
        """The argument for `Runs.find` after a restart of the study; empty if it cannot be found again."""

    def next(self, wait_s: float) -> Figure | TrialEnd | None:
        """The next figure or the end, or None after `wait_s` seconds without either. Nothing follows the end."""

    def stop(self) -> None:
        """End it and give its nodes back. Idempotent."""

    def trained_s(self) -> float:
        """Seconds so far during which it held nodes."""

    def facts(self) -> Mapping[str, float]:
        """`node_seconds`, `preemptions`, `resizes`, as far as recorded."""


class Runs(Protocol):
    """Starts trainings."""

    def check(self, nodes: str) -> None:
        """Raises InvalidInput unless `nodes` is a node range with a minimum that the cluster can hold."""

    def start(self, spec: TrialSpec) -> Run:
        """Start one.
        Raises MalletrainError: it cannot be started."""

    def find(self, spec: TrialSpec, key: str) -> Run | None:
        """The training with `key`, running or ended; None if there is none."""

    def has_capacity(self, active: int) -> bool:
        """Whether one more may be started while `active` are."""

    def forget(self, prefix: str, known: Collection[str]) -> None:
        """End trainings whose name begins with `prefix` and whose key is not in `known`: those that a killed study
        had started without recording them."""


@dataclass
class TrialContext:
    """The place of one trial.

    `file` is the study file, `folder` the trial's own, `name` its name where trainings run, `nodes` the node range
    where `train` is given none. `keys` are the trainings that were started for the trial in an earlier life of the
    study, in order; `note` records those of this one.
    """

    runs: Runs
    file: Path
    folder: Path
    name: str
    stopping: Event
    say: Callable[[str], None]
    nodes: str = "1-4"
    keys: tuple[str, ...] = ()
    note: Callable[[tuple[str, ...]], None] = lambda keys: None
    done: list[Run] = field(default_factory=list)


#: Of the thread that an objective runs in; without one, trainings are processes of this machine.
current: ContextVar[TrialContext | None] = ContextVar("malletrain_trial", default=None)
