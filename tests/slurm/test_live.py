"""Pilots on a real Slurm: what the owner, the staff and the cluster do to them behind our back."""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.domain.decision import CutLimit, RecyclePilot, StartPilot
from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.event import PilotHeld
from malletrain.domain.job import JobPhase, JobView, MalleableJob, Pilot, PilotEnd, PilotPhase
from malletrain.domain.snapshot import NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.loop.pilot_changes import observe
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site import partition_checks, site_facts
from malletrain.slurm.site.site_facts import Harvest
from malletrain.slurm.submission import batch_request
from malletrain.slurm.submission.directives import BatchOptions
from malletrain.wire.address import Address
from scripts.lab import Lab, LabConfig
from tests.messages import naming
from tests.slurm_fixtures import LabFactory

pytestmark = pytest.mark.slurm

PAYLOAD = "exec srun --ntasks=1 sleep 300"


@dataclass
class Site:
    lab: Lab
    cluster: SlurmCluster
    commands: Commands

    def submit(self, command: str = PAYLOAD, *more: str, tasks: int = 1) -> int:
        return self.lab.submit(
            command, "-p", "harvest", "--hold", f"--array=0-{tasks - 1}", "--no-requeue", "--time=1", "--nodes=1",
            "--exclusive", "--mem=0", *more, user="alice",
        )  # fmt: skip

    def start(self, pilot: str, node: str, limit_s: float = 600.0) -> None:
        outcome = self.cluster.start([StartPilot(3, pilot, node, limit_s, "a hole")])[0]
        assert outcome.done, outcome.detail
        self.lab.wait_for(lambda: self.cluster.end_of(pilot).state is SlurmState.RUNNING, 90, f"{pilot} runs")

    def refused(self, pilot: str, node: str) -> str:
        outcome = self.cluster.start([StartPilot(3, pilot, node, 600.0, "a hole")])[0]
        assert not outcome.done
        return outcome.detail

    def end(self, pilot: str, deadline_s: float = 60.0) -> PilotEnd:
        self.lab.wait_for(lambda: self.cluster.end_of(pilot).is_over, deadline_s, f"{pilot} ends")
        return self.cluster.end_of(pilot)


@pytest.fixture
def live(release: str | None, lab_factory: LabFactory) -> Iterator[Site]:
    lab = lab_factory(LabConfig(nodes=8, profile="fast", users=os.geteuid() == 0, release=release))
    if "alice" not in lab.users:
        pytest.skip("needs plain users: run as root")
    commands = Commands(lab.env, timeout_s=30.0)
    uid = pwd.getpwnam("alice").pw_uid
    yield Site(lab, SlurmCluster(commands, Harvest("harvest"), {3: uid}.get, bf_interval_s=1.0), commands)
    lab.clear()


def test_a_job_name_of_any_bytes_reaches_us_and_forges_nothing(live: Site) -> None:
    name = "a|b\x1fü\nJobId=1 UserId=root(0)\n\x1e00000000\x1e1\x1f x=y"
    array = live.submit(PAYLOAD, f"--job-name={name}", "--account=ac\x1fct\nx", "--comment=UserId=root(0)", tasks=3)
    seen = live.cluster.snapshot()
    jobs = [job for job in seen.jobs if job.array_id == array]
    assert len(jobs) == len(seen.jobs) == 3
    assert {job.name for job in jobs} == {name}
    assert {job.user for job in jobs} == {"alice"}
    live.start(f"{array}_1", live.lab.nodes[0])


def test_an_array_of_thousands_is_one_row(live: Site) -> None:
    live.lab.submit("true", "-p", "batch", "--hold", "--array=0-999", user="bob")
    (job,) = live.cluster.snapshot().jobs
    assert job.task_count == 1000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("Partition=batch", "is batch"),
        ("Dependency=after:1", "another job"),
    ],
)
def test_a_task_that_its_owner_changed_is_not_started(live: Site, change: str, said: str) -> None:
    pilot = f"{live.submit(tasks=2)}_1"
    # `after` a job that ran and is gone is met at once; another held job keeps the dependency.
    live.lab.run(
        ["scontrol", "update", f"JobId={pilot}", change.replace("after:1", f"after:{live.submit()}")], "alice"
    )
    assert said in live.refused(pilot, live.lab.nodes[0])
    assert live.cluster.snapshot().is_free(live.lab.nodes[0])


