"""The gain formulas, against the formulas of the documentation written out for one job and one size."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing.problem import JobDemand, Problem, Value
from malletrain.sizing.values import ValueRowCache, value_table
from tests.sizing.problems import job, problems


def by_hand(problem: Problem, j: JobDemand, k: int) -> float:
    """One value, as documented; for alpha = 0."""
    horizon, c, rate = problem.horizon_s, j.current, j.curve.throughput
    grow_s, shrink_s = j.grow_s, j.shrink_s
    if j.interval_s is not None:
        grow_s, shrink_s = (min(s * horizon / j.interval_s, 0.95 * horizon) for s in (grow_s, shrink_s))
    if problem.value is Value.BFTRAINER:
        stall = j.grow_s if k > c else j.shrink_s if k < c else 0.0
        value = horizon * rate(k) - stall * rate(c)
    elif k == c:
        value = horizon * rate(c)
    elif k > c:
        ready = min(j.activate_s, horizon)
        stall = grow_s if c else 0.0
        value = ready * rate(c) + max(horizon - ready - stall, 0) * rate(k)
    else:
        value = max(horizon - shrink_s, 0) * rate(k)
    value -= j.doubt * horizon * rate(c) if k < c else 0.0
    if j.remaining_samples is not None:
        value = min(value, j.remaining_samples)
    return j.weight * value


@given(problems().filter(lambda p: p.alpha == 0))
def test_every_value_is_the_documented_one(problem: Problem) -> None:
    table, jobs = value_table(problem), problem.in_order()
    by_job = [[by_hand(problem, j, k) for k in range(problem.nodes + 1) if j.permits(k)] for j in jobs]
    most = sum(max(values) - min(values) for values in by_job)
    for i, j in enumerate(jobs):
        rows = range(table.start[i], table.start[i + 1])
        assert [int(table.size[r]) for r in rows] == [k for k in range(problem.nodes + 1) if j.permits(k)]
        by_job[i][0] -= most + 1.0 if j.must_run else 0.0
        assert table.value[rows] == pytest.approx(by_job[i], rel=1e-12, abs=1e-9 + j.must_run * 1e-12 * most)
        assert table.changed[rows].tolist() == (table.size[rows] != j.current).tolist()


def test_throughput_stays_beyond_the_last_point_whatever_the_next_job_does() -> None:
    first = job(1, 0, 50, Curve(((4, 40.0),)), activate_s=0.0)
    table = value_table(Problem(10, 100, (first, job(2, 0, 50, Curve(((1, 1.0),)), activate_s=0.0))))
    worth = dict(zip(table.size[: table.start[1]].tolist(), table.value[: table.start[1]].tolist(), strict=True))
    assert worth[2] == 200 and worth[4] == 400 and worth[50] == 400


def test_what_is_not_ready_within_the_horizon_gains_nothing() -> None:
    table = value_table(Problem(10, 8, (job("late", 0, 8, activate_s=60.0), job("slow", 4, 8, grow_s=60.0))))
    late, slow = table.value[: table.start[1]], table.value[table.start[1] :]
    assert (late == 0).all()
    assert slow.argmax() == 4 and (slow[5:] == 0).all()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_alpha_fair_utilities(alpha: float) -> None:
    """Concave and rising in the speed-up; nothing is worth nothing; independent of a job's unit of samples."""
    demands = (job(1, 0, 16, Curve(((1, 7.0), (16, 112.0)))), job(2, 0, 16, Curve(((1, 700.0), (16, 11200.0)))))
    table = value_table(Problem(300, 32, demands, alpha=alpha))
    mine, other = table.value[: table.start[1]], table.value[table.start[1] :]
    assert mine == pytest.approx(other)
    assert mine[0] == 0
    gains = [b - a for a, b in pairwise(mine)]
    assert all(a > b > 0 for a, b in pairwise(gains))
    if alpha == 1:
        assert mine[16] - mine[4] == pytest.approx(300 * math.log(4))


def test_alpha_lifts_the_fairness_of_unequal_jobs() -> None:
    from malletrain.sizing.policies.exact import Exact

    steep = Curve(((1, 1.0), (16, 16.0)))
    flat = Curve(((1, 1.0), (16, 4.0)))
    demands = (job(1, 0, 16, steep), job(2, 0, 16, flat))
    sizes = {a: Exact().size(Problem(300, 16, demands, alpha=a)).sizes for a in (0.0, 1.0)}
    assert sizes[0.0][2] < sizes[1.0][2]


@given(st.lists(problems(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_table_with_a_memory_is_the_one_without(given_problems: list[Problem], random: Random) -> None:
    """Jobs come, go and stay from problem to problem; so do horizon, nodes and objective."""
    cache, pool = ValueRowCache(), [job for each in given_problems for job in each.jobs]
    for each in [*given_problems, *given_problems]:
        jobs = {job.id: job for job in random.sample(pool, random.randint(0, len(pool)))}
        problem = replace(each, jobs=tuple(jobs.values()), constraints=())
        alone, helped = value_table(problem), value_table(problem, cache)
        assert alone.ids == helped.ids
        for name in ("current", "start", "row_job", "size", "value", "changed"):
            assert np.array_equal(getattr(alone, name), getattr(helped, name)), name
