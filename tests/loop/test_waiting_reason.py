"""Why a job has no node, in plain words, with what is known of when that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.event import Event, JobHeld
from malletrain.domain.job import Elastic, JobPhase, JobView
from malletrain.domain.job import World as World_
from malletrain.loop.waiting_reason import why_silent, why_without_nodes
from tests.world import RULES, START, World, job, main_job


@pytest.fixture
def full() -> World:
    """Four nodes, three of them held by two main jobs that end in 20 and in 90 minutes; a job that needs two."""
    world = World(nodes=4)
    first = replace(main_job(6, nodes=["n0"]), end_time=START + 1200.0)
    second = replace(main_job(7, nodes=["n1", "n2"]), end_time=START + 5400.0)
    world.cluster.set_main([first, second])
    world.submit(job(1, least=2, most=4))
    world.tick()
    return world


def test_too_few_idle_nodes_and_when_main_jobs_end_at_the_latest(full: World) -> None:
    assert full.loop.waiting(1) == (
        "needs 2 nodes, and 1 can be used now; main jobs' time limits free 1 more within 20 min, if no "
        "main job takes them"
    )


def test_nodes_that_are_kept_idle_are_told_with_the_reason() -> None:
    world = World(nodes=4, rules=replace(RULES, keep_idle=4))
    world.submit(job(1, least=2, most=4))
    world.tick()
    why = world.loop.last_decision.refusals[0].reason if world.loop.last_decision else ""
    assert (
        world.loop.waiting(1)
        == f"needs 2 nodes, and none can be used now (n0 and 3 more idle nodes are left out: {why})"
    )


def test_a_chance_is_told_once_the_pool_has_been_watched(full: World) -> None:
    loop = full.loop
    assert loop.last_decision is not None and loop.last_snapshot is not None
    told = why_without_nodes(
        loop.views[1], loop.last_decision, loop.last_snapshot, "harvest", (1, 1, 2, 3), 7 * 3600.0, full.clock.now()
    )
    assert told.endswith("lately there were so many for 50% of the time, all malleable jobs together")


def test_a_job_that_has_nodes_or_is_held_waits_for_nothing() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=4))
    assert world.loop.waiting(1) == "", "before the first look"
    world.tick()
    assert world.loop.waiting(1).startswith("begins on n0, n1, n2, n3")
    world.loop.record([Event(world.clock.now(), JobHeld("ada"), 1)])
    assert world.loop.waiting(1) == ""
    assert world.loop.waiting(99) == ""


def test_too_few_held_tasks() -> None:
    """They would do if each held two nodes."""
    world = World(nodes=4, rules=replace(RULES, max_nodes=2))
    world.submit(job(1, least=3, most=4), tasks=2)
    world.tick()
    assert world.loop.waiting(1) == "has 2 held tasks in Slurm and needs 3 for its fewest nodes"


def test_a_world_that_reports_no_step_for_a_minute_is_named_as_such() -> None:
    """One rank does not come, and the others wait for it."""
    view = JobView(job(1), JobPhase.RUNNING, world=World_(1, 1, ("9_0", "9_1"), START), committed_at=START + 30.0)
    assert why_silent(view, START + 89.0) == ""
    assert why_silent(replace(view, phase=JobPhase.HELD), START + 900.0) == ""
    assert why_silent(replace(view, job=job(1, elastic=Elastic.RESTART)), START + 900.0) == ""
    said = why_silent(view, START + 160.0)
    assert said.startswith("has reported no step for 2 min: a long step, an evaluation, or one of its 2 ranks")
    assert "`malletrain logs 1 --rank N`" in said
