"""Why a job has no node, in plain words."""

from __future__ import annotations

from dataclasses import replace

from malletrain.domain.event import Event, JobHeld
from malletrain.domain.job import Elastic, JobPhase, JobView
from malletrain.domain.job import World as World_
from malletrain.loop.waiting_reason import why_silent
from tests.messages import says
from tests.world import RULES, START, World, job, main_job


def test_too_few_idle_nodes() -> None:
    world = World(nodes=4)
    world.cluster.set_main([main_job(7, nodes=["n0", "n1", "n2"])])
    world.submit(job(1, least=2, most=4))
    world.tick()
    assert says(world.loop.waiting(1), "2 nodes", 1)


def test_nodes_that_are_kept_idle_are_told_with_the_reason() -> None:
    world = World(nodes=4, rules=replace(RULES, keep_idle=4))
    world.submit(job(1, least=2, most=4))
    world.tick()
    why = world.loop.last_decision.refusals[0].reason if world.loop.last_decision else ""
    assert says(world.loop.waiting(1), "2 nodes", "none", "(n0 and 3 more", f"{why})")


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
    assert says(world.loop.waiting(1), "2 held tasks", 3)


def test_a_world_that_reports_no_step_for_a_minute_is_named_as_such() -> None:
    """One rank does not come, and the others wait for it."""
    view = JobView(job(1), JobPhase.RUNNING, world=World_(1, 1, ("9_0", "9_1"), START), committed_at=START + 30.0)
    assert why_silent(view, START + 89.0) == ""
    assert why_silent(replace(view, phase=JobPhase.HELD), START + 900.0) == ""
    assert why_silent(replace(view, job=job(1, elastic=Elastic.RESTART)), START + 900.0) == ""
    said = why_silent(view, START + 160.0)
    assert says(said, "2 min", "2 ranks", "`malletrain logs 1 --rank N`")
