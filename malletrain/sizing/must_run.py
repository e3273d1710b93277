"""Any policy, with nodes for the jobs that must run: the starvation guard holds around every policy.

Policies that share out by the table of values give such a job (`JobDemand.must_run`) its nodes by themselves, as none
cost more than all others can gain. Others look at curves, or at nothing. Where an answer leaves such a job without
nodes, it is given its fewest, and the policy is asked again for the other jobs on the nodes that are left; until all
of them have nodes, or no caps permit it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.constraints import TOLERANCE, must_change
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Constraint, JobDemand, JobId, LinearLimit, Problem, ResizeLimit, Sizes
from malletrain.sizing.values import ValueRowCache, permitted_sizes, value_table


def size_with_must_run(
    policy: Policy, problem: Problem, cache: ValueRowCache | None = None
) -> tuple[Sizes, tuple[str, ...]]:
    """As `size_within_constraints`; besides, every job that `must_run` has nodes, as far as they and the caps reach.

    They come in the order of their ids where they do not all fit.
    """
    answer, put_off = size_within_constraints(policy, problem, cache)
    given: dict[JobId, int] = {}
    of_class: dict[JobId, dict[str, int]] = {}
    refused: set[JobId] = set()
    rest, found = problem, answer
    while True:
        without = [job for job in rest.in_order() if job.must_run and not found.sizes[job.id]]
        without = [job for job in without if job.id not in refused]
        if not without:
            break
        job = without[0]
        smaller = _given_fewest(rest, job)
        if smaller is None:
            refused.add(job.id)
            continue
        given[job.id] = problem.nodes - sum(given.values()) - smaller.nodes
        spent = {name: rest.classes[name] - left for name, left in smaller.classes.items()}
        of_class[job.id] = {name: nodes for name, nodes in sorted(spent.items()) if nodes}
        rest = smaller
        found, more = size_within_constraints(policy, rest)
        put_off += tuple(name for name in more if name not in put_off)
    return (_together(problem, found, given, of_class) if given else answer), put_off


def _given_fewest(problem: Problem, job: JobDemand) -> Problem | None:
    """The problem of the other jobs once `job` has its fewest nodes, if it is locked at more or not; None where these
    or a cap do not permit it."""
    sizes = permitted_sizes(replace(job, locked=None), problem.nodes)[1:]
    if not len(sizes):
        return None
    least = int(sizes[0])
    constraints: list[Constraint] = []
    for limit in problem.constraints:
        left = _left_of(limit, job, least)
        if left is None:
            return None
        constraints.append(left)
    classes = dict(problem.classes)
    open_to = sorted(job.on_classes.curves if job.on_classes is not None and job.on_classes.curves else classes)
    for _ in range(least if classes else 0):
        # All from one class where that has enough.
        largest = max((name for name in open_to if classes.get(name)), key=lambda name: classes[name], default="")
        if not largest:
            return None
        classes[largest] -= 1
    spent = {budget.name: least * problem.horizon_s for budget in problem.budgets if job.id in budget.jobs}
    return replace(
        problem,
        nodes=problem.nodes - least,
        jobs=tuple(each for each in problem.jobs if each.id != job.id),
        constraints=tuple(constraints),
        classes=classes,
        budgets=tuple(
            replace(each, node_s=max(0.0, each.node_s - spent.get(each.name, 0.0)), jobs=each.jobs - {job.id})
            for each in problem.budgets
        ),
        lifetimes=tuple((seconds, max(0, nodes - least)) for seconds, nodes in problem.lifetimes),
        supply=tuple(max(0, nodes - least) for nodes in problem.supply),
    )


def _left_of(limit: Constraint, job: JobDemand, size: int) -> Constraint | None:
    """What a side constraint leaves to the other jobs; None where it forbids that size."""
    if isinstance(limit, ResizeLimit):
        used = int(size != job.current and not must_change(job))
        return replace(limit, at_most=limit.at_most - used) if used <= limit.at_most else None
    use = limit.coefficients.get(job.id, 0.0) * size
    others = {each: a for each, a in limit.coefficients.items() if each != job.id}
    upper, lower = limit.upper - use, limit.lower - use
    if upper < -TOLERANCE * max(1.0, abs(limit.upper)) and all(a >= 0 for a in others.values()):
        return None
    return LinearLimit(limit.name, others, upper=upper, lower=lower if math.isfinite(lower) else limit.lower)


def _together(
    problem: Problem, found: Sizes, given: Mapping[JobId, int], of_class: Mapping[JobId, Mapping[str, int]]
) -> Sizes:
    """One answer of both parts."""
    sizes = dict(found.sizes) | dict(given)
    table = value_table(problem)
    waited = ", ".join(str(job) for job in given)
    worth = table.worth(table.rows_of(sizes)) if table.has(sizes) else found.objective
    reason = f"{found.reason}; the fewest nodes for what must run: {waited}"
    classes = {**found.classes, **(of_class if len(problem.classes) > 1 else {})}
    return replace(found, objective=worth, bound=math.inf, sizes=sizes, reason=reason, classes=classes)
