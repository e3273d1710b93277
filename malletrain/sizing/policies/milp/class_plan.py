"""A whole plan near the prices of a few limits, without a solver: rounding, repair, and exchanges.

The relaxation is a mixture of plans; each job takes its row from one of them, alike jobs in the mixture's parts. What
is used too much is given back where that loses least for what it frees, what is left over is given where it gains
most. Then exchanges: one job takes what it would rather have, others make room at the least loss, what is left is
given out anew; whatever is better stays (a greedy with exchanges, for when an exact programme would take too long).
"""

from __future__ import annotations

import numpy as np

from malletrain.sizing.constraints import ConstraintRows
from malletrain.sizing.policies.milp.class_prices import Looked
from malletrain.sizing.values import Floats, Ints, ValueTable

#: Rows that exchanges look at, those of least loss first.
MAX_NEAR_ROWS = 12_000
#: Of that many rows in all, exchanges are tried so often; with more rows less often.
MAX_EXCHANGE_WORK = 3_000_000
#: Most rows that one exchange chooses from, those that gain most first.
MAX_WANTED_ROWS = 64
_TOLERANCE = 1e-9


def near_plan(table: ValueTable, limits: ConstraintRows, looked: Looked) -> Ints:
    """Rows, one a job, that keep every limit (none has a coefficient below zero)."""
    loss = looked.prices.loss
    search = _Exchanges(table, limits, loss, looked.prices.scale)
    plan = search.filled(search.repaired(_rounded(table, looked)))
    return search.exchanged(plan)


def _rounded(table: ValueTable, looked: Looked) -> Ints:
    """Each job's row of one look, by the looks' weights: a low-discrepancy sequence over jobs that are alike."""
    jobs = len(table.ids)
    chosen = np.stack(looked.rows)
    edges = np.cumsum(np.array(looked.weights))
    best = np.maximum.reduceat(table.value, table.start[:-1])
    order = np.argsort(best, kind="stable")
    at = np.empty(jobs)
    at[order] = (np.arange(jobs) * 0.6180339887498949 + 0.5) % 1.0
    part = np.searchsorted(edges, at * edges[-1]).clip(max=len(edges) - 1)
    rows: Ints = chosen[part, np.arange(jobs)]
    return rows


def _largest(values: Floats, count: int) -> Ints:
    """Places of the `count` largest values, the largest first, of equal ones the first: as a stable sort has it."""
    if len(values) <= count:
        return np.argsort(-values, kind="stable")
    among = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return among[np.argsort(-values[among], kind="stable")][:count]


class _Exchanges:
    def __init__(self, table: ValueTable, limits: ConstraintRows, loss: Floats, scale: float) -> None:
        self._limits, self._table = limits, table
        kept = np.zeros(len(loss), dtype=np.bool_)
        kept[table.start[:-1]] = True
        kept[~table.changed] = True
        if len(loss) <= MAX_NEAR_ROWS:
            kept[:] = True
        else:
            kept[np.argpartition(loss, MAX_NEAR_ROWS)[:MAX_NEAR_ROWS]] = True
        self._rows = np.flatnonzero(kept)
        self._job = table.row_job[self._rows]
        self._value, self._loss = table.value[self._rows], loss[self._rows]
        self._use = np.ascontiguousarray(limits.coefficient[:, self._rows])
        self._small = 1e-12 * scale
        self._slack = _TOLERANCE * np.maximum(1.0, np.abs(limits.upper))

    def _spare(self, plan: Ints) -> Floats:
        return np.asarray(self._limits.upper - self._limits.use(plan))

    def repaired(self, plan: Ints) -> Ints:
        """The plan with less where a limit is exceeded."""
        plan, spare = plan.copy(), self._spare(plan)
        value, use = self._table.value, self._limits.coefficient
        while np.any(spare < -self._slack):
            over = np.maximum(-spare, 0.0)
            exceeded = np.flatnonzero(spare < -self._slack)
            # Rows of jobs that use what is exceeded: no others free any of it.
            using = np.flatnonzero(np.any(use[np.ix_(exceeded, plan)] > 0, axis=0)[self._job])
            now = plan[self._job[using]]
            more = self._use[:, using] - use[:, now]
            frees = np.minimum(-more, over[:, None]).clip(min=0.0).sum(axis=0)
            # What makes another limit worse is no way out.
            frees[np.any(more > np.maximum(spare, 0.0)[:, None] + self._slack[:, None], axis=0)] = 0.0
            worse = value[now] - self._value[using]
            cost = np.where(frees > 0, worse / np.maximum(frees, 1e-300), np.inf)
            best = int(np.argmin(cost)) if len(cost) else 0
            if not len(cost) or not np.isfinite(cost[best]):
                return self._table.start[:-1].copy()
            spare = spare - more[:, best]
            plan[self._job[using[best]]] = self._rows[using[best]]
        return plan

    def filled(self, plan: Ints) -> Ints:
        """The plan with what is left over given where it gains most."""
        plan, spare = plan.copy(), self._spare(plan)
        value, use = self._table.value, self._limits.coefficient
        while True:
            now = plan[self._job]
            gain = self._value - value[now]
            able = np.flatnonzero(gain > self._small)
            if not len(able):
                return plan
            more = self._use[:, able] - use[:, now[able]]
            fits = np.all(more <= spare[:, None] + self._slack[:, None], axis=0)
            able, more = able[fits], more[:, fits]
            if not len(able):
                return plan
            best = int(np.argmax(gain[able]))
            spare = spare - more[:, best]
            plan[self._job[able[best]]] = self._rows[able[best]]

    def exchanged(self, plan: Ints) -> Ints:
        """The plan after exchanges that gain."""
        worth = self._table.worth(plan)
        tries = MAX_EXCHANGE_WORK // max(1, len(self._rows) * len(self._limits.upper))
        refused: set[int] = set()
        while tries > 0:
            now = plan[self._job]
            nearer = self._loss_now(plan)[self._job] - self._loss
            nearer[self._rows == now] = -np.inf
            order = _largest(nearer, MAX_WANTED_ROWS)
            wanted = next((int(i) for i in order if int(i) not in refused and nearer[i] > self._small), None)
            if wanted is None:
                return plan
            tries -= 1
            other = plan.copy()
            other[self._job[wanted]] = self._rows[wanted]
            other = self.filled(self._repaired_around(other, int(self._job[wanted])))
            better = self._table.worth(other)
            if better > worth + self._small:
                plan, worth = other, better
                refused.clear()
            else:
                refused.add(wanted)
        return plan

    def _loss_now(self, plan: Ints) -> Floats:
        losses = np.zeros(len(plan))
        place = np.searchsorted(self._rows, plan).clip(max=len(self._rows) - 1)
        known = self._rows[place] == plan
        losses[known] = self._loss[place[known]]
        return losses

    def _repaired_around(self, plan: Ints, job: int) -> Ints:
        """As `repaired`, but that job keeps its row if others can make room."""
        mine = slice(*np.searchsorted(self._job, (job, job + 1)))
        kept = self._value[mine].copy()
        self._value[mine] = -np.inf
        try:
            return self.repaired(plan)
        finally:
            self._value[mine] = kept
