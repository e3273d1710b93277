"""Holes: until when each node may be harvested."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.holes import find_holes, pilot_limit_s
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Hole
from malletrain.domain.snapshot import BackfillPlan, NodeState, Reservation, Snapshot
from tests.messages import says
from tests.world import RULES, START, main_job, node


def test_a_planned_start_ends_the_hole() -> None:
    waiting = main_job(1, start=START + 300, planned=["n0"])
    found = find_holes(Snapshot(START, (node("n0"), node("n1")), (waiting,)), {}, START, RULES)
    assert [(h.node, h.until) for h in found.values()] == [
        ("n0", START + 300),
        ("n1", START + RULES.max_pilot_s + RULES.margin_s),
    ]
    assert "job 1" in found["n0"].reason


def test_under_a_stale_plan_nothing_but_what_it_says_of_the_future_is_known() -> None:
    waiting = main_job(1, start=START + 300, planned=["n0"])
    passed = main_job(2, start=START - 20, planned=["n1"])
    plan = BackfillPlan(last_cycle_at=START - 61, interval_s=30)
    nodes = (node("n0"), node("n1"), node("n2", NodeState.ALLOCATED))
    found = find_holes(Snapshot(START, nodes, (waiting, passed), plan=plan), {"n2": "1_0"}, START, RULES)
    assert found["n0"].until == START + 300
    assert found["n1"].until == START + RULES.unknown_s + RULES.margin_s
    assert says(found["n1"].reason, "unknown", "61 s")
    assert found["n2"].reason == "nothing planned", "a pilot that runs is not cut for it"


def test_backfill_that_has_nothing_to_do_is_not_stale() -> None:
    held = main_job(1, reason="JobHeldUser")
    plan = BackfillPlan(last_cycle_at=START - 9000, interval_s=30)
    found = find_holes(Snapshot(START, (node("n0"),), (held,), plan=plan), {}, START, RULES)
    assert found["n0"].reason == "nothing planned"


def test_a_planned_start_that_passed_and_was_not_renewed_says_nothing() -> None:
    plan = BackfillPlan(last_cycle_at=START - 5, interval_s=30)
    for passed_s, reason in ((59, "planned start of job 1"), (61, "nothing planned")):
        waiting = main_job(1, start=START - passed_s, planned=["n0"])
        found = find_holes(Snapshot(START, (node("n0"),), (waiting,), plan=plan), {}, START, RULES)
        assert found["n0"].reason == reason


def test_reservations_end_holes_and_running_ones_close_them() -> None:
    later = Reservation("later", START + 500, START + 900, ("n0",))
    now = Reservation("now", START - 10, START + 900, ("n1",))
    past = Reservation("past", START - 100, START - 10, ("n2",))
    snapshot = Snapshot(START, (node("n0"), node("n1"), node("n2")), (), (later, now, past))
    until = {h.node: h.until - START for h in find_holes(snapshot, {}, START, RULES).values()}
    assert until == {"n0": 500, "n1": 0, "n2": RULES.max_pilot_s + RULES.margin_s}


def test_only_free_or_harvested_nodes_that_nobody_wants_have_holes() -> None:
    nodes = (
        node("busy"),
        node("drained", NodeState.DRAINED),
        node("mixed", NodeState.MIXED),
        node("ours", NodeState.ALLOCATED),
        node("planned", NodeState.PLANNED),
        node("excluded"),
    )
    rules = Rules(exclude_nodes=frozenset({"excluded"}))
    snapshot = Snapshot(START, nodes, (main_job(1, nodes=["busy"]),))
    assert list(find_holes(snapshot, {"ours": "1_0"}, START, rules)) == ["ours", "planned"]


@given(st.floats(0, 1e5), st.floats(0, 300), st.floats(60, 7200))
def test_a_limit_is_whole_minutes_and_ends_before_the_hole(left: float, margin: float, longest: float) -> None:
    rules = Rules(margin_s=margin, max_pilot_s=longest)
    limit = pilot_limit_s(Hole("n0", START + left, ""), START, rules)
    assert limit % 60 == 0
    assert limit <= longest
    assert limit == 0 or START + limit + margin <= START + left + 1e-6
