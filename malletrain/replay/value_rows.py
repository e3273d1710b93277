"""Tables of values whose rows are kept: a job that holds so many nodes is worth the same at every event.

A replay asks for tens of thousands of tables, in which a few jobs have changed since the last one. The values are
those of `malletrain.sizing.values`, asked for one job at a time; jobs that are alike share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import JobDemand, Problem, Value, id_order
from malletrain.sizing.values import Floats, Ints, ValueTable, value_table

#: Values in the cache (64 MB).
MAX_CACHED_VALUES = 1 << 23
#: Sets of allowed sizes whose places are kept.
MAX_KNOWN_PLACES = 1 << 14


class KeptRows:
    """The tables of one workload, for one horizon, kind of value and alpha."""

    def __init__(
        self, jobs: Sequence[TrainingJob], demand: Callable[[int, int], JobDemand], horizon_s: float, value: Value,
        alpha: float,
    ) -> None:  # fmt: skip
        """`demand(j, count)`: job j as policies get it when it holds `count` nodes."""
        self._jobs, self._demand, self._terms = jobs, demand, (horizon_s, value, alpha)
        alike: dict[object, int] = {}
        self._kind = [
            alike.setdefault((each.curve, each.costs, each.job.min_nodes, each.job.max_nodes, each.job.sizes,
                              each.job.weight), len(alike)) for each in jobs
        ]  # fmt: skip
        #: Rows are made for up to so many nodes: jobs may permit far more than there ever are.
        self._reach = 0
        self._sizes: dict[int, Ints] = {}
        self._values: dict[tuple[int, int], Floats] = {}
        self._kept = 0
        # The last table: which jobs are in it, their places in the order of their ids, and what they held.
        self._live: tuple[int, ...] | None = None
        self._order: list[int] = []
        self._order_of: Ints = np.zeros(0, dtype=np.int64)
        self._in_order: list[int] = []
        self._place: Ints = np.zeros(0, dtype=np.int64)
        self._ids: tuple[int, ...] = ()
        self._held: list[int] = []
        self._bounds: list[int] = [0]
        self._value: Floats = np.zeros(0)
        self._widest = 0
        # Which sizes each job of the last table might have (None: all), and the rows of these.
        self._may: list[NDArray[np.bool_] | None] = []
        self._rows: list[Ints] = []
        self._counts: Ints = np.zeros(0, dtype=np.int64)
        self._ends: Ints = np.zeros(1, dtype=np.int64)
        self._places: Ints = np.zeros(0, dtype=np.int64)
        # By kind of job and identity of what it may have, which is kept for as long: the sizes' places.
        self._places_of: dict[tuple[int, int], tuple[NDArray[np.bool_], Ints]] = {}
        #: Which rows a table for so many nodes has, and what does not change of them.
        self._cuts: dict[int, _Cut] = {}

    def table(
        self, live: Sequence[int], counts: Sequence[int], nodes: int,
        allowed: Mapping[int, NDArray[np.bool_]] | None = None, must: Collection[int] = (),
    ) -> tuple[ValueTable, Ints]:  # fmt: skip
        """The table of the jobs `live` that hold `counts` nodes, when there are `nodes`; and for each of `live` its
        place in the table. `allowed`: by place in `live`, which sizes (0, 1, ...) that job may have now, 0 among
        them; `must`: places of jobs for which no nodes cost more than all jobs can gain. The table holds until the
        next is asked for."""
        if nodes > self._reach:
            self._reach_for(nodes)
        if tuple(live) != self._live:
            self._lay_out(tuple(live))
        for i, at in enumerate(self._order):
            if counts[at] != self._held[i]:
                self._put(i, self._values_of(live[at], counts[at]))
                self._held[i] = counts[at]
        most = min(nodes, self._widest)
        cut = self._cuts.get(most) or self._cut(most)
        if allowed:
            cut = self._within(cut, allowed)
        value = self._value if len(cut.rows) == len(self._value) else self._value[cut.rows]
        if must:
            value = self._without_none(value, cut, must)
        current = np.array(counts, dtype=np.int64)[self._order_of]
        changed = cut.size != current[cut.row_job]
        return ValueTable(self._ids, current, cut.start, cut.row_job, cut.size, value, changed), self._place

    def _reach_for(self, nodes: int) -> None:
        self._reach = 1 << (nodes - 1).bit_length()
        self._sizes.clear()
        self._places_of.clear()
        self._values.clear()
        self._kept, self._live = 0, None

    def _within(self, cut: _Cut, allowed: Mapping[int, NDArray[np.bool_]]) -> _Cut:
        """The rows of `cut` with sizes that are allowed."""
        for i, at in enumerate(self._order):
            each = allowed.get(at)
            if each is not self._may[i]:
                self._may[i] = each
                self._rows[i] = self._permitted(self._in_order[i], each) + self._bounds[i]
                self._counts[i] = len(self._rows[i])
        rows = np.concatenate(self._rows)
        row_job = np.repeat(self._places, self._counts)
        whole = self._cuts.get(self._widest) or self._cut(self._widest)
        size = whole.size[rows]
        if len(cut.rows) < len(self._value):
            few = (size <= cut.most).nonzero()[0]
            rows, row_job, size = rows[few], row_job[few], size[few]
            return _Cut(cut.most, rows, row_job.searchsorted(self._ends), row_job, size)
        start = np.zeros(len(self._counts) + 1, np.int64)
        np.cumsum(self._counts, out=start[1:])
        return _Cut(cut.most, rows, start, row_job, size)

    def _permitted(self, j: int, may: NDArray[np.bool_] | None) -> Ints:
        """Which of a job's sizes, in their order, it may have."""
        sizes = self._sizes_of(j)
        if may is None:
            return np.arange(len(sizes))
        key = self._kind[j], id(may)
        known = self._places_of.get(key)
        if known is None:
            if len(self._places_of) >= MAX_KNOWN_PLACES:
                self._places_of.clear()
            places = may[np.minimum(sizes, len(may) - 1)].nonzero()[0]
            known = self._places_of[key] = may, places
        return known[1]

    def _without_none(self, value: Floats, cut: _Cut, must: Collection[int]) -> Floats:
        """`value`, but no nodes cost each of the jobs at `must` more than all jobs can gain."""
        value = value.copy()
        none = 2.0 * float(np.maximum.reduce(np.abs(value), initial=0.0)) * len(self._order) + 1.0
        value[cut.start[self._place[list(must)]]] -= none
        return value

    def _put(self, i: int, values: Floats) -> None:
        self._value[self._bounds[i] : self._bounds[i + 1]] = values

    def _lay_out(self, live: tuple[int, ...]) -> None:
        self._live = live
        self._order = sorted(range(len(live)), key=lambda at: id_order(self._jobs[live[at]].job.id))
        self._order_of = np.array(self._order, dtype=np.int64)
        self._place = np.argsort(self._order_of)
        self._in_order = [live[at] for at in self._order]
        self._ids = tuple(self._jobs[j].job.id for j in self._in_order)
        self._held = [-1] * len(live)
        self._widest = min(self._reach, max((self._jobs[j].job.max_nodes for j in live), default=0))
        count = [len(self._sizes_of(j)) for j in self._in_order]
        self._bounds = [0, *accumulate(count)]
        self._value = np.zeros(self._bounds[-1])
        self._cuts.clear()
        self._may = [None] * len(live)
        whole = np.arange(self._bounds[-1])
        self._rows = [whole[first:last] for first, last in pairwise(self._bounds)]
        self._counts = np.array(count, dtype=np.int64)
        self._ends = np.arange(len(live) + 1)
        self._places = self._ends[:-1]

    def _cut(self, most: int) -> _Cut:
        """The rows with sizes of up to `most` nodes."""
        sizes = [self._sizes_of(j) for j in self._in_order]
        size = np.concatenate([np.zeros(0, dtype=np.int64), *sizes])
        row_job = np.repeat(np.arange(len(sizes), dtype=np.int64), [len(each) for each in sizes])
        rows = (size <= most).nonzero()[0]
        size, row_job = size[rows], row_job[rows]
        start = np.searchsorted(row_job, np.arange(len(sizes) + 1))
        if len(self._cuts) * self._bounds[-1] > MAX_CACHED_VALUES:
            self._cuts.clear()
        cut = self._cuts[most] = _Cut(most, rows, start, row_job, size)
        return cut

    def _sizes_of(self, j: int) -> Ints:
        kind = self._kind[j]
        if kind not in self._sizes:
            self._sizes[kind] = self._worth(self._demand(j, 0)).size
        return self._sizes[kind]

    def _values_of(self, j: int, held: int) -> Floats:
        """The values of all sizes of a job that holds so many nodes."""
        key = (self._kind[j], held)
        known = self._values.get(key)
        if known is None:
            if self._kept > MAX_CACHED_VALUES:
                self._values.clear()
                self._kept = 0
            known = self._values[key] = self._worth(self._demand(j, held)).value
            self._kept += len(known)
        return known

    def _worth(self, *demands: JobDemand) -> ValueTable:
        """All sizes of these jobs, which are in the order of their ids."""
        horizon_s, value, alpha = self._terms
        most = min(self._reach, max(each.max for each in demands))
        return value_table(Problem(horizon_s, most, demands, value, alpha))


class _Cut(NamedTuple):
    """Of the rows of all sizes those up to `most` nodes, and where each job's begin, their jobs and sizes."""

    most: int
    rows: Ints
    start: Ints
    row_job: Ints
    size: Ints
