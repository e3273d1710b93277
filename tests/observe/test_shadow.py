"""Imagined pilots: the loop runs over them, the real cluster is looked at only, and the sums tell what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.domain.snapshot import Node, NodeState
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryJournal
from malletrain.loop.tick import Loop
from malletrain.observe.observation import observation
from malletrain.observe.shadow import ShadowCluster, ShadowWorkers
from malletrain.sizing.registry import policy
from tests.world import RULES, START, announced, event_of, job, main_job, node


class LookOnly(MemoryCluster):
    """A real cluster that no right was given for."""

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("nothing may be asked but to look")

    start = recycle = cut = cancel = inspect = _refuse  # type: ignore[assignment]


class Observed:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.clock = ManualClock(START)
        self.real = LookOnly(nodes, self.clock)
        self.shadow = ShadowCluster(self.real, "harvest", self.clock)
        self.journal = MemoryJournal()
        workers = ShadowWorkers(self.shadow, 11, self.clock)
        self.loop = Loop(self.shadow, workers, self.journal, self.clock, policy("auto"), RULES)
        self.shadow.submit_array("nobody", 8, 10)
        demand = job(1, most=8, given_curve=Curve.linear(8))
        begun: dict[str, object] = {"look_s": 2.0, "leave_s": 2.0}
        self.loop.record(
            [
                event_of(START, "daemon_started", data=begun),  # type: ignore[arg-type]
                event_of(START, "job_announced", 1, data=announced(demand)),
                event_of(START, "tasks_added", 1, data={"array_id": 10, "tasks": list(range(8))}),
            ]
        )

    def tick(self, after_s: float = 10.0) -> None:
        self.clock.advance(after_s)
        self.loop.tick()
        jobs = self.shadow.take_main_started()
        self.loop.record([event_of(self.clock.now(), "main_started", data={"jobs": jobs})])


def four() -> Observed:
    return Observed([node(f"n{i}") for i in range(4)])


def test_idle_nodes_are_counted_as_harvested_and_nothing_is_asked_of_slurm() -> None:
    world = four()
    for _ in range(7):
        world.tick()
    seen = observation(world.journal.read())
    assert (seen.stays, seen.main_jobs_affected) == (4, 0)
    assert seen.seconds == pytest.approx(70.0)
    assert seen.idle_node_s == pytest.approx(4 * 60.0)  # known since the first look, 10 s after the begin
    assert seen.harvested_node_s == pytest.approx(4 * 50.0)  # seen by the look after the one that started them


def test_a_main_job_between_two_looks_is_one_that_would_have_waited() -> None:
    world = four()
    world.tick()
    world.real.set_main([main_job(7, nodes=["n0", "n1"])])
    world.tick()
    world.tick()
    seen = observation(world.journal.read())
    assert (seen.unseen, seen.jobs_unseen, seen.asked, seen.main_started) == (2, 1, 0, 1)
    assert seen.worst_wait_s == 4.0
    assert {world.loop.views[1].pilots[p].node for p in ("10_2", "10_3")} == {"n2", "n3"}


def test_a_main_job_that_is_seen_waiting_is_given_its_nodes_and_the_lead_is_told() -> None:
    world = four()
    world.tick()
    world.real.set_main([main_job(7, count=2)])
    world.clock.advance(2.0)
    world.loop.watch()
    world.loop.react()
    world.clock.advance(3.0)
    world.real.set_main([main_job(7, nodes=["n0", "n1"])])
    world.tick(0.0)
    seen = observation(world.journal.read())
    assert (seen.asked, seen.jobs_asked, seen.unseen) == (2, 1, 0)
    assert seen.leads_s == [3.0, 3.0]


def test_a_hole_that_closes_as_planned_meets_nobody() -> None:
    world = four()
    late = main_job(7, count=4, start=START + 200.0, planned=["n0", "n1", "n2", "n3"])
    world.real.set_main([late])
    for _ in range(19):
        world.tick()
    world.real.set_main([main_job(7, nodes=["n0", "n1", "n2", "n3"])])
    world.tick()
    seen = observation(world.journal.read())
    assert (seen.ended_by_plan, seen.unseen, seen.stays) == (4, 0, 4)
    assert seen.main_jobs_affected == 0


def test_without_a_harvest_partition_every_node_counts() -> None:
    world = Observed([Node("n0", NodeState.IDLE, ("batch",))])
    world.tick()
    world.tick()
    assert observation(world.journal.read()).stays == 1


def test_time_away_does_not_count() -> None:
    world = four()
    world.tick()
    world.tick()
    world.loop.record([event_of(world.clock.now(), "daemon_stopped")])
    world.clock.advance(9999.0)
    world.loop.record([event_of(world.clock.now(), "daemon_started")])
    seen = observation(world.journal.read())
    assert seen.seconds == pytest.approx(20.0)
    assert observation(world.journal.read(), since=START + 10.0).seconds == pytest.approx(10.0)


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 3)), st.integers(0, 4), st.sampled_from((2.0, 10.0, 300.0))), max_size=12
    )
)
def test_whatever_the_main_queue_does_the_sums_are_sound(steps: list[tuple[set[int], int, float]]) -> None:
    world = four()
    for number, (taken, waiting, seconds) in enumerate(steps):
        jobs = [main_job(100 + number, nodes=[f"n{i}" for i in sorted(taken)])] if taken else []
        jobs += [main_job(200 + number, count=waiting)] if waiting else []
        world.real.set_main(jobs)
        world.tick(seconds)
    seen = observation(world.journal.read())
    ended = seen.ended_by_plan + seen.asked + seen.unseen + seen.ended_otherwise
    staying = sum(1 for p in world.loop.views[1].staying)
    assert ended + staying == seen.stays
    assert 0.0 <= seen.harvested_node_s <= seen.idle_node_s <= 4 * seen.seconds + 1e-6
