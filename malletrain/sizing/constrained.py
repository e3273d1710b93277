"""Any policy under side constraints, and with nodes for the jobs that must run: its own plan where that keeps them,
else the best plan within it.

Few policies know side constraints, classes of nodes, or jobs that must run (`JobDemand.must_run`). What such a policy
says is taken as what each job may have at most; one that must run and got nothing may have its fewest nodes. Policy
`milp` finds the best sizes within that which keep every constraint: by its values, having no nodes costs a job that
must run more than all others can gain. So the starvation guard holds around every policy.

Where constraints cannot all be kept, guaranteed shares are put off: a cap always holds, since no nodes keep it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import check
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobDemand, Problem, Sizes
from malletrain.sizing.values import ValueRowCache, permitted_sizes

#: The policy that finds the best sizes within those of another that keep every constraint.
EXACT_UNDER_CONSTRAINTS = "milp"


def size_within_constraints(
    policy: Policy, problem: Problem, cache: ValueRowCache | None = None
) -> tuple[Sizes, tuple[str, ...]]:
    """The policy's sizes within the problem's constraints, with nodes for all that must run as far as they reach; and
    the names of the constraints that had to be put off."""
    answer = _within(policy, problem, cache)
    caps = tuple(limit for limit in problem.constraints if limit.lower == -math.inf)
    if answer.status is not SizingStatus.FALLBACK or len(caps) == len(problem.constraints):
        return answer, ()
    put_off = tuple(limit.name for limit in problem.constraints if limit not in caps)
    return _within(policy, replace(problem, constraints=caps), cache), put_off


def _within(policy: Policy, problem: Problem, cache: ValueRowCache | None) -> Sizes:
    from malletrain.sizing.registry import policy as named

    by_count = len(problem.classes) > 1 and not policy.places_classes
    asked = problem
    if by_count or not policy.handles_constraints:
        asked = replace(problem, constraints=(), classes={} if by_count else problem.classes)
    free = policy.size(asked, cache)
    waiting = {job.id for job in problem.jobs if job.must_run and not free.sizes[job.id]}
    broken = asked is not problem and bool(problem.constraints) and bool(check(problem, free.sizes))
    if not by_count and not broken and not waiting:
        return free
    # A measurement gives way to jobs that must run.
    jobs = [replace(job, locked=None) if waiting else job for job in problem.jobs]
    most = {job.id: int(permitted_sizes(job, problem.nodes)[:2].max()) for job in jobs if job.id in waiting}
    jobs = [_at_most(job, most.get(job.id, free.sizes[job.id]), problem.nodes) for job in jobs]
    cut = named(EXACT_UNDER_CONSTRAINTS).size(replace(problem, jobs=tuple(jobs)), cache)
    served = sorted(str(job) for job in waiting if cut.sizes[job])
    if not by_count and not broken and not served:
        return free
    if cut.status is SizingStatus.FALLBACK:
        return cut
    reason = free.reason
    if broken:
        reason += f"; cut to keep {', '.join(each.name for each in problem.constraints)}"
    if served:
        reason += f"; the fewest nodes for what must run: {', '.join(served)}"
    bound = math.inf if served else free.bound
    return replace(cut, status=SizingStatus.FEASIBLE, bound=bound, reason=reason, batches=free.batches)


def _at_most(job: JobDemand, size: int, nodes: int) -> JobDemand:
    """The job with no sizes beyond `size` but its present one, which costs no resize."""
    kept = [k for k in permitted_sizes(job, nodes).tolist()[1:] if k <= size]
    if job.current > size and job.permits(job.current):
        kept.append(job.current)
    return replace(job, sizes=tuple(kept), min=min(kept, default=0), max=max(kept, default=0), locked=None, bonus=())
