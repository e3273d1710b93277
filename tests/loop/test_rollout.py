"""The ladder of stages: what a stage must show before the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.loop.rollout import DAY_S, Lately, Stage, criteria, summary

GOOD = Lately(Stage.FEW, since=0.0, started=800, preempted=8)
NOW = 7 * DAY_S


def test_a_good_week_on_a_few_nodes_is_enough() -> None:
    assert all(criterion.met for criterion in criteria(GOOD, NOW))
    assert summary(GOOD, NOW) == 'stage few: all criteria met: pool.stage = "whole" may follow'


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"since": DAY_S}, "6.0 of 7 days"),
        ({"started": 499, "preempted": 0}, "499 of 500 pilots started"),
        ({"preempted": 9}, "9 preempted (at most 1%)"),
        ({"slow_exits": 1}, "1 slow to leave (none)"),
        ({"ailing_nodes": 1}, "1 nodes ailed after pilots (none)"),
        ({"opened": 1}, "breaker opened 1 times (never)"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, float], missing: str) -> None:
    lately = replace(GOOD, **change)  # type: ignore[arg-type]
    assert summary(lately, NOW) == f"stage few: not done yet: {missing}"


def test_the_whole_says_nothing_until_the_breaker_opens_again_and_again() -> None:
    assert summary(replace(GOOD, stage=Stage.WHOLE, opened=2), NOW) == ""
    assert "go back" in summary(replace(GOOD, stage=Stage.WHOLE, opened=3), NOW)
