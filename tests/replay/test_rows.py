"""Rows that are kept make the same tables, and the same sizes, as a problem that is built anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from malletrain.replay.sizer import PolicyChoice, PolicySizer, demand
from malletrain.replay.value_rows import KeptRows
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import JobDemand, Problem, Value
from malletrain.sizing.registry import policy
from malletrain.sizing.values import value_table
from tests.replay.small import job, workloads

CALL = st.tuples(st.integers(0, 20), st.lists(st.integers(0, 9), min_size=4, max_size=4),
                 st.sets(st.integers(0, 3), min_size=1))  # fmt: skip


def problem(choice: PolicyChoice, demands: list[JobDemand], nodes: int) -> Problem:
    return Problem(choice.horizon_s, nodes, tuple(demands), choice.value, choice.alpha)


def test_a_job_that_permits_millions_of_nodes_costs_what_the_nodes_do() -> None:
    jobs = [job(1, most=1_000_000), job(2, most=5)]
    rows = KeptRows(jobs, lambda j, count: demand(jobs[j], count), 300.0, Value.ELASTIC, 0.0)
    for nodes, most in ((3, 4), (4, 4), (0, 4), (70, 128), (65, 128)):
        table, _ = rows.table([0, 1], [0, 0], nodes)
        expected = value_table(
            problem(PolicyChoice("exact", "exact", 300.0), [demand(each, 0) for each in jobs], nodes)
        )
        np.testing.assert_array_equal(table.size, expected.size)
        np.testing.assert_array_equal(table.value, expected.value)
        assert sum(map(len, rows._values.values())) <= 2 * (most + 1)


@given(
    jobs=workloads(), calls=st.lists(CALL, min_size=1, max_size=8), value=st.sampled_from(Value),
    alpha=st.sampled_from([0.0, 0.5, 1.0]), horizon=st.sampled_from([10.0, 300.0]), backwards=st.booleans(),
)  # fmt: skip
def test_tables_and_sizes_are_those_of_a_problem(
    jobs: list[TrainingJob], calls: list[tuple[int, list[int], set[int]]], value: Value, alpha: float,
    horizon: float, backwards: bool,
) -> None:  # fmt: skip
    jobs = jobs[::-1] if backwards else jobs
    choice = PolicyChoice("exact", "exact", horizon, value, alpha)
    rows = KeptRows(jobs, lambda j, count: demand(jobs[j], count), horizon, value, alpha)
    sizer, exact = PolicySizer(choice, jobs), policy("exact")
    for nodes, held, who in calls:
        live = [j for j in sorted(who) if j < len(jobs)]
        counts = [held[j] for j in live]
        demands = [demand(jobs[j], count) for j, count in zip(live, counts, strict=True)]
        table, at = rows.table(live, counts, nodes)
        expected = value_table(problem(choice, demands, nodes))
        assert table.ids == expected.ids
        assert [table.ids[i] for i in at] == [jobs[j].job.id for j in live]
        for name in ("current", "start", "row_job", "size", "value", "changed"):
            np.testing.assert_array_equal(getattr(table, name), getattr(expected, name), name)
        best = exact.size(problem(choice, demands, nodes)).sizes
        assert sizer(live, counts, nodes) == [best[jobs[j].job.id] for j in live]
