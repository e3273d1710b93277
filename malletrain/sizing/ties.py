"""Plans of equal worth under side constraints: which of interchangeable jobs gets the larger size."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from malletrain.sizing.problem import JobDemand, JobId, Problem
from malletrain.sizing.values import Ints, ValueTable


def lower_ids_first(problem: Problem, table: ValueTable, rows: Ints) -> Ints:
    """Among jobs that differ in nothing but their id, gives the larger sizes to the lower ids."""
    groups: dict[object, list[int]] = defaultdict(list)
    for i, job in enumerate(problem.in_order()):
        groups[_all_but_id(problem, job)].append(i)
    out = rows.copy()
    for alike in groups.values():
        offsets = np.sort(rows[alike] - table.start[alike])[::-1]
        out[alike] = table.start[alike] + offsets
    return out


def _all_but_id(problem: Problem, job: JobDemand) -> object:
    return (
        job.current, job.min, job.max, tuple(sorted(job.sizes)), job.weight, job.grow_s, job.shrink_s, job.activate_s,
        job.remaining_samples, job.curve,
        tuple(_coefficient(problem, i, job.id) for i in range(len(problem.constraints))),
    )  # fmt: skip


def _coefficient(problem: Problem, index: int, job: JobId) -> float:
    constraint = problem.constraints[index]
    return constraint.coefficients.get(job, 0.0) if hasattr(constraint, "coefficients") else 0.0
