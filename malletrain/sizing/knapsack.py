"""The exact core: a multiple-choice knapsack (one size a job, sizes add up to at most N), for any table of values.

1. The dual  g(l) = sum_j max_k (v_jk - l k) + l N  is minimised by secants between supporting lines; it bounds every
   plan.
2. The sizes that are best at that price l, repaired by single exchanges, are a good plan.
3. A row (j, k) loses  m_j - (v_jk - l k) >= 0  against its job's best at the price. Losses of a plan add up (unused
   nodes lose l each) to bound minus objective: a row that alone loses more than the plan found is in no better plan.
4. A dynamic programme over the few rows that survive finds the least loss, and settles ties on the way.

(Sinha and Zoltners 1979; Dyer 1984; Pisinger 1995 for the core idea.)

Ties go to the fewest changed jobs, then the fewest nodes, then more nodes to the lower id. Losses are compared in
whole units of about 2^-44 of the objective, so that what differs only by rounding is a tie; equal plans then come
from every policy that settles its ties here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from malletrain.sizing.values import Floats, Ints, ValueTable

#: Losses are rounded to this part of the objective's scale.
LOSS_UNIT = 2.0**-44
#: A loss too large for any plan; two of them still fit 64 bits.
_NEVER = np.int64(2**61)
#: Entries of the dynamic programme (jobs x nodes) above which it is not kept whole for tracing back.
MAX_KEPT_STATES = 2**25
_TRUE = np.ones(1, dtype=np.bool_)
#: The price is looked for so far to either side of where it was said to be.
PRICE_SEARCH_RATIO = 0.02


@dataclass(frozen=True)
class Price:
    """The price of a node that minimises the dual, the bound it gives, and every row's loss at it."""

    node: float
    bound: float
    loss: Floats
    steps: int


@dataclass(frozen=True)
class Solution:
    """Row of each job's size, what they are worth, the bound, the work done, and a node's price."""

    rows: Ints
    objective: float
    bound: float
    work: dict[str, int]
    price: float = 0.0


def solve(table: ValueTable, nodes: int, near: float = 0.0) -> Solution:
    """The best sizes, ties settled. Exact up to rounding (about 1e-12 of the objective).

    `near`: about what a node's price is, where that is known; a good guess saves time.
    """
    jobs = len(table.ids)
    if jobs == 0:
        return Solution(np.zeros(0, dtype=np.int64), 0.0, 0.0, {})
    price = best_price(table, nodes, near)
    start = repaired(table, nodes, price)
    gap = max(price.bound - table.worth(start), 0.0)
    rows, survivors, entries = least_loss(table, nodes, price, gap)
    objective = table.worth(rows)
    work = {"dual_steps": price.steps, "rows": len(table.size), "rows_left": survivors, "states": entries}
    return Solution(rows, objective, max(price.bound, objective), work, price.node)


def best_price(table: ValueTable, nodes: int, near: float = 0.0) -> Price:
    """Minimises the dual over the price of a node, which is never negative. `near` is where it may be."""
    rows = _Rows(table.value, table.size, table.row_job, table.start[:-1])
    low, high, steps = rows.at(near * (1 - PRICE_SEARCH_RATIO)), None, 1
    if low.used <= nodes and low.price > 0:
        low, high, steps = rows.at(0.0), low, 2
    if low.used <= nodes:
        return _priced(table, nodes, 0.0, steps)
    if high is None and near > 0:
        high = rows.at(near * (1 + PRICE_SEARCH_RATIO))
        steps += 1
        if high.used > nodes:
            low, high = high, None
    if high is None:
        base = table.value[table.start[:-1]]
        high = rows.at(float(((table.value - base[table.row_job]) / np.maximum(table.size, 1)).max()) * (1 + 1e-12))
        steps += 1
    best_bound, best = high.bound(nodes), high.price
    # From either side a line under the dual; where they cross is the next price, until the dual touches the crossing.
    while low.used > high.used:
        price = (low.gross - high.gross) / (low.used - high.used)
        if not low.price < price < high.price:
            break
        crossing = low.gross - price * (low.used - nodes)
        rows = rows.between(high.sizes, low.sizes)
        touch = rows.at(price)
        steps += 1
        bound = touch.bound(nodes)
        if bound < best_bound:
            best_bound, best = bound, price
        if bound <= crossing + 1e-15 * abs(crossing):
            break
        if touch.used > nodes:
            low = touch
        else:
            high = touch
    return _priced(table, nodes, best, steps)


def _priced(table: ValueTable, nodes: int, price: float, steps: int) -> Price:
    net = table.value - price * table.size
    best = np.maximum.reduceat(net, table.start[:-1])
    return Price(price, float(np.add.reduce(best)) + price * nodes, best[table.row_job] - net, steps)


