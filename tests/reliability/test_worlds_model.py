"""Every state of a small model of who may train: one job never has two worlds."""

from __future__ import annotations

import pytest

from scripts.simulation.worlds_model import Rules, search


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


def test_a_quorum_of_half_a_world_is_too_small() -> None:
    assert search(2, Rules(plans=2, deaths=0, strict=False)).broken


@pytest.mark.nightly
def test_a_death_and_a_plan_more() -> None:
    assert search(3, Rules()).broken == ()
