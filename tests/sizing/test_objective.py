"""What the plan puts first: short jobs, accounts that used least, and any job that has waited too long."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing.objective import (
    Objective,
    alpha_of,
    rest_or_attained,
    urgencies_by_rank,
    urgency_by_rest,
    urgency_by_use,
)
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobId, Problem
from tests.sizing.problems import job


def test_urgency_is_one_over_the_rest_or_over_what_was_done() -> None:
    assert urgency_by_rest(3600.0, 1e6) == 1.0
    assert urgency_by_rest(360.0, 0.0) == 10.0
    assert urgency_by_rest(None, 36_000.0) == 0.1
    assert urgency_by_rest(0.0, 0.0) == urgency_by_rest(60.0, 0.0), "bounded"


def test_urgency_by_rank_is_the_part_of_the_jobs_that_have_at_least_as_much_left() -> None:
    assert urgencies_by_rank([30.0, 10.0, 20.0, 20.0]) == [0.25, 1.0, 0.75, 0.75]
    assert urgencies_by_rank([math.inf, 5.0]) == [0.5, 1.0], "one that never ends comes last"
    assert urgencies_by_rank([]) == []


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_urgency_is_what_a_second_sooner_saves_where_the_shortest_goes_first(rests: list[float]) -> None:
    """Work is done one after the other: the sum of completion times falls by the urgency times the jobs."""

    def total_s(each: list[float]) -> float:
        return float(np.cumsum(sorted(each)).sum())

    tied = len(set(rests)) < len(rests)
    for j, urgency in enumerate(urgencies_by_rank(rests)):
        # So much less that no job is passed, and that the difference is not lost in rounding.
        below = max([rest for rest in rests if rest < rests[j]], default=0.0)
        less = (rests[j] - below) / 2
        saved = total_s(rests) - total_s([rest - less * (i == j) for i, rest in enumerate(rests)])
        if not tied and less > 1e-6 * max(rests):
            assert saved == pytest.approx(urgency * len(rests) * less, rel=1e-3)


def test_what_was_done_stands_for_the_rest_in_powers_of_two() -> None:
    assert rest_or_attained(None, 100.0) == rest_or_attained(None, 127.0) == 64.0
    assert rest_or_attained(None, 128.0) == 128.0
    assert rest_or_attained(7.0, 100.0) == 7.0
    assert rest_or_attained(None, 0.0) == rest_or_attained(None, 60.0), "jobs that have begun are alike"


def test_urgency_is_slurms_fair_share_factor() -> None:
    used = {"much": 300.0, "little": 100.0}
    assert urgency_by_use(used, {}, "much") == pytest.approx(2 ** -(0.75 / 0.5))
    assert urgency_by_use(used, {"much": 3.0}, "much") == pytest.approx(0.5), "used just its share"
    assert urgency_by_use(used, {}, "new") == 1.0
    assert urgency_by_use({}, {}, "any") == 1.0
    assert urgency_by_use(used, {"much": 0.0}, "much") == 0.0


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e12)),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 9)),
)
def test_urgency_falls_with_use(used: dict[str, float], shares: dict[str, float]) -> None:
    more = {**used, "a": used.get("a", 0.0) * 2 + 1.0}
    assert 0.0 <= urgency_by_use(more, shares, "a") <= urgency_by_use(used, shares, "a") <= 1.0


def test_objectives_have_an_alpha_of_their_own() -> None:
    assert alpha_of(Objective.FAIR, 0.0) == 0.5
    assert alpha_of(Objective.FAIR, 2.0) == 2.0
    assert alpha_of(Objective.SRPT, 0.0) == 0.5
    assert alpha_of(Objective.SRPT, 1.0) == 1.0
    assert alpha_of(Objective.THROUGHPUT, 0.0) == 0.0


def test_a_doubtful_curve_takes_no_nodes_from_a_job_but_lets_it_grow() -> None:
    """b would train 1 % more on a's last node; a's own level is known to 2 %."""
    mine = Curve(((1, 1.0), (2, 2.0)))
    theirs = Curve(((1, 1.005), (2, 2.015)))

    def sizes(doubt: float, nodes: int) -> dict[JobId, int]:
        jobs = (job("a", 2, 2, mine, doubt=doubt, shrink_s=0.0), job("b", 1, 2, theirs, grow_s=0.0))
        return dict(Exact().size(Problem(300, nodes, jobs)).sizes)

    assert sizes(0.0, 3) == {"a": 1, "b": 2}
    assert sizes(0.02, 3) == {"a": 2, "b": 1}
    assert sizes(0.02, 4) == {"a": 2, "b": 2}


def test_who_is_owed_nodes_comes_before_any_gain() -> None:
    slow = Curve(((4, 0.01),))
    jobs = (job("waits", 0, 4, slow, min=4, must_run=True), job("trains", 8, 8))
    assert Exact().size(Problem(300, 8, jobs)).sizes == {"waits": 4, "trains": 4}
    assert Exact().size(Problem(300, 3, jobs)).sizes == {"waits": 0, "trains": 3}
