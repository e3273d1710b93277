"""Heterogeneous jobs of late, as accounting shows them after a restart of the daemon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.decide.promise.promised_reserve import MainPromise
from malletrain.domain.event import Event, MainJobsArrived
from malletrain.loop.trackers.hetjobs_seen import REMEMBERED_S, HetjobsSeen
from tests.world import RULES, START

KEEPS_ONE = replace(RULES, keep_idle=1, spare_hetjobs=True)


def test_a_restarted_daemon_takes_them_from_accounting() -> None:
    seen = HetjobsSeen()
    assert seen.rules(KEEPS_ONE).keep_idle == 1
    rows = [("8+0", START - 60.0, 1), ("8+1", START - 60.0, 2), ("9", START, 7), ("10_1", START, 1)]
    assert seen.learn(rows, START) == 1
    rules = seen.rules(KEEPS_ONE)
    assert (rules.keep_idle, "heterogeneous jobs of 3 nodes" in rules.keep_why) == (0, True)


def test_a_restarted_daemon_takes_them_from_the_journal() -> None:
    seen = HetjobsSeen()
    arrived = MainJobsArrived(("8+0", "8+1", "9"), (START, START, START), (1, 2, 7), (1, 1, 1))
    seen.apply(Event(START, arrived))
    assert "heterogeneous jobs of 3 nodes" in seen.rules(KEEPS_ONE).keep_why


def test_those_of_more_than_a_week_ago_are_left_out() -> None:
    seen = HetjobsSeen()
    rows = [(f"8+{n}", START - REMEMBERED_S - 60.0, 1) for n in (0, 1)]
    assert (seen.learn(rows, START), seen.rules(KEEPS_ONE).keep_idle) == (0, 1)


def test_the_newest_are_kept_whatever_order_they_come_in() -> None:
    seen = HetjobsSeen()
    rows = [(f"{8 + n}+{part}", START - day * 86_400.0, 1) for n, day in enumerate((1, 6)) for part in (0, 1)]
    assert seen.learn(rows, START) == 2
    assert seen.learn([], START + 3 * 86_400.0) == 0
    assert seen.rules(KEEPS_ONE).keep_idle == 0
    seen.learn([], START + 7 * 86_400.0)
    assert seen.rules(KEEPS_ONE).keep_idle == 1


@pytest.mark.parametrize(
    ("changed", "minds"),
    [
        ({}, True),
        ({"keep_idle": 0}, False),
        ({"spare_hetjobs": False}, False),
        ({"keep_leaves": 1}, False),
        ({"promise": MainPromise(p95_s=2.0)}, False),
    ],
)
def test_they_matter_where_a_reserve_may_be_made_smaller_for_them(changed: dict[str, object], minds: bool) -> None:
    assert HetjobsSeen.matter(replace(KEEPS_ONE, **changed)) is minds  # type: ignore[arg-type]
