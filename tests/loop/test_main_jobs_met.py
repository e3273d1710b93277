"""Main jobs that began and ended between two looks are in the journal, or it says that they may be missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.event import (
    DaemonStarted,
    Event,
    MainJobMet,
    MainJobsUnseen,
    PilotEnded,
    PilotHeld,
    PilotStarted,
    PoolCounted,
)
from malletrain.domain.snapshot import EndedJobs, SlurmJob, SlurmState, Snapshot
from malletrain.loop.trackers.main_jobs import AFTER_S, MAX_ASK_INTERVAL_S, MainJobsMet

NOW = 1_700_000_000.0


def ended(number: int, start: float, end: float, *nodes: str) -> SlurmJob:
    return SlurmJob(
        str(number), number, "bob", "", "batch", "", SlurmState.COMPLETED,
        submit_time=start - 1, start_time=start, end_time=end, nodes=nodes or ("n1",),
    )  # fmt: skip


def folded(*events: Event) -> MainJobsMet:
    tracker = MainJobsMet()
    for event in events:
        tracker.apply(event)
    return tracker


def stay(since: float, at: float, node: str = "n1", *, preempted: bool = True) -> list[Event]:
    return [
        Event(since, PilotStarted(), 1, "9_0", node),
        Event(at, PilotEnded(preempted=preempted), 1, "9_0", node),
    ]


@pytest.fixture
def left() -> MainJobsMet:
    """A pilot was on n1 for ten minutes, and is seen to be gone at NOW."""
    tracker = MainJobsMet()
    assert tracker.to_ask(NOW - 20) is None
    for event in stay(NOW - 600, NOW):
        tracker.apply(event)
    return tracker


@pytest.mark.parametrize("gone", [PilotHeld(left_at=NOW - 7), PilotEnded(left_at=NOW - 7)])
def test_a_node_was_free_when_slurm_says_so_not_when_a_look_showed_it(gone: PilotHeld | PilotEnded) -> None:
    tracker = folded(Event(NOW - 60, PilotStarted(), 1, "9_0", "n1"), Event(NOW, gone, 1, "9_0", "n1"))
    row = replace(ended(7, NOW + 1, NOW + 90), state=SlurmState.RUNNING)
    (event,) = tracker.look(Snapshot(NOW + 4, (), (row,)), "harvest", NOW + 4)
    assert isinstance(event.payload, MainJobMet)
    assert event.payload.left_at == NOW - 7


def test_a_job_that_came_and_went_between_two_looks_is_noted_once(left: MainJobsMet) -> None:
    assert left.to_ask(NOW) is None, "not at each tick: Slurm shows ended jobs for minutes"
    later = NOW + MAX_ASK_INTERVAL_S
    assert left.to_ask(later) == (("n1",), NOW - 20)
    (event,) = left.ended(EndedJobs((ended(7, NOW - 9, NOW - 4),), NOW - 20), NOW - 20, later)
    assert event.payload == MainJobMet("7", "bob", NOW - 10, NOW - 9, NOW, True, NOW - 4)
    assert (event.job, event.pilot, event.node) == (1, "9_0", "n1")
    left.apply(event)
    assert left.ended(EndedJobs((ended(7, NOW - 9, NOW - 4),), NOW - 20), later, later + 30) == []


def test_only_jobs_after_the_pilot_and_before_the_next_count(left: MainJobsMet) -> None:
    left.apply(Event(NOW + 10, PilotStarted(), 2, "9_1", "n1"))
    jobs = (
        ended(1, NOW - 900, NOW - 601),  # before the pilot
        ended(2, NOW - 5, NOW - 1, "n2"),  # elsewhere
        ended(3, NOW - 5, NOW - 1),
        ended(4, NOW + 20, NOW + 25),  # after the next pilot had the node
    )
    found = left.ended(EndedJobs(jobs, NOW - 20), NOW - 20, NOW + 30)
    assert [event.payload.main_job for event in found if isinstance(event.payload, MainJobMet)] == ["3"]
    assert left.to_ask(NOW + 90) is None, "asked, and another pilot has the node"


def test_a_short_job_before_one_that_a_look_shows_is_noted_too(left: MainJobsMet) -> None:
    left.apply(Event(NOW + 10, MainJobMet("8", "bob", NOW, NOW + 5, NOW, True), 1, "9_0", "n1"))
    jobs = (ended(7, NOW - 3, NOW + 2), ended(8, NOW + 5, NOW + 25))
    found = left.ended(EndedJobs(jobs, NOW - 20), NOW - 20, NOW + 30)
    assert [event.payload.main_job for event in found if isinstance(event.payload, MainJobMet)] == ["7"]


def test_what_slurm_has_forgotten_is_said_not_passed_over(left: MainJobsMet) -> None:
    (event,) = left.ended(EndedJobs((), NOW + 10), NOW - 20, NOW + 40)
    assert event.payload == MainJobsUnseen(NOW - 20, NOW + 10)
    asked = left.to_ask(NOW + 56)
    assert asked == (("n1",), NOW + 40), "where Slurm forgets within 30 s, it is asked within 15"


def test_a_node_is_asked_about_until_nobody_would_blame_the_pilot(left: MainJobsMet) -> None:
    late = NOW + AFTER_S + 40
    found = left.ended(EndedJobs((ended(5, NOW + AFTER_S + 1, late - 1),), NOW - 20), NOW - 20, late)
    assert found == []
    assert left.to_ask(late + 60) is None


def test_after_a_restart_the_time_without_a_daemon_is_asked_about_and_no_more() -> None:
    tracker = folded(
        *stay(NOW - 9000, NOW - 8000, "n3"),
        Event(NOW - 7000, MainJobMet("4", "bob", None, NOW - 8000, NOW - 8000, False), 1, "9_0", "n3"),
        Event(NOW - 700, PilotStarted(), 1, "9_0", "n1"),
        Event(NOW - 600, PoolCounted(idle=1)),
        Event(NOW, DaemonStarted("1")),
        Event(NOW + 1, PilotHeld(preempted=True), 1, "9_0", "n1"),
    )
    assert tracker.to_ask(NOW + MAX_ASK_INTERVAL_S + 2) == (("n1",), NOW - 600 - MAX_ASK_INTERVAL_S)


def test_a_heterogeneous_job_put_off_after_a_preemption_is_noted_and_again_when_it_runs() -> None:
    tracker = folded(*stay(NOW - 60, NOW))
    part = SlurmJob(
        "7+0", 7, "bob", "", "batch", "", SlurmState.PENDING, reason="BeginTime", het_id=7, submit_time=NOW + 1,
        start_time=NOW + 122,
    )  # fmt: skip
    other = replace(part, id="7+1", raw_id=8, reason="Resources", submit_time=NOW - 2, start_time=NOW + 4)
    own = replace(part, id="5+0", het_id=5, start_time=NOW + 3600)  # sbatch --begin
    early = replace(part, id="6+0", het_id=6)
    (event,) = tracker.look(Snapshot(NOW + 2, (), (part, other, own, early)), "harvest", NOW + 2)
    assert event.payload == MainJobMet("7+0", "bob", NOW - 2, put_off=True), "requeued after the preemption"
    tracker.apply(event)
    assert tracker.look(Snapshot(NOW + 4, (), (part,)), "harvest", NOW + 4) == []
    runs = replace(part, state=SlurmState.RUNNING, start_time=NOW + 121, nodes=("n4", "n5"))
    (event,) = tracker.look(Snapshot(NOW + 122, (), (runs,)), "harvest", NOW + 122)
    assert (event.node, event.pilot) == ("n4", None)
    tracker.apply(event)
    assert tracker.look(Snapshot(NOW + 124, (), (runs,)), "harvest", NOW + 124) == []


def test_jobs_that_wait_for_pilots_are_noted_once_by_the_name_that_intents_give_them() -> None:
    part = SlurmJob("7+1", 8, "bob", "", "batch", "", SlurmState.PENDING, het_id=7, submit_time=NOW - 2)
    other = replace(part, id="9", het_id=None)
    tracker = MainJobsMet()
    snapshot = Snapshot(NOW, (), (part, other))
    (event,) = tracker.yields({"7+1": True}, snapshot, NOW)
    assert event.payload == MainJobMet("7+1", "bob", NOW - 2, behind=True)
    tracker.apply(event)
    assert tracker.yields({"7+1": True}, snapshot, NOW + 1) == []
