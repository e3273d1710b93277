"""What the plan puts first: short jobs, accounts that used least, and any job that has waited too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing.objective import Objective, alpha_of, urgency_by_rest, urgency_by_use
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobId, Problem
from tests.sizing.problems import job


def test_urgency_is_one_over_the_rest_or_over_what_was_done() -> None:
    assert urgency_by_rest(3600.0, 1e6) == 1.0
    assert urgency_by_rest(360.0, 0.0) == 10.0
    assert urgency_by_rest(None, 36_000.0) == 0.1
    assert urgency_by_rest(0.0, 0.0) == urgency_by_rest(60.0, 0.0), "bounded"


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


def test_fair_has_an_alpha_of_its_own() -> None:
    assert alpha_of(Objective.FAIR, 0.0) == 0.5
    assert alpha_of(Objective.FAIR, 2.0) == 2.0
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
