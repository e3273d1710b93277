"""The loop with tasks of several nodes: a pilot on each, all come and go with the task."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.rules import Rules
from malletrain.domain.decision import RecyclePilot, StartPilot
from malletrain.domain.event import ActionIntent, ActionOutcome, Event, PilotHeld, WorkerLost
from malletrain.domain.job import PilotEnd, PilotPhase
from malletrain.domain.snapshot import Reservation, SlurmState
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.admission import holding
from tests.loop.test_tick import MAIN_SIZES, MainQueue
from tests.messages import says
from tests.world import RULES, START, World, data_of, event_of, job, main_job

WIDE = replace(RULES, max_nodes=3)


def few_pilots(nodes: int, rules: Rules = WIDE) -> Rules:
    """Rules by which so few pilots hold so many nodes that each is as wide as it may be."""
    return replace(rules, max_pilots=-(-nodes // rules.max_nodes))


def filled(nodes: int = 6, rules: Rules | None = None, tasks: int = 12) -> World:
    world = World(nodes=nodes, rules=rules or few_pilots(nodes))
    world.submit(job(1, most=nodes), tasks)
    world.tick()
    world.tick()
    return world


def held(world: World) -> dict[str, tuple[str, ...]]:
    """Task -> its nodes, as the cluster has it."""
    return {name: task.nodes for name, task in world.cluster.tasks.items() if task.nodes}


def warm(world: World) -> None:
    """Every running pilot's worker says that it is ready."""
    running = [p for p in world.loop.views[1].active if p.phase is PilotPhase.RUNNING]
    world.workers.report(*(event_of(world.clock.now(), "worker_warm", 1, p.id, p.node) for p in running))
    world.loop.react()


def test_idle_nodes_are_held_by_few_tasks_with_a_pilot_on_each_node() -> None:
    world = filled()
    assert sorted(len(nodes) for nodes in held(world).values()) == [3, 3]
    active = world.loop.views[1].active
    assert [p.phase for p in active] == [PilotPhase.RUNNING] * 6
    assert sorted(p.node for p in active) == [f"n{n}" for n in range(6)]
    assert world.loop.views[1].held_count == 10


def test_nodes_that_are_wanted_at_different_times_are_not_put_together() -> None:
    world = World(nodes=6, rules=few_pilots(6))
    world.cluster.reservations = (Reservation("noon", START + 900.0, START + 9000.0, ("n0", "n2", "n4")),)
    world.submit(job(1, most=6))
    world.tick()
    assert sorted(held(world).values()) == [("n0", "n2", "n4"), ("n1", "n3", "n5")]
    limits = {task.nodes: task.limit_s for task in world.cluster.tasks.values() if task.nodes}
    assert limits[("n0", "n2", "n4")] < 900.0 < limits[("n1", "n3", "n5")]


def test_a_main_job_that_wants_one_node_empties_its_task_and_the_rest_is_harvested_again() -> None:
    world = filled()
    warm(world)
    world.cluster.set_main([main_job(7, count=1)])
    world.tick()
    taken = world.loop.last_decision
    assert taken is not None
    gone = {action.pilot for action in taken.actions if not isinstance(action, StartPilot)}  # type: ignore[union-attr]
    assert len(gone) == 3
    (left,) = held(world).values()
    free = sorted(set(world.cluster.nodes) - set(left))
    world.cluster.set_main([main_job(7, nodes=free[:1])])
    world.tick()
    world.tick()
    assert sorted(node for nodes in held(world).values() for node in nodes) == sorted({*left, *free[1:]})


def test_most_pilots_means_tasks() -> None:
    world = filled(nodes=8, rules=replace(WIDE, max_pilots=2))
    assert sorted(len(nodes) for nodes in held(world).values()) == [3, 3]


def test_a_task_that_slurm_does_not_start_is_taken_back_whole_and_fails_once() -> None:
    world = filled(nodes=3)
    name = next(iter(held(world)))
    world.cluster.end_pilot(name, PilotEnd(SlurmState.FAILED, exit_code=1))
    world.tick()
    view = world.loop.views[1]
    assert view.failures == 1
    ended = [e for e in world.journal.events if e.kind == "pilot_ended"]
    assert [e.pilot for e in ended] == [name, f"{name}+1", f"{name}+2"]


def test_a_job_whose_start_did_not_begin_is_tried_again_with_one_task() -> None:
    """It was allowed one node more, which no task of several fits: it waited for ever."""
    world = World(nodes=6, rules=few_pilots(6))
    world.submit(job(1, most=6), 12)
    start, now = StartPilot(1, "101_0", "n0", 300.0, "a hole"), world.clock.now()
    began = Event(now, ActionOutcome(start, True), 1, "101_0", "n0"), Event(now, PilotHeld(), 1, "101_0", "n0")
    world.loop.record(began)
    world.tick()
    assert held(world) == {}, "it rests"
    for _ in range(5):
        world.tick()
    assert sorted(len(nodes) for nodes in held(world).values()) == [3, 3]


def test_a_preempted_task_counts_as_one_preemption() -> None:
    world = filled(nodes=3)
    world.cluster.set_main([main_job(7, nodes=["n1"])])
    world.tick()
    ended = [e for e in world.journal.events if e.kind == "pilot_ended"]
    assert len(ended) == 3
    assert sum(bool(data_of(e).get("preempted")) for e in ended) == 1


