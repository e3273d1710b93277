"""Policy `lp`: the readable statement of the problem, in PuLP.

    maximise    sum_j sum_k value[j, k] * run[j, k]
    such that   sum_k run[j, k] = 1                      for every job j       (one size; 0 is a size)
                nodes[j] = sum_k k * run[j, k]           for every job j
                sum_j nodes[j] <= N
                lower <= sum_j a[j] * nodes[j] <= upper  for every linear limit
                sum_j (1 - run[j, current[j]]) <= R      for every limit of resizes
                run binary

It is the form of record: what the documents show, what `malletrain plan --write-lp` writes, and what the fast
policies are tested against. A site adds any linear constraint of its own with an entry point in the group
`malletrain.lp_constraints` that names a function `extend(statement: Statement) -> None`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from malletrain.domain.decision import SizingStatus
from malletrain.sizing import knapsack
from malletrain.sizing.constraints import MAX_COUNTED, checked, fallback, lower_ids_first, must_change
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobId, LinearLimit, Problem, Sizes
from malletrain.sizing.quiet_highs import silenced
from malletrain.sizing.values import ValueRowCache, ValueTable, value_table

GROUP = "malletrain.lp_constraints"
#: Seconds after which the solver is stopped in any case.
WATCHDOG_S = 120.0
#: Plans within this part of the best count as equally good. HiGHS keeps no constraint more tightly than 1e-10.
RELATIVE_TIE = 2e-10


@dataclass(frozen=True)
class Statement:
    """The model and its parts, for extensions: `run[job, size]` is binary, `nodes[job]` the job's node count."""

    problem: Problem
    model: Any  # pulp.LpProblem; PuLP publishes no types
    run: dict[tuple[JobId, int], Any]
    nodes: dict[JobId, Any]


Extend = Callable[[Statement], None]


def site_extensions() -> tuple[Extend, ...]:
    """The constraints that installed packages add, in the order of their names."""
    return tuple(entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name))


def _solver_name(place: int, job: JobId) -> str:
    """A name that the LP format allows and no other job has."""
    return f"job{job}" if isinstance(job, int) else f"{place}_{re.sub(r'[^A-Za-z0-9]', '_', job)[:40]}"


def statement(problem: Problem, table: ValueTable, scale: float = 1.0) -> Statement:
    """The problem as a PuLP model, its objective divided by `scale`."""
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
        if isinstance(limit, LinearLimit):
            used = pulp.lpSum(a * nodes[job] for job, a in limit.coefficients.items())
            if np.isfinite(limit.upper):
                model.addConstraint(used <= limit.upper, f"limit_{index}_upper")
            if np.isfinite(limit.lower):
                model.addConstraint(used >= limit.lower, f"limit_{index}_lower")
        else:
            free = [j for j in problem.in_order() if not must_change(j)]
            kept = pulp.lpSum(run.get((j.id, j.current), 0) for j in free)
            model.addConstraint(len(free) - kept <= limit.at_most, f"limit_{index}_resizes")
    return Statement(problem, model, run, nodes)


class Lp(Policy):
    """PuLP with HiGHS, one thread, gaps 0. For reading, checking and extending, not for speed."""

    name = "lp"
    handles_constraints = True

    def __init__(self, extensions: Sequence[Extend] | None = None) -> None:
        self._extensions = site_extensions() if extensions is None else tuple(extensions)

    def write(self, problem: Problem, file: Path) -> None:
        """Writes the model in the LP format that every solver reads."""
        self._stated(problem, value_table(problem), 1.0).model.writeLP(str(file))

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        table = value_table(problem, cache)
        if not table.ids:
            return Sizes(SizingStatus.OPTIMAL, 0.0, 0.0, {}, "no jobs")
        scale = float(np.abs(table.value).max(initial=0.0)) or 1.0
        stated = self._stated(problem, table, scale)
        proven, sizes = _solve(stated)
        if sizes is None:
            return fallback(problem, "PuLP found no sizes that keep the side constraints")
        rows = table.rows_of(sizes)
        worth = table.worth(rows)
        if proven and not problem.constraints and not self._extensions:
            price = knapsack.best_price(table, problem.nodes)
            rows, _, _ = knapsack.least_loss(table, problem.nodes, price, max(price.bound - worth, 0.0))
        elif proven:
            settled = _fewest_changes(stated, worth / scale)
            if settled is not None:
                rows = table.rows_of(settled)
            if not self._extensions:
                rows = lower_ids_first(problem, table, rows)
        sizes = dict(zip(table.ids, table.size[rows].tolist(), strict=True))
        status = SizingStatus.OPTIMAL if proven else SizingStatus.FEASIBLE
        bound = max(worth, table.worth(rows)) if proven else float("inf")
        reason = "proven best by PuLP and HiGHS" if proven else "best plan found in PuLP's time limit"
        return checked(problem, Sizes(status, table.worth(rows), bound, sizes, reason))

    def _stated(self, problem: Problem, table: ValueTable, scale: float) -> Statement:
        stated = statement(problem, table, scale)
        for extend in self._extensions:
            extend(stated)
        return stated