def test_a_task_of_somebody_else_is_not_started(live: Site) -> None:
    array = live.lab.submit(
        PAYLOAD, "-p", "harvest", "--hold", "--array=0", "--no-requeue", "--time=1", "--exclusive", user="bob"
    )
    assert "to uid" in live.refused(f"{array}_0", live.lab.nodes[0])


def test_a_hold_of_the_staff_is_never_lifted(live: Site) -> None:
    pilot = f"{live.submit(tasks=2)}_0"
    live.lab.run(["scontrol", "hold", pilot])
    assert "staff" in live.refused(pilot, live.lab.nodes[0])


def test_a_node_drained_since_is_not_taken_and_a_pilots_drained_node_is_shown(live: Site) -> None:
    array, node = live.submit(tasks=2), live.lab.nodes[0]
    live.start(f"{array}_0", node)
    live.lab.run(
        ["scontrol", "update", f"NodeName={node},{live.lab.nodes[1]}", "State=DRAIN", "Reason=new disk = bad"]
    )
    assert "drained now (new disk = bad" in live.refused(f"{array}_1", live.lab.nodes[1])
    assert live.cluster.snapshot().node[node].state is NodeState.DRAINED


def test_a_reserved_node_is_not_taken(live: Site) -> None:
    array, node = live.submit(), live.lab.nodes[2]
    live.lab.run(
        ["scontrol", "create", "reservation", "ReservationName=res", "StartTime=now", "Duration=30", f"Nodes={node}",
         "Users=root", "Flags=MAINT"]
    )  # fmt: skip
    live.lab.wait_for(lambda: live.cluster.snapshot().node[node].state is NodeState.MAINT, 60)
    assert "maint now" in live.refused(f"{array}_0", node)
    (reservation,) = live.cluster.snapshot().reservations
    assert reservation.nodes == (node,)
    assert "MAINT" in reservation.flags


def test_a_planned_start_is_read(live: Site) -> None:
    live.lab.wait_for_state(
        live.lab.submit("sleep 300", "-p", "batch", "-w", live.lab.nodes[0], "--exclusive", "--time=2"), "RUNNING"
    )
    big = live.lab.submit("sleep 1", "-p", "batch", f"--nodes={len(live.lab.nodes)}", "--exclusive", "--time=1")

    def planned() -> tuple[Snapshot, SlurmJob] | None:
        """In the midst of a backfill cycle there may be no plan."""
        seen = live.cluster.snapshot()
        job = next(j for j in seen.jobs if j.raw_id == big)
        return (seen, job) if job.planned_nodes and job.start_time is not None else None

    seen, job = live.lab.wait_for(planned, 90, "a planned start") or pytest.fail("no plan")
    assert set(job.planned_nodes) == set(live.lab.nodes)
    assert job.start_time is not None
    assert 0 < job.start_time - time.time() <= 130
    assert seen.plan.last_cycle_at is not None


def test_ends_are_told_apart(live: Site) -> None:
    nodes = live.lab.nodes
    cases = {
        "exit 0": SlurmState.COMPLETED,
        "exit 3": SlurmState.FAILED,
    }
    for (command, kind), node in zip(cases.items(), nodes, strict=False):
        pilot = f"{live.submit(command)}_0"
        assert live.cluster.start([StartPilot(3, pilot, node, 600.0, "")])[0].done
        end = live.end(pilot)
        assert (end.state, end.preempted) == (kind, False)
        assert end.exit_code == int(command.split()[1])
    pilot = f"{live.submit()}_0"
    live.start(pilot, nodes[3])
    live.lab.run(["scancel", pilot], "alice")
    assert live.end(pilot).state is SlurmState.CANCELLED


@pytest.mark.parametrize(
    "payload",
    [
        "trap 'exit 0' TERM; srun --ntasks=1 bash -c 'trap \"exit 0\" TERM; sleep 300 & wait'",
        "exec srun --ntasks=1 bash -c 'trap \"exit 143\" TERM; sleep 300 & wait'",
    ],
    ids=["exits 0", "exits 143"],
)
def test_preemption_is_recognised_whatever_the_payload_does(live: Site, payload: str) -> None:
    pilot, node = f"{live.submit(payload)}_0", live.lab.nodes[0]
    live.start(pilot, node)
    live.lab.submit("true", "-p", "batch", "-w", node, "--exclusive", "--time=1", user="bob")
    end = live.end(pilot)
    assert (end.state, end.preempted) == (SlurmState.PREEMPTED, True)


