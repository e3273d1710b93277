"""Tasks of several nodes: what is put together, what stays together, and what leaving one of them costs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.decide.multi_node_pilots import (
    LEAST_STAY_S,
    MOST_TIMES_ALIKE,
    WIDER_TIMES,
    make_room,
    pilot_width,
    startable,
    task_groups,
    with_co_allocated,
)
from malletrain.decide.yielding import HarvestedNode, harvested, plan_yields
from malletrain.domain.decision import Hole, LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.job import Curve, JobPhase, JobView, Pilot, PilotPhase, part_of, pilot_name, task_of
from malletrain.domain.snapshot import NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.pilot_changes import after_loss
from malletrain.sizing.whole_tasks import keep_whole_tasks, unbroken_sizes, whole_sizes
from tests.world import RULES, START, job, main_job, node

HOLES = st.lists(
    st.tuples(st.sampled_from([600.0, 900.0]), st.sampled_from([None, 1.0, 2.0]), st.sampled_from([16, 64])),
    max_size=20,
)


def cluster(kinds: list[tuple[float, float | None, int]]) -> tuple[list[Hole], Snapshot]:
    holes = [Hole(f"n{i}", START + until, "", cohort) for i, (until, cohort, _) in enumerate(kinds)]
    return holes, Snapshot(START, tuple(node(f"n{i}", cpus=cpus) for i, (_, _, cpus) in enumerate(kinds)))


def pilots(*widths: int, phase: PilotPhase = PilotPhase.RUNNING) -> tuple[Pilot, ...]:
    """Pilots of tasks of so many nodes each; all are ready."""
    return tuple(
        Pilot(pilot_name(f"9_{task}", part), 1, phase, START, f"t{task}p{part}", START, START + 900.0, ready=True)
        for task, width in enumerate(widths)
        for part in range(width)
    )


def view(*mine: Pilot, curve: Curve | None = None) -> JobView:
    return JobView(job(1, most=50), JobPhase.QUEUED, {p.id: p for p in mine}, curve=curve)


@given(st.integers(0, 10**6), st.integers(0, 300))
def test_a_pilots_name_says_its_task_and_its_node(task: int, part: int) -> None:
    name = pilot_name(f"7_{task}", part)
    assert (task_of(name), part_of(name)) == (f"7_{task}", part)
    assert ("+" in name) == (part > 0)


@given(HOLES, st.integers(1, 6))
def test_only_like_holes_that_end_together_are_put_together(
    kinds: list[tuple[float, float | None, int]], most: int
) -> None:
    holes, snapshot = cluster(kinds)
    groups = task_groups(holes, most, snapshot)
    assert sorted(h.node for group in groups for h in group) == sorted(h.node for h in holes)
    for group in groups:
        assert 1 <= len(group) <= most
        assert len({(h.until, snapshot.node[h.node].cpus) for h in group}) == 1
    if most == 1:
        assert groups == [(hole,) for hole in holes]
    kinds_seen = {(h.until, snapshot.node[h.node].cpus) for h in holes}
    short = [group for group in groups if len(group) < most]
    assert len(short) <= len(kinds_seen), "at most one group of each kind is not full"
    for room in range(len(groups) + 1):
        assert len(task_groups(startable(holes, room, most, snapshot), most, snapshot)) <= room


@given(st.integers(0, 400), st.integers(0, 400), st.data())
def test_pilots_are_as_wide_as_their_number_asks_and_no_wider(held: int, free: int, data: st.DataObject) -> None:
    most, cap = data.draw(st.integers(1, 256)), data.draw(st.integers(1, 300))
    tasks = data.draw(st.integers(-(-held // most), min(held, cap))) if held <= most * cap else cap
    rules = replace(RULES, max_pilots=cap, max_starts=0, max_nodes=256)
    width = pilot_width(held, free, tasks, most, rules)
    assert 1 <= width <= most
    if most > 1 and width < min(most, free, MOST_TIMES_ALIKE * -(-(held + free) // cap)) and tasks < cap:
        assert width * (cap - tasks) >= free, "the pilots that there may be hold all that is free"
    if held + free <= cap and tasks == held:
        assert width == 1, "while there are enough pilots, each holds one node"
    assert pilot_width(held, free, tasks, most, replace(rules, max_nodes=1)) == 1


def test_many_free_nodes_are_held_within_a_minute_of_bounded_starts() -> None:
    bounded = replace(RULES, max_pilots=5000, max_starts=10, max_nodes=256)
    assert pilot_width(0, 60, 0, 256, bounded) == 1
    assert pilot_width(0, 1000, 0, 256, bounded) == 20


NODES = st.lists(st.integers(1, 40), max_size=12)


@given(NODES, NODES, st.lists(st.integers(0, 40), max_size=12), st.integers(0, 12), st.integers(1, 40))
def test_pilots_make_room_only_for_ones_that_hold_twice_as_much(
    widths: list[int], free: list[int], lacking: list[int], room: int, width: int
) -> None:
    _, tasks = make_room(
        [(each, 0.0, n, n) for n, each in enumerate(widths)], free, lacking, room, width, LEAST_STAY_S
    )
    going = len(tasks)
    assert 0 <= going <= min(len(widths), max(0, len(free) - room))
    left, come = sorted(widths)[:going], sorted(free, reverse=True)[room : room + going]
    assert all(new >= WIDER_TIMES * old for old, new in zip(left, come, strict=True))
    assert WIDER_TIMES * sum(left) <= sum(lacking), "jobs can have what comes"
    if lacking and min(lacking) >= width * len(free) and going < min(len(widths), max(0, len(free) - room)):
        one_more = min(width, sorted(free, reverse=True)[room + going])
        assert one_more < WIDER_TIMES * sorted(widths)[going], "all that hold twice as much find room"


@given(NODES, st.lists(st.integers(0, 40), max_size=12), st.integers(0, 12), st.integers(1, 40))
def test_where_the_cap_binds_as_many_pilots_as_may_start_are_no_narrower(
    free: list[int], lacking: list[int], room: int, width: int
) -> None:
    narrowest, _ = make_room([], free, lacking, room, width, 0.0)
    starts = sum(min(width, most) >= narrowest for most in lacking for _ in range(max(1, most // width)))
    assert min(starts, sum(nodes >= narrowest for nodes in free)) >= min(room, len(free), starts)
    if len(free) <= room:
        assert narrowest == 1, "the cap keeps none from starting"


@given(st.dictionaries(st.integers(1, 40), st.floats(0.1, 50.0), min_size=1, max_size=6), st.integers(1, 50))
def test_no_more_nodes_train_faster_than_the_best_size(points: dict[int, float], most: int) -> None:
    curve = Curve(tuple(sorted(points.items())))
    best = curve.best_size(most)
    assert 1 <= best <= most
    assert all(curve.throughput(n) <= curve.throughput(best) * (1 + 1e-12) for n in range(1, most + 1))


def growth(
    held: int, least: int, most: int, width: int, sizes: tuple[int, ...] = (), narrowest: int = 1
) -> tuple[int, ...]:
    widths = (held,) if held else ()
    return tuple(n for n in unbroken_sizes(widths, least, most, width, sizes, narrowest) if n > held)


def test_a_job_grows_by_whole_pilots() -> None:
    assert growth(6, 1, 24, 6, (), 6) == (12, 18, 24)
    assert growth(20, 1, 24, 6, (), 6) == (), "a pilot that would be too narrow"
    assert growth(6, 1, 24, 6) == (12, 18, 24)
    assert growth(0, 4, 16, 3) == (6, 9, 12, 15)
    assert growth(0, 1, 4, 6) == (4,), "what a job can have at most, where no whole pilot fits"
    assert growth(0, 7, 8, 6) == (8,)
    assert growth(8, 1, 8, 6) == ()
    assert growth(4, 1, 64, 6, (2, 4, 8, 16, 32)) == (16, 32)
    assert growth(4, 1, 8, 6, (2, 4, 8)) == (8,)
    assert growth(3, 1, 7, 1) == (4, 5, 6, 7)


@given(st.lists(st.integers(1, 4), max_size=7), st.integers(0, 30), st.integers(1, 4))
def test_no_size_that_sizing_may_choose_breaks_a_task_up(widths: list[int], most: int, least: int) -> None:
    mine = pilots(*widths)
    sizes = whole_sizes(mine, least, most, ())
    if all(width == 1 for width in widths):
        assert sizes == ()
        wide = whole_sizes(mine, least, most, (), 3)
        assert {size for size in wide if size > len(mine)} == set(growth(len(mine), least, most, 3))
        return
    for size in range(len(mine) + 1):
        kept = keep_whole_tasks(mine, size)
        assert len(kept) <= size
        tasks = {p.task for p in kept}
        assert kept == tuple(p for p in mine if p.task in tasks), "a task stays whole or goes whole"
        if size in sizes:
            assert len(kept) == size
        elif least <= size <= most and size:
            assert len(kept) < size
    assert all(least <= size <= most for size in sizes if size)
    assert set(range(max(least, len(mine)), most + 1)) <= set(sizes), "any growth is possible"


def test_of_those_that_make_the_size_the_best_stay() -> None:
    mine = pilots(2, 2, 2)
    assert keep_whole_tasks(mine, 4) == mine[:4]
    assert keep_whole_tasks(mine[::-1], 3) == mine[::-1][:2]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_whoever_leaves_takes_all_of_its_task_along(widths: list[int], data: st.DataObject) -> None:
    mine = pilots(*widths)
    chosen = data.draw(st.sets(st.sampled_from(mine)))
    actions = [LeavePilot(1, p.id, p.node, LeaveCause.YIELD, START + 2.0, "wanted") for p in sorted(chosen, key=str)]
    found = with_co_allocated(actions, {1: view(*mine)})
    left = [action.pilot for action in found if isinstance(action, LeavePilot)]
    assert len(set(left)) == len(left)
    assert set(left) == {p.id for p in mine if p.task in {c.task for c in chosen}}
    assert found[: len(actions)] == actions
    assert {action.deadline for action in found if isinstance(action, LeavePilot)} <= {START + 2.0}


def test_a_node_of_a_wide_task_costs_all_that_the_task_trains() -> None:
    straight = Curve.linear(50)
    costs = {each.pilot: each.cost for each in harvested(view(*pilots(3, 1), curve=straight))}
    assert costs == {"9_0": 3.0, "9_0+1": 3.0, "9_0+2": 3.0, "9_1": 1.0}


def world(waiting: int, single_cost: float) -> tuple[Snapshot, list[HarvestedNode]]:
    """A task on h0..h3 that costs 4, and pilots by themselves on s0..s2; a main job waits for so many nodes."""
    wide = frozenset(f"h{n}" for n in range(4))
    held = [HarvestedNode(f"h{n}", pilot_name("9_0", n), 4.0, wide) for n in range(4)]
    held += [HarvestedNode(f"s{n}", f"8_{n}", single_cost) for n in range(3)]
    common = {"user": "alice", "account": "", "partition": "harvest", "qos": "", "state": SlurmState.RUNNING}
    rows = [SlurmJob(id="9_0", raw_id=900, nodes=tuple(sorted(wide)), **common)]  # type: ignore[arg-type]
    rows += [SlurmJob(id=f"8_{n}", raw_id=800 + n, nodes=(f"s{n}",), **common) for n in range(3)]  # type: ignore[arg-type]
    nodes = tuple(node(each.node, NodeState.ALLOCATED) for each in held)
    return Snapshot(START, nodes, (*rows, main_job(1, count=waiting))), held


def test_a_main_job_is_given_what_costs_least_with_all_that_leaves_with_it() -> None:
    for waiting, single_cost, leave in (
        (1, 3.0, {"8_0"}),
        (1, 5.0, {"9_0"}),
        (2, 3.0, {"8_0", "8_1"}),
        # The whole task makes room for four: those by themselves, though each is cheaper, need not leave as well.
        (4, 3.0, {"9_0", "9_0+1", "9_0+2", "9_0+3"}),
    ):
        snapshot, held = world(waiting, single_cost)
        assert set(plan_yields(snapshot, held, {}, START, RULES).leave) == leave, (waiting, single_cost)


def test_what_is_emptied_anyway_serves_the_next_main_job() -> None:
    snapshot, held = world(1, 5.0)
    second = replace(snapshot, jobs=(*snapshot.jobs, main_job(2, count=3)))
    answer = plan_yields(second, held, {}, START, RULES)
    assert {task_of(pilot) for pilot in answer.leave} == {"9_0"}
    assert answer.kept == frozenset(f"h{n}" for n in range(4))


def test_when_one_worker_is_gone_the_others_leave_and_the_last_gives_the_nodes_back() -> None:
    first, second, third = pilots(3)
    gone = replace(first, ready=False)
    asked = after_loss(gone, view(gone, second, third), left=False, reason="lost", deadline=START + 9.0)
    assert [(a.pilot, a.cause) for a in asked if isinstance(a, LeavePilot)] == [
        ("9_0+1", LeaveCause.CO_ALLOCATED_GONE),
        ("9_0+2", LeaveCause.CO_ALLOCATED_GONE),
    ]
    none = view(*(replace(p, ready=False) for p in (first, second, third)))
    assert after_loss(gone, none, left=False, reason="silent", deadline=START) == [], "perhaps they train on unheard"
    over = after_loss(gone, none, left=True, reason="asked", deadline=START)
    assert [action.pilot for action in over if isinstance(action, RecyclePilot)] == ["9_0", "9_0+1", "9_0+2"]
