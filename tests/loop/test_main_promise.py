"""What the promise to the main queue is reckoned from, and that the daemon keeps to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.decide.rules import MainPromise
from malletrain.domain.event import DaemonStarted, Event, JsonValue
from malletrain.domain.snapshot import BackfillPlan, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.memory import MemoryCluster
from malletrain.loop.queue_promise import PromiseKept, next_step, why_broken
from malletrain.loop.tick import Loop
from malletrain.loop.trackers.main_jobs import DelayCause
from malletrain.loop.trackers.main_promise import PromiseTracker
from tests.messages import says
from tests.world import RULES, START, World, event_of, job, main_job, node

PROMISED = replace(RULES, promise=MainPromise(p95_s=2.0))


def seen(*jobs: object, nodes: int = 10, **plan: object) -> Snapshot:
    made = tuple(node(f"n{n}", NodeState.IDLE) for n in range(nodes))
    return Snapshot(START, made, tuple(jobs), plan=BackfillPlan(**plan))  # type: ignore[arg-type]


def looked(tracker: PromiseTracker, snapshot: Snapshot, now: float = START, pilots: int = 0) -> None:
    """A look, and what it tells the journal, as the loop does it."""
    tracker.look(snapshot, pilots, 12.0, now, PROMISED)
    for each in iter(tracker.take_arrived, None):
        tracker.apply(Event(now, each))


def test_arrivals_come_from_accounting_and_from_looks_each_once() -> None:
    tracker = PromiseTracker()
    assert tracker.learn([("7", START - 50, 2), ("8_1", START - 40, 1), ("8_2", START - 40, 1)]) == 3
    rows = (
        main_job(7, submit_time=START - 50, count=2),
        replace(main_job(8, submit_time=START - 40), id="8_[3-4]"),
        main_job(9, submit_time=START - 1, count=4),
    )
    looked(tracker, seen(*rows))
    looked(tracker, seen(*rows))
    assert tracker.arrivals == 4
    looked(tracker, seen(main_job(9, submit_time=START + 9, count=4)))
    assert tracker.arrivals == 5, "requeued and submitted anew under its number"


def gave_way(
    tracker: PromiseTracker, name: str, at: float, left: float, started: float, *, behind: bool = True
) -> None:
    """Pilots leave for a main job that was submitted a second before, and it has their node."""
    given: dict[str, JsonValue] = {"main_job": name, "submitted_at": at - 1.0}
    tracker.apply(event_of(at, "main_met", data={**given, "behind": behind}))
    tracker.apply(event_of(at, "intent", 1, "7_0", "n0", data={"type": "leave", "main_job": name}))
    met = {**given, "started_at": started, "left_at": left}
    tracker.apply(event_of(left + 1, "main_met", 1, "7_0", "n0", data=met))


def test_a_busy_machine_is_harvested_once_one_node_has_shown_how_quickly_pilots_leave() -> None:
    tracker, snapshot = PromiseTracker(), seen(interval_s=1.0)
    tracker.learn([(str(n), START - 60.0 * n, 10) for n in range(70)])
    looked(tracker, snapshot)
    assert tracker.rules(PROMISED, snapshot, START).keep_idle == 9
    gave_way(tracker, "first", START + 10, START + 10, START + 10)
    later = START + 400.0
    looked(tracker, snapshot, later)
    assert tracker.rules(PROMISED, snapshot, later).keep_idle == PROMISED.keep_idle


def test_before_any_main_job_met_a_pilot_nodes_are_free_after_a_look_the_leaving_and_the_epilog_of_others() -> None:
    """A promise of 60 s, cycles of 30 s, a look every 10 s, nodes free 12 s after a pilot's end: 54 s at most."""
    tracker, snapshot = PromiseTracker(), seen()
    promised = replace(RULES, promise=MainPromise(p95_s=60.0))
    tracker.learn([(str(n), START - 60.0 * n, 10) for n in range(30)])
    tracker.look(snapshot, 0, None, START, promised)
    assert tracker.rules(promised, snapshot, START).keep_idle == 10, "nothing is known of epilogs"
    tracker.look(snapshot, 0, 12.0, START, promised)
    assert tracker.rules(promised, snapshot, START).keep_idle == promised.keep_idle


