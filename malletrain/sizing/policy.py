"""What a sizing policy is: one method, and what it declares that it needs and can."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Protocol, runtime_checkable

from malletrain.domain.errors import InvalidInput
from malletrain.sizing.problem import Problem, Sizes
from malletrain.sizing.values import ValueRowCache


class Need(StrEnum):
    """An input that only some policies use. The value is what messages call it."""

    BATCHES = "batch sizes"  #: `JobDemand.batches`
    NOISE_SCALE = "gradient noise scales"  #: `JobDemand.noise_scale`
    DEADLINES = "deadlines"  #: `JobDemand.due`
    BUDGETS = "budgets"  #: `Problem.budgets`
    NODE_CLASSES = "node classes"  #: `Problem.classes`


@runtime_checkable
class Policy(Protocol):
    """A rule that sizes jobs. Stateless: equal problems get equal answers.

    Subclass it: what a policy does not declare has the default here.
    """

    name: str  #: by which it is chosen
    needs: frozenset[Need] = frozenset()  #: without which it would not do what it is named for; callers refuse it
    handles_constraints: bool = False  #: it keeps constraints itself; answers of others are cut to keep them
    #: It says how many nodes of which class; answers of others are what each job may have at most.
    places_classes: bool = False
    is_knapsack: bool = False  #: without constraints its answer is `knapsack.solve` of the table of values

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        """Sizes within every job's permitted ones and the problem's nodes.

        `cache`: the caller's, from its last problem; it saves time and changes no answer. Never raises for want of
        an answer: it falls back to the present sizes cut to the live nodes
        (`malletrain.sizing.constraints.fallback`).
        """
        ...


def inputs_of(problem: Problem) -> frozenset[Need]:
    """The inputs that a problem has for at least one of its jobs."""
    available = {
        Need.BATCHES: any(job.batches for job in problem.jobs),
        Need.NOISE_SCALE: any(job.noise_scale is not None for job in problem.jobs),
        Need.DEADLINES: any(job.due is not None for job in problem.jobs),
        Need.BUDGETS: bool(problem.budgets),
        Need.NODE_CLASSES: bool(problem.classes),
    }
    return frozenset(need for need, there in available.items() if there)


def require_inputs(policy: Policy, available: Collection[Need], where: str, remedy: str) -> None:
    """Refuse a policy that lacks an input it needs.
    Raises InvalidInput: `where`, naming the policy, what is missing and the `remedy`."""
    missing = [need.value for need in Need if need in policy.needs and need not in available]
    if missing:
        raise InvalidInput(where, f"policy {policy.name} needs {' and '.join(missing)}: {remedy}")
