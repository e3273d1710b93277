"""Every constraint of a problem as a row over its table of values: what linear solvers are given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.sizing.constraints import must_change
from malletrain.sizing.problem import LinearLimit, Problem
from malletrain.sizing.values import Floats, ValueTable


@dataclass(frozen=True)
class ConstraintRows:
    """sum over chosen rows of `coefficient[:, row]` <= `upper`, one line a constraint.

    The nodes come first. A bound from below is a line with its signs turned. Lines are scaled to a largest
    coefficient of 1.
    """

    names: tuple[str, ...]
    coefficient: Floats  # (constraints, rows)
    upper: Floats

    def use(self, rows: NDArray[np.int64]) -> Floats:
        """How much of each limit one row a job uses."""
        total: Floats = self.coefficient[:, rows].sum(axis=1)
        return total

    def hold(self, rows: NDArray[np.int64]) -> bool:
        """Whether one row a job keeps every limit."""
        return bool(np.all(self.use(rows) <= self.upper + 1e-9 * np.maximum(1.0, np.abs(self.upper))))


def constraint_rows(problem: Problem, table: ValueTable) -> ConstraintRows:
    """The problem's nodes and side constraints over the rows of its table."""
    lines: list[tuple[str, Floats, float]] = [("nodes", table.size.astype(np.float64), float(problem.nodes))]
    for constraint in problem.constraints:
        if isinstance(constraint, LinearLimit):
            each = np.array([constraint.coefficients.get(job, 0.0) for job in table.ids], dtype=np.float64)
            use = each[table.row_job] * table.size
            if math.isfinite(constraint.upper):
                lines.append((constraint.name, use, constraint.upper))
            if math.isfinite(constraint.lower):
                lines.append((constraint.name, -use, -constraint.lower))
        else:
            free = np.array([not must_change(job) for job in problem.in_order()], dtype=np.bool_)
            counted = (table.changed & free[table.row_job]).astype(np.float64)
            lines.append((constraint.name, counted, float(constraint.at_most)))
    largest = [max(float(np.abs(use).max(initial=0.0)), 1e-300) if np.any(use) else 1.0 for _, use, _ in lines]
    return ConstraintRows(
        tuple(name for name, _, _ in lines),
        np.array([use / most for (_, use, _), most in zip(lines, largest, strict=True)]),
        np.array([upper / most for (_, _, upper), most in zip(lines, largest, strict=True)]),
    )
