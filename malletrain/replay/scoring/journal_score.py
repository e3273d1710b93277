"""The same figures from any journal: a replay's, or a live daemon's; and what changes of size cost by one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, cast

import numpy as np

from malletrain.domain import event as kinds
from malletrain.domain.decision import StartPilot
from malletrain.domain.event import Event
from malletrain.domain.job import Curve, MalleableJob, ResizeCosts, ThroughputSample
from malletrain.learn.curve import fit_curve
from malletrain.replay.result import Totals
from malletrain.replay.scoring.figures import Score, busiest_minute, score_of
from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.sizer import speedups
from malletrain.replay.workload import TrainingJob


@dataclass
class _Job:
    job: MalleableJob
    rates: list[ThroughputSample] = field(default_factory=list)
    first_start: float | None = None
    over_at: float | None = None
    completed: bool = False
    samples: float = 0.0
    occupied: float = 0.0
    world: tuple[str, ...] = ()


def score_journal(events: Iterable[Event], until: float | None = None) -> Score:
    """Folds a journal into the figures of the contract.

    A pilot holds its node from the start that Slurm reported to the moment when its worker left or was lost, or Slurm
    showed it held or ended; it is activating until its worker is warm. A switch stalls its whole world for its pause.
    The idle time is what POOL events show as idle, planned or harvested. Curves are those given, else those that the
    SAMPLES of the whole journal show. `until` (Unix seconds): the journal's end, where its last event is not.
    """
    listed = list(events)
    if not listed:
        return _score(_Fold(0.0, 0.0), 0.0)
    end = max(event.at for event in listed) if until is None else until
    fold = _Fold(listed[0].at, end)
    for event in listed:
        if event.at > end:
            break
        fold.take(event)
    fold.finish()
    return _score(fold, end - listed[0].at)


class _Fold:
    """The journal so far."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.now, self.end = start, start, end
        self.jobs: dict[int, _Job] = {}
        self.holding: dict[str, tuple[int, float]] = {}  # pilot -> job, since
        self.cold: dict[str, float] = {}  # pilot -> since
        self.warm_at: dict[str, float] = {}  # pilot -> when its worker was warm, before Slurm showed its start
        self.idle_nodes = 0.0
        self.totals = Totals(0)
        self.started: list[float] = []
        #: (from, to, idle nodes, {job: world}) spans, for speed-ups once all curves are known.
        self.spans: list[tuple[float, float, float, dict[int, int]]] = []
        self.pauses: list[tuple[int, float, float, int]] = []  # job, from, to, nodes

    def take(self, event: Event) -> None:
        if event.at > self.now:
            worlds = {j: len(job.world) for j, job in self.jobs.items() if job.over_at is None}
            self.spans.append((self.now, event.at, self.idle_nodes, worlds))
            self.totals.idle += self.idle_nodes * (event.at - self.now)
            self.now = event.at
        match event.payload:
            case kinds.PoolCounted() as pool:
                self.idle_nodes = float(pool.without_main)
            case kinds.JobAnnounced(job=job) if event.job is not None:
                self.jobs.setdefault(event.job, _Job(job))
            case _ if event.job in self.jobs:
                self._of_job(event, self.jobs[event.job])

    def _of_job(self, event: Event, job: _Job) -> None:
        pilot = event.pilot or ""
        match event.payload:
            case kinds.PilotStarted(started_at=started_at) if pilot not in self.holding:
                since = min(started_at or event.at, event.at)
                self.holding[pilot] = (job.job.id, since)
                job.first_start = since if job.first_start is None else job.first_start
                warm_at = self.warm_at.pop(pilot, None)
                if warm_at is None:
                    self.cold[pilot] = since
                else:
                    self.totals.activating += max(0.0, warm_at - since)
                self.totals.activations += 1
                self.started.append(since)
            case kinds.WorkerWarm():
                if pilot not in self.holding:
                    self.warm_at[pilot] = event.at  # a look every few seconds shows the start later
                self._warm(pilot)
            case kinds.PilotEnded(preempted=preempted):
                self.totals.preemptions += preempted
                self._release(pilot)
            case kinds.PilotHeld() | kinds.WorkerLeft() | kinds.WorkerLost():
                self._release(pilot)
            case kinds.GenerationPublished(members=members):
                job.world = members
            case kinds.GenerationSwitched(nodes=nodes, pause_s=pause_s):
                self.totals.rescales += 1
                self.pauses.append((job.job.id, event.at, event.at + pause_s, nodes))
            case kinds.SamplesReported(nodes=nodes, samples=samples, seconds=seconds, steps=steps):
                job.samples += samples
                if seconds > 0:
                    job.rates.append(ThroughputSample(event.at, nodes, samples, seconds, steps))
            case (kinds.JobCompleted() | kinds.JobFailed() | kinds.JobCancelled()) as over if job.over_at is None:
                job.over_at, job.completed = event.at, isinstance(over, kinds.JobCompleted)
                job.world = ()

    def _warm(self, pilot: str) -> None:
        since = self.cold.pop(pilot, None)
        if since is not None:
            self.totals.activating += self.now - since

    def _release(self, pilot: str) -> None:
        self._warm(pilot)
        self.warm_at.pop(pilot, None)
        held = self.holding.pop(pilot, None)
        if held is not None:
            job_id, since = held
            self.totals.occupied += self.now - since
            self.jobs[job_id].occupied += self.now - since
            world = self.jobs[job_id].world
            if pilot in world:
                self.jobs[job_id].world = tuple(member for member in world if member != pilot)

    def finish(self) -> None:
        if self.end > self.now:
            self.take(Event(self.end, kinds.DaemonStopped()))
        for pilot in list(self.holding):
            self._release(pilot)


