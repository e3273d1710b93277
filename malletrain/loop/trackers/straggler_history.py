"""How fast each worker computes, as jobs report it: who holds up the others, and which nodes a job avoids for it.

Workers report the rates of their own job alone, so what follows concerns that job alone: a node whose worker was
replaced rests for the job that replaced it, and `decide.sizes` bounds how many do at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from malletrain.domain import event as kinds
from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.event import Event
from malletrain.learn.stragglers import Straggler, WorkerSpeed, stragglers

#: A node whose worker was replaced for being slow is avoided by its job for so long.
REST_S = 1800.0


@dataclass(slots=True)
class _JobPaces:
    """What is kept of one job.

    `speed`, `node_class`: by pilot; `resting`: by node, until when and why; `class_speed`: the median worker's
    samples/s on each class of the last world that spanned several.
    """

    speed: dict[str, WorkerSpeed] = field(default_factory=dict)
    node_class: dict[str, str] = field(default_factory=dict)
    resting: dict[str, tuple[float, str]] = field(default_factory=dict)
    class_speed: Mapping[str, float] = field(default_factory=dict)

    def window(self, rates: Mapping[str, float]) -> None:
        # A worker is called after its pilot and restart, `123_4.0`. Who is not in the world any more is forgotten.
        by_pilot = {worker.rpartition(".")[0]: rate for worker, rate in rates.items()}
        self.speed = {p: self.speed.get(p, WorkerSpeed()).after(rate) for p, rate in sorted(by_pilot.items())}
        by_class: dict[str, list[float]] = {}
        for pilot, speed in self.speed.items():
            if self.node_class.get(pilot) and speed.windows:
                by_class.setdefault(self.node_class[pilot], []).append(speed.rate)
        if len(by_class) > 1:  # it stays known once the job has left all classes but one
            self.class_speed = {**self.class_speed, **{name: median(of) for name, of in sorted(by_class.items())}}


class StragglerHistory:
    """Folds the rates that windows of training carry (`malletrain.wire.messages.Samples.rates`)."""

    def __init__(self) -> None:
        self._jobs: dict[int, _JobPaces] = {}

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        if event.job is None:
            return
        job, pilot = self._jobs.get(event.job), event.pilot or ""
        if job is None:
            job = self._jobs[event.job] = _JobPaces()
        match event.payload:
            case kinds.SamplesReported(rates=rates, steady=True) if rates:
                job.window(rates)
            case kinds.PilotStarted(node_class=node_class):
                job.node_class[pilot] = node_class or ""
            case kinds.JobCancelled() | kinds.JobCompleted() | kinds.JobFailed():
                del self._jobs[event.job]
            case kinds.PilotHeld() | kinds.PilotSetAside() | kinds.PilotEnded():
                job.node_class.pop(pilot, None)
                job.speed.pop(pilot, None)
            case kinds.ActionIntent(action=LeavePilot(cause=LeaveCause.STRAGGLER)) if event.node:
                job.resting[event.node] = event.at + REST_S, event.reason

    def forget(self, job: int) -> None:
        """The job is long over. (What Slurm says of its pilots after its end is taken in as anew.)"""
        self._jobs.pop(job, None)

    def slow(self) -> Mapping[int, tuple[Straggler, ...]]:
        """The stragglers of each job that has some, the slowest first."""
        found = {job: stragglers(each.speed, each.node_class) for job, each in self._jobs.items()}
        return {job: slow for job, slow in found.items() if slow}

    def speeds_by_class(self) -> Mapping[int, Mapping[str, float]]:
        """By job that has trained on several classes of nodes at once, how fast a worker was on each (samples/s)."""
        return {job: each.class_speed for job, each in self._jobs.items() if each.class_speed}

    def avoided(self, now: float) -> Mapping[int, Mapping[str, str]]:
        """By job, the nodes that it avoids at `now` (Unix seconds) for a slow worker, with the reason."""
        found = {}
        for job, each in self._jobs.items():
            each.resting = {node: rest for node, rest in each.resting.items() if rest[0] > now}
            if each.resting:
                found[job] = {
                    node: f"its worker there was replaced: {why}; to be tried again in {until - now:.0f} s"
                    for node, (until, why) in each.resting.items()
                }
        return found
