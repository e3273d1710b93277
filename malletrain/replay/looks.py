"""What the daemon remembers from look to look, and makes leave at one, in columns: turns of jobs that wait too long,
open holes, and pilots that make room for the reserve. The rules are decide's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.demand import leaving_costs, with_whole_tasks
from malletrain.decide.limits import Waits, on_turn_or_starving
from malletrain.replay.sizer import rate_of_one
from malletrain.replay.workload import TrainingJob

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Turns:
    """Since when each job has nodes, or has none though it is there, and how long it had waited before."""

    def __init__(self, submitted: Floats, least: Ints, max_wait_s: float, turn_s: float) -> None:
        self._max_wait_s, self._turn_s = max_wait_s, turn_s
        self._least = least
        self.turned: Floats = submitted.copy()
        self.waited: Floats = np.zeros(len(submitted))
        self._had: NDArray[np.bool_] = np.zeros(len(submitted), np.bool_)

    def note(self, live: Ints, held: Ints, now: float, seen_at: float) -> bool:
        """What the jobs `live` hold now; returns whether one has nodes that had none, or none that had some.
        `seen_at`: the look at which the daemon sees that pilots have gone."""
        if self._max_wait_s <= 0:
            return False
        has = held > 0
        turned = live[has != self._had[live]]
        if not len(turned):
            return False
        begun = turned[~self._had[turned]]
        self.waited[begun] = np.maximum(0.0, now - self.turned[begun])
        self.turned[turned] = seen_at
        self.turned[begun] = now
        self._had[live] = has
        return True

    def must(
        self, live: Ints, held: Ints, nodes: int, now: float, least: Callable[[int], int] | None = None
    ) -> frozenset[int]:
        """The jobs that must have nodes now: those on their turn, then the longest waiting, as far as nodes reach.
        `held`: what they hold at this look, less pilots that leave at it, which end a turn and begin no wait.
        `least(job)`: the fewest nodes that it may have at this moment, where these may not be its fewest ever."""
        if self._max_wait_s <= 0 or not len(live):
            return frozenset()
        waits = Waits(live, held > 0, self._had[live], self.turned[live], self.waited[live])

        def fewest(job: int, left: int) -> int:
            fewest_of_job = int(self._least[job]) if least is None else least(job)
            return fewest_of_job if fewest_of_job <= left else 0

        return on_turn_or_starving(waits, nodes, now, self._max_wait_s, self._turn_s, fewest)

    def next_change(self, live: Ints, now: float) -> float:
        """When a job will have waited too long, or its turn ends."""
        if self._max_wait_s <= 0 or not len(live):
            return math.inf
        has = self._had[live]
        on_turn = has & (self.waited[live] >= self._max_wait_s)
        moments = self.turned[live] + np.where(on_turn, self._turn_s, np.where(has, math.inf, self._max_wait_s))
        moments = moments[moments > now]
        return float(moments.min(initial=math.inf))


class HoleRecords:
    """When the hole of each node began: the daemon tells that apart for wide pilots only."""

    def __init__(self, nodes: int) -> None:
        self.began: Floats = np.zeros(nodes)
        self._is_open = np.zeros(nodes, np.bool_)
        self._due = math.inf

    def change(self, at: float, idle: NDArray[np.bool_], look_at: float) -> None:
        """Nodes change at `at`, and were `idle` or not until then; the daemon sees it when it looks at `look_at`."""
        if self._due < at:
            self.look(idle, self._due)
        self._due = look_at

    def until(self, idle: NDArray[np.bool_], at: float) -> HoleRecords:
        """A copy of what the daemon has seen before `at`, for a replay that begins there; nodes are `idle` or not."""
        if self._due < at:
            self.look(idle, self._due)
        return copy.deepcopy(self)

    def look(self, idle: NDArray[np.bool_], at: float) -> None:
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
    `malletrain.decide.demand.harvested`; costs are in speed-ups, times the job's weight.
    """
    order = np.lexsort((nodes, started, owner))
    numbers, first, counts = np.unique(owner[order], return_index=True, return_counts=True)
    cost: Floats = np.zeros(len(nodes))
    for number, begin, count in zip(numbers.tolist(), first.tolist(), counts.tolist(), strict=True):
        each = jobs[number]
        lost = np.array(leaving_costs(each.curve.throughput, count, each.job.min_nodes))
        cost[order[begin : begin + count]] = each.job.weight * lost / rate_of_one(each)
    if task is not None:
        cost = np.array(with_whole_tasks(cost.tolist(), task.tolist()))
    return nodes[np.lexsort((nodes, cost))[:missing]]