def _score(fold: _Fold, seconds: float) -> Score:
    order = sorted(fold.jobs)
    most = int(max((span[2] for span in fold.spans), default=0.0))
    training = [_with_curve(fold.jobs[j]) for j in order]
    number = {j: i for i, j in enumerate(order)}
    gains = [speedups(each, max(1, min(each.job.max_nodes, most))) for each in training]
    best = Ideal(training, gains, most)
    totals = fold.totals
    for begin, end, idle, worlds in fold.spans:
        totals.ideal += best.at(tuple(sorted(number[j] for j in worlds)), int(idle)) * (end - begin)
        totals.speedup += sum(_gain(gains[number[j]], n) for j, n in worlds.items()) * (end - begin)
    for job_id, begin, end, nodes in _merged(fold.pauses, fold.end):
        totals.stalled += nodes * (end - begin)
        totals.speedup -= _gain(gains[number[job_id]], nodes) * (end - begin)
    totals.productive = totals.occupied - totals.activating - totals.stalled
    done = [fold.jobs[j] for j in order if fold.jobs[j].completed]
    totals.completed, totals.by_job = len(done), np.array([fold.jobs[j].occupied for j in order])
    jct = np.array([cast(float, job.over_at) - job.job.submitted_at for job in done])
    due = [j for j in fold.jobs.values() if j.job.deadline is not None and j.job.deadline <= fold.end]
    waits = np.array([j.first_start - j.job.submitted_at for j in fold.jobs.values() if j.first_start is not None])
    return replace(
        score_of(totals, seconds, math.fsum(job.samples for job in fold.jobs.values()), waits, jct),
        deadlines=len(due),
        deadlines_met=sum(j.completed and cast(float, j.over_at) <= cast(float, j.job.deadline) for j in due),
        busiest_minute_starts=busiest_minute(np.array(fold.started)),
    )


def _gain(gains: np.ndarray[Any, np.dtype[np.float64]], nodes: int) -> float:
    return float(gains[min(nodes, len(gains) - 1)]) if nodes > 0 else 0.0


def _with_curve(job: _Job) -> TrainingJob:
    fitted = None if job.job.given_curve is not None else fit_curve(job.rates)
    curve = job.job.given_curve or (fitted.curve(job.job.max_nodes) if fitted else Curve.linear(job.job.max_nodes))
    return TrainingJob(replace(job.job, given_curve=curve), ResizeCosts())


def _merged(pauses: list[tuple[int, float, float, int]], end: float) -> list[tuple[int, float, float, int]]:
    """Pauses of one job do not add up where they overlap: the later begins the world anew."""
    merged: list[tuple[int, float, float, int]] = []
    last: dict[int, int] = {}
    reach: dict[int, float] = {}
    for job_id, begin, stop, nodes in pauses:
        before = last.get(job_id)
        if before is not None and merged[before][2] > begin:
            was = merged[before]
            merged[before] = (was[0], was[1], begin, was[3])
        stop = min(max(stop, reach.get(job_id, stop)), end)
        reach[job_id] = stop
        last[job_id] = len(merged)
        merged.append((job_id, begin, max(begin, stop), nodes))
    return merged


def measured_costs(events: Iterable[Event], otherwise: ResizeCosts) -> tuple[ResizeCosts, str]:
    """Medians, in seconds, by a journal; what it does not show is taken from `otherwise`. And, in words, of how many:
    activations from the decision to start a pilot until its worker is warm, Slurm's part included; stalls of worlds
    to grow, and to shrink, those after a lost node among them.

    A worker that was warm before its start was decided (clocks differ) counts as nothing; a script in restart mode
    that reports its pause twice counts once, with the later one.
    """
    decided: dict[str, float] = {}
    activations: list[float] = []
    stalls: dict[tuple[int | None, int, bool], float] = {}
    for event in events:
        pilot = event.pilot or ""
        match event.payload:
            case kinds.ActionIntent(action=StartPilot()):
                decided[pilot] = event.at
            case kinds.WorkerWarm() if pilot in decided:
                activations.append(max(0.0, event.at - decided.pop(pilot)))
            case kinds.GenerationSwitched(generation=generation, grew=grew, pause_s=seconds):
                if math.isfinite(seconds) and seconds > 0.0:  # 0: a world that begins
                    stalls[event.job, generation, grew] = seconds
    grown = [seconds for (*_, grew), seconds in stalls.items() if grew]
    shrunk = [seconds for (*_, grew), seconds in stalls.items() if not grew]
    costs = replace(
        otherwise,
        activate_s=median(activations) if activations else otherwise.activate_s,
        grow_s=median(grown) if grown else otherwise.grow_s,
        shrink_s=median(shrunk) if shrunk else otherwise.shrink_s,
    )
    return costs, (
        f"{len(activations):,} activations ({costs.activate_s:.3g} s), {len(grown):,} stalls to grow "
        f"({costs.grow_s:.3g} s), {len(shrunk):,} to shrink ({costs.shrink_s:.3g} s)"
    )
