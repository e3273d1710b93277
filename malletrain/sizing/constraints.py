"""Side constraints: how they are made, the check of every policy's answer, and the answer when there is none; for
linear solvers, the constraints as rows over the table of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.problem import JobDemand, JobId, LinearLimit, Problem, Sizes
from malletrain.sizing.values import Floats, Ints, ValueTable, permitted_sizes, value_table

#: A bound may be exceeded by this much, relative to it: sums of decimal coefficients are not exact.
TOLERANCE = 1e-9


def cap(name: str, jobs: Iterable[JobId], nodes: int) -> LinearLimit:
    """A group of jobs (a user's, an account's, a partition's) holds at most `nodes` nodes together."""
    return LinearLimit(name, dict.fromkeys(jobs, 1.0), upper=nodes)


def guaranteed_share(name: str, jobs: Iterable[JobDemand], nodes: int, live_nodes: int) -> LinearLimit:
    """A group holds at least `nodes` nodes together, or as near below as its permitted sizes reach on `live_nodes`.

    So a group with little to run does not make the problem insoluble.
    """
    group = tuple(jobs)
    limit = min(nodes, live_nodes)
    mask = (1 << (limit + 1)) - 1
    reachable = 1  # bit n: some permitted sizes add up to n
    for job in group:
        by_job = 0
        for k in permitted_sizes(job, limit).tolist():
            by_job |= reachable << k
        reachable = by_job & mask
    return LinearLimit(name, {job.id: 1.0 for job in group}, lower=reachable.bit_length() - 1)


def check(problem: Problem, sizes: Mapping[JobId, int]) -> list[str]:
    """What is wrong with an answer, one line a violation; empty when it may be used."""
    wrong = []
    for job in problem.in_order():
        if job.id not in sizes:
            wrong.append(f"job {job.id!r} has no size")
        elif not job.permits(sizes[job.id]):
            wrong.append(f"job {job.id!r} may not run on {sizes[job.id]} nodes")
    known = {job.id for job in problem.jobs}
    wrong += [f"job {job!r} is not in the problem" for job in sizes if job not in known]
    total = sum(sizes.values())
    if total > problem.nodes:
        wrong.append(f"{total} nodes are given, {problem.nodes} are there")
    for limit in problem.constraints:
        used = math.fsum(a * sizes.get(job, 0) for job, a in limit.coefficients.items())
        if used > limit.upper + TOLERANCE * max(1.0, abs(limit.upper)):
            wrong.append(f"{limit.name}: {used:g} is above {limit.upper:g}")
        if used < limit.lower - TOLERANCE * max(1.0, abs(limit.lower)):
            wrong.append(f"{limit.name}: {used:g} is below {limit.lower:g}")
    return wrong


def fallback(problem: Problem, reason: str) -> Sizes:
    """The present sizes cut to the live nodes: the answer when there is no other. Never empties the cluster.

    Each job keeps its largest permitted size up to the present one; while they do not fit, the largest job (then the
    one with the last id) steps down. Neither side constraints nor locks are looked at: what runs was within them a
    moment ago, and to keep it running comes before a measurement.
    """
    problem = replace(problem, jobs=tuple(replace(job, locked=None) for job in problem.jobs))
    jobs = problem.in_order()
    steps = [permitted_sizes(job, min(job.current, problem.nodes)).tolist() for job in jobs]
    total = sum(step[-1] for step in steps)
    largest = [(-step[-1], -i) for i, step in enumerate(steps)]
    heapify(largest)
    while total > problem.nodes:
        size, i = heappop(largest)
        step = steps[-i]
        step.pop()
        total += size + step[-1]
        heappush(largest, (-step[-1], i))
    sizes: dict[JobId, int] = {job.id: step[-1] for job, step in zip(jobs, steps, strict=True)}
    table = value_table(problem)
    worth = table.worth(table.rows_of(sizes))
    return Sizes(SizingStatus.FALLBACK, worth, math.inf, sizes, f"present sizes, cut to the live nodes: {reason}")


def checked(problem: Problem, answer: Sizes) -> Sizes:
    """The answer if it keeps every constraint, else the fallback with the violations as its reason."""
    wrong = check(problem, answer.sizes)
    if not wrong or answer.status is SizingStatus.FALLBACK:
        return answer
    return fallback(problem, "; ".join(wrong[:3]))


def plan_of(
    problem: Problem,
    table: ValueTable,
    rows: Ints,
    reason: str,
    status: SizingStatus = SizingStatus.FEASIBLE,
    bound: float = math.inf,
    **more: Any,
) -> Sizes:
    """One row of the table for each job as a checked answer; `more`: other fields of `Sizes`."""
    sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
    return checked(problem, Sizes(status, table.worth(rows), bound, sizes, reason, **more))


@dataclass(frozen=True)
class ConstraintRows:
    """sum over chosen rows of `coefficient[:, row]` <= `upper`, one line a constraint.

    The nodes come first. A bound from below is a line with its signs turned. Lines are scaled to a largest
    coefficient of 1.
    """

    names: tuple[str, ...]
    coefficient: Floats  # (constraints, rows)
    upper: Floats

    def use(self, rows: Ints) -> Floats:
        """How much of each limit one row a job uses."""
        total: Floats = self.coefficient[:, rows].sum(axis=1)
        return total

    def hold(self, rows: Ints) -> bool:
        """Whether one row a job keeps every limit."""
        return bool(np.all(self.use(rows) <= self.upper + 1e-9 * np.maximum(1.0, np.abs(self.upper))))


def constraint_rows(problem: Problem, table: ValueTable) -> ConstraintRows:
    """The problem's nodes and side constraints over the rows of its table."""
    lines: list[tuple[str, Floats, float]] = [("nodes", table.size.astype(np.float64), float(problem.nodes))]
    for limit in problem.constraints:
        each = np.array([limit.coefficients.get(job, 0.0) for job in table.ids], dtype=np.float64)
        use = each[table.row_job] * table.size
        if math.isfinite(limit.upper):
            lines.append((limit.name, use, limit.upper))
        if math.isfinite(limit.lower):
            lines.append((limit.name, -use, -limit.lower))
    largest = [max(float(np.abs(use).max(initial=0.0)), 1e-300) if np.any(use) else 1.0 for _, use, _ in lines]
    return ConstraintRows(
        tuple(name for name, _, _ in lines),
        np.array([use / most for (_, use, _), most in zip(lines, largest, strict=True)]),
        np.array([upper / most for (_, _, upper), most in zip(lines, largest, strict=True)]),
    )
