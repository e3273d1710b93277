"""What `train` finds around it: which trial calls, where trainings run, whether the study is being stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from malletrain.study.ports import Run, Runs


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
    watches: bool = False  #: some training of the trial was watched for pruning


#: Of the thread that an objective runs in; without one, trainings are processes of this machine.
current: ContextVar[TrialContext | None] = ContextVar("malletrain_bench", default=None)
