"""What every cluster keeps to: the one in memory, which replay and tests use, and the live one on a real Slurm."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from malletrain.domain.decision import CancelTasks, CutLimit, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.job import MalleableJob
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.memory import ManualClock, MemoryCluster
from malletrain.loop.ports import Cluster
from malletrain.slurm.actuator.bounds import ActuatorBounds
from malletrain.slurm.actuator.client import ActuatorClient
from malletrain.slurm.actuator.server import Actuator, ActuatorServer, AuditLog
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.read_pyslurm import PYTHON, choose
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.site_facts import Harvest
from scripts.lab import Lab, LabConfig
from tests.slurm_fixtures import LabFactory

JOB = MalleableJob(3, "train", "alice", 1001, "harvest", 1, 4, 0.0)


class Stage(Protocol):
    """A cluster with a world around it that a test can move."""

    cluster: Cluster
    job: MalleableJob
    nodes: tuple[str, ...]

    def submit(self, tasks: int) -> int: ...
    def occupy(self, node: str) -> None: ...
    def vacate(self) -> None: ...
    def want_all(self) -> None: ...
    def plain(self, node: str) -> str: ...
    def now(self) -> float: ...
    def until(self, condition: Callable[[], bool]) -> None: ...
    def go_down(self) -> None: ...
    def come_back(self) -> None: ...


class MemoryStage:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.nodes: tuple[str, ...] = ("n0", "n1", "n2")
        self.memory = MemoryCluster(
            [Node(name, NodeState.IDLE, ("batch", "harvest")) for name in self.nodes], self.clock
        )
        self.cluster: Cluster = self.memory
        self.job = JOB

    def submit(self, tasks: int) -> int:
        return self.memory.submit_array(self.job.user, tasks)

    def occupy(self, node: str) -> None:
        self.memory.set_main([*self.memory.main, _main(SlurmState.RUNNING, (node,))])

    def vacate(self) -> None:
        self.memory.set_main([])

    def want_all(self) -> None:
        self.memory.main = (*self.memory.main, replace(_main(SlurmState.PENDING, ()), node_count=len(self.nodes)))

    def plain(self, node: str) -> str:
        row = replace(_main(SlurmState.RUNNING, (node,)), id="70", raw_id=70, partition="harvest")
        self.memory.plain = (*self.memory.plain, row)
        return row.id

    def now(self) -> float:
        return self.clock.now()

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.clock.advance(1.0)
        raise AssertionError("never so")

    def go_down(self) -> None:
        self.memory.down = "slurmctld does not answer"

    def come_back(self) -> None:
        self.memory.down = ""


def _main(state: SlurmState, nodes: tuple[str, ...]) -> SlurmJob:
    return SlurmJob("9", 9, "bob", "main", "batch", "normal", state, nodes=nodes, node_count=max(1, len(nodes)))


HARVEST = Harvest("harvest", max_nodes=4)

DEAF = """trap '' TERM
while :; do srun --ntasks=1 bash -c "trap '' TERM; while :; do sleep 1; done"; done"""


class LiveStage:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.nodes = lab.nodes
        self.job = replace(JOB, uid=pwd.getpwnam("alice").pw_uid)
        commands = Commands(lab.env, timeout_s=30.0)
        self.cluster: Cluster = SlurmCluster(commands, HARVEST, {3: self.job.uid}.get, bf_interval_s=1.0)

    def submit(self, tasks: int) -> int:
        return self.lab.submit(
            "exec srun --ntasks=1 sleep 300", "-p", "harvest", "--hold", f"--array=0-{tasks - 1}", "--no-requeue",
            "--time=1", "--nodes=1", "--exclusive", "--mem=0", f"--comment=malletrain job {self.job.id}",
            user=self.job.user,
        )  # fmt: skip

    def occupy(self, node: str) -> None:
        job = self.lab.submit("sleep 300", "-p", "batch", "-w", node, "--exclusive", "--time=10", user="bob")
        self.lab.wait_for_state(job, "RUNNING")

    def vacate(self) -> None:
        self.lab.run(["scancel", "-u", "bob"])

    def want_all(self) -> None:
        self.lab.submit("sleep 300", "-p", "batch", f"--nodes={len(self.nodes)}", "--time=5", "--hold", user="bob")

    def plain(self, node: str) -> str:
        """A job of the harvest partition that is no pilot, deaf to SIGTERM, script and steps."""
        job = self.lab.submit(DEAF, "-p", "harvest", "-w", node, "--exclusive", "--time=10", user="bob")
        self.lab.wait_for_state(job, "RUNNING")
        return str(job)

    def now(self) -> float:
        return time.time()

    def until(self, condition: Callable[[], bool]) -> None:
        self.lab.wait_for(condition, 90)

    def go_down(self) -> None:
        self.lab.kill("slurmctld")

    def come_back(self) -> None:
        self.lab.start("slurmctld")
        self.lab.clear()  # what it had not saved yet (5 s) has come back


def _live(lab_factory: LabFactory, release: str | None) -> LiveStage:
    lab = lab_factory(LabConfig(nodes=8, profile="fast", users=os.geteuid() == 0, release=release))
    if not lab.users:
        pytest.skip("the live cluster needs plain users: run as root")
    return LiveStage(lab)


@contextmanager
def acting_apart(live: LiveStage) -> Iterator[None]:
    """The live cluster with its deeds done by an actuator, at the other end of a socket."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    actuator = Actuator(
        Commands(live.lab.env, timeout_s=30.0), HARVEST, ActuatorBounds(3600.0), AuditLog(folder / "acts", time.time)
    )
    server = ActuatorServer(folder / "socket", actuator, frozenset({os.geteuid()}), lambda: None)
    serving = threading.Thread(target=server.run)
    serving.start()
    looks = live.cluster
    assert isinstance(looks, SlurmCluster)
    live.cluster = ActuatorClient(looks, folder / "socket", {3: live.job.uid}.get, 30.0)
    try:
        yield
    finally:
        server.stop()
        serving.join()
        server.close()
        shutil.rmtree(folder)


