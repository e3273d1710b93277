"""Wide pilots from one look to the next: sizes count what can start, and jobs do not change size for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from malletrain.decide.decision import decide
from malletrain.decide.draft import Situation
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Decision, LeaveCause, LeavePilot, StartPilot
from malletrain.domain.job import Curve, JobPhase, JobView, Pilot, PilotPhase, pilot_name, task_of
from malletrain.domain.snapshot import NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.sizing.registry import policy
from tests.world import RULES, START, job, node

WIDE = replace(RULES, max_wait_s=0.0, max_nodes=16, max_pilots=4, max_pilot_s=3600.0, leave_lead_s=15.0)


def view(number: int, tasks: Sequence[tuple[int, float]], most: int = 16, curve: Curve | None = None) -> JobView:
    """A job that trains on tasks of so many nodes that end at such times, and has held tasks for as many again."""
    pilots = {
        pilot.id: pilot
        for task, (width, ends) in enumerate(tasks)
        for part in range(width)
        for pilot in [
            Pilot(pilot_name(f"{number}_{task}", part), number, PilotPhase.RUNNING, ends - 3600.0,
                  f"j{number}t{task}p{part}", ends - 3600.0, ends, ready=True)
        ]
    }  # fmt: skip
    held = [
        Pilot(f"{number}_{task}", number, PilotPhase.HELD, START) for task in range(len(tasks), len(tasks) + most)
    ]
    pilots |= {each.id: each for each in held}
    phase = JobPhase.RUNNING if tasks else JobPhase.QUEUED
    return JobView(job(number, most=most), phase, pilots, curve=curve or Curve.linear(most))


def decided(views: Sequence[JobView], free: int, rules: Rules) -> Decision:
    """What is decided where `free` nodes are idle besides."""
    rows: dict[str, list[str]] = {}
    for pilot in (pilot for each in views for pilot in each.staying):
        rows.setdefault(pilot.task, []).append(pilot.node)
    names = [f"free{n}" for n in range(free)]
    common = {"user": "alice", "account": "", "partition": "harvest", "qos": "", "state": SlurmState.RUNNING}
    jobs = [
        SlurmJob(id=task, raw_id=900 + n, nodes=tuple(nodes), **common)  # type: ignore[arg-type]
        for n, (task, nodes) in enumerate(rows.items())
    ]
    nodes = [node(name) for name in names]
    nodes += [node(name, NodeState.ALLOCATED) for held in rows.values() for name in held]
    by_id = {each.job.id: each for each in views}
    situation = Situation(Snapshot(START, tuple(nodes), tuple(jobs)), by_id, START)
    return decide(situation, policy("exact"), rules).decision


def left(found: Decision) -> set[tuple[int, LeaveCause]]:
    return {(each.job_id, each.cause) for each in found.actions if isinstance(each, LeavePilot)}


def started(found: Decision) -> set[int]:
    return {each.job_id for each in found.actions if isinstance(each, StartPilot)}


def test_nodes_whose_pilot_reaches_its_limit_count_and_no_other_job_shrinks_for_them() -> None:
    later = START + 1800.0
    views = [
        view(1, [(4, START + 10.0), (4, later)], curve=Curve(((4, 2.0), (8, 8.0), (16, 9.0)))),
        view(2, [(4, later), (4, later)], curve=Curve(((4, 4.0), (8, 5.0), (16, 9.0)))),
    ]
    found = decided(views, 0, WIDE)
    assert left(found) == {(1, LeaveCause.HOLE_CLOSES)}
    assert found.sizes == {1: 8, 2: 8}


def test_the_other_nodes_of_a_task_that_leaves_for_the_reserve_count() -> None:
    later = START + 1800.0
    views = [
        view(1, [(4, later), (4, later)], curve=Curve(((4, 4.0), (8, 8.0), (16, 9.0)))),
        view(2, [(4, later), (4, later)], curve=Curve(((4, 4.0), (8, 6.0), (16, 9.0)))),
    ]
    found = decided(views, 0, replace(WIDE, keep_idle=1, max_pilots=5))
    assert left(found) == {(2, LeaveCause.RESERVE)}
    assert found.sizes == {1: 8, 2: 7}


def test_a_place_under_the_cap_goes_to_a_wide_pilot_not_to_a_narrow_one() -> None:
    """Eight jobs could each have two nodes more, a ninth sixteen, which would train less. One pilot may start: were
    it of two nodes, it would make room for a wider one, and a job's nodes would go round at each look."""
    later = START + 1800.0
    views = [*(view(n, [(14, later)]) for n in range(1, 9)), view(9, [], curve=Curve(((1, 1.0), (16, 8.0))))]
    found = decided(views, 40, replace(WIDE, max_pilots=9))
    assert started(found) == {9}
    assert left(found) == set()


