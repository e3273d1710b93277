"""The main queue simulated: what would have started when on this machine, by priority and backfill.

The log says who came when, wants how many nodes, asked for how long and ran for how long; its starts are set aside.
Waiting jobs go by priority, then by submission. At every submission and end the scheduler goes through them:

    fcfs          a job that does not fit stops all behind it
    backfill      EASY (Lifka, JSSPP 1995): the first that does not fit is given the earliest start at which running
                  jobs' limits leave it enough nodes; others start now if that does not move it
    conservative  every job that does not fit is given such a start (Mu'alem and Feitelson, IEEE TPDS 2001)

Plans go by time limits, jobs end when they ended in the log. A planned job's nodes are chosen by number from those
that are free by then: this is the plan that `squeue --start` shows and that the daemon reads holes from.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.assumed_placement import AssumedPlacement, Machine, Placed, wanted_nodes
from malletrain.replay.traces import JobRecords

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Waiting jobs that one pass looks at: bf_max_job_test of slurm.conf(5).
BACKFILL_DEPTH_JOBS = 500


class MainSchedule(StrEnum):
    """How the main queue ran."""

    LOGGED = "logged"  #: as the log says
    FCFS = "fcfs"
    BACKFILL = "backfill"
    CONSERVATIVE = "conservative"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The jobs with their simulated starts and ends, where they ran, the plan as it changed, and how many jobs are
    wider than the machine and never ran."""

    jobs: JobRecords
    placed: Placed
    plans: PlanChanges
    too_wide: int


def simulate(
    jobs: JobRecords, nodes: int, procs_per_node: int, how: MainSchedule, rule: AssumedPlacement, seed: int
) -> Scheduled:
    """Runs the queue on an empty machine of `nodes` nodes of `procs_per_node` processors."""
    wanted, part = wanted_nodes(jobs, procs_per_node)
    fits = wanted <= nodes
    kept = np.flatnonzero(fits)
    length = np.where(np.isfinite(jobs.end), jobs.end, np.maximum(jobs.last_seen, jobs.start + 1.0)) - jobs.start
    limit = np.where(np.isnan(jobs.limit), length, np.maximum(jobs.limit, 1.0))
    queue = _Queue(Machine(nodes, procs_per_node, rule, seed), how, jobs, wanted, part, length, limit)
    queue.run(kept[np.argsort(jobs.submit[kept], kind="stable")].tolist())
    started = np.flatnonzero(np.isfinite(queue.start))
    held = [queue.held[i] for i in started.tolist()]
    start = queue.start[started]
    end = start + length[started]
    simulated = replace(
        jobs, submit=jobs.submit[started], start=start, end=end, count=jobs.count[started], procs=jobs.procs[started],
        limit=jobs.limit[started], priority=jobs.priority[started], nodes=(), first=np.empty(0, np.int64),
        node=np.empty(0, np.int32), last_seen=float(end.max(initial=0.0)),
    )  # fmt: skip
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(each) for each in held], dtype=np.int64)])
    node = np.concatenate(held) if held else np.empty(0, np.int32)
    return Scheduled(simulated, Placed(first, node, 0.0, 0.0), queue.plan_changes(), int((~fits).sum()))


