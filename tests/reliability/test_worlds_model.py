"""Every state of a small model of who may train: one job never has two worlds."""

from __future__ import annotations

import pytest

from tests.messages import says
from tests.reliability.worlds_model import Rules, search


def test_no_state_has_two_worlds_and_none_is_a_dead_end() -> None:
    for workers, rules in ((2, Rules(plans=2)), (3, Rules(plans=2, deaths=0))):
        found = search(workers, rules)
        assert found.broken == ()
        assert found.stuck is None
    assert found.states > 50_000


def test_without_fencing_a_majority_trains_beside_the_daemons_world() -> None:
    """What the daemon did once."""
    found = search(3, Rules(plans=2, deaths=0, fences=False))
    assert found.broken[-1] == "2 trains"
    assert "[0, 1] make 11" in found.broken


def test_a_member_that_leaves_makes_no_world_with_a_silent_one() -> None:
    found = search(3, Rules(plans=2, deaths=0, leavers=1))
    assert (found.broken, found.stuck) == ((), None)


def test_a_plan_without_those_that_leave_may_leave_a_majority_out() -> None:
    """What the daemon did before this model had members that leave."""
    found = search(3, Rules(plans=2, deaths=0, leavers=1, keeps=False))
    assert says(found.broken, "[1] as 2")
    assert found.broken[-1] == "2 trains"


def test_a_quorum_of_half_a_world_is_too_small() -> None:
    assert search(2, Rules(plans=2, deaths=0, strict=False)).broken


def test_a_daemon_that_starts_again_makes_no_second_world() -> None:
    found = search(2, Rules(plans=2, deaths=0, restarts=1))
    assert (found.broken, found.stuck) == ((), None)
    assert found.states > 10_000


def test_after_a_restart_a_world_that_was_only_published_may_train() -> None:
    """What the daemon did before this model had restarts."""
    found = search(2, Rules(plans=2, deaths=0, restarts=1, suspects=False))
    assert says(found.broken, "starts again")
    assert found.broken[-1] == "2 trains"


def test_without_waiting_for_the_unheard_a_newcomer_begins_beside_them() -> None:
    assert search(2, Rules(plans=2, deaths=0, newcomers=1, restarts=1, awaits=False)).broken


@pytest.mark.nightly
def test_newcomers_and_a_restart() -> None:
    for rules in (Rules(plans=2, deaths=0, newcomers=1), Rules(plans=2, deaths=0, newcomers=1, restarts=1)):
        found = search(2, rules)
        assert (found.broken, found.stuck) == ((), None)


@pytest.mark.nightly
def test_a_death_and_a_plan_more() -> None:
    assert search(3, Rules()).broken == ()