@pytest.mark.nightly
def test_a_pilot_at_its_limit_has_timed_out(live: Site) -> None:
    pilot = f"{live.submit()}_0"
    live.start(pilot, live.lab.nodes[0], limit_s=119.0)
    assert live.end(pilot, 120).state is SlurmState.TIMEOUT


def test_a_killed_node_daemon_does_not_make_a_pilot_free(live: Site) -> None:
    runs = Path(live.lab.env_for("alice")["HOME"]) / "runs"
    payload = f"exec srun --ntasks=1 sh -c 'touch {runs}; exec sleep 300'"
    pilot, node = f"{live.submit(payload)}_0", live.lab.nodes[7]
    live.start(pilot, node)
    # Slurm calls a step that slurmd has not quite launched failed, and not lost.
    live.lab.wait_for(runs.exists, 90, "its step runs")
    runs.unlink()
    live.lab.kill(f"slurmd.{node}")
    try:
        live.lab.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died"])
        assert live.end(pilot).state is SlurmState.NODE_FAIL
        assert live.cluster.snapshot().node[node].state is NodeState.DOWN
    finally:
        live.lab.start(f"slurmd.{node}")
        live.lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)  # may be back already
        live.lab.wait_for(lambda: live.lab.node_states()[node] == "idle", 60)


def test_a_recycled_task_shows_when_its_node_was_free_again(release: str | None, lab_factory: LabFactory) -> None:
    """Its submission is that moment, epilog and all, however much later the look comes: a look may be ten seconds
    late, and a promise of two is reckoned with how long nodes take to be free."""
    lab = lab_factory(LabConfig(nodes=1, users=os.geteuid() == 0, release=release, epilog_s=2))
    if "alice" not in lab.users:
        pytest.skip("needs plain users: run as root")
    commands = Commands(lab.env, timeout_s=30.0)
    site = Site(lab, SlurmCluster(commands, Harvest("harvest"), {3: pwd.getpwnam("alice").pw_uid}.get), commands)
    pilot, node = f"{site.submit()}_0", lab.nodes[0]
    site.start(pilot, node)
    asked_at = time.time()
    assert site.cluster.recycle([RecyclePilot(3, pilot, node, "")])[0].done
    lab.wait_for(lambda: lab.node_states()[node] == "idle", 60)
    free_at = time.time()
    lab.wait_for(lambda: site.cluster.end_of(pilot).held, 60)
    (row,) = site.cluster.snapshot().jobs
    assert row.submit_time is not None
    assert asked_at + 1.0 <= row.submit_time <= free_at
    seen = Pilot(pilot, 3, PilotPhase.RECYCLING, asked_at, node, started_at=asked_at - 1.0)
    views = {3: JobView(_job(), JobPhase.RUNNING, {pilot: seen})}
    (event,) = observe(site.cluster.snapshot(), views, site.cluster.end_of, time.time(), "harvest")
    assert event.payload == PilotHeld(left_at=row.submit_time)


def test_a_half_recycled_task_is_mended_at_its_next_start(live: Site) -> None:
    """A daemon that died between Requeue=1 and Requeue=0 leaves a task that Slurm would requeue by itself."""
    pilot, node = f"{live.submit(tasks=2)}_0", live.lab.nodes[0]
    live.lab.run(["scontrol", "update", f"JobId={pilot}", "Requeue=1"])
    live.start(pilot, node)
    assert live.lab.job(pilot)["Requeue"] == "0"


def test_recycling_before_the_start_holds_the_task_again(live: Site) -> None:
    array, node = live.submit(tasks=2), live.lab.nodes[0]
    # Released by its owner onto a node that is taken: it waits.
    live.lab.wait_for_state(live.lab.submit("sleep 300", "-p", "batch", "-w", node, "--exclusive"), "RUNNING")
    live.lab.run(["scontrol", "update", f"JobId={array}_0", f"NodeList={node}"], "alice")
    live.lab.run(["scontrol", "release", f"{array}_0"], "alice")
    live.lab.wait_for(lambda: not live.cluster.end_of(f"{array}_0").held, 60)
    shown = {job.id: job for job in live.cluster.snapshot().jobs if job.array_id == array}
    assert shown[f"{array}_1"].reason == "JobHeldUser"
    assert "Held" not in shown[f"{array}_0"].reason, "released, though squeue folds it into its array's row"
    end = live.cluster.end_of(f"{array}_0")
    assert (end.state, end.held) == (SlurmState.PENDING, False)
    assert live.cluster.recycle([RecyclePilot(3, f"{array}_0", node, "")])[0].done
    assert live.cluster.end_of(f"{array}_0").held
    assert live.lab.job(f"{array}_0")["Reason"] == "JobHeldUser", "a hold that the owner may lift"