def reading_by_pyslurm(live: LiveStage) -> None:
    """The live cluster, looked at through pyslurm; skips where there is none for its release."""
    commands = Commands(live.lab.env, timeout_s=30.0)
    command, why = choose(commands, site_facts.read(commands).release, os.environ.get(PYTHON, ""))
    if not command:
        pytest.skip(why)
    live.cluster = SlurmCluster(commands, HARVEST, {3: live.job.uid}.get, pyslurm=command)


def _on(cluster: str, release: str) -> object:
    """`live`, `apart` or `pyslurm` on one release of Slurm: own always, others with --nightly, or --release."""
    marks = [pytest.mark.slurm, pytest.mark.release(release)]
    return pytest.param((cluster, release), id=cluster if release == "own" else f"{cluster}-{release}", marks=marks)


@pytest.fixture(
    params=[
        pytest.param(("memory", ""), id="memory"),
        *(
            _on(cluster, release)
            for release in ("own", "trixie", "forky")
            for cluster in ("live", "apart", "pyslurm")
        ),
    ]
)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    cluster, release = request.param
    if cluster == "memory":
        yield MemoryStage()
        return
    live = _live(request.getfixturevalue("lab_factory"), None if release == "own" else release)
    if cluster == "pyslurm":
        reading_by_pyslurm(live)
    with acting_apart(live) if cluster == "apart" else nullcontext():
        yield live
    live.lab.clear()


def row(snapshot: Snapshot, pilot: str) -> SlurmJob | None:
    return next((job for job in snapshot.jobs if job.id == pilot), None)


def counted(stage: Stage, restarts: int) -> int | None:
    """Slurm's restart count; the one in memory does not count."""
    return None if isinstance(stage, MemoryStage) else restarts


def start(stage: Stage, pilot: str, node: str) -> None:
    outcome = stage.cluster.start([StartPilot(3, pilot, node, 600.0, "a hole")])[0]
    assert outcome.done, outcome.detail
    assert outcome.restarts == counted(stage, 0), "its workers say the same number, SLURM_RESTART_COUNT"

    def runs() -> bool:
        seen = row(stage.cluster.snapshot(), pilot)
        return seen is not None and seen.state is SlurmState.RUNNING

    stage.until(runs)


def recycle(stage: Stage, pilot: str, node: str) -> None:
    outcome = stage.cluster.recycle([RecyclePilot(3, pilot, node, "the hole closes")])[0]
    assert outcome.done, outcome.detail


def test_held_tasks_are_shown_one_by_one_on_free_nodes(stage: Stage) -> None:
    array = stage.submit(3)
    seen = stage.cluster.snapshot()
    tasks = [job for job in seen.jobs if job.array_id == array]
    assert sorted(job.id for job in tasks) == [f"{array}_{task}" for task in range(3)]
    assert {job.state for job in tasks} == {SlurmState.PENDING}
    assert all(seen.is_free(node) for node in stage.nodes)


def test_an_array_is_inspected(stage: Stage) -> None:
    array = stage.submit(3)
    assert stage.cluster.inspect(array, stage.job).tasks == (0, 1, 2)
    assert not stage.cluster.inspect(array, stage.job).faults
    other = replace(stage.job, user="mallory", uid=stage.job.uid + 1)
    refused = stage.cluster.inspect(array, other)
    assert refused.tasks == ()
    assert refused.faults
    missing = stage.cluster.inspect(array + 1000, stage.job)
    assert missing.faults and missing.gone
    assert refused.gone, "nobody learns from it whether another user has an array of this number"
    assert not stage.cluster.inspect(array, stage.job).gone