class _Touch(NamedTuple):
    """Where a line under the dual touches it: what the leanest best sizes at a price are worth and use."""

    price: float
    gross: float
    used: int
    sizes: Ints

    def bound(self, nodes: int) -> float:
        return self.gross - self.price * (self.used - nodes)


class _Rows(NamedTuple):
    """The rows that can still be best at some price in the bracket."""

    value: Floats
    size: Ints
    row_job: Ints
    first: Ints

    def at(self, price: float) -> _Touch:
        net = self.value - price * self.size
        best = np.maximum.reduceat(net, self.first)
        tight = (net >= best[self.row_job]).nonzero()[0]
        job = self.row_job[tight]
        sizes = self.size[tight[np.concatenate((_TRUE, job[1:] != job[:-1]))]]
        used = int(np.add.reduce(sizes))
        return _Touch(price, float(np.add.reduce(best)) + price * used, used, sizes)

    def between(self, fewest: Ints, most: Ints) -> _Rows:
        """Best sizes fall as the price rises: those outside what is best at either end of the bracket are out."""
        if len(self.size) <= 4 * len(self.first):
            return self
        keep = ((self.size >= fewest[self.row_job]) & (self.size <= most[self.row_job])).nonzero()[0]
        row_job = self.row_job[keep]
        first = np.concatenate((_TRUE, row_job[1:] != row_job[:-1])).nonzero()[0]
        return _Rows(self.value[keep], self.size[keep], row_job, first)


def repaired(table: ValueTable, nodes: int, price: Price) -> Ints:
    """A plan near the price: the leanest best size of each job, then what loses nothing, then single exchanges."""
    tolerance = LOSS_UNIT * max(abs(price.bound), 1e-300)
    tight = (price.loss <= tolerance).nonzero()[0]
    job = table.row_job[tight]
    begins = np.concatenate((_TRUE, job[1:] != job[:-1]))
    chosen: Ints = tight[begins]
    widest = tight[np.concatenate((begins[1:], _TRUE))]
    spare = nodes - int(np.add.reduce(table.size[chosen]))
    if spare < 0:  # only by rounding at the price; no nodes at all always fit
        return table.start[:-1].copy()
    extra = np.cumsum(table.size[widest] - table.size[chosen])
    fits = extra <= spare
    chosen[fits] = widest[fits]
    spare = nodes - int(np.add.reduce(table.size[chosen]))
    # A row that loses more than all spare nodes are worth gains by no exchange.
    near = (price.loss <= price.node * spare + tolerance).nonzero()[0]
    size, loss, row_job = table.size[near], price.loss[near], table.row_job[near]
    for _ in range(len(chosen) + 64):
        now = chosen[row_job]
        more = size - table.size[now]
        gain = np.where(more <= spare, price.loss[now] - loss + price.node * more, -np.inf)
        best = int(gain.argmax())
        if gain[best] <= tolerance:
            break
        spare -= int(more[best])
        chosen[row_job[best]] = near[best]
    return chosen


def least_loss(table: ValueTable, nodes: int, price: Price, gap: float) -> tuple[Ints, int, int]:
    """Among plans that lose at most `gap`, of which there must be one, the one of least loss, ties settled.

    Returns its row for each job, how many rows survived, and the states of the dynamic programme.
    """
    jobs = len(table.ids)
    scale = max(abs(price.bound), float(np.maximum.reduce(np.abs(table.value), initial=0.0)), 1e-300)
    # The gap must fit the whole numbers, with the changes of all jobs in the low digits.
    unit = max(scale * LOSS_UNIT, gap * (jobs + 1) * 2.0**-58)
    most = int(np.ceil(gap / unit)) + jobs + 1
    alive = (price.loss <= (most + 0.5) * unit).nonzero()[0]
    units = np.rint(price.loss[alive] / unit)
    key = units.astype(np.int64) * (jobs + 1) + table.changed[alive]

    row_job, size = table.row_job[alive], table.size[alive]
    starts = row_job.searchsorted(np.arange(jobs + 1))
    if price.node == 0.0:
        # Nodes cost nothing: every job takes its least key, then its fewest nodes, if all of that fits.
        rows = np.lexsort((size, key, row_job))[starts[:-1]]
        if int(size[rows].sum()) <= nodes:
            return alive[rows], len(alive), 0
    chosen = starts[:-1].copy()
    above = size - size[chosen][row_job]
    room = nodes - int(np.add.reduce(size[chosen]))
    is_open = starts[1:] - starts[:-1] > 1
    limit = np.int64(most) * (jobs + 1) + jobs - np.add.reduce(key[chosen[~is_open]])
    open_jobs = is_open.nonzero()[0]
    node_loss, most_unused = price.node / unit, 2.0**60 / (jobs + 1)
    programme = _Programme(_stages(above, key, starts, open_jobs), room, limit)
    last = programme.last
    unused = np.rint((room - np.arange(len(last))) * node_loss)
    total = last + np.minimum(unused, most_unused).astype(np.int64) * (jobs + 1)
    best = int(np.argmin(total))
    if total[best] > limit:
        raise ValueError("no plan loses as little as the gap")
    chosen[open_jobs] += programme.trace(best)
    return alive[chosen], len(alive), programme.states


