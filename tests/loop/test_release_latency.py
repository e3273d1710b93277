"""How long nodes take to be free again, folded from the journal; and what it does to holes."""

from __future__ import annotations

import pytest

from malletrain.decide.rules import Rules
from malletrain.domain.event import JsonValue
from malletrain.loop.trackers.costs import ReleaseLatency
from tests.world import RULES, START, World, data_of, event_of, job, main_job


def left(exits: ReleaseLatency, pilot: str, at: float, after_s: float, *, ran: bool = True) -> None:
    if ran:
        exits.apply(event_of(at - 100.0, "pilot_started", 1, pilot, "n0"))
    exits.apply(event_of(at, "intent", 1, pilot, "n0", data={"type": "recycle"}))
    exits.apply(event_of(at + 1.0, "intent", 1, pilot, "n0", data={"type": "recycle"}))
    exits.apply(event_of(at + after_s, "pilot_held", 1, pilot))


def test_nearly_the_longest_exit_counts_and_outliers_do_not() -> None:
    exits = ReleaseLatency()
    assert exits.usual_s() is None
    for n in range(95):
        left(exits, f"1_{n}", 1000.0 * n, 12.0)
    for n in range(5):
        left(exits, f"2_{n}", 1e6 + 1000.0 * n, 500.0)
    assert exits.usual_s() == pytest.approx(12.0)
    left(exits, "3_0", 2e6, 4000.0)
    assert exits.usual_s() == pytest.approx(12.0), "an hour tells of a daemon that was away"


@pytest.mark.parametrize("taken_back", [{}, {"main_job": "9"}])
def test_when_nodes_are_free_is_slurms_own_time_and_no_looks(taken_back: dict[str, JsonValue]) -> None:
    exits = ReleaseLatency()
    assert exits.free_s() is None
    for n, free_s in enumerate((10.0, 11.0, 90.0)):
        at, pilot = 1000.0 * n, f"1_{n}"
        exits.apply(event_of(at, "pilot_started", 1, pilot, "n0"))
        exits.apply(event_of(at + 50, "intent", 1, pilot, "n0", data={"type": "recycle", **taken_back}))
        exits.apply(event_of(at + 150, "pilot_held", 1, pilot, data={"left_at": at + 50 + free_s}))
    assert exits.free_s() == 11.0


def test_a_node_that_was_taken_back_before_its_worker_left_tells_nothing() -> None:
    exits = ReleaseLatency()
    exits.apply(event_of(1000.0, "pilot_started", 1, "1_0", "n0"))
    exits.apply(event_of(1001.0, "intent", 1, "1_0", "n0", data={"type": "recycle", "main_job": "9"}))
    exits.apply(event_of(1031.0, "pilot_held", 1, "1_0"))
    assert exits.usual_s() is None


def test_a_pilot_that_never_ran_and_a_daemon_that_was_away_tell_nothing() -> None:
    exits = ReleaseLatency()
    left(exits, "1_0", 1000.0, 0.5, ran=False)
    exits.apply(event_of(2000.0, "pilot_started", 1, "1_1", "n0"))
    exits.apply(event_of(2001.0, "intent", 1, "1_1", "n0", data={"type": "recycle"}))
    exits.apply(event_of(2050.0, "daemon_started"))
    exits.apply(event_of(2060.0, "pilot_held", 1, "1_1"))
    assert exits.usual_s() is None


def test_the_margin_grows_by_what_was_measured_and_by_the_guess_before() -> None:
    rules = Rules(margin_s=10.0, min_hole_s=80.0, exit_s=60.0)
    assert (rules.with_exits(None).margin_s, rules.with_exits(None).min_hole_s) == (70.0, 140.0)
    assert rules.with_exits(15.0).margin_s == 25.0
    assert Rules(margin_s=10.0).with_exits(15.0).margin_s == 10.0, "what the site says is taken as it is"


def test_a_pilot_leaves_its_hole_earlier_by_the_measured_exit() -> None:
    """Two worlds with the same plan: the one whose nodes take longer to be free gives them up earlier by as much."""
    for exit_s in (0.0, 40.0):
        world = World(nodes=1)
        world.loop.rules = Rules(margin_s=RULES.margin_s, min_hole_s=70.0, exit_s=exit_s)
        world.submit(job(1))
        world.cluster.set_main([main_job(9, count=2, start=START + 500.0, planned=["n0"])])
        world.tick()
        for _ in range(50):
            world.tick()
        leaves = [e.at for e in world.journal.events if data_of(e).get("type") == "leave"]
        assert START + 500.0 - leaves[0] >= RULES.margin_s + exit_s
