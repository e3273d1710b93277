"""How fast each worker computes, as jobs report it: who holds up the others, and which nodes a job avoids for it.

Workers report the rates of their own job alone, so what follows from them is bounded and concerns that job alone:

- a node whose worker was replaced rests for the job that replaced it, not for others;
- a rank that is slow on two nodes within `REST_S` is slow by the script (rank 0 that logs): it is not judged again,
  and the nodes that rest for it do so no more;
- where a replacement is itself slow, what is free is no better: the job replaces no worker for a while, twice as long
  each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from malletrain.domain.decision import LeaveCause, LeavePilot, StartPilot
from malletrain.domain.event import (
    ActionIntent,
    Event,
    GenerationPublished,
    JobCancelled,
    JobCompleted,
    JobFailed,
    PilotEnded,
    PilotHeld,
    PilotSetAside,
    PilotStarted,
    SamplesReported,
)
from malletrain.learn.stragglers import Straggler, WorkerSpeed, stragglers

#: A node whose worker was replaced for being slow is avoided by its job for so long.
REST_S = 1800.0
#: Longest time for which a job replaces no worker, once replacements were slow too.
MAX_PAUSE_S = 86400.0


@dataclass(slots=True)
class _JobPaces:
    """What is kept of one job.

    `speed`, `rank`, `node`, `node_class`: by pilot; `slow_nodes`: by rank, where and when it was slow last;
    `of_script`: ranks that are slow wherever they run; `resting`: by node, until when, why, and the rank that it had;
    `stand_ins`: pilots that replaced one; `futile`: how many of these were slow; `paused_until`: Unix seconds;
    `class_speed`: the median worker's samples/s on each class of the last world that spanned several.
    """

    speed: dict[str, WorkerSpeed] = field(default_factory=dict)
    rank: dict[str, int] = field(default_factory=dict)
    node: dict[str, str] = field(default_factory=dict)
    node_class: dict[str, str] = field(default_factory=dict)
    slow_nodes: dict[int, dict[str, float]] = field(default_factory=dict)
    of_script: set[int] = field(default_factory=set)
    resting: dict[str, tuple[float, str, int | None]] = field(default_factory=dict)
    stand_ins: set[str] = field(default_factory=set)
    futile: int = 0
    paused_until: float = 0.0
    slow: tuple[Straggler, ...] = ()
    class_speed: Mapping[str, float] = field(default_factory=dict)

    def started(self, pilot: str, node: str, node_class: str) -> None:
        self.node[pilot], self.node_class[pilot] = node, node_class

    def gone(self, pilot: str, at: float) -> None:
        for kept in (self.rank, self.node, self.node_class):
            kept.pop(pilot, None)
        self.stand_ins.discard(pilot)
        if self.speed.pop(pilot, None) is not None:
            self.judge(at)

    def ranked(self, members: tuple[str, ...]) -> None:
        """A world forms: whoever has another rank than before is judged anew."""
        ranks = {pilot: rank for rank, pilot in enumerate(members)}
        for pilot in [p for p in self.speed if p in self.rank and ranks.get(p) != self.rank[p]]:
            del self.speed[pilot]
        self.rank = ranks

    def window(self, rates: Mapping[str, float], at: float) -> None:
        # A worker is called after its pilot and restart, `123_4.0`. Who is not in the world any more is forgotten.
        by_pilot = {worker.rpartition(".")[0]: rate for worker, rate in rates.items()}
        self.speed = {p: self.speed.get(p, WorkerSpeed()).after(rate) for p, rate in sorted(by_pilot.items())}
        by_class: dict[str, list[float]] = {}
        for pilot, speed in self.speed.items():
            if self.node_class.get(pilot) and speed.windows:
                by_class.setdefault(self.node_class[pilot], []).append(speed.rate)
        if len(by_class) > 1:  # it stays known once the job has left all classes but one
            self.class_speed = {**self.class_speed, **{name: median(of) for name, of in sorted(by_class.items())}}
        self.judge(at)

    def judge(self, at: float) -> None:
        for each in self._found():
            rank, node = self.rank.get(each.pilot), self.node.get(each.pilot)
            if rank is None or node is None:
                continue
            seen = {n: when for n, when in self.slow_nodes.get(rank, {}).items() if at - when <= REST_S} | {node: at}
            self.slow_nodes[rank] = seen
            if len(seen) > 1:
                self.of_script.add(rank)
                self.resting = {n: rest for n, rest in self.resting.items() if rest[2] != rank}
        self.slow = self._found()
        for each in self.slow:
            if each.pilot in self.stand_ins:
                self.stand_ins.discard(each.pilot)
                self.paused_until = at + min(MAX_PAUSE_S, REST_S * 2.0 ** min(10, self.futile))
                self.futile += 1

    def _found(self) -> tuple[Straggler, ...]:
        judged = {p: speed for p, speed in self.speed.items() if self.rank.get(p) not in self.of_script}
        return stragglers(judged, self.node_class)


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
            case SamplesReported(rates=rates, steady=True) if rates:
                job.window(rates, event.at)
            case GenerationPublished(members=members):
                job.ranked(members)
            case PilotStarted(node_class=node_class):
                job.started(pilot, event.node or "", node_class or "")
            case JobCancelled() | JobCompleted() | JobFailed():
                del self._jobs[event.job]
            case PilotHeld() | PilotSetAside() | PilotEnded():
                job.gone(pilot, event.at)
            case ActionIntent(action=StartPilot(replaces=replaced)) if replaced:
                job.stand_ins.add(pilot)
            case ActionIntent(action=LeavePilot(cause=LeaveCause.STRAGGLER)) if event.node:
                job.resting[event.node] = (event.at + REST_S, event.reason, job.rank.get(pilot))

    def forget(self, job: int) -> None:
        """The job is long over. (What Slurm says of its pilots after its end is taken in as anew.)"""
        self._jobs.pop(job, None)

    def slow(self, now: float) -> Mapping[int, tuple[Straggler, ...]]:
        """The stragglers of each job that has some to replace at `now` (Unix seconds), the slowest first."""
        return {job: each.slow for job, each in self._jobs.items() if each.slow and each.paused_until <= now}

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
                    for node, (until, why, _) in each.resting.items()
                }
        return found
