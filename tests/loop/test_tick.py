"""The loop over the ports in memory: a hole is filled, left, and never given twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.event import Event, JobAnnounced, PoolCounted
from malletrain.domain.job import JobPhase, PilotEnd, PilotPhase
from malletrain.domain.pilot_life import NO_DAEMON_STATUS
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.ledger import Ledger
from malletrain.loop.tick import pool_counts
from malletrain.slurm.formats.states import node_state
from tests.messages import says
from tests.world import RULES, START, World, data_of, event_of, job, main_job


def test_a_job_fills_the_idle_nodes_and_its_array_is_looked_at_first() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=8))
    world.tick()
    assert world.nodes_of(1) == 4
    assert set(world.running()) == {"n0", "n1", "n2", "n3"}
    kinds = [e.kind for e in world.journal.events if e.pilot]
    assert kinds == ["intent"] * 4 + ["outcome"] * 4, "intents are recorded before the acts"


def test_an_array_of_someone_else_is_refused() -> None:
    world = World()
    world.submit(job(1))
    for task in world.cluster.tasks.values():
        task.owner = "mallory"
    world.tick()
    assert world.running() == {}
    view = world.loop.ledger.views()[1]
    assert view.phase is JobPhase.FAILED
    assert says(view.reason, "array 1001")
    assert "mallory" not in view.reason, "nobody learns from it who has an array of this number"


def test_a_main_job_that_could_start_is_given_nodes_by_the_next_look() -> None:
    world = World(nodes=4)
    world.submit(job(1))
    world.tick()
    world.cluster.set_main([main_job(7, count=3)])
    world.loop.watch()
    world.loop.react()
    assert len(world.running()) == 1
    world.tick(2.0)
    assert len(world.running()) == 1, "the freed nodes are kept for the main job"
    world.cluster.set_main([main_job(7, nodes=sorted({"n0", "n1", "n2", "n3"} - set(world.running())))])
    world.tick()
    assert len(world.running()) == 1


BLOCKED, BESIDE = main_job(7, count=4), main_job(6, nodes=["n3"])


def _after_a_light_look(*main: SlurmJob) -> World:
    """A main job that needs all four nodes waits for one that runs on one of them, and for pilots on the others; then
    the main queue becomes `main`."""
    world = World(nodes=4)
    world.cluster.set_main([BESIDE, BLOCKED])
    world.submit(job(1))
    world.tick(10)
    assert len(world.running()) == 3, "it cannot start while the other runs"
    world.cluster.set_main(main)
    world.loop.watch()
    world.loop.react()
    return world


def test_nodes_of_a_main_job_that_has_ended_count_at_the_next_light_look() -> None:
    assert _after_a_light_look(BLOCKED).running() == {}


def test_a_main_job_that_completes_counts_at_the_next_light_look_too() -> None:
    """Its epilog runs: those of the pilots that leave run beside it, not after it."""
    assert _after_a_light_look(replace(BESIDE, state=SlurmState.COMPLETING), BLOCKED).running() == {}


def test_nodes_that_another_main_job_has_taken_since_do_not_count() -> None:
    assert len(_after_a_light_look(main_job(8, nodes=["n3"]), BLOCKED).running()) == 3


def test_a_hole_is_used_and_left_before_it_closes() -> None:
    world = World(nodes=4)
    world.submit(job(1))
    blocked = main_job(7, count=4, start=START + 310, planned=["n0", "n1", "n2", "n3"], limit_s=1e5)
    world.cluster.set_main([main_job(6, nodes=["n3"]), blocked])
    world.tick(10)
    assert set(world.running()) == {"n0", "n1", "n2"}
    limits = {t.limit_s for t in world.cluster.tasks.values() if t.node}
    assert limits == {240.0}, "whole minutes, and out by the planned start"
    while world.clock.now() < START + 310:
        world.tick(10)
        if world.clock.now() >= START + 300:
            assert world.running() == {}
    assert not any(t.end for t in world.cluster.tasks.values()), "every pilot left in order: its task is held again"


def test_nodes_that_are_switched_off_or_of_a_cloud_are_not_down() -> None:
    words = [
        "IDLE",
        "IDLE+POWERED_DOWN",
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE~",
        "IDLE+POWERING_DOWN",
        "DOWN*",
        "MAINT+IDLE",
    ]
    nodes = tuple(Node(f"n{number}", node_state(word).state) for number, word in enumerate(words))
    assert pool_counts(Snapshot(START, nodes), RULES) == PoolCounted(idle=1, powered_down=4, down=1, reserved=1)


def test_nodes_that_staff_wants_are_left_within_one_tick() -> None:
    for state in (NodeState.DRAINED, NodeState.MAINT, NodeState.RESERVED, NodeState.POWERED_DOWN):
        world = World(nodes=2)
        world.submit(job(1))
        world.tick()
        n0 = world.cluster.nodes["n0"]
        world.cluster.nodes["n0"] = type(n0)("n0", state, n0.partitions)
        world.tick()
        assert set(world.running()) == {"n1"}


def test_membership_hears_of_pilots_that_slurm_has_ended() -> None:
    world = World(nodes=2)
    world.submit(job(1))
    world.tick()
    failed, requeued = sorted(world.running().values())
    world.cluster.end_pilot(failed, PilotEnd(SlurmState.NODE_FAIL))
    world.cluster.end_pilot(requeued, PilotEnd(SlurmState.REQUEUED, held=True))
    assert world.workers.outlived == {}
    world.tick()
    assert world.workers.outlived == {failed: 1, requeued: 1}


def test_slurm_that_does_not_answer_means_no_action_and_one_event() -> None:
    world = World(nodes=2)
    world.submit(job(1))
    world.cluster.down = "slurmctld does not answer"
    for _ in range(3):
        world.tick()
    kinds = [e.kind for e in world.journal.events]
    assert kinds.count("cluster_unavailable") == 1
    assert "intent" not in kinds
    world.cluster.down = ""
    world.tick()
    assert len(world.running()) == 2


def test_a_job_that_is_over_leaves_nothing_behind() -> None:
    for kind in ("job_completed", "job_cancelled", "job_failed"):
        world = World(nodes=3)
        world.submit(job(1))
        world.tick()
        world.loop.record([event_of(world.clock.now(), kind, 1)])
        world.tick()
        world.tick(RULES.exit_patience_s + 1)
        assert world.running() == {}
        assert all(t.end for t in world.cluster.tasks.values())
        assert 1 in world.workers.ended


def test_of_many_jobs_that_are_over_the_last_ones_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.loop.ledger.MAX_OVER_JOBS", 3)
    ledger = Ledger()
    for number in range(1, 8):
        ledger.apply([Event(START + number, JobAnnounced(job(number)), number)])
        ledger.apply([event_of(START + 100 - number, "job_cancelled", number)])
    ledger.apply([Event(START, JobAnnounced(job(9)), 9)])
    ledger.forget_over(START)
    assert sorted(ledger.views()) == [1, 2, 3, 9], "the last to end, and one that is not over"


def test_a_held_job_gives_its_nodes_to_others_and_comes_back() -> None:
    world = World(nodes=4)
    world.submit(job(1, most=4))
    world.submit(job(2, most=4))
    world.tick()
    world.loop.record([event_of(world.clock.now(), "job_held", 1, reason="alice asked")])
    for _ in range(3):
        world.tick()
    assert (world.nodes_of(1), world.nodes_of(2)) == (0, 4)
    world.loop.record([event_of(world.clock.now(), "job_released", 1)])
    for _ in range(3):
        world.tick()
    assert world.nodes_of(1) + world.nodes_of(2) == 4


def test_a_pause_starts_nothing_new() -> None:
    world = World(nodes=2)
    world.submit(job(1))
    world.loop.paused = "drained by root"
    world.tick()
    assert world.running() == {}
    assert world.loop.last_decision is not None
    assert any(says(r.reason, "drained", "root") for r in world.loop.last_decision.refusals)


def test_a_dry_run_touches_and_records_nothing() -> None:
    world = World(nodes=2)
    world.submit(job(1))
    world.tick()
    before = list(world.journal.events)
    dry = type(world.loop)(
        world.cluster, world.workers, world.journal, world.clock, world.loop.policy, RULES, act=False
    )
    dry.restore()
    world.cluster.set_main([main_job(7, count=2)])
    decision = dry.tick()
    assert decision is not None
    assert len(decision.actions) == 2
    assert world.journal.events == before
    assert len(world.running()) == 2


MAIN_SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), max_size=4)


class MainQueue:
    """A main queue that starts its jobs first come, first served, on free or harvested nodes."""

    def __init__(self, world: World) -> None:
        self.world, self.number, self.jobs, self.left = world, 100, list[SlurmJob](), dict[str, int]()

    def step(self, arrivals: list[tuple[int, int]]) -> None:
        for count, ticks in arrivals:
            self.number += 1
            self.jobs.append(main_job(self.number, count=count, priority=10_000 - self.number))
            self.left[str(self.number)] = ticks
        kept: list[SlurmJob] = []
        for running in [j for j in self.jobs if j.nodes]:
            self.left[running.id] -= 1
            if self.left[running.id] > 0:
                kept.append(running)
        busy = {n for j in kept for n in j.nodes}
        for waiting in [j for j in self.jobs if not j.nodes]:
            free = sorted(set(self.world.cluster.nodes) - busy, key=lambda n: (n in self.world.running(), n))
            if len(free) >= waiting.node_count:
                nodes = free[: waiting.node_count]
                busy.update(nodes)
                kept.append(main_job(int(waiting.id), nodes=nodes))
            else:
                kept.append(waiting)
        self.jobs = kept
        gone = self.world.cluster.set_main(kept)
        for pilot in gone:
            event = event_of(self.world.clock.now(), "worker_lost", 1, pilot)
            self.world.workers.report(event)


@given(
    arrivals=st.lists(MAIN_SIZES, min_size=1, max_size=15),
    bounds=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=4),
    nodes=st.integers(1, 9),
)
def test_whatever_the_main_queue_does(
    arrivals: list[list[tuple[int, int]]], bounds: list[tuple[int, int]], nodes: int
) -> None:
    """No node is held twice, sizes stay in their bounds, the journal alone rebuilds the ledger, and once the main
    queue stands still the plan does too."""
    world = World(nodes=nodes)
    for number, (least, more) in enumerate(bounds, start=1):
        world.submit(job(number, least=least, most=least + more), tasks=40)
    queue = MainQueue(world)
    for step in arrivals:
        queue.step(step)
        world.tick()
        holders = [t.node for t in world.cluster.tasks.values() if t.node]
        main = [n for j in world.cluster.main for n in j.nodes]
        assert len(set(holders)) == len(holders)
        assert not set(holders) & set(main)
        for number, (least, more) in enumerate(bounds, start=1):
            size = world.loop.last_decision.sizes[number] if world.loop.last_decision else 0
            assert size == 0 or least <= size <= least + more
    again = Ledger()
    again.apply(world.journal.read())
    assert again.views() == world.loop.ledger.views()
    world.cluster.set_main([])
    for _ in range(4):
        world.tick()
    assert world.loop.last_decision is not None
    assert world.loop.last_decision.actions == ()


def test_a_pilot_that_never_starts_goes_back_to_the_array() -> None:
    world = World(nodes=1)
    world.submit(job(1))
    world.tick()
    view = world.loop.ledger.views()[1]
    assert [p.phase for p in view.staying] == [PilotPhase.RELEASED]
    # Slurm shows it released and waiting, tick after tick.
    task = next(t for t in world.cluster.tasks.values() if t.node)
    task.state, task.node, task.start = type(task.state).PENDING, "", None
    world.tick()
    world.tick(RULES.start_patience_s)
    recycled = [e for e in world.journal.events if data_of(e).get("type") == "recycle"]
    assert recycled
    assert "not started" in recycled[0].reason


def test_a_script_that_fails_at_once_does_not_consume_its_array() -> None:
    world = World(nodes=2)
    world.submit(job(1), tasks=20)
    world.tick()
    for _ in range(4):
        for pilot in world.running().values():
            world.cluster.end_pilot(pilot, PilotEnd(SlurmState.FAILED, exit_code=1, detail="exit code 1:0"))
        world.tick()
    view = world.loop.ledger.views()[1]
    assert view.phase is JobPhase.FAILED
    assert "slurm-1001_" in view.reason
    assert "exit code 1:0" in view.reason
    assert sum(1 for t in world.cluster.tasks.values() if t.end and t.end.state is SlurmState.FAILED) <= 6


def test_a_job_without_tasks_says_so() -> None:
    for state, phase in ((SlurmState.CANCELLED, JobPhase.CANCELLED), (SlurmState.PREEMPTED, JobPhase.FAILED)):
        world = World(nodes=1)
        world.submit(job(1), tasks=1)
        world.tick()
        world.tick()
        world.cluster.end_pilot("1001_0", PilotEnd(state, preempted=state is SlurmState.PREEMPTED))
        world.tick()
        assert world.loop.ledger.views()[1].phase is phase


def test_a_job_with_fewer_tasks_than_its_fewest_nodes_ends_once_nobody_can_submit_more() -> None:
    world = World(nodes=3)
    world.submit(replace(job(1), min_nodes=3), tasks=4)
    world.tick()
    for pilot in list(world.running().values()):
        world.cluster.end_pilot(pilot, PilotEnd(SlurmState.NODE_FAIL))
    world.tick()
    view = world.loop.views[1]
    assert view.phase is JobPhase.FAILED
    assert says(view.reason, "1 of its 4 tasks", 3)
    world.tick()
    assert not [task for task in world.cluster.tasks.values() if task.end is None]


@pytest.mark.parametrize(
    ("ends", "phase", "said"),
    [
        ((SlurmState.CANCELLED, SlurmState.NODE_FAIL), JobPhase.FAILED, "(of 2:"),
        ((SlurmState.PREEMPTED, SlurmState.CANCELLED), JobPhase.CANCELLED, "cancelled in Slurm"),
        ((SlurmState.CANCELLED, SlurmState.UNKNOWN), JobPhase.FAILED, "(1 of 2)"),
    ],
)
def test_of_a_job_whose_tasks_have_all_ended_the_last_one_says_how(
    ends: tuple[SlurmState, ...], phase: JobPhase, said: str
) -> None:
    """Its owner may cancel one task among many, without meaning the job."""
    world = World(nodes=1)
    world.submit(job(1, most=1), tasks=2)
    world.loop.crowded = "no task is added"
    for state in ends:
        for _ in range(3):
            world.tick()
        (pilot,) = world.running().values()
        world.cluster.end_pilot(pilot, PilotEnd(state, preempted=state is SlurmState.PREEMPTED))
    world.tick()
    view = world.loop.ledger.views()[1]
    assert view.phase is phase
    assert said in view.reason


def test_the_last_task_of_a_job_leaves_a_node_that_staff_wants() -> None:
    world = World(nodes=2)
    world.submit(job(1), tasks=1)
    world.tick()
    (node_name,) = world.running()
    world.cluster.nodes[node_name] = replace(world.cluster.nodes[node_name], state=NodeState.DRAINED)
    world.tick()
    assert not world.running()


def test_tasks_that_slurmctld_brings_back_after_their_job_ended_are_cancelled_again() -> None:
    world = World(nodes=1)
    world.submit(job(1, most=1), tasks=3)
    world.tick()
    world.loop.record([event_of(world.clock.now(), "job_completed", 1)])
    for _ in range(4):
        world.tick(60.0)
    assert all(task.end is not None for task in world.cluster.tasks.values())
    for task in list(world.cluster.tasks.values())[
        1:
    ]:  # slurmctld dies, and comes back from what it had saved before
        task.end, task.state, task.held = None, SlurmState.PENDING, True
    world.tick()
    world.tick()
    assert all(task.end is not None for task in world.cluster.tasks.values())


def warm_pilots(world: World) -> list[str]:
    """The pilots of job 1, on each node of the world, whose workers are ready."""
    world.submit(job(1), tasks=40)
    for _ in range(3):
        world.tick()
    pilots = world.running()
    assert len(pilots) == len(world.cluster.nodes)
    for node_name, pilot in pilots.items():
        world.loop.record([event_of(world.clock.now(), "worker_warm", 1, pilot, node_name)])
    return list(pilots.values())


@pytest.mark.parametrize("state", [SlurmState.FAILED, SlurmState.OUT_OF_MEMORY, SlurmState.COMPLETED])
def test_pilots_whose_workers_were_ready_are_no_failed_starts_when_the_clock_jumps(state: SlurmState) -> None:
    """Five workers, warm for minutes, gave up together on a daemon whose clock had jumped: the job was failed for
    good, since `5 pilots in a row ended before their worker was ready`."""
    world = World(nodes=5)
    pilots = warm_pilots(world)
    world.tick()
    world.clock.time += 3600.0
    for pilot in pilots:
        world.cluster.end_pilot(pilot, PilotEnd(state, exit_code=1, detail="failed, exit code 1:0"))
    world.tick()
    view = world.loop.ledger.views()[1]
    assert (view.failures, view.phase.is_over) == (0, False)
    world.clock.time -= 3600.0
    world.tick()
    assert len(world.running()) == 5, "the next ones start"


def test_pilots_that_no_daemon_took_are_no_failed_starts_and_their_nodes_rest() -> None:
    """The daemon's clock was wrong for half an hour, and it refused every credential; or a node reaches it not."""
    world, ended = World(nodes=4), 0
    world.submit(job(1), tasks=40)
    end = PilotEnd(SlurmState.FAILED, exit_code=NO_DAEMON_STATUS, detail=f"failed, exit code {NO_DAEMON_STATUS}:0")
    for _ in range(180):
        world.tick()
        for pilot in world.running().values():
            world.cluster.end_pilot(pilot, end)
            ended += 1
    view = world.loop.ledger.views()[1]
    assert (view.failures, view.phase.is_over) == (0, False), view.reason
    assert 4 <= ended <= 4 * 7, "each node is tried again every five minutes"
    for _ in range(40):
        world.tick()
    assert len(world.running()) == 4


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ((), "slurm-1001_3.out"),
        (("/home/alice/logs/%x-%A.%4a",), "/home/alice/logs/job1-1001.0003"),
        (("/home/alice/out", "/home/alice/%N-%u.err"), "/home/alice/*-alice.err"),
    ],
)
def test_a_job_whose_starts_fail_names_the_file_that_its_output_is_in(output: tuple[str, ...], named: str) -> None:
    world = World(nodes=1)
    world.submit(job(1, most=1, output=output), tasks=20)
    for _ in range(40):
        world.tick(60.0)
        for pilot in world.running().values():
            world.cluster.end_pilot(pilot, PilotEnd(SlurmState.FAILED, exit_code=1, detail="exit code 1:0"))
    view = world.loop.ledger.views()[1]
    assert view.phase is JobPhase.FAILED
    assert says(view.reason, "4 pilots", "(exit code 1:0)", named)
