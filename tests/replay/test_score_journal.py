"""Figures of a live daemon's journal, where a look tells of a pilot's start later than its worker speaks."""

from __future__ import annotations

import pytest

from malletrain.domain.event import Event
from malletrain.domain.job import Curve, MalleableJob
from malletrain.replay.scoring.journal_score import score_journal
from tests.world import announced, event_of


def told(warm_s: float, seen_s: float) -> list[Event]:
    """One pilot that Slurm starts at 100: its worker is warm at `warm_s`, a look shows the start at `seen_s`."""
    job = MalleableJob(1, "a", "ann", 1, "harvest", 1, 4, 0.0, given_curve=Curve.linear(4))
    counts = {"idle": 0, "planned": 0, "harvested": 1, "main": 0, "down": 0}
    events = [
        event_of(0.0, "job_announced", 1, data=announced(job)),
        event_of(warm_s, "worker_warm", 1, "9_0", "n0"),
        event_of(seen_s, "pilot_started", 1, "9_0", "n0", data={"started_at": 100.0}),
        event_of(seen_s, "pool", data=dict(counts)),
        event_of(300.0, "worker_left", 1, "9_0", "n0"),
    ]
    return sorted(events, key=lambda event: event.at)


@pytest.mark.parametrize("seen_s", [101.0, 104.0, 110.0])
def test_a_worker_that_is_warm_before_its_start_is_seen_is_not_activating_for_ever(seen_s: float) -> None:
    score = score_journal(told(warm_s=104.0, seen_s=seen_s))
    assert score.occupied_node_seconds == pytest.approx(200.0)
    assert score.activation_node_seconds == pytest.approx(4.0)
    assert score.productive_node_seconds == pytest.approx(196.0)
