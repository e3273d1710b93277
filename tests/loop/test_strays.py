"""Jobs of the harvest partition that are no pilots: their nodes are taken back, and people can see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from malletrain.decide.reconcile import find_strays
from malletrain.domain.decision import LeaveCause, LeavePilot, Outcome, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.event import ActionIntent, PoolCounted, StraysTakenBack
from malletrain.domain.snapshot import SlurmJob, SlurmState
from tests.messages import says
from tests.world import RULES, World, job, main_job


def plain(number: int, *nodes: str, user: str = "mallory", **more: Any) -> SlurmJob:
    values: dict[str, Any] = {
        "state": SlurmState.RUNNING if nodes else SlurmState.PENDING, "account": "harvest", "priority": 10,
        "partition": "harvest", "node_count": max(1, len(nodes)),
    }  # fmt: skip
    return SlurmJob(id=str(number), raw_id=number, user=user, qos="harvest", nodes=nodes, **(values | more))


def recorded(world: World) -> list[StraysTakenBack]:
    return [e.payload for e in world.journal.events if isinstance(e.payload, StraysTakenBack)]


def test_plain_jobs_are_ended_at_the_look_that_shows_them_and_their_owner_is_named() -> None:
    world = World()
    world.cluster.plain = (plain(70, "n0", "n1"), plain(71, "n2"), plain(72, user="eve"), plain(73, "n3", user="eve"))
    world.tick()
    assert not world.cluster.snapshot().holding
    assert recorded(world) == [
        StraysTakenBack("eve", 2, ("73", "72"), ("n3",)),
        StraysTakenBack("mallory", 2, ("70", "71"), ("n0", "n1", "n2")),
    ]
    reasons = [e.reason for e in world.journal.events if e.kind == "strays"]
    assert says(reasons[1], "job 70, 71 of mallory", "harvest partition", "no pilot")
    pools = [e.payload for e in world.journal.events if isinstance(e.payload, PoolCounted)]
    assert (pools[0].stray, pools[0].harvested, pools[0].main, pools[0].idle) == (4, 0, 0, 4)


def test_pilots_main_jobs_and_held_tasks_are_left_alone() -> None:
    world = World()
    world.submit(job(1, most=2))
    for _ in range(3):
        world.tick()
    running = world.running()
    world.cluster.set_main([main_job(9, nodes=["n7"])])
    world.cluster.plain = (
        plain(74, priority=0, reason="JobHeldUser"), plain(75, priority=0, reason="BadConstraints"),
        plain(76, partition="batch,harvest"), plain(77, "n5", state=SlurmState.COMPLETING),
    )  # fmt: skip
    world.tick()
    assert len(world.cluster.plain) == 4
    assert world.running() == running
    assert recorded(world) == []


@pytest.mark.parametrize(("row", "why"), [
    (plain(70, "n0", account="physics"), ("physics", "harvest")),
    (plain(70, "n0", het_id=69), ("another partition",)),
])  # fmt: skip
def test_what_is_not_ours_to_end_is_shown_and_left(row: SlurmJob, why: tuple[str, ...]) -> None:
    world = World(rules=replace(RULES, harvest_account="harvest"))
    world.cluster.set_main([main_job(68, nodes=["n7"], het_id=69)])
    world.cluster.plain = (row,)
    world.tick()
    assert world.cluster.plain == (row,)
    assert world.loop.last_decision is not None
    (stray,) = world.loop.last_decision.strays
    assert replace(stray, left="") == Stray("70", "mallory", ("n0",))
    assert says(stray.left, *why)
    assert recorded(world) == []


def test_a_daemon_that_serves_one_user_leaves_the_partition_to_others() -> None:
    world = World(rules=replace(RULES, takes_back=False))
    world.cluster.plain = (plain(70, "n0"),)
    world.tick()
    assert world.cluster.plain
    assert recorded(world) == []


def test_a_task_that_was_taken_from_its_array_by_its_owner_is_a_stray() -> None:
    """One that was set aside, or is of an array that the daemon does not know."""
    world = World()
    world.cluster.plain = (plain(800, "n0", array_id=800),)
    world.cluster.plain = (replace(world.cluster.plain[0], id="800_3"),)
    world.tick()
    assert recorded(world) == [StraysTakenBack("mallory", 1, ("800_3",), ("n0",))]


def test_one_that_cannot_be_ended_is_tried_again_and_recorded_once() -> None:
    world = World()
    asked: list[str] = []

    def refuse(strays: Sequence[Stray]) -> list[Outcome]:
        asked.extend(stray.job for stray in strays)
        return [Outcome(False, "scancel: Access/permission denied") for _ in strays]

    world.cluster.take_back = refuse  # type: ignore[method-assign]
    world.cluster.plain = (plain(70, "n0"),)
    for _ in range(5):
        world.tick()
    assert asked == ["70"] * 5
    assert [each.failed for each in recorded(world)] == [False, True]
    assert "Access/permission denied" in [e.reason for e in world.journal.events if e.kind == "strays"][1]


def test_a_slurm_that_does_not_answer_does_not_end_the_look() -> None:
    world = World()

    def silent(_: Sequence[Stray]) -> list[Outcome]:
        raise ClusterUnavailable("no answer")

    world.cluster.take_back = silent  # type: ignore[method-assign, assignment]
    world.submit(job(1, most=2))
    world.cluster.plain = (plain(70, "n0"),)
    for _ in range(3):
        world.tick()
    assert len(world.running()) == 2


def test_a_flood_is_one_event_a_user_and_look_and_names_a_few() -> None:
    world = World()
    for look in range(20):
        world.cluster.plain = tuple(plain(1000 * look + number) for number in range(1, 500))
        world.tick()
    assert len(recorded(world)) == 20
    assert recorded(world)[0].count == 499
    assert all(len(each.jobs) <= 20 for each in recorded(world))


def test_nobody_leaves_for_a_stray_and_its_node_is_harvested_once_it_is_free() -> None:
    world = World()
    world.cluster.plain = (plain(70, "n0", "n1", "n2"),)
    world.submit(job(1))
    world.tick()
    assert set(world.running()) == {f"n{n}" for n in range(3, 8)}
    world.tick()
    assert len(world.running()) == 8
    leaves = [e for e in world.journal.events if isinstance(e.payload, ActionIntent) and e.node in ("n3", "n4")]
    assert len(leaves) == 2, "their starts alone"


def test_a_held_task_that_its_owner_released_leaves_before_others_do() -> None:
    world = World(rules=replace(RULES, keep_idle=1))
    world.submit(job(1, most=6), tasks=8)
    world.submit(job(2, most=1), tasks=2)
    for _ in range(3):
        world.tick()
    (free,) = set(world.cluster.nodes) - set(world.running())
    pilot = next(p for p, task in sorted(world.cluster.tasks.items()) if task.held)
    world.cluster.start([StartPilot(1, pilot, free, 3600.0, "released by hand")])
    world.tick()
    asked = [e.payload.action for e in world.journal.events if isinstance(e.payload, ActionIntent)]
    leaves = [action for action in asked if isinstance(action, LeavePilot)]
    assert [(each.pilot, each.cause) for each in leaves] == [(pilot, LeaveCause.UNASKED)]
    world.tick()
    assert free not in world.running()


def test_a_start_whose_answer_was_lost_is_the_daemons_own() -> None:
    world = World(nodes=2)
    start = world.cluster.start

    def lost(actions: Sequence[StartPilot]) -> list[Outcome]:
        start(actions)
        raise ClusterUnavailable("the answer is lost")

    world.cluster.start = lost  # type: ignore[method-assign]
    world.submit(job(1))
    world.tick()
    world.cluster.start = start  # type: ignore[method-assign]
    for _ in range(4):
        world.tick()
    assert len(world.running()) == 2
    assert not [e for e in world.journal.events if e.kind == "pilot_started" and says(e.reason, "someone")]


def test_a_pilot_that_changed_after_the_look_was_begun_is_no_stray() -> None:
    world = World(nodes=2)
    world.submit(job(1))
    world.tick()
    seen = world.cluster.snapshot()
    assert find_strays(seen, world.loop.views, RULES) == ()
    pilot = next(iter(world.running().values()))
    row = next(each for each in seen.jobs if each.id == pilot)
    stopped = {1: replace(world.loop.views[1], pilots={})}
    assert [stray.job for stray in find_strays(replace(seen, jobs=(row,)), stopped, RULES)] == [pilot]