@pytest.mark.parametrize("last", [0, 2])
def test_the_nodes_are_given_back_when_the_last_worker_has_left_not_before(last: int) -> None:
    world = filled(nodes=3)
    warm(world)
    pilots = sorted(world.loop.views[1].active, key=lambda p: p.node)
    order = [p for p in pilots if p is not pilots[last]] + [pilots[last]]
    for pilot in order:
        assert held(world), "the task still holds its nodes"
        world.workers.report(event_of(world.clock.now(), "worker_left", 1, pilot.id, pilot.node, "told to"))
        world.loop.take_reports()
        world.workers.leave = lambda action: None  # type: ignore[method-assign]  # the others take their time
        world.loop.react()
    assert not held(world)


def test_a_lost_worker_of_a_task_may_train_on_until_the_task_is_given_back() -> None:
    """Its pilot counted as one that had never had a worker, and another world began beside it."""
    world = filled(nodes=3)
    warm(world)
    first, *others = sorted(world.loop.views[1].active, key=lambda p: p.node)
    fenced = WorkerLost(f"{first.id}.0", "silent", fenced=True)
    world.workers.report(Event(world.clock.now(), fenced, 1, first.id, first.node))
    world.loop.take_reports()
    assert holding(world.loop.views, 1)[first.id]
    asked: list[str] = []
    world.workers.leave = lambda action: asked.append(action.pilot)  # type: ignore[method-assign]
    world.loop.react()
    assert asked == [each.id for each in others]
    world.clock.advance(RULES.leave_patience_s + 1.0)
    world.tick()
    intents = [e.payload.action for e in world.journal.events if isinstance(e.payload, ActionIntent)]
    assert first.id in [each.pilot for each in intents if isinstance(each, RecyclePilot)]


@given(
    arrivals=st.lists(MAIN_SIZES, min_size=1, max_size=12),
    bounds=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=3),
    nodes=st.integers(1, 9),
    widest=st.integers(2, 4),
)
def test_whatever_the_main_queue_does_tasks_stay_whole(
    arrivals: list[list[tuple[int, int]]], bounds: list[tuple[int, int]], nodes: int, widest: int
) -> None:
    """No node is held twice, no task is wider than the site allows, pilots of one task go through life together, the
    journal alone rebuilds the ledger, and once the main queue stands still the plan does too."""
    world = World(nodes=nodes, rules=few_pilots(nodes, replace(RULES, max_nodes=widest)))
    for number, (least, more) in enumerate(bounds, start=1):
        world.submit(job(number, least=least, most=least + more), tasks=60)
    queue = MainQueue(world)
    for step in arrivals:
        queue.step(step)
        world.tick()
        mine = [name for nodes_of in held(world).values() for name in nodes_of]
        assert len(set(mine)) == len(mine)
        assert not set(mine) & {n for j in world.cluster.main for n in j.nodes}
        assert all(len(nodes_of) <= widest for nodes_of in held(world).values())
        for view in world.loop.views.values():
            for task, pilots in view.co_allocated.items():
                assert len({p.phase for p in pilots}) == 1, (task, pilots)
    again = Ledger()
    again.apply(world.journal.read())
    assert again.views() == world.loop.ledger.views()
    world.cluster.set_main([])
    for _ in range(5):
        world.tick()
    assert world.loop.last_decision is not None
    assert world.loop.last_decision.actions == ()
    known = {p.node for view in world.loop.views.values() for p in view.active}
    assert known == {name for nodes_of in held(world).values() for name in nodes_of}


def test_a_narrow_pilot_makes_room_for_wider_ones_once_it_has_stayed_a_while() -> None:
    world = World(nodes=13, rules=replace(RULES, max_nodes=8, max_pilots=2))
    world.cluster.set_main([main_job(90, nodes=[f"n{i}" for i in range(1, 13)])])
    world.submit(job(1, most=13), tasks=24)
    world.tick()
    world.tick()
    assert sorted(map(len, held(world).values())) == [1]
    world.cluster.set_main([main_job(90, nodes=[f"n{i}" for i in range(2, 13)])])
    world.tick()
    assert sorted(map(len, held(world).values())) == [1, 1]
    world.cluster.set_main([])
    for _ in range(5):
        world.tick()
    assert sorted(map(len, held(world).values())) == [1, 1], "its job has hardly had its node"
    world.tick(400.0)
    reasons = [e.reason for e in world.journal.events if e.kind == "intent"]
    assert any(says(reason, "room", "one") for reason in reasons)
    for _ in range(6):
        world.tick()
    assert sum(map(len, held(world).values())) >= 12, "all but a node that was changing hands"
    starts = world.journal.events[-1].seq
    for _ in range(60):
        world.tick()
    moved = [e for e in world.journal.events if (e.seq or 0) > (starts or 0) and e.kind == "intent"]
    assert not moved, "and then all stay"


def test_no_pilot_makes_room_where_no_job_can_take_a_wider_one() -> None:
    world = World(nodes=12, rules=replace(RULES, max_nodes=8, max_pilots=4))
    for number in range(1, 5):
        world.submit(job(number, most=2 if number == 1 else 1))
    for _ in range(60):
        world.tick(20.0)
    assert sorted(map(len, held(world).values())) == [1, 1, 1, 2]
    assert not any("makes room" in e.reason for e in world.journal.events)
