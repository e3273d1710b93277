"""Where trainings run, as the study sees it: processes of this machine, or malleable jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

from malletrain.study.trial_endings import Figure, TrialEnd
from malletrain.study.trial_spec import TrialSpec


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

        Raises:
            MalletrainError: it cannot be started.
        """

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
    watches: bool = False  #: some training of the trial was watched for pruning


#: Of the thread that an objective runs in; without one, trainings are processes of this machine.
current: ContextVar[TrialContext | None] = ContextVar("malletrain_trial", default=None)
