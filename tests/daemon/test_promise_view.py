"""What people are shown of the promise to the main queue: sums of all jobs, names of those that they may see."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from malletrain.api.requests import LoopRequests
from malletrain.api.visibility import Visibility
from malletrain.decide.rules import MainPromise
from malletrain.domain.event import JsonValue
from malletrain.slurm.site.site_facts import Harvest
from tests.messages import says
from tests.world import RULES, World, event_of

PRIVATE = Visibility.under(["all"], 1001, "ada")


def requests_of(world: World, promise: MainPromise | None) -> LoopRequests:
    world.loop.rules = replace(RULES, promise=promise)
    tracker = world.loop.ledger.promise
    now = world.clock.now()
    tracker.apply(event_of(now - 9000, "pool", data={"idle": 1}))
    for name, user, after_s in (("41", "ada", 12.0), ("42", "eve", 40.0)):
        at = now - 5000
        given: dict[str, JsonValue] = {"main_job": name, "user": user, "submitted_at": at - 1.0}
        tracker.apply(event_of(at, "main_met", data=given))
        tracker.apply(event_of(at, "intent", 1, "7_0", "n0", data={"type": "leave", "main_job": name}))
        met = {**given, "started_at": at + after_s, "left_at": at + after_s}
        tracker.apply(event_of(at + after_s, "main_met", 1, "7_0", "n0", data=met))
    tracker.learn((f"{n}", now - 8000 + n, 1) for n in range(100, 300))
    return LoopRequests(
        world.loop, nullcontext(), world.clock, Harvest("harvest"), lambda count: (), lambda: 1,
        of_main_job=lambda name: (),
    )  # fmt: skip


def test_sums_are_of_all_main_jobs_and_names_of_those_that_may_be_seen() -> None:
    world = World()
    requests = requests_of(world, MainPromise(p95_s=2.0, cycle_ratio=1.5))
    world.tick()
    whole, own = requests.promise(7, Visibility()), requests.promise(7, PRIVATE)
    assert whole.stated == {"main_delay_p95": 2.0, "controller_cycle": 1.5, "chance": 0.9}
    assert whole.kept == own.kept
    assert whole.kept is not None
    assert (whole.kept.main_jobs, whole.kept.met, whole.kept.longest_s, whole.kept.within) == (200, 2, 41.0, 0.99)
    assert whole.kept.at_least is not None
    assert 0.95 < whole.kept.at_least < 0.99
    assert whole.kept.broken == ""
    assert [(each.main_job, each.nodes) for each in whole.main_jobs] == [("41", ("n0",)), ("42", ("n0",))]
    assert [(each.main_job, each.nodes) for each in own.main_jobs] == [("41", ())]
    assert len(whole.curve) == 9, "the stated bound is one of those that are shown in any case"


def test_without_a_promise_it_says_what_one_would_cost() -> None:
    world = World()
    requests = requests_of(world, None)
    world.tick()
    row = requests.promise(7, Visibility())
    assert row.stated == {}
    assert row.reserve_nodes is None
    assert row.curve[0].reserve_nodes > row.curve[-1].reserve_nodes == 0.0


def test_explaining_a_main_job_ends_with_what_pilots_cost_it() -> None:
    lines = requests_of(World(), None).explain("main-job 41", Visibility())
    assert any(says(line, "13 s", "1 of", "epilog") for line in lines)