@pytest.mark.parametrize(("look_s", "nodes"), [(10.0, 3), (1.0, 1)])
def test_a_reserve_that_is_looked_at_more_often_is_full_again_sooner(look_s: float, nodes: int) -> None:
    """One-node jobs, four in a row five seconds apart; nodes are free again a second after a worker has left."""
    tracker, snapshot = PromiseTracker(), seen()
    tracker.look_s = look_s
    tracker.learn([(str(n), START - 1000.0 * (n // 4) - 5.0 * (n % 4), 1) for n in range(200)])
    gave_way(tracker, "first", START - 90, START - 75, START - 75)
    tracker.look(snapshot, 0, 1.0, START, PROMISED)
    assert tracker.rules(PROMISED, snapshot, START).keep_idle == nodes


def test_how_long_nodes_take_to_be_free_is_learnt_and_how_much_later_jobs_start() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=30.0))
    gave_way(tracker, "at once", START + 10, START + 12, START + 12)
    gave_way(tracker, "by the next cycle", START + 110, START + 122, START + 145)
    gave_way(tracker, "in its own cycle", START + 210, START + 215, START + 225)
    assert tracker.times().took_s == (3.0, 13.0, 6.0)
    kept = tracker.kept_since(START, START + 1000)[1]
    assert kept.delays_s == (3.0, 30.0, 0.0), "one of two cycles; and no cycle, where the first came in time"
    assert kept.delay_p95_s == 30.0
    assert kept.late(2.0) == 2


def test_a_job_that_waited_for_other_things_before_counts_from_when_pilots_were_asked() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen())
    given: dict[str, JsonValue] = {"main_job": "9", "submitted_at": START - 5000.0}
    tracker.apply(event_of(START, "main_met", data=given))
    tracker.apply(event_of(START, "intent", 1, "7_0", "n0", data={"type": "leave", "main_job": "9"}))
    met = {**given, "started_at": START + 3, "left_at": START + 3}
    tracker.apply(event_of(START + 4, "main_met", 1, "7_0", "n0", data=met))
    assert tracker.times().took_s == (8.5,)


def test_the_tasks_of_an_array_are_jobs_of_their_own() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen())
    tracker.apply(event_of(START, "intent", 1, "7_0", "n0", data={"type": "leave", "main_job": "9_[1-4]"}))
    for task, after_s in ((1, 2.0), (2, 3.0), (3, 900.0)):
        met: dict[str, JsonValue] = {
            "main_job": f"9_{task}",
            "started_at": START + after_s,
            "left_at": START + after_s,
        }
        tracker.apply(event_of(START + after_s, "main_met", 1, "7_0", "n0", data=met))
    assert tracker.times().took_s == (7.5, 8.5), "the third waited for other things, too"


def test_a_job_for_which_slurm_preempted_a_pilot_counts_as_late_by_a_cycle_at_most() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=30.0))
    met: dict[str, JsonValue] = {
        "main_job": "9", "submitted_at": START, "started_at": START + 100, "left_at": START + 99, "preempted": True,
    }  # fmt: skip
    tracker.apply(event_of(START + 101, "main_met", 1, "7_0", "n0", data=met))
    assert tracker.kept_since(START, START + 900)[1].delays_s == (30.0,)
    tracker.apply(event_of(START + 102, "main_met", 1, "7_1", "n1", data={**met, "main_job": "10", "cycle_s": 75.0}))
    assert [each.delay_s for each in tracker.delays(0.0)] == [75.0, 30.0], "by the cycle then, not by today's"


def test_a_job_that_nobody_was_ahead_of_would_have_started_at_once() -> None:
    """Only for one behind a job that cannot start is a cycle's wait Slurm's own."""
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=30.0))
    gave_way(tracker, "8", START + 10, START + 22, START + 32, behind=False)
    gave_way(tracker, "9", START + 110, START + 122, START + 132, behind=True)
    found = {each.main_job: (each.delay_s, each.cause) for each in tracker.delays(0.0)}
    assert found == {"8": (23.0, DelayCause.BACKFILL), "9": (0.0, DelayCause.NONE)}


def test_a_pilot_that_was_there_when_the_job_came_counts_though_nobody_was_asked() -> None:
    """Between two looks a pilot's limit ended, or it left for another job."""
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=1.0))
    for number, submitted, left, started in (("8", 0.0, 5.0, 3.0), ("9", 0.0, 99.0, 98.0), ("10", 60.0, 40.0, 61.0)):
        met: dict[str, JsonValue] = {
            "main_job": number, "submitted_at": START + submitted, "started_at": START + started,
            "left_at": START + left,
        }  # fmt: skip
        tracker.apply(event_of(START + left + 1, "main_met", 1, "7_0", "n0", data=met))
    found = {each.main_job: each.delay_s for each in tracker.delays(0.0)}
    assert found == {"8": 3.0, "9": 5.0}, "of a long wait the last seconds; and a pilot that was gone before is none"