class _QuietHighs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's solver, made without a word."""

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 - PuLP's name
        with silenced():
            super().createAndConfigureSolver(lp)


def _solve(stated: Statement) -> tuple[bool, dict[JobId, int] | None]:
    """Whether the plan is proven, and the plan, if there is one."""
    solver = _QuietHighs(
        msg=False, threads=1, timeLimit=WATCHDOG_S, gapRel=0.0, gapAbs=0.0, random_seed=0,
        mip_feasibility_tolerance=1e-10, primal_feasibility_tolerance=1e-10, dual_feasibility_tolerance=1e-10,
    )  # fmt: skip
    stated.model.solve(solver)
    # `status` says Optimal also for a solve that ran out of time; `sol_status` tells.
    found = stated.model.sol_status
    if found not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return False, None
    sizes = {job: k for (job, k), one in stated.run.items() if (one.varValue or 0.0) > 0.5}
    return found == pulp.LpSolutionOptimal, sizes


def _fewest_changes(stated: Statement, worth: float) -> dict[JobId, int] | None:
    """Of the plans of that worth: the fewest changed jobs, then the fewest nodes, then the most nodes for the first
    jobs, so that the plan follows from the problem whatever plan the solver found first."""
    model, problem = stated.model, stated.problem
    value = model.objective
    model.addConstraint(value >= worth - RELATIVE_TIE * max(1.0, abs(worth)), "as_good_as_the_best")
    current = {job.id: job.current for job in problem.jobs}
    many = 1 + problem.nodes
    cost = {(job, k): many * (k != current[job]) + k for job, k in stated.run}
    paid = pulp.LpAffineExpression([(one, cost[choice]) for choice, one in stated.run.items()])
    model.setObjective(-paid)
    proven, sizes = _solve(stated)
    if not proven or sizes is None:
        return None
    model.addConstraint(paid <= sum(cost[choice] for choice in sizes.items()) + 0.5, "as_few_changes_and_nodes")
    choices: dict[JobId, list[int]] = {}
    for job, k in stated.run:
        choices.setdefault(job, []).append(k)
    while choices:
        counted: list[JobId] = []
        combinations = 1
        for job, some in choices.items():
            if counted and combinations * len(some) > MAX_COUNTED:
                break
            counted.append(job)
            combinations *= len(some)
        if any(sizes[job] != choices[job][-1] for job in counted):
            sizes = _most_for_the_first(stated, {job: choices[job] for job in counted}) or sizes
        for place, job in enumerate(counted):
            model.addConstraint(stated.run[job, sizes[job]] == 1, f"settled_{len(choices)}_{place}")
        for job in counted:
            del choices[job]
    return sizes


def _most_for_the_first(stated: Statement, choices: dict[JobId, list[int]]) -> dict[JobId, int] | None:
    """The plan of the largest sizes for the first of these jobs."""
    weight, objective = 1, []
    for job, some in reversed(choices.items()):
        objective += [(stated.run[job, k], weight * place) for place, k in enumerate(some)]
        weight *= len(some)
    stated.model.setObjective(pulp.LpAffineExpression(objective))
    proven, sizes = _solve(stated)
    return sizes if proven else None
