"""What a look at the queue says of pilots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.event import PilotEnded, PilotHeld
from malletrain.domain.job import JobPhase, JobView, MalleableJob, Pilot, PilotEnd, PilotPhase
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot
from malletrain.loop.pilot_changes import observe
from tests.messages import says

NOW = 1_700_000_000.0
JOB = MalleableJob(1, "t", "ann", 1000, "", 1, 4, NOW)


def unasked(pilot: str) -> PilotEnd:
    raise AssertionError(f"{pilot} is in the queue")


@pytest.mark.parametrize(
    ("submitted_at", "started_at", "left_at"),
    [
        (NOW - 6, NOW - 60, NOW - 6),  # requeued: submitted anew once its nodes were free
        (NOW - 900, NOW - 60, None),  # held as it was submitted
        (NOW - 6, None, None),  # it never ran
        (None, NOW - 60, None),
    ],
)
def test_when_slurm_had_requeued_a_task_is_when_its_nodes_were_free(
    submitted_at: float | None, started_at: float | None, left_at: float | None
) -> None:
    row = SlurmJob(
        "9_0", 9, "ann", "", "harvest", "", SlurmState.PENDING, reason="job requeued in held state",
        submit_time=submitted_at,
    )  # fmt: skip
    first = Pilot("9_0", 1, PilotPhase.RECYCLING, NOW - 8, "n1", started_at)
    second = Pilot("9_0+1", 1, PilotPhase.RECYCLING, NOW - 8, "n2", started_at)
    views = {1: JobView(JOB, JobPhase.RUNNING, {each.id: each for each in (first, second)})}
    of_task, of_part = observe(Snapshot(NOW, (), (row,)), views, unasked, NOW + 1, "harvest")
    assert of_task.payload == PilotHeld(left_at=left_at)
    assert of_part.payload == PilotEnded(SlurmState.REQUEUED, left_at=left_at)


HELD_AGAIN = SlurmJob(
    "9_0", 9, "ann", "", "harvest", "", SlurmState.PENDING, reason="JobHeldUser", submit_time=NOW - 900
)  # fmt: skip


def test_a_task_that_had_ended_and_waits_again_is_held_again() -> None:
    """slurmctld had not saved the end before it was killed: it comes back with the task as it was."""
    views = {1: JobView(JOB, JobPhase.COMPLETED, {"9_0": Pilot("9_0", 1, PilotPhase.ENDED, NOW - 8)})}
    (event,) = observe(Snapshot(NOW, (), (HELD_AGAIN,)), views, unasked, NOW + 1, "harvest")
    assert (event.payload, event.pilot) == (PilotHeld(), "9_0")
    assert says(event.reason, "again")


@pytest.mark.parametrize(
    "row",
    [
        replace(HELD_AGAIN, submit_time=NOW - 5),  # of another job: slurmctld uses the number again
        replace(HELD_AGAIN, submit_time=None),
        replace(HELD_AGAIN, partition="main"),  # its owner has made a job of the main queue of it
        replace(HELD_AGAIN, priority=7),
        replace(HELD_AGAIN, state=SlurmState.COMPLETING),
    ],
)
def test_what_has_the_name_of_a_task_that_has_ended_is_left_alone(row: SlurmJob) -> None:
    pilot = Pilot("9_0", 1, PilotPhase.ENDED, NOW - 8)
    views = {1: JobView(JOB, JobPhase.COMPLETED, {"9_0": pilot, "9_0+1": replace(pilot, id="9_0+1")})}
    assert observe(Snapshot(NOW, (), (row,)), views, unasked, NOW + 1, "harvest") == []
    late = replace(views[1], pilots={"9_0": replace(pilot, since=NOW)})
    assert observe(Snapshot(NOW, (), (HELD_AGAIN,)), {1: late}, unasked, NOW + 1, "harvest") == [], (
        "older than its end"
    )


@pytest.mark.parametrize("phase", [PilotPhase.RELEASED, PilotPhase.RUNNING, PilotPhase.RECYCLING])
@pytest.mark.parametrize("reason", ["Dependency", "JobArrayTaskLimit", "job requeued in held state", "None"])
def test_slurm_holds_by_priority_0_whatever_its_reason(reason: str, phase: PilotPhase) -> None:
    views = {1: JobView(JOB, JobPhase.RUNNING, {"9_0": Pilot("9_0", 1, phase, NOW - 8, "n1")})}
    held = replace(HELD_AGAIN, reason=reason)
    (event,) = observe(Snapshot(NOW, (), (held,)), views, unasked, NOW + 1, "harvest")
    assert isinstance(event.payload, PilotHeld)
    found = observe(Snapshot(NOW, (), (replace(held, priority=7),)), views, unasked, NOW + 1, "harvest")
    assert not any(isinstance(event.payload, PilotHeld) for event in found)


def test_a_released_task_that_slurm_holds_as_unfit_waits_for_its_diagnosis() -> None:
    views = {1: JobView(JOB, JobPhase.RUNNING, {"9_0": Pilot("9_0", 1, PilotPhase.RELEASED, NOW - 8, "n1")})}
    row = replace(HELD_AGAIN, reason="BadConstraints")
    assert observe(Snapshot(NOW, (), (row,)), views, unasked, NOW + 1, "harvest") == []
