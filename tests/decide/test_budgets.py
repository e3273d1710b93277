"""Budgets of node-hours: periods, what is spent, and that no policy overspends over a history of the whole loop."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.limits import NodeTimeSpent, affordable_nodes, budgets_for, work_left_s
from malletrain.decide.rules import AccountBudget, Period
from malletrain.domain.job import Curve, JobPhase, JobView, PilotPhase
from malletrain.loop.trackers.account_usage import DAY_S, AccountUsage
from malletrain.sizing.registry import policy
from tests.messages import naming, says
from tests.sizing.problems import job as demand
from tests.world import RULES, START, World, data_of, job

TIMES = st.floats(0, 4e9)


@given(st.sampled_from(Period), TIMES)
def test_periods_follow_one_another_and_begin_at_midnight(period: Period, now: float) -> None:
    begin, end = period.begin(now), period.end(now)
    assert begin <= now < end
    assert begin % DAY_S == 0
    assert (period.begin(begin), period.begin(end)) == (begin, end)
    days = (end - begin) / DAY_S
    assert days in {Period.DAY: {1}, Period.WEEK: {7}, Period.MONTH: {28, 29, 30, 31}}[period]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 20 * DAY_S), st.floats(0, 3 * DAY_S)), max_size=20))
def test_what_is_spent_is_what_stays_have_in_common_with_the_period(stays: list[tuple[str, float, float]]) -> None:
    kept = AccountUsage()
    for account, begin, lasted in sorted(stays, key=lambda stay: stay[1] + stay[2]):
        kept.add(account, 1, begin, begin + lasted)
    for account in "ab":
        for since in (0.0, 5 * DAY_S, 15 * DAY_S):
            overlap = sum(max(0.0, b + s - max(b, since)) for who, b, s in stays if who == account)
            assert kept.of_account(account, since) == pytest.approx(overlap, abs=1e-3)
    assert kept.by_job.get(1, 0.0) == pytest.approx(sum(s for _, _, s in stays), abs=1e-3)


@given(st.floats(0, 1e6), st.floats(1, 600))
def test_what_is_allowed_for_a_horizon_is_there(left: float, horizon: float) -> None:
    assert affordable_nodes(left, horizon) * horizon <= left * (1 + 1e-12)


def test_budgets_cap_their_own_jobs_and_tell_the_policy_what_is_left() -> None:
    views = {
        1: JobView(replace(job(1), account="bio"), JobPhase.QUEUED),
        2: JobView(replace(job(2), account="other"), JobPhase.QUEUED),
        3: JobView(replace(job(3), account="bio", budget_node_s=100.0), JobPhase.QUEUED),
    }
    demands = [demand(i, 0, 8) for i in views]
    budget = AccountBudget("biology", frozenset({"bio"}), 3000.0, Period.WEEK)
    rules = replace(RULES, budgets=(budget,), horizon_s=300.0)
    found = budgets_for(rules, NodeTimeSpent({"biology": 1500.0}, {3: 10.0}), views, demands, START)
    assert [(dict(c.coefficients), c.upper) for c in found.caps] == [({1: 1.0, 3: 1.0}, 5), ({3: 1.0}, 0)]
    assert [(b.jobs, b.node_s) for b in found.left] == [(frozenset({1, 3}), 1500.0), (frozenset({3}), 90.0)]
    assert [r.subject for r in found.refusals] == ["job 3"]
    assert "0.02778 node-hours" in found.refusals[0].reason
    assert budgets_for(rules, NodeTimeSpent(), {2: views[2]}, demands[1:2], START).caps == ()


def held_s(world: World) -> float:
    """Node-seconds of all stays, from the pilots themselves."""
    now, total = world.clock.now(), 0.0
    begun: dict[str, float] = {}
    for event in world.journal.events:
        if event.kind == "pilot_started" and event.pilot:
            begun[event.pilot] = float(cast(float, data_of(event)["started_at"]))
        elif event.kind in ("pilot_held", "pilot_ended") and event.pilot in begun:
            total += event.at - begun.pop(event.pilot)
    return total + sum(now - at for at in begun.values())


@pytest.mark.parametrize("name", ["exact", "equal", "greedy", "budget"])
def test_no_policy_overspends_an_account_and_a_new_day_brings_a_new_budget(name: str) -> None:
    budget = AccountBudget("all", frozenset({"harvest"}), 2700.0, Period.DAY)
    world = World(nodes=6, rules=replace(RULES, budgets=(budget,)), policy=policy(name))
    world.submit(job(1, given_curve=Curve.linear(8)))
    world.submit(job(2, given_curve=Curve.linear(8)))
    most = 0
    for _ in range(120):
        world.tick()
        most = max(most, len(world.running()))
    spent = held_s(world)
    assert world.loop.ledger.spent([budget], world.clock.now()).by_budget["all"] == pytest.approx(spent, abs=1.0)
    assert 2700.0 - 2 * 300.0 < spent <= 2700.0
    assert most == 6 and not world.running()
    said = [e.reason for e in world.journal.events if e.kind == "decided"]
    assert any(
        "budget all (0." in reason and "of 0.75 node-hours a day, anew on 1970-01-13, left)" in reason
        for reason in said
    )
    decision = world.loop.last_decision
    assert decision is not None
    spent_out = naming("budget all", "(0.75 node-hours a day", "1970-01-13)")
    assert [r.subject for r in decision.refusals if re.search(spent_out, r.reason)] == ["job 1", "job 2"]
    world.tick(Period.DAY.end(world.clock.now()) - world.clock.now())
    for _ in range(3):
        world.tick()
    assert world.running()


def test_a_job_ends_when_its_own_budget_is_spent() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=4, given_curve=Curve.linear(4), budget_node_s=1500.0))
    for _ in range(150):
        world.tick()
    view = world.loop.views[1]
    assert view.phase is JobPhase.CANCELLED
    assert says(view.reason, "budget", "0.4167 node-hours")
    assert 900.0 < held_s(world) <= 1500.0
    assert not any(p.phase is PilotPhase.RUNNING for p in view.pilots.values())


def test_a_months_budget_lasts_the_month_and_is_spent_where_it_shortens_jobs_most() -> None:
    """Policy `budget` runs an account's jobs at the width whose price the whole month bears, where `exact` takes all
    the nodes there are until nothing is left."""
    curve = Curve(tuple((n, 10 * n**0.6) for n in range(1, 33)))
    rest_s = Period.MONTH.end(START) - START
    month = AccountBudget("bio", frozenset({"harvest"}), 8 * rest_s, Period.MONTH)
    held = {}
    for name in ("exact", "budget"):
        world = World(nodes=32, rules=replace(RULES, budgets=(month,)), policy=policy(name))
        for i in range(2):  # 3 node-days of work on one node each come a day: 6 of the 8 nodes at width 1
            wanted = job(i + 1, most=32, given_curve=curve, total_samples=10 * 3 * DAY_S)
            world.submit(replace(wanted, account="harvest"), tasks=40)
        world.tick()
        world.tick()
        held[name] = len(world.running())
    assert held["exact"] == 32
    # 6 k^.4 node-days a day of at most 8: k is 2.05, less what is there already.
    assert 2 <= held["budget"] <= 4, "their work comes every day until the month is over"


def test_work_that_is_left_is_known_or_as_much_as_was_done() -> None:
    curve = Curve.linear(8)
    view = JobView(replace(job(1), total_samples=1000.0), JobPhase.RUNNING, curve=curve, samples_done=400.0)
    assert work_left_s(view, 300.0) == 600.0
    assert work_left_s(replace(view, job=job(1)), 300.0) == 400.0
    assert work_left_s(replace(view, job=job(1), samples_done=0.0), 300.0) == 300.0