def test_a_job_that_waits_for_nodes_which_pilots_are_leaving_counts_from_then() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=30.0))
    given: dict[str, JsonValue] = {"main_job": "9", "submitted_at": START - 1}
    tracker.apply(event_of(START, "main_met", data=given))
    met = {**given, "started_at": START + 12, "left_at": START + 12}
    tracker.apply(event_of(START + 13, "main_met", 1, "7_0", "n0", data=met))
    assert [each.delay_s for each in tracker.delays(0.0)] == [13.0]


def test_a_heterogeneous_job_that_slurm_put_off_for_a_pilot_is_late_by_all_of_it() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=1.0))
    given: dict[str, JsonValue] = {"main_job": "9+0", "submitted_at": START, "put_off": True}
    tracker.apply(event_of(START + 2, "main_met", data=given))
    tracker.apply(event_of(START + 123, "main_met", node="n0", data={**given, "started_at": START + 121}))
    part: dict[str, JsonValue] = {
        "main_job": "9+1", "submitted_at": START, "started_at": START + 121, "left_at": START + 2,
    }  # fmt: skip
    tracker.apply(event_of(START + 124, "main_met", 1, "7_0", "n1", data=part))
    found, other = tracker.delays(0.0)
    assert (found.cause, found.delay_s) == (DelayCause.PUT_OFF, 121.0)
    assert (other.cause, other.delay_s) == (DelayCause.PUT_OFF, 121.0), "of another part that a pilot made room for"
    assert says(found.words(), "121 s", "heterogeneous")


@pytest.mark.parametrize(
    ("bound_s", "kept", "broken"),
    [
        (2.0, PromiseKept(100, (9.0,) * 4), ""),
        (2.0, PromiseKept(100, (9.0,) * 12), "12 of 100"),
        (20.0, PromiseKept(100, (9.0,) * 12), ""),
        (2.0, PromiseKept(0), ""),
    ],
)
def test_what_shows_a_promise_to_be_broken(bound_s: float, kept: PromiseKept, broken: str) -> None:
    why = why_broken(bound_s, kept)
    assert says(why, broken, "2 s") if broken else why == ""
    assert next_step(bound_s, kept, 1)[0] == (2 if broken else 0 if kept.jobs >= 50 else 1)


def test_the_daemon_steps_back_when_the_promise_was_not_kept_and_forward_when_it_is() -> None:
    tracker = PromiseTracker()
    tracker.learn([(str(n), START - 100 * n, 1 + n % 8) for n in range(1, 400)])
    looked(tracker, seen())
    before = tracker.rules(PROMISED, seen(), START)
    for n in range(20):
        looked(tracker, seen(main_job(1000 + n, submit_time=START + n)), START + n)
    for n in range(6):
        gave_way(tracker, str(1000 + n), START + n + 1, START + n + 20, START + n + 20)
    looked(tracker, seen(), START + 600)
    assert tracker.steps_back == 1
    assert says(tracker.stepped_for, "6 of 20", "2 s")
    after = tracker.rules(PROMISED, seen(), START + 600)
    assert after.keep_idle >= before.keep_idle
    assert "1 steps stricter" in after.keep_why
    later = START + 1000
    for n in range(60):
        looked(tracker, seen(main_job(2000 + n, submit_time=later + n)), later + n)
    looked(tracker, seen(), later + 600)
    assert (tracker.steps_back, tracker.stepped_for) == (0, "kept for 60 main jobs")


def test_without_a_promise_the_rules_are_the_sites_own() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=4), tasks=4)
    world.tick()
    assert world.loop.ledger.promise.held is None
    assert world.loop.last_decision is not None
    assert "promise" not in world.loop.last_decision.reason


def test_the_loop_holds_what_the_promise_asks_for() -> None:
    world = World(nodes=10, rules=PROMISED)
    world.loop.ledger.promise.learn([(f"m{n}", START - 3600.0 * n, 1 + 2 * (n % 2)) for n in range(1, 120)])
    world.submit(job(1, most=10), tasks=12)
    for _ in range(3):
        world.tick()
    assert len(world.running()) == 7, "three nodes wide is what jobs are here, and epilogs are not known"
    assert world.loop.last_decision is not None
    assert says(world.loop.last_decision.reason, "3 nodes", "[promise] main_delay_p95 = 2 s")


