"""What the daemon remembers from look to look, in columns: turns of jobs that wait too long, open holes, and Slurm
tasks of several nodes, which come and go together. The rules are decide's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from malletrain.decide.limits import Waits, on_turn_or_starving
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import leaving_costs, with_whole_tasks
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.values import Bools, Floats, Ints
from malletrain.sizing.whole_tasks import tasks_kept, unbroken_sizes


class MultiNodeTasks:
    """The task of each node, -1 where no pilot holds it. A task holds nodes of one job, `width` of them at most if it
    begins now, `narrowest` at least; `several`: whether any task may hold more than one node."""

    def __init__(self, nodes: int) -> None:
        self.width = self.narrowest = 1
        self.several = False
        self.of: Ints = np.full(nodes, -1, np.int64)
        self._next = self._count = 0
        #: How many nodes each task of a job holds, by job.
        self._widths: dict[int, dict[int, int]] = {}
        self._known: dict[tuple[tuple[int, ...], int, int, int, int], Bools] = {}

    def __len__(self) -> int:
        """How many tasks there are."""
        return self._count

    def widen(self, width: int, held: int) -> None:
        """Tasks that begin from now on hold at most `width` nodes; those that there are hold `held` in all."""
        self.width, self.narrowest = width, 1
        self.several = width > 1 or (self.several and len(self) < held)

    def begin(self, nodes: Ints, jobs: Ints) -> None:
        """Put nodes that jobs take in tasks: those of one job together."""
        first = 0
        for job, count in _runs(jobs.tolist()):
            tasks = self._next + self.groups(count)
            self.of[nodes[first : first + count]] = tasks
            first += count
            self._widths.setdefault(job, {}).update(Counter(tasks.tolist()))
            begun = int(tasks[-1]) + 1 - self._next
            self._next += begun
            self._count += begun

    def end(self, nodes: Ints, jobs: Ints) -> None:
        """Nodes leave their tasks, and the jobs that held them."""
        for task, job in zip(self.of[nodes].tolist(), jobs.tolist(), strict=True):
            widths = self._widths[job]
            widths[task] -= 1
            if not widths[task]:
                del widths[task]
                self._count -= 1
        self.of[nodes] = -1

    def groups(self, nodes: int) -> Ints:
        """For each of so many nodes, best first, the number of its task-to-be."""
        return np.arange(nodes) // self.width

    def co_allocated(self, nodes: Ints) -> Ints:
        """The other nodes of the tasks that hold `nodes`."""
        if not self.several or not len(nodes):
            return np.empty(0, np.int64)
        return np.setdiff1d(np.flatnonzero(np.isin(self.of, self.of[nodes])), nodes)

    def allowed(self, live: Sequence[int], least: Sequence[int], most: Sequence[int]) -> dict[int, Bools]:
        """By place in `live`, of jobs that cannot take any size: which of the sizes 0..`most[job]` do not break up a
        task, growing by whole ones. `least`: the fewest nodes of each job."""
        found = {}
        for place, job in enumerate(live) if self.several else ():
            own = tuple(sorted(self._widths.get(job, {}).values()))
            if self.width > 1 or (own and own[-1] > 1):
                found[place] = self._sums(own, least[job], most[job])
        return found

    def _sums(self, widths: tuple[int, ...], least: int, most: int) -> Bools:
        """Which sizes of 0..`most` are sums of some of `widths`, or all of them and more tasks."""
        key = widths, self.width, self.narrowest, least, most
        known = self._known.get(key)
        if known is None:
            known = np.zeros(most + 1, np.bool_)
            known[[0, *unbroken_sizes(widths, least, most, self.width, (), self.narrowest)]] = True
            if len(self._known) > 1 << 14:
                self._known.clear()
            self._known[key] = known
        return known

    def pilots_to_end(self, ranked: Ints, size: int) -> Ints:
        """Of a job's nodes `ranked`, best first, those that it gives up to keep at most `size` without breaking up a
        task: as few as can be. By number."""
        tasks: list[int] = self.of[ranked].tolist()
        kept = tasks_kept(tasks, size)
        return np.sort(ranked[[task not in kept for task in tasks]])


def _runs(jobs: Sequence[int]) -> list[tuple[int, int]]:
    """Each job and how often it stands there in a row."""
    return [(job, len(list(same))) for job, same in groupby(jobs)]


def cohorts(nodes: Ints, began: Floats) -> list[tuple[float | None, list[int]]]:
    """Free `nodes`, best first, by the moments when their holes `began`: as `take_cohorts` takes them."""
    pairs = zip(nodes.tolist(), began.tolist(), strict=True)
    return [(at, [node for node, _ in alike]) for at, alike in groupby(pairs, key=itemgetter(1))]


class Turns:
    """Since when each job has nodes, or has none though it is there, and how long it had waited before."""

    def __init__(self, jobs: Sequence[TrainingJob], rules: Rules) -> None:
        self._max_wait_s, self._turn_s = rules.max_wait_s, rules.turn_s
        self.changed: Floats = np.array([each.job.submitted_at for each in jobs])
        self.waited: Floats = np.zeros(len(jobs))
        self._had: Bools = np.zeros(len(jobs), np.bool_)

    def note(self, live: Ints, held: Ints, now: float, seen_at: float) -> bool:
        """What the jobs `live` hold now; returns whether one has nodes that had none, or none that had some.
        `seen_at`: the look at which the daemon sees that pilots have gone."""
        if self._max_wait_s <= 0:
            return False
        has = held > 0
        changed = live[has != self._had[live]]
        if not len(changed):
            return False
        begun = changed[~self._had[changed]]
        self.waited[begun] = np.maximum(0.0, now - self.changed[begun])
        self.changed[changed] = seen_at
        self.changed[begun] = now
        self._had[live] = has
        return True

    def must(self, live: Ints, held: Ints, nodes: int, now: float, least: Callable[[int], int]) -> frozenset[int]:
        """The jobs that must have nodes now: those on their turn, then the longest waiting, as far as nodes reach.
        `held`: what they hold at this look, less pilots that leave at it, which end a turn and begin no wait.
        `least(job)`: the fewest nodes that it may have at this moment."""
        if self._max_wait_s <= 0 or not len(live):
            return frozenset()
        waits = Waits(live, held > 0, self._had[live], self.changed[live], self.waited[live])

        def fewest(job: int, left: int) -> int:
            own = least(job)
            return own if own <= left else 0

        return on_turn_or_starving(waits, nodes, now, self._max_wait_s, self._turn_s, fewest)

    def next_change(self, live: Ints, now: float) -> float:
        """When a job will have waited too long, or its turn ends."""
        if self._max_wait_s <= 0 or not len(live):
            return math.inf
        has = self._had[live]
        on_turn = has & (self.waited[live] >= self._max_wait_s)
        moments = self.changed[live] + np.where(on_turn, self._turn_s, np.where(has, math.inf, self._max_wait_s))
        moments = moments[moments > now]
        return float(moments.min(initial=math.inf))


class HoleRecords:
    """When the hole of each node began: the daemon tells that apart for wide pilots only."""

    def __init__(self, nodes: int) -> None:
        self.began: Floats = np.zeros(nodes)
        self._is_open = np.zeros(nodes, np.bool_)
        self._due = math.inf

    def change(self, at: float, idle: Bools, look_at: float) -> None:
        """Nodes change at `at`, and were `idle` or not until then; the daemon sees it when it looks at `look_at`."""
        if self._due < at:
            self.look(idle, self._due)
        self._due = look_at

    def look(self, idle: Bools, at: float) -> None:
        """The daemon looks at `at` (seconds), at the latest, and sees which nodes are idle or held by pilots."""
        if at < self._due:
            return
        at, self._due = self._due, math.inf
        self.began[idle & ~self._is_open] = at
        self._is_open = idle.copy()


def cheapest_pilots(
    nodes: Ints, owner: Ints, started: Floats, task: Ints | None, jobs: Sequence[TrainingJob], missing: int
) -> Ints:
    """`missing` of the `nodes` that pilots hold, those that cost training least first.

    `owner`, `started`, `task`: of each of them its job, by its place in `jobs`, when its pilot started (s), and its
    Slurm task (None: each node is a task). The pilots of a job that end soonest are the first to go, as in
    `malletrain.decide.yielding.harvested`; costs are in speed-ups, times the job's weight.
    """
    order = np.lexsort((nodes, started, owner))
    numbers, first, counts = np.unique(owner[order], return_index=True, return_counts=True)
    cost: Floats = np.zeros(len(nodes))
    for number, begin, count in zip(numbers.tolist(), first.tolist(), counts.tolist(), strict=True):
        each = jobs[number]
        lost = np.array(leaving_costs(each.curve.throughput, count, each.job.min_nodes))
        cost[order[begin : begin + count]] = each.job.weight * lost / each.curve.of_one
    if task is not None:
        cost = np.array(with_whole_tasks(cost.tolist(), task.tolist()))
    return nodes[np.lexsort((nodes, cost))[:missing]]
