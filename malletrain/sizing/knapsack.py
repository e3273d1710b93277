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

import numpy as np

from malletrain.sizing.values import Floats, Ints, ValueTable

#: Losses are rounded to this part of the objective's scale.
_UNIT = 2.0**-44
#: A loss too large for any plan; two of them still fit 64 bits.
_NEVER = np.int64(2**61)
#: Entries of the dynamic programme (jobs x nodes) above which it is not kept whole for tracing back.
_KEEP = 2**25


@dataclass(frozen=True)
class Price:
    """The price of a node that minimises the dual, the bound it gives, and every row's loss at it."""

    node: float
    bound: float
    loss: Floats
    steps: int


@dataclass(frozen=True)
class Solution:
    """Row of each job's size, what they are worth, the bound, and the work done."""

    rows: Ints
    objective: float
    bound: float
    work: dict[str, int]


def solve(table: ValueTable, nodes: int) -> Solution:
    """The best sizes, ties settled. Exact up to rounding (about 1e-12 of the objective)."""
    jobs = len(table.ids)
    if jobs == 0:
        return Solution(np.zeros(0, dtype=np.int64), 0.0, 0.0, {})
    price = best_price(table, nodes)
    start = repaired(table, nodes, price)
    gap = max(price.bound - table.worth(start), 0.0)
    rows, survivors, entries = least_loss(table, nodes, price, gap)
    objective = table.worth(rows)
    work = {"dual_steps": price.steps, "rows": len(table.size), "rows_left": survivors, "states": entries}
    return Solution(rows, objective, max(price.bound, objective), work)


def best_price(table: ValueTable, nodes: int) -> Price:
    """Minimises the dual over the price of a node, which is never negative."""
    first = table.start[:-1]
    size, value, row_job = table.size, table.value, table.row_job

    def at(price: float) -> tuple[float, int, Floats]:
        """Best values without the nodes' cost, nodes used by the leanest of the best choices, losses."""
        net = value - price * size
        best = np.maximum.reduceat(net, first)
        loss = best[row_job] - net
        leanest = np.full(len(first), np.iinfo(np.int64).max)
        tight = np.flatnonzero(loss <= 0)
        np.minimum.at(leanest, row_job[tight], size[tight])
        used = int(leanest.sum())
        return float(best.sum()), used, loss

    low, (sum_low, used_low, loss) = 0.0, at(0.0)
    if used_low <= nodes:
        return Price(0.0, sum_low, loss, 1)
    per_node = np.where(size > 0, (value - value[first][row_job]) / np.maximum(size, 1), 0.0)
    high = float(per_node.max()) * (1 + 1e-12)
    sum_high, used_high, loss = at(high)
    steps = 2
    best = Price(high, sum_high + high * nodes, loss, steps)
    # Lines under the dual: g(l) >= sum + l_at * used - l * used + l * nodes, one from each side of the minimum.
    while True:
        gross_low, gross_high = sum_low + low * used_low, sum_high + high * used_high
        if used_low <= used_high:
            return best
        price = (gross_low - gross_high) / (used_low - used_high)
        if not low < price < high:
            return best
        total, used, loss = at(price)
        steps += 1
        bound = total + price * nodes
        if bound < best.bound:
            best = Price(price, bound, loss, steps)
        crossing = gross_low - price * (used_low - nodes)
        if bound <= crossing + 1e-15 * abs(crossing):
            return Price(price, bound, loss, steps)
        if used > nodes:
            low, sum_low, used_low = price, total, used
        else:
            high, sum_high, used_high = price, total, used


def repaired(table: ValueTable, nodes: int, price: Price) -> Ints:
    """A plan near the price: the leanest best size of each job, then the best single exchanges that fit."""
    first, size, row_job, loss = table.start[:-1], table.size, table.row_job, price.loss
    tolerance = _UNIT * max(abs(price.bound), 1e-300)
    chosen = np.zeros(len(first), dtype=np.int64)
    tight = np.flatnonzero(loss <= tolerance)[::-1]
    chosen[row_job[tight]] = tight  # the last write is the leanest
    spare = nodes - int(size[chosen].sum())
    if spare < 0:  # only by rounding at the price; no nodes at all always fit
        chosen = first.copy()
        spare = nodes
    # Fill with rows that lose nothing, in the order of ids.
    for job in np.unique(row_job[tight]).tolist():
        if spare <= 0:
            break
        rows = np.flatnonzero(loss[first[job] : table.start[job + 1]] <= tolerance) + first[job]
        rows = rows[size[rows] - size[chosen[job]] <= spare]
        spare -= int(size[rows[-1]] - size[chosen[job]])
        chosen[job] = rows[-1]
    for _ in range(len(first) + 64):
        more = size - size[chosen][row_job]
        gain = np.where(more <= spare, loss[chosen][row_job] - loss + price.node * more, -np.inf)
        row = int(np.argmax(gain))
        if gain[row] <= tolerance:
            break
        spare -= int(more[row])
        chosen[row_job[row]] = row
    return chosen


