"""How fast each worker computes, as jobs report it: who holds up the others, and which nodes rest for it."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.event import (
    ActionIntent,
    Event,
    JobCancelled,
    JobCompleted,
    JobFailed,
    PilotEnded,
    PilotHeld,
    PilotSetAside,
    SamplesReported,
)
from malletrain.learn.stragglers import Straggler, WorkerSpeed, stragglers

#: A node whose worker was replaced for being slow is left alone for so long.
REST_S = 1800.0


class StragglerHistory:
    """Folds the rates that windows of training carry (`malletrain.wire.messages.Samples.rates`)."""

    def __init__(self) -> None:
        self._paces: dict[int, dict[str, WorkerSpeed]] = {}
        self._slow: dict[int, tuple[Straggler, ...]] = {}
        self._resting: dict[str, tuple[float, str]] = {}

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        if event.job is None:
            return
        match event.payload:
            case SamplesReported(rates=rates, steady=True) if rates:
                self._window(event.job, rates)
            case JobCancelled() | JobCompleted() | JobFailed():
                self._paces.pop(event.job, None)
                self._slow.pop(event.job, None)
            case PilotHeld() | PilotSetAside() | PilotEnded():
                paces = self._paces.get(event.job)
                if paces is not None and paces.pop(event.pilot or "", None) is not None:
                    self._judge(event.job)
            case ActionIntent(action=LeavePilot(cause=LeaveCause.STRAGGLER)) if event.node:
                self._resting[event.node] = (event.at + REST_S, event.reason)

    def slow(self) -> Mapping[int, tuple[Straggler, ...]]:
        """The stragglers of each job that has some, the slowest first."""
        return dict(self._slow)

    def resting(self, now: float) -> Mapping[str, str]:
        """Nodes that are left alone at `now` (Unix seconds) for a slow worker, with the reason."""
        self._resting = {node: rest for node, rest in self._resting.items() if rest[0] > now}
        return {
            node: f"its last worker was replaced: {why}; to be tried again in {until - now:.0f} s"
            for node, (until, why) in self._resting.items()
        }

    def _window(self, job: int, rates: Mapping[str, float]) -> None:
        # A worker is called after its pilot and restart, `123_4.0`. Who is not in the world any more is forgotten.
        before = self._paces.get(job, {})
        by_pilot = {worker.rpartition(".")[0]: rate for worker, rate in rates.items()}
        self._paces[job] = {
            pilot: before.get(pilot, WorkerSpeed()).after(rate) for pilot, rate in sorted(by_pilot.items())
        }
        self._judge(job)

    def _judge(self, job: int) -> None:
        found = stragglers(self._paces[job])
        if found:
            self._slow[job] = found
        else:
            self._slow.pop(job, None)
