"""The ways in which a trial ends, and what follows from each."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

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