def test_a_started_pilot_holds_its_node(stage: Stage) -> None:
    pilot, node = f"{stage.submit(2)}_1", stage.nodes[1]
    start(stage, pilot, node)
    seen = stage.cluster.snapshot()
    assert [job.id for job in seen.holders[node]] == [pilot]
    assert not seen.is_free(node)
    assert seen.is_free(stage.nodes[0])
    found = row(seen, pilot)
    assert found is not None
    assert found.end_time is not None
    assert found.end_time - stage.now() <= 600.0


def test_a_pilot_is_started_once_and_on_a_free_node_only(stage: Stage) -> None:
    array = stage.submit(2)
    stage.occupy(stage.nodes[0])
    refused = stage.cluster.start([StartPilot(3, f"{array}_0", stage.nodes[0], 600.0, "")])[0]
    assert not refused.done
    assert stage.nodes[0] in refused.detail
    start(stage, f"{array}_0", stage.nodes[1])
    again = stage.cluster.start([StartPilot(3, f"{array}_0", stage.nodes[2], 600.0, "")])[0]
    assert not again.done
    assert again.detail
    taken = stage.cluster.start([StartPilot(3, f"{array}_1", stage.nodes[1], 600.0, "")])[0]
    assert not taken.done


def test_an_unknown_pilot_is_not_started(stage: Stage) -> None:
    outcome = stage.cluster.start([StartPilot(3, "999999_0", stage.nodes[0], 600.0, "")])[0]
    assert not outcome.done
    assert outcome.detail


def test_a_recycled_pilot_is_held_again_and_its_node_free(stage: Stage) -> None:
    pilot, node = f"{stage.submit(1)}_0", stage.nodes[0]
    start(stage, pilot, node)
    recycle(stage, pilot, node)
    stage.until(lambda: stage.cluster.snapshot().is_free(node) and stage.cluster.end_of(pilot).held)
    found = row(stage.cluster.snapshot(), pilot)
    assert found is not None
    assert found.state is SlurmState.PENDING
    recycle(stage, pilot, node)  # once more: done already


def test_a_recycled_pilot_serves_again(stage: Stage) -> None:
    pilot = f"{stage.submit(1)}_0"
    start(stage, pilot, stage.nodes[0])
    recycle(stage, pilot, stage.nodes[0])
    outcomes: list[Outcome] = []

    def started() -> bool:
        outcomes.extend(stage.cluster.start([StartPilot(3, pilot, stage.nodes[0], 600.0, "")]))
        return outcomes[-1].done

    stage.until(started)  # a live one rests for 2 s: slurmd would take it for the task that it has just killed
    assert outcomes[-1].restarts == counted(stage, 1)
    stage.until(lambda: not stage.cluster.snapshot().is_free(stage.nodes[0]))
    assert not stage.cluster.end_of(pilot).held


def test_several_nodes_are_held_by_one_task_or_by_none(stage: Stage) -> None:
    task = f"{stage.submit(2)}_0"
    parts, nodes = (task, f"{task}+1"), stage.nodes[:2]

    def start_all(names: Sequence[str]) -> list[bool]:
        actions = [StartPilot(3, part, node, 600.0, "") for part, node in zip(parts, names, strict=True)]
        return [outcome.done for outcome in stage.cluster.start(actions)]

    stage.occupy(stage.nodes[2])
    assert start_all([nodes[0], stage.nodes[2]]) == [False] * 2
    assert all(stage.cluster.snapshot().is_free(node) for node in nodes)
    assert start_all(nodes) == [True] * 2
    stage.until(lambda: (seen := row(stage.cluster.snapshot(), task)) is not None and seen.nodes == tuple(nodes))
    outcomes = stage.cluster.recycle(
        [RecyclePilot(3, part, node, "") for part, node in zip(parts, nodes, strict=True)]
    )
    assert [outcome.done for outcome in outcomes] == [True] * 2
    stage.until(lambda: all(stage.cluster.snapshot().is_free(node) for node in nodes))
    stage.until(lambda: stage.cluster.end_of(task).held)


def test_a_limit_is_cut_and_never_lengthened(stage: Stage) -> None:
    pilot, node = f"{stage.submit(1)}_0", stage.nodes[0]
    start(stage, pilot, node)
    ends_at = stage.now() + 200.0
    assert stage.cluster.cut(CutLimit(3, pilot, node, ends_at, "")).done
    found = row(stage.cluster.snapshot(), pilot)
    assert found is not None
    assert found.end_time is not None
    assert found.end_time <= ends_at
    assert stage.cluster.cut(CutLimit(3, pilot, node, ends_at + 300, "")).done
    later = row(stage.cluster.snapshot(), pilot)
    assert later is not None
    assert later.end_time == found.end_time