def test_a_task_in_the_main_partition_is_left_alone(live: Site) -> None:
    array = live.submit(tasks=2)
    live.lab.run(["scontrol", "update", f"JobId={array}_0", "Partition=batch"], "alice")
    live.lab.run(["scontrol", "release", f"{array}_0"], "alice")
    live.lab.wait_for_state(f"{array}_0", "RUNNING")
    node = live.lab.job(f"{array}_0")["NodeList"]
    assert "not ours" in live.cluster.recycle([RecyclePilot(3, f"{array}_0", node, "")])[0].detail
    assert "not ours" in live.cluster.cut(CutLimit(3, f"{array}_0", node, time.time(), "")).detail
    assert live.lab.job_state(f"{array}_0") == "RUNNING"


def test_a_frozen_slurmctld_is_given_up_within_the_time_out(live: Site) -> None:
    live.commands._timeout_s = 5.0
    live.lab.kill("slurmctld", signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(ClusterUnavailable, match=naming("5 s")):
            live.cluster.snapshot()
        assert time.monotonic() - started < 30
    finally:
        live.lab.kill("slurmctld", signal.SIGCONT)


def test_the_batch_script_runs_its_payload_as_a_step(live: Site, shared_folder: Path) -> None:
    """What mtbatch submits, with a stand-in for the launcher: odd paths, arguments, GPUs, the user's environment."""
    folder = shared_folder / "odd dir #1 'q' \"d\" ü"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    launcher = shared_folder / "python"
    launcher.write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    launcher.chmod(0o755)
    # Without the caller's PATH a job finds the machine's own srun, which is of another release than such a lab's.
    export = b"NONE" if live.lab.release is None else b"ALL"
    body = (
        b"#!/bin/bash\n#SBATCH --nodes=1-4 -o 'out %a.txt' --export=" + export + b"\n"
        b"trap 'touch asked; exit' TERM\n"
        b'echo "[$1] [$2] $MALLETRAIN_JOB $SLURM_STEP_ID" "$PWD"\n'
        b"/usr/bin/env true; srun --ntasks=1 /bin/echo nested step\n/bin/sleep 300 & wait\n"
    )
    request = batch_request.request(
        body, "my job.sh", BatchOptions(), ["a b", "c'd"], Address("", "harvest"), str(folder)
    )
    made = request.materialize(42, "http://127.0.0.1:1", str(launcher), live.lab.env_for("alice"))
    told = live.lab.run(made.argv, "alice", input=made.script.decode())
    array = int(told.stdout)
    seen = live.cluster.inspect(array, _job())
    assert seen.tasks == tuple(range(request.tasks)), seen.faults
    live.start(f"{array}_2", live.lab.nodes[4])
    out = folder / "out 2.txt"
    live.lab.wait_for(lambda: out.exists() and "nested step\n" in out.read_text(), 90, "the payload's output")
    assert out.read_text() == f"[a b] [c'd] 42 0 {folder}\nnested step\n"
    assert live.cluster.recycle([RecyclePilot(3, f"{array}_2", live.lab.nodes[4], "")])[0].done
    live.lab.wait_for(lambda: live.cluster.snapshot().is_free(live.lab.nodes[4]), 60)
    assert (folder / "asked").exists(), "SIGTERM reaches the step, and not SIGKILL alone"


def _job() -> MalleableJob:
    return MalleableJob(3, "t", "alice", pwd.getpwnam("alice").pw_uid, "", 1, 4, 0.0)


@pytest.fixture
def shared_folder(lab_directory: Path) -> Iterator[Path]:
    """A folder that every user can enter, gone afterwards."""
    lab_directory.mkdir(mode=0o755)
    yield lab_directory


def test_facts_of_the_site(live: Site) -> None:
    facts = site_facts.read(live.commands)
    assert facts.release >= (20, 11)
    assert facts.kill_wait_s == 5
    assert facts.bf_interval_s == 1
    assert facts.partitions["harvest"].tier < facts.partitions["batch"].tier
    assert facts.partitions["harvest"].grace_s == 10
    assert facts.partitions["harvest"].nodes == frozenset(live.lab.nodes)
    assert facts.munge_socket == str(live.lab.munge_socket)
    assert partition_checks.check_harvest_partition(facts, Harvest("harvest")) == ()