class _Stage(NamedTuple):
    """One job's choices: nodes above its leanest, keys, and maximal runs (first, last, key) of successive sizes."""

    above: list[int]
    key: list[int]
    runs: list[tuple[int, int, int]]


def _stages(above: Ints, key: Ints, starts: Ints, jobs: Ints) -> list[_Stage]:
    begins = np.concatenate((_TRUE, (above[1:] - above[:-1] != 1) | (key[1:] != key[:-1])))
    begins[starts[:-1]] = True
    at = begins.nonzero()[0]
    ends = np.concatenate((at[1:], np.array([len(above)]))) - 1
    runs = list(zip(above[at].tolist(), above[ends].tolist(), key[at].tolist(), strict=True))
    of_job = at.searchsorted(starts).tolist()
    bounds, aboves, keys = starts.tolist(), above.tolist(), key.tolist()
    return [
        _Stage(aboves[bounds[j] : bounds[j + 1]], keys[bounds[j] : bounds[j + 1]], runs[of_job[j] : of_job[j + 1]])
        for j in jobs.tolist()
    ]


class _Programme:
    """Least keys over nodes used, jobs taken from the last to the first so that tracing back favours low ids."""

    def __init__(self, stages: list[_Stage], room: int, limit: np.int64) -> None:
        self._stages = stages
        self._room = room
        self._limit = limit
        self.states = 0
        width = 1
        for stage in reversed(stages):
            width = min(room, width - 1 + stage.above[-1]) + 1
            self.states += width
        # Tables are kept only every so often when all of them would not fit; the others are computed again.
        self._every = 1 if self.states <= MAX_KEPT_STATES else max(2, int(np.sqrt(len(stages))))
        self._kept: dict[int, Ints] = {}
        table: Ints = np.zeros(1, dtype=np.int64)
        for done in range(len(stages) + 1):
            if done % self._every == 0:
                self._kept[done] = table
            if done < len(stages):
                table = self._with(done, table)
        self.last = table

    def _with(self, done: int, table: Ints) -> Ints:
        """One more job, the one `done` places from the end."""
        stage = self._stages[len(self._stages) - 1 - done]
        width = min(self._room, len(table) - 1 + stage.above[-1]) + 1
        out = np.empty(width, dtype=np.int64)
        out.fill(_NEVER)
        for low, high, cost in stage.runs:
            if low >= width:
                break
            shifted = table if high == low else _least_of_window(table, high - low + 1)
            part = out[low : low + len(shifted)]
            np.minimum(part, shifted[: len(part)] + cost, out=part)
        out[out > self._limit] = _NEVER
        return out

    def _before(self, done: int) -> Ints:
        nearest = done - done % self._every
        if done not in self._kept:
            table = self._kept[nearest]
            for i in range(nearest, done):
                table = self._with(i, table)
                self._kept[i + 1] = table
        return self._kept[done]

    def trace(self, n: int) -> Ints:
        """Each job's choice, first to last, as a place in `above`: the most nodes that the least key allows."""
        out = []
        for index, stage in enumerate(self._stages):
            done = len(self._stages) - 1 - index
            table = self._before(done)
            best, chosen = 2**63, 0  # above all costs
            for place, (above, key) in enumerate(zip(stage.above, stage.key, strict=True)):
                if 0 <= n - above < len(table):
                    cost = int(table[n - above]) + key
                    if cost <= best:
                        best, chosen = cost, place
            out.append(chosen)
            n -= stage.above[chosen]
            self._kept.pop(done + 1, None)
        return np.array(out, dtype=np.int64)


def _least_of_window(table: Ints, length: int) -> Ints:
    """out[i] = min of table[i - length + 1 .. i], where indices outside the table do not count; by doubling."""
    out = np.concatenate((table, np.full(length - 1, _NEVER))) if length > 1 else table
    covered = 1
    while covered < length:
        step = min(covered, length - covered)
        grown = out.copy()
        np.minimum(grown[step:], out[:-step], out=grown[step:])
        out, covered = grown, covered + step
    return out
