"""Any policy under side constraints: its own plan where that keeps them, else the best plan within it.

Few policies know side constraints, or classes of nodes. What such a policy says is taken as what each job may have at
most, and the exact programme (policy `milp`) finds the best sizes within that which keep every constraint.
Constraints that cannot be kept at all are put off, guaranteed shares first, then the limit of resizes: a cap always
holds, since no nodes keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import check
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Constraint, JobDemand, LinearLimit, Problem, Sizes
from malletrain.sizing.values import ValueRowCache, permitted_sizes

#: The policy that finds the best sizes within those of another that keep every constraint.
EXACT_UNDER_CONSTRAINTS = "milp"


def size_within_constraints(
    policy: Policy, problem: Problem, cache: ValueRowCache | None = None
) -> tuple[Sizes, tuple[str, ...]]:
    """The policy's sizes within the problem's constraints, and the names of those that had to be put off."""
    put_off: tuple[str, ...] = ()
    answer = _within(policy, problem, cache)
    for dropped in (_is_share, _is_resizes):
        if answer.status is not SizingStatus.FALLBACK or not problem.constraints:
            break
        left = tuple(each for each in problem.constraints if not dropped(each))
        if len(left) < len(problem.constraints):
            put_off += tuple(each.name for each in problem.constraints if dropped(each))
            problem = replace(problem, constraints=left)
            answer = _within(policy, problem, cache)
    return answer, put_off


def _within(policy: Policy, problem: Problem, cache: ValueRowCache | None) -> Sizes:
    from malletrain.sizing.registry import policy as named

    if problem.constraints and policy.constrained_form:
        policy = named(policy.constrained_form)
    by_count = len(problem.classes) > 1 and not policy.places_classes
    if not by_count and (not problem.constraints or policy.handles_constraints):
        return policy.size(problem, cache)
    free = policy.size(replace(problem, constraints=(), classes={} if by_count else problem.classes), cache)
    if not by_count and not check(problem, free.sizes):
        return free
    jobs = tuple(_at_most(job, free.sizes[job.id], problem.nodes) for job in problem.jobs)
    cut = named(EXACT_UNDER_CONSTRAINTS).size(replace(problem, jobs=jobs), cache)
    if cut.status is SizingStatus.FALLBACK:
        return cut
    reason = free.reason
    if problem.constraints and check(problem, free.sizes):
        reason += f"; cut to keep {_names(problem.constraints)}"
    return replace(cut, status=SizingStatus.FEASIBLE, bound=free.bound, reason=reason, batches=free.batches)


def _at_most(job: JobDemand, size: int, nodes: int) -> JobDemand:
    """The job with no sizes beyond `size` but its present one, which costs no resize."""
    kept = [k for k in permitted_sizes(job, nodes).tolist()[1:] if k <= size]
    if job.current > size and job.permits(job.current):
        kept.append(job.current)
    return replace(job, sizes=tuple(kept), min=min(kept, default=0), max=max(kept, default=0), locked=None, bonus=())


def _names(constraints: Iterable[Constraint]) -> str:
    return ", ".join(constraint.name for constraint in constraints)


def _is_share(constraint: Constraint) -> bool:
    return isinstance(constraint, LinearLimit) and constraint.lower > float("-inf")


def _is_resizes(constraint: Constraint) -> bool:
    return not isinstance(constraint, LinearLimit)