class _Queue:
    """The machine and the jobs that wait, at one moment."""

    def __init__(
        self,
        machine: Machine,
        how: MainSchedule,
        jobs: JobRecords,
        wanted: Ints,
        part: Ints,
        length: Floats,
        limit: Floats,
    ) -> None:
        self.machine, self.how = machine, how
        self.submit, self.priority = jobs.submit.tolist(), jobs.priority.tolist()
        self.wanted, self.part = wanted.tolist(), part.tolist()
        self.length, self.limit = length.tolist(), limit.tolist()
        self.start = np.full(len(wanted), math.inf)
        self.held: dict[int, NDArray[np.int32]] = {}
        self.waiting: list[tuple[float, float, int]] = []
        self.running: dict[int, tuple[float, int]] = {}  # job -> end by its limit, nodes that it frees
        self.ends: list[tuple[float, int]] = []
        nodes = len(machine.is_free)
        self.free_by = np.zeros(nodes)  # when limits leave each node free
        self.plan = np.full(nodes, math.inf)
        self._changes: list[tuple[float, Ints, Floats]] = []

    def run(self, arriving: list[int]) -> None:
        at = 0
        while at < len(arriving) or self.ends:
            comes = self.submit[arriving[at]] if at < len(arriving) else math.inf
            now = min(comes, self.ends[0][0] if self.ends else math.inf)
            while self.ends and self.ends[0][0] <= now:
                self._end(heapq.heappop(self.ends)[1], now)
            while at < len(arriving) and self.submit[arriving[at]] <= now:
                i = arriving[at]
                insort(self.waiting, (-self.priority[i], self.submit[i], i))
                at += 1
            self._pass(now)

    def plan_changes(self) -> PlanChanges:
        if not self._changes:
            return PlanChanges(np.empty(0), np.empty(0, np.int32), np.empty(0))
        return PlanChanges(
            np.concatenate([np.full(len(nodes), at) for at, nodes, _ in self._changes]),
            np.concatenate([nodes for _, nodes, _ in self._changes]).astype(np.int32),
            np.concatenate([starts for _, _, starts in self._changes]),
        )

    def _end(self, i: int, now: float) -> None:
        self.machine.free(self.held[i], self.part[i])
        del self.running[i]

    def _pass(self, now: float) -> None:
        """Starts what may start, and plans what the rule plans."""
        profile: _Profile | None = None
        planned: list[tuple[float, int]] = []
        stay: list[tuple[float, float, int]] = []
        looked, free = 0, self.machine.free_count
        for entry in self.waiting[:BACKFILL_DEPTH_JOBS]:
            looked += 1
            i = entry[2]
            shared = self.part[i] > 0 and self.machine.has_room(self.part[i])
            need = 0 if shared else self.wanted[i]
            if need <= free and (profile is None or need == 0 or profile.holds(need, self.limit[i])):
                self._start(i, now)
                free = self.machine.free_count
                if profile is not None and need:
                    profile.reserve(now, self.limit[i], need)
                continue
            stay.append(entry)
            if self.how is MainSchedule.FCFS:
                break
            if profile is None:
                profile = _Profile(now, free, self.running)
            elif self.how is MainSchedule.BACKFILL:
                continue
            at = profile.earliest(need, self.limit[i])
            profile.reserve(at, self.limit[i], need)
            planned.append((at, need))
        self.waiting[:looked] = stay
        plan = self._chosen(planned)
        changed = np.flatnonzero(plan != self.plan)
        if len(changed):
            self._changes.append((now, changed, plan[changed]))
            self.plan = plan

    def _start(self, i: int, now: float) -> None:
        chosen = self.machine.take(self.wanted[i], self.part[i])
        self.start[i], self.held[i] = now, chosen
        heapq.heappush(self.ends, (now + self.length[i], i))
        until = now + self.limit[i]
        opened = not self.part[i] or self.machine.used[chosen[0]] == self.part[i]
        self.running[i] = (until, len(chosen) if opened else 0)
        self.free_by[chosen] = np.maximum(self.free_by[chosen], until) if self.part[i] else until

    def _chosen(self, planned: list[tuple[float, int]]) -> Floats:
        """When each node is wanted: each planned job has those of lowest number that are free by then and that none
        before it has."""
        plan = np.full(len(self.plan), math.inf)
        free_by = np.where(self.machine.is_free, 0.0, self.free_by)
        for at, need in planned:
            plan[np.flatnonzero((free_by <= at) & np.isinf(plan))[:need]] = at
        return plan


class _Profile:
    """Free nodes over time as limits and plans have it: `free[k]` from `time[k]` on."""

    def __init__(self, now: float, free: int, running: dict[int, tuple[float, int]]) -> None:
        ends = np.array([max(until, now + 1.0) for until, _ in running.values()])  # over their limit: any moment now
        counts = np.array([count for _, count in running.values()], dtype=np.int64)
        order = np.argsort(ends, kind="stable")
        self.now = now
        self.time: Floats = np.concatenate([[now], ends[order]])
        self.free: Ints = np.concatenate([[free], free + np.cumsum(counts[order])])

    def holds(self, need: int, seconds: float) -> bool:
        """Whether so many nodes stay free from now on for so long."""
        until = int(np.searchsorted(self.time, self.now + seconds, side="left"))
        return bool(self.free[: max(until, 1)].min() >= need)

    def earliest(self, need: int, seconds: float) -> float:
        """The earliest moment from which so many nodes stay free for so long."""
        short = np.flatnonzero(self.free < need)
        enough = np.flatnonzero(self.free >= need)
        behind = np.searchsorted(short, enough)
        ends = np.append(self.time[short], math.inf)[behind]
        fits = enough[ends >= self.time[enough] + seconds]
        return float(self.time[fits[0]]) if len(fits) else float(self.time[-1])

    def reserve(self, at: float, seconds: float, need: int) -> None:
        self._cut(at)
        self._cut(at + seconds)
        first, last = np.searchsorted(self.time, [at, at + seconds], side="left")
        self.free[first:last] -= need

    def _cut(self, at: float) -> None:
        place = int(np.searchsorted(self.time, at, side="left"))
        if place < len(self.time) and self.time[place] == at:
            return
        self.time = np.insert(self.time, place, at)
        self.free = np.insert(self.free, place, self.free[place - 1])


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """From `time[i]` on, in order of time, node `node[i]` is next wanted at `start[i]` (inf: never)."""

    time: Floats
    node: NDArray[np.int32]
    start: Floats


class PlanBook:
    """The plan as it stands at the last moment asked for."""

    def __init__(self, changes: PlanChanges | None, nodes: int) -> None:
        self._changes = changes
        self._next = 0
        self.wanted_at: Floats = np.full(nodes, math.inf)

    def next_change(self) -> float:
        """When the plan next changes."""
        changes = self._changes
        return math.inf if changes is None or self._next >= len(changes.time) else float(changes.time[self._next])

    def tell(self, now: float) -> NDArray[np.int64]:
        """The nodes whose plan has changed by `now`."""
        changes = self._changes
        if changes is None or self.next_change() > now:
            return np.empty(0, np.int64)
        stop = int(np.searchsorted(changes.time, now, side="right"))
        nodes = changes.node[self._next : stop].astype(np.int64)
        self.wanted_at[nodes] = changes.start[self._next : stop]  # the last word on a node stands
        self._next = stop
        return np.unique(nodes)
