"""Main jobs that have nodes which pilots left are in the journal, also those that ended between two looks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.event import (
    Event,
    MainJobMet,
    PilotEnded,
    PilotHeld,
    PilotStarted,
)
from malletrain.domain.snapshot import BackfillPlan, SlurmJob, SlurmState, Snapshot
from malletrain.loop.trackers.main_jobs import AFTER_S, ASK_INTERVAL_S, MainJobsMet

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


@pytest.mark.parametrize("gone", [PilotHeld(left_at=NOW - 7), PilotEnded(left_at=NOW - 7)])
def test_a_node_was_free_when_slurm_says_so_not_when_a_look_showed_it(gone: PilotHeld | PilotEnded) -> None:
    tracker = folded(Event(NOW - 60, PilotStarted(), 1, "9_0", "n1"), Event(NOW, gone, 1, "9_0", "n1"))
    row = replace(ended(7, NOW + 1, NOW + 90), state=SlurmState.RUNNING)
    (event,) = tracker.look(Snapshot(NOW + 4, (), (row,)), "harvest", NOW + 4)
    assert isinstance(event.payload, MainJobMet)
    assert event.payload.left_at == NOW - 7


def test_the_first_job_that_came_and_went_between_two_looks_is_noted_once() -> None:
    left = folded(*stay(NOW - 600, NOW))
    assert left.look(Snapshot(NOW, (), (), plan=BackfillPlan(interval_s=60.0)), "harvest", NOW) == []
    assert left.to_ask(NOW) == ["n1"]
    assert left.to_ask(NOW + ASK_INTERVAL_S - 1) == (), "not at each tick: Slurm shows ended jobs for minutes"
    jobs = (
        ended(1, NOW - 900, NOW - 601),  # before the pilot
        ended(2, NOW - 5, NOW - 1, "n2"),
        ended(8, NOW - 3, NOW + 25),
        ended(7, NOW - 9, NOW - 4),
    )
    (event,) = left.ended(jobs, NOW + ASK_INTERVAL_S)
    assert event.payload == MainJobMet("7", "bob", NOW - 10, NOW - 9, NOW, True, cycle_s=60.0)
    assert (event.job, event.pilot, event.node) == (1, "9_0", "n1")
    left.apply(event)
    assert left.ended(jobs, NOW + ASK_INTERVAL_S) == []


@pytest.mark.parametrize(("start", "met"), [(NOW + 20, True), (NOW + AFTER_S, True), (NOW + 3000, False)])
def test_after_hours_without_a_look_only_jobs_that_began_soon_after_a_pilot_met_it(start: float, met: bool) -> None:
    """As at the first look after a restart, or after an outage: the journal has the pilots of hours ago."""
    late = NOW + 7200
    job = ended(7, start, late - 1)
    runs = replace(job, state=SlurmState.RUNNING)
    seen = folded(*stay(NOW - 600, NOW)).look(Snapshot(late, (), (runs,)), "harvest", late)
    assert len(seen) == len(folded(*stay(NOW - 600, NOW)).ended([job], late)) == met


def test_a_node_is_asked_about_until_nobody_would_blame_the_pilot() -> None:
    left = folded(*stay(NOW - 600, NOW))
    late = NOW + AFTER_S + 40
    assert left.look(Snapshot(late, (), ()), "harvest", late) == []
    assert left.to_ask(late) == ()


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
