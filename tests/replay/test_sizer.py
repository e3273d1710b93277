"""The replay's sizer, which keeps values and answers, sizes as the policy does with a problem that is built anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.replay.sizer import PolicyChoice, PolicySizer, demand
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import Problem, Value
from malletrain.sizing.registry import policy
from tests.replay.small import workloads

CALL = st.tuples(st.integers(0, 20), st.lists(st.integers(0, 9), min_size=4, max_size=4),
                 st.sets(st.integers(0, 3), min_size=1))  # fmt: skip


@given(
    jobs=workloads(), calls=st.lists(CALL, min_size=1, max_size=8), value=st.sampled_from(Value),
    alpha=st.sampled_from([0.0, 0.5, 1.0]), horizon=st.sampled_from([10.0, 300.0]), backwards=st.booleans(),
)  # fmt: skip
def test_sizes_are_those_of_a_problem(
    jobs: list[TrainingJob], calls: list[tuple[int, list[int], set[int]]], value: Value, alpha: float,
    horizon: float, backwards: bool,
) -> None:  # fmt: skip
    jobs = jobs[::-1] if backwards else jobs
    sizer = PolicySizer(PolicyChoice("exact", "exact", horizon, value, alpha), jobs)
    for nodes, held, who in calls:
        live = [j for j in sorted(who) if j < len(jobs)]
        counts = [held[j] for j in live]
        demands = tuple(demand(jobs[j], count) for j, count in zip(live, counts, strict=True))
        best = policy("exact").size(Problem(horizon, nodes, demands, value, alpha)).sizes
        assert sizer(live, counts, nodes) == [best[jobs[j].job.id] for j in live]
