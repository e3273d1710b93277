"""Policy `lp`: the readable statement of the problem, in PuLP.

    maximise    sum_j sum_k value[j, k] * run[j, k]
    such that   sum_k run[j, k] = 1                      for every job j       (one size; 0 is a size)
                nodes[j] = sum_k k * run[j, k]           for every job j
                sum_j nodes[j] <= N
                lower <= sum_j a[j] * nodes[j] <= upper  for every linear limit
                run binary

It is the form of record: what the documents show, what `malletrain plan --write-lp` writes, and what the fast
policies are tested against. Which of equally good plans is taken is their rule: its own plan only has to be as good.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constrained import EXACT_UNDER_CONSTRAINTS
from malletrain.sizing.constraints import checked, fallback
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobId, Problem, Sizes
from malletrain.sizing.quiet_highs import silenced
from malletrain.sizing.values import ValueRowCache, ValueTable, value_table

#: Seconds after which the solver is stopped in any case.
WATCHDOG_S = 120.0
#: Plans within this part of the best count as equally good. HiGHS keeps no constraint more tightly than 1e-10.
RELATIVE_TIE = 2e-10


def _solver_name(place: int, job: JobId) -> str:
    """A name that the LP format allows and no other job has."""
    return f"job{job}" if isinstance(job, int) else f"{place}_{re.sub(r'[^A-Za-z0-9]', '_', job)[:40]}"


def statement(problem: Problem, table: ValueTable, scale: float = 1.0) -> tuple[Any, dict[tuple[JobId, int], Any]]:
    """The problem as a PuLP model, its objective divided by `scale`, and its binaries by job and size. (PuLP
    publishes no types.)"""
    model = pulp.LpProblem("sizing", pulp.LpMaximize)
    names = {job: _solver_name(i, job) for i, job in enumerate(table.ids)}
    run: dict[tuple[JobId, int], Any] = {}
    objective, nodes, uses = [], {}, []
    for i, job in enumerate(problem.in_order()):
        rows = range(int(table.start[i]), int(table.start[i + 1]))
        for row in rows:
            name = f"run_{names[job.id]}_{table.size[row]}"
            run[job.id, int(table.size[row])] = model.add_variable(name, cat="Binary")
        mine = [(int(table.size[row]), run[job.id, int(table.size[row])]) for row in rows]
        objective += [(run[job.id, int(table.size[row])], float(table.value[row]) / scale) for row in rows]
        model.addConstraint(pulp.lpSum(one for _, one in mine) == 1, f"one_size_{names[job.id]}")
        nodes[job.id] = pulp.LpAffineExpression([(one, k) for k, one in mine])
        uses += [(one, k) for k, one in mine]
    model.setObjective(pulp.LpAffineExpression(objective))
    if uses:
        model.addConstraint(pulp.LpAffineExpression(uses) <= problem.nodes, "nodes")
    for index, limit in enumerate(problem.constraints):
        used = pulp.lpSum(a * nodes[job] for job, a in limit.coefficients.items())
        if np.isfinite(limit.upper):
            model.addConstraint(used <= limit.upper, f"limit_{index}_upper")
        if np.isfinite(limit.lower):
            model.addConstraint(used >= limit.lower, f"limit_{index}_lower")
    return model, run


class Lp(Policy):
    """PuLP with HiGHS, one thread, gaps 0. For reading and checking, not for speed."""

    name = "lp"
    handles_constraints = True

    def write(self, problem: Problem, file: Path) -> None:
        """Writes the model in the LP format that every solver reads."""
        statement(problem, value_table(problem))[0].writeLP(str(file))

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        from malletrain.sizing.registry import policy

        table = value_table(problem, cache)
        if not table.ids:
            return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {}, "no jobs")
        proven, sizes = _solve(*statement(problem, table, float(np.abs(table.value).max(initial=0.0)) or 1.0))
        if sizes is None:
            return fallback(problem, "PuLP found no sizes that keep the side constraints")
        worth = table.worth(table.rows_of(sizes))
        bound = worth if proven else float("inf")
        alike = policy(EXACT_UNDER_CONSTRAINTS).size(replace(problem, classes={}), cache) if proven else None
        if alike is not None and alike.objective >= worth - RELATIVE_TIE * max(1.0, abs(worth)):
            sizes, worth = dict(alike.sizes), alike.objective
        status = SizingStatus.OPTIMAL if proven else SizingStatus.FEASIBLE
        reason = "proven best by PuLP and HiGHS" if proven else "best plan found in PuLP's time limit"
        return checked(problem, Sizes(status, worth, max(worth, bound), sizes, reason))


class _QuietHighs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's solver, made without a word."""

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 - PuLP's name
        with silenced():
            super().createAndConfigureSolver(lp)


def _solve(model: Any, run: dict[tuple[JobId, int], Any]) -> tuple[bool, dict[JobId, int] | None]:
    """Whether the plan of a `statement` is proven, and the plan, if there is one."""
    solver = _QuietHighs(
        msg=False,
        threads=1,
        timeLimit=WATCHDOG_S,
        gapRel=0.0,
        gapAbs=0.0,
        random_seed=0,
        mip_feasibility_tolerance=1e-10,
        primal_feasibility_tolerance=1e-10,
        dual_feasibility_tolerance=1e-10,
    )
    model.solve(solver)
    # `status` says Optimal also for a solve that ran out of time; `sol_status` tells.
    found = model.sol_status
    if found not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return False, None
    sizes = {job: k for (job, k), one in run.items() if (one.varValue or 0.0) > 0.5}
    return found == pulp.LpSolutionOptimal, sizes