def least_loss(table: ValueTable, nodes: int, price: Price, gap: float) -> tuple[Ints, int, int]:
    """Among plans that lose at most `gap`, the one of least loss, ties settled.

    Returns its row for each job, how many rows survived the gap, and the states of the dynamic programme.
    """
    jobs = len(table.ids)
    scale = max(abs(price.bound), float(np.abs(table.value).max(initial=0.0)), 1e-300)
    # The gap must fit the whole numbers, with the changes of all jobs in the low digits.
    unit = max(scale * _UNIT, gap * (jobs + 1) * 2.0**-58)
    most = int(np.ceil(gap / unit)) + jobs + 1
    units = np.minimum(np.rint(price.loss / unit), 2.0**62 / (jobs + 1) / 4)
    alive = np.flatnonzero(units <= most)
    key = units[alive].astype(np.int64) * (jobs + 1) + table.changed[alive]
    key_limit = np.int64(most) * (jobs + 1) + jobs

    row_job, size = table.row_job[alive], table.size[alive]
    starts = np.searchsorted(row_job, np.arange(jobs + 1))
    if price.node == 0.0:
        # Nodes cost nothing: every job takes its least key, then its fewest nodes, if all of that fits.
        rows = np.lexsort((size, key, row_job))[starts[:-1]]
        if int(size[rows].sum()) <= nodes:
            return alive[rows], len(alive), 0
    least = size[starts[:-1]]
    chosen = alive[starts[:-1]].copy()
    room = nodes - int(least.sum())
    open_jobs = [j for j in range(jobs) if starts[j + 1] - starts[j] > 1]
    fixed_key = int(sum(key[starts[j]] for j in range(jobs) if starts[j + 1] - starts[j] == 1))
    limit = key_limit - fixed_key

    stages: list[tuple[int, Ints, Ints]] = []  # job, sizes above its least, keys
    for j in open_jobs:
        mine = slice(int(starts[j]), int(starts[j + 1]))
        stages.append((j, size[mine] - least[j], key[mine]))
    programme = _Programme(stages, room, limit)
    last = programme.last
    used = np.arange(len(last), dtype=np.int64)
    unused = np.rint((room - used) * (price.node / unit))
    total = last + np.where(unused < most, unused, 2.0**60 / (jobs + 1)).astype(np.int64) * (jobs + 1)
    n = int(np.argmin(total))
    for (j, above, _), extra in zip(stages, programme.trace(n), strict=True):
        row = int(np.searchsorted(above, extra))
        chosen[j] = alive[starts[j] + row]
    return chosen, len(alive), programme.states


class _Programme:
    """Least keys over nodes used, jobs taken from the last to the first so that tracing back favours low ids."""

    def __init__(self, stages: list[tuple[int, Ints, Ints]], room: int, limit: np.int64) -> None:
        self._stages = stages
        self._room = room
        self._limit = limit
        self.states = 0
        widths = [1]
        for _, above, _ in reversed(stages):
            widths.append(min(room, widths[-1] - 1 + int(above[-1])) + 1)
        # Rows are kept only every so often when all of them would not fit; the others are computed again.
        self._every = 1 if sum(widths) <= _KEEP else max(2, int(np.sqrt(len(stages))))
        self._kept: dict[int, Ints] = {}
        table = np.zeros(1, dtype=np.int64)
        for done in range(len(stages) + 1):
            if done % self._every == 0:
                self._kept[done] = table
            if done < len(stages):
                table = self._with(done, table)
        self.last = table

    def _with(self, done: int, table: Ints) -> Ints:
        """One more job, the one `done` places from the end."""
        _, above, key = self._stages[len(self._stages) - 1 - done]
        width = min(self._room, len(table) - 1 + int(above[-1])) + 1
        out = np.full(width, _NEVER)
        for low, high, cost in _runs(above, key):
            if low >= width:
                break
            shifted = _least_of_window(table, high - low + 1)[: width - low]
            part = out[low : low + len(shifted)]
            np.minimum(part, shifted + cost, out=part)
        out[out > self._limit] = _NEVER
        self.states += width
        return out

    def _before(self, done: int) -> Ints:
        nearest = done - done % self._every
        if done not in self._kept:
            table = self._kept[nearest]
            for i in range(nearest, done):
                table = self._with(i, table)
                self._kept[i + 1] = table
        return self._kept[done]

    def trace(self, n: int) -> list[int]:
        """For each job, first to last, the nodes above its least: the most that the least key allows."""
        out = []
        for index, (_, above, key) in enumerate(self._stages):
            done = len(self._stages) - 1 - index
            table = self._before(done)
            rest = n - above
            fits = (rest >= 0) & (rest < len(table))
            cost = np.where(fits, table[np.where(fits, rest, 0)] + key, 2 * _NEVER)
            best = int(len(cost) - 1 - np.argmin(cost[::-1]))
            out.append(int(above[best]))
            n -= int(above[best])
            for stale in [k for k in self._kept if k > done]:
                del self._kept[stale]
        return out


def _runs(above: Ints, key: Ints) -> list[tuple[int, int, np.int64]]:
    """Maximal runs of successive sizes with one key, as (first, last, key)."""
    cut = np.flatnonzero((np.diff(above) != 1) | (np.diff(key) != 0)) + 1
    begin = np.concatenate(([0], cut))
    end = np.concatenate((cut - 1, [len(above) - 1]))
    return [(int(above[a]), int(above[b]), key[a]) for a, b in zip(begin, end, strict=True)]


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