def test_cancelled_tasks_are_gone(stage: Stage) -> None:
    array = stage.submit(3)
    wanted = CancelTasks(3, (f"{array}_0", f"{array}_2"), "the job is over")
    assert stage.cluster.cancel(wanted).done
    for number in (0, 2):
        stage.until(lambda number=number: row(stage.cluster.snapshot(), f"{array}_{number}") is None)  # type: ignore[misc]
    assert row(stage.cluster.snapshot(), f"{array}_1") is not None
    assert not stage.cluster.start([StartPilot(3, f"{array}_0", stage.nodes[0], 600.0, "")])[0].done
    assert stage.cluster.cancel(wanted).done


def test_a_plain_job_of_the_partition_is_ended_at_once_and_nothing_else(stage: Stage) -> None:
    pilot = f"{stage.submit(2)}_0"
    start(stage, pilot, stage.nodes[0])
    stage.occupy(stage.nodes[2])
    stray = Stray(stage.plain(stage.nodes[1]), "bob")
    seen = row(stage.cluster.snapshot(), stray.job)
    assert seen is not None and (seen.user, seen.nodes) == ("bob", (stage.nodes[1],))
    main = next(job.id for job in stage.cluster.snapshot().jobs if job.partition == "batch")
    stage.until(lambda: stage.cluster.take_back([stray])[0].detail == "ended")  # not in its first seconds
    outcomes = stage.cluster.take_back([stray, Stray(main, "bob"), Stray("999999", "bob")])
    assert [outcome.done for outcome in outcomes] == [True] * 3, "of those that are not there any more, too"
    stage.until(lambda: stage.cluster.snapshot().is_free(stage.nodes[1]))
    after = stage.cluster.snapshot()
    assert not after.is_free(stage.nodes[0])
    assert not after.is_free(stage.nodes[2])
    assert stage.cluster.take_back([stray])[0].done


def test_a_preempted_pilot_is_known_as_such(stage: Stage) -> None:
    pilot, node = f"{stage.submit(1)}_0", stage.nodes[2]
    start(stage, pilot, node)
    stage.occupy(node)
    stage.until(lambda: stage.cluster.end_of(pilot).preempted)
    assert not stage.cluster.end_of(pilot).held
    assert stage.cluster.recycle([RecyclePilot(3, pilot, node, "")])[0].done


def test_a_light_look_shows_what_waits_now(stage: Stage) -> None:
    array = stage.submit(2)
    before = stage.cluster.snapshot()
    stage.want_all()
    looked = stage.cluster.look(before)
    waiting = [job for job in looked.jobs if job.partition == "batch" and job.state is SlurmState.PENDING]
    assert [job.node_count for job in waiting] == [len(stage.nodes)]
    assert sum(job.array_id == array for job in looked.jobs) == 2
    assert looked.nodes == before.nodes


def test_a_light_look_shows_where_main_jobs_have_begun_and_ended(stage: Stage) -> None:
    node, idle = stage.nodes[2], stage.cluster.snapshot()
    stage.occupy(node)
    assert not stage.cluster.look(idle).is_free(node)
    held = stage.cluster.snapshot()
    assert not stage.cluster.look(held).is_free(node)
    stage.vacate()
    stage.until(lambda: stage.cluster.look(held).is_free(node))


def test_a_vanished_pilot_is_unknown(stage: Stage) -> None:
    end = stage.cluster.end_of("999999_7")
    assert end.state is SlurmState.UNKNOWN
    assert not end.held


def test_a_silent_slurm_is_said_so_by_every_call(stage: Stage, request: pytest.FixtureRequest) -> None:
    if "memory" not in request.node.callspec.id and not request.config.getoption("--nightly"):
        pytest.skip("seven time-outs of Slurm's commands: run with --nightly")
    array = stage.submit(1)
    pilot, node = f"{array}_0", stage.nodes[0]
    seen = stage.cluster.snapshot()
    stage.go_down()
    try:
        calls: list[Callable[[], object]] = [
            stage.cluster.snapshot,
            lambda: stage.cluster.look(seen),
            lambda: stage.cluster.inspect(array, stage.job),
            lambda: stage.cluster.end_of(pilot),
            lambda: stage.cluster.start([StartPilot(3, pilot, node, 600.0, "")])[0],
            lambda: stage.cluster.cut(CutLimit(3, pilot, node, 0.0, "")),
            lambda: stage.cluster.recycle([RecyclePilot(3, pilot, node, "")])[0],
        ]
        for call in calls:
            with pytest.raises(ClusterUnavailable):
                call()
    finally:
        stage.come_back()
    assert stage.cluster.snapshot().node.keys() == seen.node.keys()
