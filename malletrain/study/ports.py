"""Where trainings run, as the study sees it: processes of this machine, or malleable jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from malletrain.study.trial_endings import Figure, TrialEnd
from malletrain.study.trial_spec import TrialSpec


class Run(Protocol):
    """One training that has been started."""

    @property
    def key(self) -> str:
        """What it is called where it runs: finds it again after the study was killed; empty where nothing can."""

    def next(self, wait_s: float) -> Figure | TrialEnd | None:
        """What it says next, waiting up to `wait_s` seconds for it; after `TrialEnd` nothing follows."""

    def stop(self) -> None:
        """End it and give its nodes back. Idempotent."""

    def trained_s(self) -> float:
        """Seconds that it has held nodes so far, waiting left out."""

    def facts(self) -> Mapping[str, float]:
        """`node_seconds`, `preemptions`, `resizes`, as far as known."""


class Runs(Protocol):
    """Starts trainings."""

    def check(self, nodes: str) -> None:
        """Raises InvalidInput unless `nodes` is a node range, and one that there may be room for."""

    def start(self, order: TrialSpec) -> Run:
        """Start one.

        Raises:
            MalletrainError: it cannot be started as it is.
        """

    def find(self, order: TrialSpec, key: str) -> Run | None:
        """The training that was started under `key`, still running or over; None when nothing is known of it."""

    def room(self, active: int) -> bool:
        """Whether one more may be started while `active` are."""

    def forget(self, prefix: str, known: Collection[str]) -> None:
        """End what is ours by its name's beginning, but whose key is not among the known: a study that was killed
        had started it, and could not note it any more."""

    def close(self) -> None:
        """End what this holds open; trainings go on where they can."""
