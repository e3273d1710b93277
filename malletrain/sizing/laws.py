"""What holds of every policy's answers: `assert not laws.broken(Ours(), problem)` in the tests of your own."""

from dataclasses import replace

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import check
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem


def broken(policy: Policy, problem: Problem) -> list[str]:
    """What is wrong with the policy's answer, a line each. It has one permitted size for each job, within the nodes
    and, unless it is the fallback, the constraints; and it comes again."""
    answer = policy.size(problem)
    is_fallback = answer.status is SizingStatus.FALLBACK
    wrong = check(replace(problem, constraints=()) if is_fallback else problem, answer.sizes)
    return wrong if repr(policy.size(problem)) == repr(answer) else [*wrong, "asked again, it answers otherwise"]
