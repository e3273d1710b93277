"""Every state of a small model of pilots: no node serves two, nothing outlives its reason."""

from __future__ import annotations

import pytest

from scripts.simulation.pilots_model import Rules, search


def test_whatever_happens_to_one_task_everything_ends() -> None:
    found = search(Rules(tasks=1))
    assert found.broken == ()
    assert found.stuck == ()
    assert found.states > 5_000


def test_an_order_that_does_not_read_the_task_again_lifts_a_hold_of_staff() -> None:
    """The check itself."""
    found = search(Rules(tasks=1, reads_again=False))
    assert found.broken[-3:] == ("staff hold 0", "start 0: step 1", "a hold of staff is lifted")


def test_a_daemon_that_trusts_its_journal_alone_waits_for_ever() -> None:
    assert search(Rules(tasks=1, looks=False)).stuck


def test_a_pilot_that_is_recycled_once_only_may_keep_its_node_from_a_main_job() -> None:
    """The daemon dies between the intent and the order."""
    found = search(Rules(tasks=1, recycles_again=False))
    assert "the daemon dies" in found.stuck
    assert "main='waits'" in found.stuck[-1]


@pytest.mark.nightly
@pytest.mark.parametrize("rules", [Rules(), Rules(nodes=2, meddlings=0, lost_answers=0)])
def test_two_tasks(rules: Rules) -> None:
    found = search(rules)
    assert found.broken == ()
    assert found.stuck == ()
