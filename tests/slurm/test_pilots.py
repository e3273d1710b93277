"""Whether a task is the pilot that it should be, and how it ended: pure, over rows as squeue prints them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import SlurmState
from malletrain.slurm import pilots
from malletrain.slurm.formats.squeue import TaskRecord
from malletrain.slurm.site.site_facts import Harvest
from tests.messages import says

HARVEST = Harvest("harvest", "hacct", "hqos")
HELD = TaskRecord(
    id="7_[0-3]", raw_id=7, array_id=7, tasks=(0, 1, 2, 3), uid=1001, user="alice", partition="harvest", qos="hqos",
    account="hacct", state="PENDING", reason="JobHeldUser", node_count=1, time_limit_s=60.0, requeue=False,
    restarts=0, eligible_time=None, start_time=None, end_time=None, preempt_time=None, exit_code="0", nodes="",
    dependency="", oversubscribe="NO", submit_time=1.0, priority=0,
)  # fmt: skip


def test_a_sound_array() -> None:
    found = pilots.inspect(7, [HELD], HARVEST, 1001)
    assert (found.tasks, found.faults) == ((0, 1, 2, 3), ())
    assert not found.gone


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [
            HELD._replace(array_id=None, tasks=(), id="7", uid=1002)
        ],  # slurmctld lost the array, and gave its number anew
        [HELD._replace(uid=1002)],
    ],
)
def test_an_array_that_slurm_does_not_have_is_gone_whoever_has_its_number_now(rows: list[TaskRecord]) -> None:
    found = pilots.inspect(7, rows, HARVEST, 1001)
    assert (found.gone, found.tasks) == (True, ())
    assert [says(fault, "array 7") for fault in found.faults] == [True]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"uid": 0}, "array 7"),
        ({"partition": "batch"}, "is batch"),
        ({"account": "other"}, "is other"),
        ({"account": ""}, "is none"),
        ({"qos": "high"}, "QOS is high"),
        ({"node_count": 2}, "2 nodes"),
        ({"dependency": "afterok:1"}, "another job"),
        ({"oversubscribe": "OK"}, "--exclusive"),
        ({"exclusive": "NO"}, "--exclusive"),
        ({"exclusive": "USER"}, "--exclusive"),
        ({"licenses": "fluent:1"}, "licences (fluent:1)"),
        ({"burst_buffer": "#BB create"}, "burst buffer"),
        ({"reason": "JobHeldAdmin"}, "staff"),
        ({"priority": 5, "reason": "Priority"}, "not held"),
        ({"requeue": True}, "--no-requeue"),
        ({"time_limit_s": 3600.0}, "--time=1"),
        ({"time_limit_s": None}, "--time=1"),
    ],
)
def test_what_is_not_sound_is_named(change: dict[str, object], said: str) -> None:
    found = pilots.inspect(7, [HELD._replace(**change)], HARVEST, 1001)  # type: ignore[arg-type]
    assert not found.tasks
    assert any(said in fault for fault in found.faults)


@pytest.mark.parametrize(
    ("change", "state", "preempted"),
    [
        ({}, SlurmState.PENDING, False),
        ({"reason": "job requeued in held state"}, SlurmState.PENDING, False),
        ({"priority": 9, "reason": "Resources"}, SlurmState.PENDING, False),
        ({"state": "RUNNING"}, SlurmState.RUNNING, False),
        ({"state": "COMPLETING"}, SlurmState.RUNNING, False),
        ({"state": "COMPLETED"}, SlurmState.COMPLETED, False),
        ({"state": "COMPLETED", "preempt_time": 20.0, "start_time": 10.0}, SlurmState.PREEMPTED, True),
        ({"state": "FAILED", "preempt_time": 20.0, "start_time": 10.0}, SlurmState.PREEMPTED, True),
        ({"state": "FAILED", "preempt_time": 5.0, "start_time": 10.0}, SlurmState.FAILED, False),
        ({"state": "PREEMPTED"}, SlurmState.PREEMPTED, True),
        ({"state": "TIMEOUT"}, SlurmState.TIMEOUT, False),
        ({"state": "NODE_FAIL"}, SlurmState.NODE_FAIL, False),
        ({"state": "CANCELLED"}, SlurmState.CANCELLED, False),
        ({"state": "OUT_OF_MEMORY"}, SlurmState.OUT_OF_MEMORY, False),
        ({"state": "BOOT_FAIL"}, SlurmState.NODE_FAIL, False),
        ({"state": "DEADLINE"}, SlurmState.TIMEOUT, False),
    ],
)
def test_ends_are_told_apart(change: dict[str, object], state: SlurmState, preempted: bool) -> None:
    found = pilots.end_state(HELD._replace(**change))  # type: ignore[arg-type]
    assert (found.state, found.preempted) == (state, preempted)
    assert found.held == (change.get("priority") is None and state is SlurmState.PENDING)


def test_a_vanished_task() -> None:
    assert pilots.end_state(None).state is SlurmState.UNKNOWN
    assert pilots.end_state(None).is_over


@pytest.mark.parametrize(
    ("text", "code", "signal"),
    [("0", 0, 0), ("256", 1, 0), ("36608", 143, 0), ("9", 0, 9), ("2:15", 2, 15), ("", None, None)],
)
def test_exit_codes_of_both_spellings(text: str, code: int | None, signal: int | None) -> None:
    found = pilots.end_state(HELD._replace(state="FAILED", exit_code=text))
    assert found.exit_code == code
    assert f"exit code {code}:{signal}" in found.detail


@pytest.mark.parametrize("text", ["7", "7_", "_7", "7_x", "7_1_2", "a_1", "7_[1-2]", "7_1;rm", ""])
def test_only_ids_of_tasks_are_ids_of_pilots(text: str) -> None:
    with pytest.raises(InvalidInput):
        pilots.split_id(text)


def test_what_slurm_made_of_a_pin() -> None:
    row = HELD._replace(required_nodes="n1", time_limit_s=300.0, exclusive="NODE")
    assert pilots.changed_by_slurm(row, HARVEST, 1001, ["n1"], 5) == ()
    assert "pinned to n1, not to n2" in pilots.changed_by_slurm(row, HARVEST, 1001, ["n2"], 5)[0]
    assert "limit is 5 min, not 4 min" in pilots.changed_by_slurm(row, HARVEST, 1001, ["n1"], 4)[0]
    assert says(pilots.changed_by_slurm(row._replace(priority=1), HARVEST, 1001, ["n1"], 5)[0], "held")


def test_what_slurm_made_of_a_pin_to_several_nodes() -> None:
    wide, three = replace(HARVEST, max_nodes=4), ["n1", "n2", "n3"]
    row = HELD._replace(required_nodes="n[1-3]", node_count=3, time_limit_s=300.0, exclusive="NODE")
    assert pilots.changed_by_slurm(row, wide, 1001, three, 5) == ()
    assert says(pilots.changed_by_slurm(row, wide, 1001, three[:2], 5)[0], "n[1-3]", "n1,n2")
    fewer = row._replace(node_count=2)
    assert "asks for 2 nodes, not 3" in pilots.changed_by_slurm(fewer, wide, 1001, three, 5)[0]


def test_only_a_task_that_ran_before_may_be_wider_than_the_site_has_it() -> None:
    row = HELD._replace(node_count=3)
    assert any("3 nodes, not 1" in fault for fault in pilots.faults(row, HARVEST, 1001))
    assert not pilots.faults(row, replace(HARVEST, max_nodes=3), 1001)
    assert not pilots.faults(row._replace(restarts=1), HARVEST, 1001)


@pytest.mark.parametrize(("limit", "wrong"), [(3600.0, False), (3660.0, True), (None, True)])
def test_a_limit_above_max_time(limit: float | None, wrong: bool) -> None:
    harvest = replace(HARVEST, max_time_s=3600.0)
    assert (
        any("MaxTime" in fault for fault in pilots.faults(HELD._replace(time_limit_s=limit), harvest, 1001)) is wrong
    )


def test_a_task_that_slurm_has_preempted_and_that_runs_on_is_still_to_be_ended() -> None:
    """Slurm may never come to it again (preempted while its node was configured, 23.11): recycling must not take it
    for one that is over."""
    row = HELD._replace(state="RUNNING", preempt_time=20.0, start_time=10.0, nodes="n1", priority=10)
    end = pilots.end_state(row)
    assert (end.state, end.is_over) == (SlurmState.RUNNING, False)
    assert pilots.is_preempted(row)
