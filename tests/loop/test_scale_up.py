"""A world of unknown scalability grows in stages, and is measured at each."""

from __future__ import annotations

from dataclasses import replace

from malletrain.decide.rules import Rules
from malletrain.domain.job import Elastic, Profile
from malletrain.loop.membership.next_world import JobTerms
from malletrain.wire.messages import Samples, Warm
from tests.loop.stage import Stage
from tests.world import RULES, World, job


def of(count: int, terms: JobTerms | None = None, climbs: bool = True) -> tuple[Stage, list[str]]:
    stage = Stage(terms)
    stage.members.climb(frozenset({1} if climbs else ()))
    workers = [stage.hello(task) for task in range(count)]
    for task, worker in enumerate(workers):
        stage.members.report(worker, Warm(f"h{task}:1", {}))
    stage.obey(*workers)
    return stage, workers


def five(terms: JobTerms | None = None, climbs: bool = True) -> tuple[Stage, list[str]]:
    return of(5, terms, climbs)


def window(stage: Stage, nodes: int, rate: float) -> None:
    reported = Samples(step=9, nodes=nodes, samples=round(5 * rate), seconds=5.0, steps=20, total=0)
    stage.members.report(stage.world()[0], reported)


def test_a_world_stops_at_each_stage_until_a_window_is_in() -> None:
    stage, workers = of(12)
    assert len(stage.world()) == 1
    stage.pass_time(5.0)
    stage.obey(*workers)
    assert len(stage.world()) == 1, "no window yet"
    for nodes, rate in ((1, 10.0), (8, 35.0)):
        assert len(stage.world()) == nodes
        window(stage, nodes, rate)
        stage.obey(*workers)
    assert stage.world() == workers, "a stop at sixteen is beyond twelve"
    window(stage, 12, 50.0)
    stage.obey(*workers)
    assert stage.world() == workers


def test_a_world_with_half_of_all_that_its_job_may_have_stops_on_one_node_only() -> None:
    stage, workers = of(12, JobTerms(1, 24))
    assert len(stage.world()) == 1
    window(stage, 1, 10.0)
    stage.obey(*workers)
    assert stage.world() == workers


def test_windows_that_do_not_come_end_the_climb() -> None:
    stage, workers = five()
    window(stage, 1, 0.0)
    window(stage, 3, 1.8)
    assert len(stage.world()) == 1
    stage.pass_time(16.0)
    stage.obey(*workers)
    assert stage.world() == workers


def test_who_is_lost_or_asked_to_leave_on_the_way_up_stops_nobody() -> None:
    stage, workers = five()
    window(stage, 1, 10.0)
    stage.obey(*workers)
    stage.leave(0)
    stage.pass_time(1.0)
    stage.obey(*workers)
    assert workers[0] not in stage.world() and stage.world()
    for _ in range(3):
        stage.pass_time(16.0)
        stage.obey(*workers[1:])
    assert stage.world() == workers[1:]


def test_jobs_that_are_known_or_relaunch_begin_on_all_their_nodes() -> None:
    assert len(five(climbs=False)[0].world()) == 5
    assert len(five(JobTerms(restarts=True))[0].world()) == 5
    assert len(five(JobTerms(min_nodes=4))[0].world()) == 5, "five is too near to four"


def test_one_job_of_each_unknown_application_climbs_where_sizes_may_be_tried() -> None:
    active: Rules = replace(RULES, probing=replace(RULES.probing, profile=Profile.ACTIVE))
    for rules, expected in (
        (active, {1, 3}),
        (replace(active, probing=replace(active.probing, profile=Profile.PASSIVE)), set()),
    ):
        world = World(8, rules=rules)
        world.submit(replace(job(1), name="trial-1"))
        world.submit(replace(job(2), name="trial-2"))
        world.submit(replace(job(3), name="other"))
        world.submit(replace(job(4), name="slow", elastic=Elastic.RESTART))
        world.submit(replace(job(5, most=1), name="one"))
        world.tick()
        assert world.workers.climbers == expected
