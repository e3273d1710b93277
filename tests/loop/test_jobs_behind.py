"""A main job that waited behind one which pilots had delayed has a delay, too: a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.api.explain import explain
from malletrain.api.people_rows import delay_row
from malletrain.api.visibility import Visibility
from malletrain.domain.event import Event, JsonValue, MainJobMet
from malletrain.domain.snapshot import SlurmJob, Snapshot
from malletrain.loop.tick import Loop
from malletrain.loop.trackers.main_jobs import DelayCause, JobsBehind, MainJobDelay
from malletrain.loop.trackers.main_promise import PromiseTracker
from tests.messages import says
from tests.world import RULES, START, World, event_of, job, main_job

#: Submitted at START, could start 2 s later, and started 40 s after that.
FRONT = MainJobDelay("20+1", "main", START + 2, START + 42, ("n0",), 12.0, 40.0)


def seen(*rows: SlurmJob, at: float) -> Snapshot:
    return Snapshot(at, (), rows)


def behind(tracker: JobsBehind, at: float, *rows: SlurmJob) -> list[tuple[str, str]]:
    events = tracker.look(seen(*rows, at=at), {"20": FRONT}, RULES.harvest_partition, at)
    return [(e.payload.main_job, e.payload.waited_for) for e in events if isinstance(e.payload, MainJobMet)]


def waited(tracker: JobsBehind) -> None:
    """The front job waits for pilots, and then begins."""
    row = replace(main_job(20, submit_time=START, priority=100), id="20+1", het_id=20)
    tracker.waits(seen(row, at=START + 10), {"20+1": False})
    running = replace(main_job(20, nodes=["n0", "n1"], submit_time=START, start=START + 42), id="20+1", het_id=20)
    assert behind(tracker, START + 40) == []
    assert behind(tracker, START + 50, running) == []


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (main_job(21, nodes=["n5"], submit_time=START + 9, start=START + 48), True),
        (main_job(21, nodes=["n5"], submit_time=START + 43, start=START + 48), False),  # came afterwards
        (main_job(21, nodes=["n5"], submit_time=START + 9, start=START + 30), False),  # began before
        (main_job(19, nodes=["n5"], submit_time=START + 9, start=START + 48), False),  # was ahead of it
        (main_job(21, nodes=["n5"], submit_time=START + 9, start=START + 48, priority=200), False),
        (main_job(21, nodes=["n1"], submit_time=START + 45, start=START + 55), True),  # for its nodes
        (main_job(21, nodes=["n1"], submit_time=START + 55, start=START + 55), False),  # which it found free
    ],
)
def test_who_waited_behind_a_delayed_job(row: SlurmJob, found: bool) -> None:
    tracker = JobsBehind()
    waited(tracker)
    assert behind(tracker, START + 60, row) == ([("21", "20")] if found else [])


def test_what_runs_at_the_first_look_is_not_known_to_have_waited() -> None:
    tracker = JobsBehind()
    row = main_job(21, nodes=["n1"], submit_time=START, start=START + 48)
    assert behind(tracker, START + 50, row) == []


def test_the_delay_is_that_of_the_job_in_front_at_most_and_its_own_wait() -> None:
    tracker = PromiseTracker()
    tracker.look(seen(at=START - 90), 0, None, START - 90, RULES)
    for each in iter(tracker.take_arrived, None):
        tracker.apply(Event(START - 90, each))
    given: dict[str, JsonValue] = {"main_job": "20", "submitted_at": START}
    tracker.apply(event_of(START + 1, "main_met", data=given))
    met = {**given, "started_at": START + 20, "left_at": START + 19}
    tracker.apply(event_of(START + 22, "main_met", 1, "7_0", "n0", data=met))
    for name, submitted, started in (("21", START - 60, START + 30), ("22", START + 15, START + 25)):
        after: dict[str, JsonValue] = {"main_job": name, "submitted_at": submitted, "started_at": started}
        tracker.apply(event_of(started + 2, "main_met", node="n5", data={**after, "waited_for": "20"}))
    then: dict[str, JsonValue] = {"main_job": "23", "submitted_at": START + 20, "started_at": START + 60}
    tracker.apply(event_of(START + 62, "main_met", node="n5", data={**then, "waited_for": "22"}))
    found = {each.main_job: each for each in tracker.delays(0.0)}
    assert {name: each.delay_s for name, each in found.items()} == {"20": 20.0, "21": 20.0, "22": 10.0, "23": 10.0}
    assert found["22"].cause is DelayCause.BEHIND
    assert says(found["22"].words(), "at most 10 s", "main job 20")
    assert tracker.kept_since(0.0, START + 1000)[1].delays_s == (20.0,), "the daemon steps back for the first alone"
    theirs = Visibility(uid=1001, user="bob")
    assert says(delay_row(found["22"], theirs).reason, "10 s", "main job")


def test_the_journal_keeps_who_waited_behind_whom() -> None:
    world = World(nodes=2, rules=replace(RULES, claim_patience_s=100.0))
    world.submit(job(1, most=2))
    world.tick()
    world.tick()
    came = world.clock.now()
    front = main_job(20, count=2, submit_time=came)
    second = main_job(21, count=1, submit_time=came + 1)
    world.cluster.set_main([front, second])
    world.tick()
    world.tick()
    began = world.clock.now()
    running = main_job(20, nodes=["n0", "n1"], submit_time=came, start=began)
    world.cluster.set_main([running, second])
    world.tick()
    world.tick()
    last = main_job(21, nodes=["n1"], submit_time=came + 1, start=world.clock.now())
    world.cluster.set_main([last])
    world.tick()
    anew = Loop(world.cluster, world.workers, world.journal, world.clock, world.loop.policy, RULES)
    anew.restore()
    for loop in (world.loop, anew):
        found = {each.main_job: each for each in loop.ledger.promise.delays(0.0)}
        assert found["20"].delay_s > 0
        assert (found["21"].behind, found["21"].delay_s) == ("20", found["20"].delay_s)
    events: list[Event] = list(world.journal.read())
    lines = explain("main-job 21", {}, None, None, events, delays=anew.ledger.promise.delays(0.0))
    assert any(says(line, "waited", "main job 20") for line in lines)