def test_nothing_is_harvested_while_no_main_job_has_been_seen() -> None:
    world = World(nodes=4, rules=PROMISED)
    world.submit(job(1, most=4), tasks=4)
    world.tick()
    assert not world.running()
    assert world.loop.last_decision is not None
    assert says(world.loop.last_decision.reason, "arrival")


def test_the_number_of_pilots_follows_the_controllers_cycles() -> None:
    tracker = PromiseTracker()
    rules = replace(RULES, max_pilots=100, promise=MainPromise(cycle_ratio=1.5, most_pilots=400))
    for cycle_s, pilots, looks in ((0.1, 0, 6), (0.4, 90, 3)):
        for _ in range(looks):
            tracker.look(seen(main_cycle_s=cycle_s), pilots, None, START, rules)
    found = tracker.rules(rules, seen(), START)
    assert found.max_pilots == 60
    assert says(found.cap_why, "400 ms", "90 pilots", 150)
    assert found.keep_idle == rules.keep_idle


def test_each_main_job_that_met_pilots_has_its_delay_and_the_cause() -> None:
    tracker = PromiseTracker()
    looked(tracker, seen(interval_s=30.0))
    gave_way(tracker, "41", START + 10, START + 12, START + 12)
    gave_way(tracker, "42", START + 110, START + 122, START + 145)
    gave_way(tracker, "43", START + 210, START + 215, START + 225)
    taken: dict[str, JsonValue] = {
        "main_job": "44", "user": "ada", "submitted_at": START + 300, "started_at": START + 310,
        "left_at": START + 309, "preempted": True,
    }  # fmt: skip
    for pilot, name in (("7_1", "n1"), ("7_2", "n2"), ("7_2", "n2")):
        tracker.apply(event_of(START + 311, "main_met", 1, pilot, name, data=taken))
    found = {each.main_job: each for each in tracker.delays(START)}
    assert {name: each.cause for name, each in found.items()} == {
        "41": DelayCause.LEAVING, "42": DelayCause.BACKFILL, "43": DelayCause.NONE, "44": DelayCause.PREEMPTED,
    }  # fmt: skip
    assert (found["44"].user, found["44"].nodes) == ("ada", ("n1", "n2"))
    assert says(found["42"].words(), "30 s", "1 of", "backfill")
    assert says(found["43"].words(), "no delay")
    assert [each.main_job for each in tracker.delays(START + 200)] == ["43", "44"]
    assert [each.main_job for each in found.values() if each.cause is DelayCause.BACKFILL] == ["42"]


def test_how_it_was_kept_is_there_again_after_a_restart_and_counts_accountings_jobs() -> None:
    tracker = PromiseTracker()
    tracker.apply(event_of(START - 9000, "pool", data={"idle": 1}))
    gave_way(tracker, "9", START - 5000, START - 4990, START - 4990)
    tracker.learn((f"{n}", START - 8000 + n, 1) for n in range(100, 200))
    tracker.learn([("1", START - 20_000, 1)])
    begin, kept = tracker.kept_since(0.0, START)
    assert begin == START - 9000, "of jobs before the journal begins, nothing is known"
    assert (kept.jobs, kept.delays_s) == (100, (11.0,))
    assert tracker.kept_since(START - 100, START)[1].jobs == 0


def test_after_a_restart_without_accounting_it_counts_from_the_first_look() -> None:
    """Those that came before it are in no look, and what they met is none of its figures."""
    tracker = PromiseTracker()
    tracker.apply(event_of(START - 9000, "pool", data={"idle": 1}))
    gave_way(tracker, "9", START - 5000, START - 4990, START - 4990)
    looked(tracker, seen(interval_s=1.0))
    begin, kept = tracker.kept_since(0.0, START + 1000)
    assert (begin >= START, kept.jobs, kept.delays_s) == (True, 0, ())
    assert [each.main_job for each in tracker.delays(0.0)] == ["9"], "it is listed all the same"


