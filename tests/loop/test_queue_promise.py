"""What keeps the site's promise to its main queue: the reserve, the number of pilots, and their reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.loop.queue_promise import (
    HARMLESS_CYCLE_S,
    ControllerBudget,
    HourDemands,
    MainArrival,
    PromisedReserve,
    PromiseKept,
    YieldTimes,
    demands,
    harmless_cycle_s,
    lower_share,
    of_hour,
    promised_reserve,
    reserve_curve,
    with_trial_pilot,
)
from tests.messages import says
from tests.world import RULES, World, job

HOUR = 3600.0

arrivals = st.lists(
    st.builds(MainArrival, st.floats(0, 14 * 24 * HOUR), st.integers(1, 40)), min_size=0, max_size=120
)  # fmt: skip
times = st.builds(
    YieldTimes, st.lists(st.floats(0, 90), max_size=20).map(tuple), st.sampled_from([0.0, 1.0, 30.0, 60.0])
)  # fmt: skip
bounds = st.floats(0, 120)


def hour_of(known: list[MainArrival], refill_s: float = 60.0) -> HourDemands:
    return HourDemands(demands(known, refill_s), "of all hours")


def spread(widths: list[int]) -> HourDemands:
    return hour_of([MainArrival(number * HOUR, width) for number, width in enumerate(widths)])


@given(bounds, arrivals, times, st.integers(0, 60), st.integers(0, 9))
def test_the_reserve_is_never_more_than_all_nodes_at_hand(
    bound: float, known: list[MainArrival], took: YieldTimes, at_hand: int, back: int
) -> None:
    held = promised_reserve(bound, hour_of(known), took, at_hand, back)
    assert 0 <= held.nodes <= at_hand
    assert held.reason.startswith("[promise]")


@given(bounds, arrivals, times, st.integers(0, 60), st.floats(0, 1), st.integers(0, 5))
def test_a_stricter_promise_never_has_a_smaller_reserve(
    bound: float,
    known: list[MainArrival],
    took: YieldTimes,
    at_hand: int,
    part: float,
    back: int,
) -> None:
    hour = hour_of(known)
    held = promised_reserve(bound, hour, took, at_hand, back).nodes
    assert promised_reserve(bound * part, hour, took, at_hand, back).nodes >= held
    assert promised_reserve(bound, hour, took, at_hand, back + 1).nodes >= held, "stepping back"


@given(bounds, arrivals, times, st.integers(1, 60))
def test_one_node_fewer_would_not_keep_it(
    bound: float, known: list[MainArrival], took: YieldTimes, at_hand: int
) -> None:
    hour = hour_of(known)
    held = promised_reserve(bound, hour, took, at_hand)
    needed = hour.needed(at_hand)
    if not 0 < held.nodes < at_hand:
        return
    found = lower_share(sum(each <= held.nodes - 1 for each in needed), len(needed))
    assert found + (1 - found) * took.within(bound) < 0.95 + 1e-9


def test_without_a_known_arrival_all_nodes_stay_idle_and_the_reason_says_so() -> None:
    held = promised_reserve(2.0, spread([]), YieldTimes((12.0,)), 20)
    assert held.nodes == 20
    assert says(held.reason, "arrival")


def test_few_arrivals_show_nothing_and_many_do() -> None:
    bound, slow = 2.0, YieldTimes((12.0,))
    assert promised_reserve(bound, spread([1] * 20), slow, 20).nodes == 20
    assert promised_reserve(bound, spread([1] * 60), slow, 20).nodes == 1


def test_where_pilots_leave_at_once_no_reserve_is_needed() -> None:
    held = promised_reserve(2.0, spread([1, 8] * 50), YieldTimes((0.4, 0.9, 1.2), 0.0), 20)
    assert (held.nodes, "quickly enough" in held.reason) == (0, True)


def test_an_epilog_makes_the_reserve_as_wide_as_the_widest_job_but_a_few() -> None:
    hour = spread([1] * 80 + [4] * 110 + [16] * 4)
    held = promised_reserve(2.0, hour, YieldTimes((12.0,)), 40)
    assert held.nodes == 4
    assert "main_delay_p95 = 2 s" in held.reason


def test_a_burst_needs_room_for_all_of_it_until_the_reserve_is_full_again() -> None:
    known = [MainArrival(burst * HOUR + second, 2) for burst in range(40) for second in range(5)]
    assert [each.nodes for each in demands(known, 60.0)[:6]] == [2, 4, 6, 8, 10, 2]
    assert promised_reserve(1.0, HourDemands(demands(known, 60.0), ""), YieldTimes((9.0,)), 30).nodes == 10


def test_jobs_wider_than_what_is_idle_wait_for_main_jobs_and_count_nowhere() -> None:
    held = promised_reserve(1.0, spread([30] * 100 + [2] * 100), YieldTimes((9.0,)), 10)
    assert held.nodes == 2


def test_the_hour_counts_where_enough_is_known_of_it() -> None:
    days = range(70)
    known = [MainArrival(day * 24 * HOUR + 9 * HOUR, 8) for day in days]
    known += [MainArrival(day * 24 * HOUR + 21 * HOUR, 1) for day in days]
    every = demands(known, 60.0)
    morning, evening = of_hour(every, 9.5 * HOUR), of_hour(every, 21.5 * HOUR)
    assert (len(morning.demands), len(evening.demands)) == (70, 70)
    slow = YieldTimes((12.0,))
    assert promised_reserve(2.0, morning, slow, 20).nodes == 8
    assert promised_reserve(2.0, evening, slow, 20).nodes == 1
    assert len(of_hour(every, 3.5 * HOUR).demands) == 140
    weekly = [MainArrival(day * 24 * HOUR + 9 * HOUR + job, 4) for day in range(0, 70, 7) for job in range(6)]
    assert len(of_hour(demands(known + weekly, 60.0), 9.5 * HOUR).demands) == 70, "of this weekday"


def test_the_curve_of_harvest_against_the_bound_never_falls() -> None:
    hour, took = spread([1] * 90 + [4] * 60 + [9] * 50), YieldTimes((3.0, 6.0, 12.0), 30.0)
    curve = reserve_curve(hour, took, [20, 20, 20, 6], [1, 5, 10, 20, 40, 60])
    left = [share for _, _, share in curve]
    assert left == sorted(left)
    assert (left[0] < 0.7, left[-1]) == (True, 1.0)


@pytest.mark.parametrize(
    ("hits", "of", "chance", "share"), [(0, 0, 0.9, 0.0), (40, 40, 0.9, 0.9606), (9, 10, 0.5, 0.9)]
)
def test_the_share_that_is_shown(hits: int, of: int, chance: float, share: float) -> None:
    assert lower_share(hits, of, chance) == pytest.approx(share, abs=2e-4)


# -- the controller --------------------------------------------------------------------------------------------------


def played(
    per_pilot_s: float,
    alone_s: float,
    most: int = 500,
    looks: int = 600,
    cap: int = 100,
    harmless_s: float = HARMLESS_CYCLE_S,
) -> list[int]:
    """The caps of a daemon that starts all pilots it may, beside a controller whose cycle goes with them."""
    budget, pilots, caps = ControllerBudget(cap), 0, []
    for look in range(looks):
        budget = budget.after(alone_s + per_pilot_s * pilots, pilots, 1.5, most, harmless_s)
        pilots = 0 if look < 5 else min(budget.cap, pilots + 20)
        caps.append(budget.cap)
    return caps


def test_the_cap_settles_about_what_the_budget_allows() -> None:
    caps = played(per_pilot_s=0.001, alone_s=0.1)
    assert 30 <= sum(caps[-200:]) / 200 <= 52, "50 pilots make the cycle half as long again"
    assert max(caps[-200:]) <= 56


def test_a_controller_that_is_never_slow_has_the_whole_cap() -> None:
    assert played(per_pilot_s=1e-6, alone_s=0.001)[-1] == 500


def test_without_a_cycle_seen_alone_the_daemon_goes_down_until_it_sees_one() -> None:
    budget, pilots = ControllerBudget(100), 100
    for _ in range(120):
        budget = budget.after(0.1 + 0.0001 * pilots, pilots, 1.5, 500)
        pilots = min(pilots, budget.cap) if pilots > budget.cap else min(budget.cap, pilots + 10)
    assert budget.alone
    assert budget.cap > 20


@given(st.lists(st.tuples(st.none() | st.floats(0, 5), st.integers(0, 600)), max_size=80), st.integers(1, 400))
def test_the_cap_stays_within_its_bounds_and_says_why(seen: list[tuple[float | None, int]], most: int) -> None:
    budget = ControllerBudget(most)
    for cycle_s, pilots in seen:
        before, budget = budget, budget.after(cycle_s, pilots, 1.5, most)
        assert 1 <= budget.cap <= most
        assert budget.reason
        assert budget.cap <= before.cap or budget.cap - before.cap <= max(2, 0.05 * before.cap)
    assert budget.budget_s(1.5, HARMLESS_CYCLE_S) >= HARMLESS_CYCLE_S


def test_a_short_cycle_is_harmless_unless_slurmctld_runs_it_all_the_time() -> None:
    assert harmless_cycle_s(None) == HARMLESS_CYCLE_S
    assert harmless_cycle_s(6) == HARMLESS_CYCLE_S, "20 ms six times a minute are .2 % of slurmctld's time"
    assert harmless_cycle_s(300) == pytest.approx(0.002), "five a second may take 2 ms each"


@pytest.mark.parametrize(("harmless_s", "least", "most"), [(HARMLESS_CYCLE_S, 150, 200), (0.002, 8, 17), (0.0, 2, 8)])
def test_how_many_pilots_a_quick_controller_bears(harmless_s: float, least: int, most: int) -> None:
    caps = played(per_pilot_s=1e-4, alone_s=0.001, harmless_s=harmless_s)
    assert least <= sum(caps[-200:]) / 200 <= most


# -- the decision ----------------------------------------------------------------------------------------------------


def test_a_decision_says_what_the_promise_holds_and_why() -> None:
    world = World(nodes=8, rules=replace(RULES, keep_idle=3, keep_why="[promise] main_delay_p95 = 2 s"))
    world.submit(job(1, most=8), tasks=10)
    world.tick()
    world.tick()
    assert len(world.running()) == 5
    decision = world.loop.last_decision
    assert decision is not None
    assert says(decision.reason, "3 nodes", "[promise] main_delay_p95 = 2 s")
    assert any(says(refusal.reason, "3 nodes", "[promise]") for refusal in decision.refusals)


def test_pilots_beyond_what_the_controller_bears_leave() -> None:
    world = World(nodes=8, rules=replace(RULES, max_pilots=8))
    world.submit(job(1, most=8), tasks=10)
    world.tick()
    world.tick()
    assert len(world.running()) == 8
    world.loop.rules = replace(RULES, max_pilots=5, cap_why="main cycles take 300 ms")
    world.tick()
    decision = world.loop.last_decision
    assert decision is not None
    left = [action for action in decision.actions if isinstance(action, LeavePilot)]
    assert [each.cause for each in left] == [LeaveCause.RESERVE] * 3
    assert says(left[0].reason, "slurmctld", "300 ms")
    for _ in range(4):
        world.tick()
    assert len(world.running()) == 5


# -- one node is harvested to learn how long pilots take to leave ---------------------------------------------------

BOUND_S = 2.0
ALL = PromisedReserve(16, "all nodes")


def test_one_node_where_one_late_job_does_not_break_the_promise() -> None:
    held = with_trial_pilot(ALL, BOUND_S, YieldTimes(), 16, PromiseKept(66))
    assert (held.nodes, says(held.reason, "one node")) == (15, True)


@pytest.mark.parametrize(
    ("bound_s", "times", "at_hand", "seen"),
    [
        (BOUND_S, YieldTimes(), 16, PromiseKept(65)),
        (BOUND_S, YieldTimes(), 16, PromiseKept(66, (9.0,))),
        (BOUND_S, YieldTimes((9.0,) * 20), 16, PromiseKept(1000)),
        (BOUND_S, YieldTimes(), 0, PromiseKept(1000)),
        (BOUND_S, YieldTimes(), 20, PromiseKept(1000)),
    ],
    ids=["few jobs", "one was late", "known", "no node", "some are harvested"],
)
def test_none_otherwise(bound_s: float, times: YieldTimes, at_hand: int, seen: PromiseKept) -> None:
    assert with_trial_pilot(ALL, bound_s, times, at_hand, seen) == ALL


def test_one_slow_pilot_is_not_the_last_word() -> None:
    assert with_trial_pilot(ALL, BOUND_S, YieldTimes((9.0,)), 16, PromiseKept(1000, (9.0,))).nodes == 15


@given(
    bound_s=st.floats(0.1, 60.0), jobs=st.integers(0, 2000), at_hand=st.integers(0, 20),
)  # fmt: skip
def test_even_the_slowest_leave_keeps_the_promise(bound_s: float, jobs: int, at_hand: int) -> None:
    held = PromisedReserve(at_hand, "")
    found = with_trial_pilot(held, bound_s, YieldTimes(), at_hand, PromiseKept(jobs))
    assert held.nodes - 1 <= found.nodes <= held.nodes
    if found != held:
        assert PromiseKept(jobs, (100.0,)).shows_kept(bound_s)