def test_no_place_is_kept_for_a_job_that_has_no_use_for_more_nodes() -> None:
    later = START + 1800.0
    full = view(4, [(4, later)], most=32, curve=Curve(((4, 4.0), (32, 4.0))))
    found = decided([*(view(n, [(14, later)]) for n in (1, 2)), full], 40, WIDE)
    assert started(found) <= {1, 2} and started(found)


def test_a_job_too_small_for_a_wide_pilot_does_not_wait_for_ever_for_a_place() -> None:
    later = START + 1800.0
    large = [view(n, [(16, later), (16, later)], most=128) for n in (1, 2)]
    small = replace(view(3, [], most=1), nodes_since=START - 7200.0)
    found = decided([*large, small], 40, replace(WIDE, max_pilots=5, max_wait_s=3600.0))
    assert started(found) == {3}


def idle_machine(cohorts: int, of: int) -> tuple[list[str], dict[str, float]]:
    """Nodes that became idle in cohorts: by name those of one do not stand side by side."""
    names = [f"n{n:02d}" for n in range(cohorts * of)]
    return names, {name: START - 60.0 * (n % cohorts) for n, name in enumerate(names)}


def started_together(found: Decision) -> list[list[str]]:
    """The nodes of each task that starts."""
    tasks: dict[str, list[str]] = {}
    for each in found.actions:
        if isinstance(each, StartPilot):
            tasks.setdefault(task_of(each.pilot), []).append(each.node)
    return list(tasks.values())


def test_nodes_that_became_idle_together_share_a_pilot() -> None:
    names, opened = idle_machine(cohorts=4, of=4)
    situation = Situation(Snapshot(START, tuple(map(node, names))), {1: view(1, [])}, START, open_holes=opened)
    found = decide(situation, policy("exact"), WIDE).decision
    tasks = started_together(found)
    assert [len(nodes) for nodes in tasks] == [4, 4, 4, 4]
    assert all(len({opened[name] for name in nodes}) == 1 for nodes in tasks)


def test_a_job_grows_onto_nodes_that_became_idle_with_those_it_has() -> None:
    names, opened = idle_machine(cohorts=2, of=8)
    mine = [name for name in names if opened[name] == START][:4]
    held = [
        Pilot(pilot_name("1_0", part), 1, PilotPhase.RUNNING, START, name, START, START + 3600.0, ready=True)
        for part, name in enumerate(mine)
    ]
    waiting = [Pilot(f"1_{task}", 1, PilotPhase.HELD, START) for task in range(1, 9)]
    grown = JobView(
        job(1, most=8), JobPhase.RUNNING, {each.id: each for each in (*held, *waiting)}, curve=Curve.linear(8)
    )
    row = SlurmJob("1_0", 900, "alice", "", "harvest", "", SlurmState.RUNNING, nodes=tuple(mine))
    nodes = [node(name, NodeState.ALLOCATED if name in mine else NodeState.IDLE) for name in names]
    situation = Situation(Snapshot(START, tuple(nodes), (row,)), {1: grown}, START, open_holes=opened)
    found = decide(situation, policy("exact"), WIDE).decision
    assert [{opened[name] for name in nodes} for nodes in started_together(found)] == [{START}]


def test_pilots_of_one_node_are_placed_by_name_as_before() -> None:
    names, opened = idle_machine(cohorts=2, of=4)
    situation = Situation(
        Snapshot(START, tuple(map(node, names))), {1: view(1, [], most=4)}, START, open_holes=opened
    )
    found = decide(situation, policy("exact"), replace(WIDE, max_pilots=100)).decision
    assert started_together(found) == [[name] for name in names[:4]]