def test_a_daemon_that_starts_anew_knows_from_the_journal_when_main_jobs_arrived() -> None:
    """Also those that had ended before; an array is as many as it had tasks, and counted once with accounting."""
    world = World(nodes=4, rules=PROMISED)
    for number in range(30):
        world.cluster.set_main([main_job(number, submit_time=world.clock.now(), count=2)])
        world.tick()
    array = replace(main_job(99, submit_time=world.clock.now()), id="99_[1-5]", task_count=5)
    world.cluster.set_main([array])
    world.tick()
    world.cluster.set_main([])
    before = world.loop.ledger.promise
    anew = Loop(world.cluster, world.workers, world.journal, world.clock, world.loop.policy, PROMISED)
    anew.restore()
    tracker = anew.ledger.promise
    assert (before.arrivals, tracker.arrivals) == (35, 35)
    later = world.clock.now() + 600.0
    assert tracker.hour(later) == before.hour(later)
    assert [each.kept_since(START, later)[1].jobs for each in (before, tracker)] == [34, 34], (
        "of all but the first, which had come before the first look"
    )
    assert tracker.learn([(f"99_{n}", array.submit_time or 0.0, 1) for n in range(1, 6)]) == 0
    anew.tick()
    assert len([e for e in world.journal.read() if e.kind == "main_arrived"]) == 31


class PlannedCluster(MemoryCluster):
    """A cluster whose backfill plan is `plan`."""

    plan = BackfillPlan()

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), plan=self.plan)


#: What happens before a look: seconds pass, main jobs come for as many nodes each, or some that run end.
DAY = st.lists(
    st.tuples(st.sampled_from([1.0, 10.0, 45.0, 200.0]), st.lists(st.integers(1, 3), max_size=4), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(DAY, st.lists(st.sampled_from([5.0, 30.0, 75.0]), min_size=12, max_size=12))
def test_a_restart_changes_no_count_of_main_jobs(
    day: list[tuple[float, list[int], int]], cycles: list[float]
) -> None:
    world = World()
    cluster = PlannedCluster([node(f"n{number}") for number in range(4)], world.clock)
    made_of = cluster, world.workers, world.journal, world.clock, world.loop.policy, PROMISED
    world.cluster, world.loop = cluster, Loop(*made_of)
    world.loop.record([Event(START, DaemonStarted())])
    world.submit(job(1))
    runs, waits, number = list[SlurmJob](), list[SlurmJob](), 0
    for (seconds, comes, over), cycle_s in zip(day, cycles, strict=False):
        cluster.plan = BackfillPlan(interval_s=cycle_s)
        at = world.clock.now() + seconds / 2
        runs = runs[over:]
        for width in comes:
            number += 1
            waits.append(main_job(number, count=width, submit_time=float(int(at))))
        busy = {name for row in runs for name in row.nodes}
        while waits and waits[0].node_count <= 4 - len(busy):
            row = waits.pop(0)
            had = [name for name in ("n0", "n1", "n2", "n3") if name not in busy][: row.node_count]
            row = replace(row, state=SlurmState.RUNNING, reason="None", nodes=tuple(had))
            runs.append(replace(row, start_time=float(int(at))))
            busy.update(had)
        world.cluster.set_main([*runs, *waits])
        world.tick(seconds)
    anew = Loop(*made_of)
    anew.restore()
    later = world.clock.now() + 600.0
    before, after = world.loop.ledger.promise, anew.ledger.promise
    assert after.delays(0.0) == before.delays(0.0)
    for since in (0.0, START + 20.0, later - 300.0):
        assert after.kept_since(since, later) == before.kept_since(since, later)


def test_what_a_promise_would_cost_is_known_before_one_is_made() -> None:
    tracker = PromiseTracker()
    tracker.learn((f"{n}", START - 40_000 + 300 * n, 1 + n % 3) for n in range(100))
    assert tracker.curve(START, [2.0]) == [(2.0, 0.0, 0.0)], "no look yet"
    tracker.look(seen(), 0, 12.0, START, RULES)
    assert tracker.held is None
    costs = tracker.curve(START, [0.0, 2.0, 500.0])
    assert [held for _, held, _ in costs] == sorted((held for _, held, _ in costs), reverse=True)
    assert costs[-1][1:] == (0.0, 1.0)


def test_the_curve_of_many_looks_is_of_numbers_evenly_chosen() -> None:
    """No arrival is known, so all nodes would be kept."""
    tracker = PromiseTracker()
    for nodes in range(1000):
        looked(tracker, seen(nodes=nodes % 100))
    ((_, kept, left),) = tracker.curve(START, [2.0])
    assert abs(kept - 49.5) < 1.0 and left == 0.0
