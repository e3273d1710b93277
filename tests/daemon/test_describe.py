"""A decision in words."""

from dataclasses import replace

import pytest

from malletrain.api.explain import describe, describe_action, explain
from malletrain.domain.decision import (
    Action,
    CancelTasks,
    CutLimit,
    Decision,
    Hole,
    LeaveCause,
    LeavePilot,
    RecyclePilot,
    Refusal,
    StartPilot,
)
from malletrain.domain.job import Pilot, PilotPhase
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot
from tests.messages import says
from tests.world import World, job

ACTIONS: list[tuple[Action, tuple[str, ...]]] = [
    (StartPilot(1, "12_3", "n001", 600.0, "a hole"), ("start", "12_3", "job 1", "n001", "600 s: a hole")),
    (
        LeavePilot(1, "12_3", "n001", LeaveCause.YIELD, 60.0, "job 9 could start"),
        ("leave", "12_3", "job 1", "n001", "1970-01-01T00:01:00Z (yield): job 9 could start"),
    ),
    (CutLimit(1, "12_3", "n001", 60.0, "why"), ("cut", "12_3", "job 1", "n001", "1970-01-01T00:01:00Z: why")),
    (RecyclePilot(1, "12_3", "n001", "empty"), ("recycle", "12_3", "job 1", "n001: empty")),
    (RecyclePilot(1, "12_3", "", "waits"), ("recycle", "12_3", "job 1: waits")),
    (CancelTasks(1, ("12_3", "12_4"), "over"), ("cancel", "12_3, 12_4", "job 1: over")),
]  # fmt: skip


@pytest.mark.parametrize(("action", "said"), ACTIONS)
def test_each_action_is_said_with_its_reason(action: Action, said: tuple[str, ...]) -> None:
    assert says(describe_action(action), *said)


def test_a_decision_is_said_whole() -> None:
    decision = Decision(
        at=0.0, sizes={2: 1, 1: 3}, holes=(Hole("n001", 60.0, "nothing planned"),), actions=(ACTIONS[0][0],),
        refusals=(Refusal("n002", "stays idle"),),
    )  # fmt: skip
    facts = (
        ("1970-01-01T00:00:00Z", "holes 1", "actions 1", "optimal"),
        ("hole", "n001", "1970-01-01T00:01:00Z: nothing planned"), ("size", "job 1: 3"), ("size", "job 2: 1"),
        ACTIONS[0][1], ("not", "n002: stays idle"),
    )  # fmt: skip
    for line, each in zip(describe(decision), facts, strict=True):
        assert says(line, *each)


def test_a_pilot_that_has_no_node_is_not_said_to_be_on_one() -> None:
    world = World()
    world.submit(job(1))
    waits = Pilot("12_3", 1, PilotPhase.RELEASED, 0.0)
    view = replace(world.loop.views[1], pilots={waits.id: waits})
    assert any(says(line, "no node (12_3, released)") for line in explain("1", {1: view}, None, None, ()))


def test_nothing_to_do_is_said() -> None:
    assert says(list(describe(Decision(at=0.0)))[-1], "nothing")


@pytest.mark.parametrize(("state", "reason", "said"), [
    (SlurmState.RUNNING, "", "main job 7 of bob: running, 1 nodes"),
    (SlurmState.PENDING, "Priority", "main job 7 of bob: pending (Priority), 1 nodes"),
])  # fmt: skip
def test_a_main_jobs_state_has_slurms_reason_where_there_is_one(state: SlurmState, reason: str, said: str) -> None:
    snapshot = Snapshot(0.0, (), (SlurmJob("7", 7, "bob", "main", "main", "normal", state, reason),))
    assert explain("main-job 7", {}, snapshot, None, ())[0] == said
