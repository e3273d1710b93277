"""Prices of a few limits, such as the nodes of each class, by cutting planes on the dual.

    g(l) = sum_j max_row (v_row - l u_row) + l N,    l >= 0

is convex and bounds every plan. Each look at it gives a plane under it (Kelley, 1960); the least of the planes within
a box around the best prices so far is the next look, and the box follows what it finds (a trust region, as in bundle
methods). Only rows where a job's value bends downwards can be best at any price: sizes on a straight line, or on a
bend upwards, are left out of the search.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from malletrain.sizing.constraints import ConstraintRows
from malletrain.sizing.policies.milp.pricing import MIN_SCALE, Prices
from malletrain.sizing.quiet_highs import new_solver
from malletrain.sizing.values import Floats, Ints, ValueTable

#: Looks at the dual at most; the bound holds wherever it stops.
MAX_LOOKS = 120
#: Of the bound: what further looks may still gain.
RELATIVE_TOLERANCE = 1e-6
#: Part of the predicted gain that a look must bring to move the box.
SERIOUS_PART = 0.1


@dataclass
class Looked:
    """The best prices; and the looks with their rows (one a job) and weights, which add up to 1: the mixture of plans
    that solves the relaxation."""

    prices: Prices
    rows: list[Ints] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def class_prices(table: ValueTable, limits: ConstraintRows) -> Looked:
    """Minimises the bound over the prices of `limits`, none of which has a coefficient below zero."""
    scale = max(float(np.abs(table.value).max(initial=0.0)), MIN_SCALE)
    kept = _bends(table, limits)
    value, use, job = (
        table.value[kept] / scale,
        np.ascontiguousarray(limits.coefficient[:, kept]),
        table.row_job[kept],
    )
    first = np.searchsorted(job, np.arange(len(table.ids)))
    lines = len(limits.upper)

    def look(price: Floats) -> tuple[float, Floats, Ints]:
        net = value - price @ use
        best = np.maximum.reduceat(net, first)
        tight = np.flatnonzero(net >= best[job])
        of = job[tight]
        rows = tight[np.concatenate((np.ones(1, dtype=np.bool_), of[1:] != of[:-1]))]
        slack = limits.upper - use[:, rows].sum(axis=1)
        return float(best.sum() + price @ limits.upper), slack, rows

    price = _one_price(value, use, limits, look)
    bound, slack, rows = look(price)
    master = _Master(lines)
    master.add(price, bound, slack)
    seen = [rows]
    box = np.maximum(price, price.max(initial=0.0) * 0.1 + 1e-9)
    looks = 1
    while looks < MAX_LOOKS:
        low, high = np.maximum(price - box, 0.0), price + box
        at, least = master.least(low, high)
        tolerance = RELATIVE_TOLERANCE * max(abs(bound), 1e-12)
        inside = bool(np.all((at > low + 1e-12) | (low <= 0)) and np.all(at < high - 1e-12))
        if bound - least <= tolerance:
            if inside:
                break
            box *= 4.0
            if float(box.max()) > 1e6 * max(1.0, float(price.max(initial=0.0))):
                break
            continue
        found, slack, rows = look(at)
        looks += 1
        master.add(at, found, slack)
        seen.append(rows)
        if bound - found >= SERIOUS_PART * (bound - least):
            price, bound = at, found
            box = box * 1.5 if not inside else box
        else:
            box = box * 0.6
    weights = master.weights()
    net = table.value - (price * scale) @ limits.coefficient
    best = np.maximum.reduceat(net, table.start[:-1])
    total = float(best.sum() + (price * scale) @ limits.upper)
    every = np.unique(np.concatenate([kept[rows] for rows in seen]))
    prices = Prices(price * scale, total, best[table.row_job] - net, max(abs(total), scale), every, looks)
    return Looked(prices, [kept[rows] for rows in seen], weights)


def _bends(table: ValueTable, limits: ConstraintRows) -> Ints:
    """Rows that can be best at some prices: where, along successive sizes of one class, the value bends downwards."""
    rows = len(table.value)
    keep = np.ones(rows, dtype=np.bool_)
    if rows > 2:
        value, use = table.value, limits.coefficient
        step = np.diff(use, axis=1)
        straight = np.all(np.abs(np.diff(step, axis=1)) <= 1e-12, axis=0)
        one_job = (table.row_job[2:] == table.row_job[:-2]) & (table.size[:-2] > 0)
        bend = value[2:] - 2 * value[1:-1] + value[:-2]
        keep[1:-1] = ~(straight & one_job & (bend >= -1e-13 * np.abs(value[1:-1])))
    return np.flatnonzero(keep)


def _one_price(value: Floats, use: Floats, limits: ConstraintRows, look: object) -> Floats:
    """One price for all classes, about: where nodes of all together would be used up."""
    total, size = float(limits.upper.sum()), use.sum(axis=0)
    low, high = 0.0, float((value[size > 0] / size[size > 0]).max(initial=0.0)) + 1e-12
    lines = len(limits.upper)
    for _ in range(20):
        middle = (low + high) / 2
        _, slack, _ = look(np.full(lines, middle))  # type: ignore[operator]
        low, high = (middle, high) if float(slack.sum()) < -1e-9 * max(total, 1.0) else (low, middle)
    return np.full(lines, high)


class _Master:
    """The planes found so far: variables are the prices and the bound above all planes."""

    def __init__(self, lines: int) -> None:
        self._lines, self._planes = lines, 0
        self._lp = new_solver(presolve="off")
        none, top = np.zeros(0), highspy.kHighsInf
        cost = np.concatenate((np.zeros(lines), np.ones(1)))
        self._lp.addCols(
            lines + 1, cost, np.concatenate((np.zeros(lines), [-top])), np.full(lines + 1, top), 0,
            np.zeros(lines + 1, dtype=np.int32), none.astype(np.int32), none,
        )  # fmt: skip

    def add(self, price: Floats, bound: float, slack: Floats) -> None:
        """bound(l) >= bound + slack (l - price)."""
        index = np.arange(self._lines + 1, dtype=np.int32)
        entry = np.concatenate((-slack, np.ones(1)))
        self._lp.addRow(bound - float(slack @ price), highspy.kHighsInf, self._lines + 1, index, entry)
        self._planes += 1

    def least(self, low: Floats, high: Floats) -> tuple[Floats, float]:
        """The prices in the box where the planes are lowest, and how low."""
        for line in range(self._lines):
            self._lp.changeColBounds(line, float(low[line]), float(high[line]))
        self._lp.run()
        value = np.array(self._lp.getSolution().col_value)
        return value[: self._lines], float(value[self._lines])

    def weights(self) -> list[float]:
        """How much of each look is in the mixture that solves the relaxation."""
        dual = np.maximum(np.array(self._lp.getSolution().row_dual), 0.0)
        weights = np.zeros(self._planes)
        weights[: len(dual)] = dual[: self._planes]
        total = float(weights.sum())
        return [float(w) / total for w in weights] if total > 0 else [1.0, *([0.0] * (self._planes - 1))]
