"""Queues as sites have them, on a real Slurm: heterogeneous jobs, arrays of 10,000, thousands waiting, and the limits
of the controller reached."""

from __future__ import annotations

import os
import time

import pytest

from malletrain.domain.snapshot import NodeState
from malletrain.slurm.command import Commands
from malletrain.slurm.site import held_task_limits
from malletrain.slurm.submission import submit
from malletrain.slurm.submission.sbatch import Submission
from scripts.lab import Change, Lab, LabConfig, LabError
from tests.messages import naming
from tests.slurm.harvesting import Harvesting
from tests.slurm_fixtures import LabFactory
from tests.world import data_of

pytestmark = pytest.mark.slurm


def hetjob(lab: Lab, *sizes: int) -> int:
    """A waiting heterogeneous job of bob's with a component of each size."""
    script = lab.output / "het.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    parts = [["-p", "batch", f"--nodes={size}", "--exclusive", "--time=5"] for size in sizes]
    words = [word for part in parts for word in (":", *part)][1:]
    return int(lab.run(["sbatch", "--parsable", *words, script], "bob").stdout.split(";")[0])


def test_nodes_of_a_heterogeneous_job_that_is_next_are_left_before_it_starts(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    main = lab.submit("sleep 600", "-p", "batch", "--nodes=4", "--exclusive", "--time=5", user="bob")
    lab.wait_for_state(main, "RUNNING")
    harvest = Harvesting(lab)
    harvest.submit()
    rest = sorted(set(n) - set(harvest.snapshot().holders.keys()))
    harvest.fill(rest)
    job = hetjob(lab, 3, 3)

    def planned() -> bool:
        harvest.tick()
        rows = [row for row in harvest.snapshot().jobs if row.het_id == job]
        return len(rows) == 2 and bool(rows[0].planned_nodes or rows[1].planned_nodes)

    lab.wait_for(planned, 90, "a plan for it")
    lab.wait_for(lambda: harvest.tick() and len(harvest.held()) == 1, 90, "its three nodes are left, one is not")
    lab.run(["scancel", str(main)])
    lab.wait_for(lambda: harvest.tick() and lab.job_state(job) == "RUNNING", 90, "it runs")
    assert {row.state for row in harvest.snapshot().jobs if row.het_id == job} == {"running"}
    assert lab.job(job)["Restarts"] == "0", "no component was requeued"
    assert not [e for e in harvest.events("pilot_ended") if data_of(e)["preempted"]]


def test_nodes_kept_for_a_planned_start_are_used_until_then(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    main = lab.submit("sleep 600", "-p", "batch", "-w", n[0], "--exclusive", "--time=15", user="bob")
    lab.wait_for_state(main, "RUNNING")
    big = lab.submit("sleep 60", "-p", "batch", f"--nodes={len(n)}", "--exclusive", "--time=5", user="bob")
    lab.wait_for(lambda: lab.job(big)["StartTime"] != "Unknown", 90)
    harvest = Harvesting(lab)
    lab.wait_for(lambda: harvest.snapshot().node[n[1]].state is NodeState.PLANNED, 90)
    harvest.submit()
    harvest.fill(n[1:])
    ends = [row.end_time for row in harvest.snapshot().jobs if row.partition == "harvest" and row.holds_nodes]
    planned = next(row.start_time for row in harvest.snapshot().jobs if row.raw_id == big)
    assert planned is not None
    assert max(end for end in ends if end is not None) <= planned, "every limit ends before the planned start"
    assert min(end for end in ends if end is not None) > time.time() + 600


@pytest.mark.nightly
def test_arrays_of_ten_thousand_and_thousands_of_waiting_jobs(release: str | None, lab_factory: LabFactory) -> None:
    """One round, with what it reads: the array is one row, 5,000 held jobs are 5,000."""
    if os.geteuid() != 0:
        pytest.skip("needs plain users: run as root")
    lab = lab_factory(LabConfig(nodes=4, users=True, release=release, settings=(("MaxArraySize", "10001"),)))
    lab.submit("true", "-p", "batch", "--array=0-9999", "--hold", user="bob")
    flood = lab.submit("true", "-p", "batch", "--array=0-4999", "--hold", user="bob")
    # A held task that is touched becomes a job of its own: thousands of rows without thousands of sbatch.
    lab.run(["scontrol", "update", f"JobId={flood}_[0-1999]", "Comment=x"], "bob", timeout=120)
    harvest = Harvesting(lab)
    harvest.submit()
    started = time.process_time()
    seen = harvest.snapshot()
    spent = time.process_time() - started
    whole = [job for job in seen.jobs if job.task_count == 10_000]
    assert len(whole) == 1
    assert sum(job.task_count for job in seen.jobs if job.array_id == flood) == 5000
    # A bound against a loop over tasks, generous for slow machines; docs/figures.md has figures.
    assert spent < 2.0, f"{spent:.2f} s of processor time for {len(seen.jobs)} rows"
    harvest.fill(lab.nodes)
    lab.run(["scancel", "-u", "bob"])


@pytest.fixture
def crowded(release: str | None, lab_factory: LabFactory) -> Lab:
    small = (("MaxJobCount", "100"), ("MaxArraySize", "16"))
    return lab_factory(LabConfig(nodes=2, users=True, release=release, settings=small))


def test_a_job_asks_for_no_more_held_tasks_than_the_site_can_bear(crowded: Lab) -> None:
    read = held_task_limits.read(Commands(crowded.env))
    assert (read.max_job_count, read.max_array_size, read.most_tasks) == (100, 16, 5)
    assert held_task_limits.affordable(read, wanted=8, least=1, asked=False) == 5
    with pytest.raises(
        held_task_limits.TooManyHeldTasks, match=r"--tasks=8: at most 5 are possible \(5% of MaxJobCount=100\)"
    ):
        held_task_limits.affordable(read, wanted=8, least=1, asked=True)
    with pytest.raises(held_task_limits.TooManyHeldTasks, match=naming("--nodes: 6 nodes")):
        held_task_limits.affordable(read, wanted=6, least=6, asked=False)


def test_jobs_that_have_ended_count_until_slurm_forgets_them(release: str | None, lab_factory: LabFactory) -> None:
    # A lab of its own: what others have ended counts too.
    crowded = lab_factory(LabConfig(nodes=1, users=True, release=release, settings=(("MaxJobCount", "100"),)))
    crowded.submit("true", "-p", "batch", "--array=0-9", "--output=/dev/null", user="bob")
    crowded.submit("true", "-p", "batch", "--array=0-9", "--hold", user="bob")
    ended = ["squeue", "-h", "-t", "COMPLETED", "-o", "%A"]
    crowded.wait_for(lambda: len(crowded.run(ended).stdout.split()) == 10, 90, "ten jobs that have ended")
    assert held_task_limits.known_jobs(Commands(crowded.env)) >= 20
    crowded.clear()


@pytest.mark.nightly
def test_a_full_controller_is_told_in_one_line_and_the_daemon_goes_on(crowded: Lab) -> None:
    """sbatch itself would wait and try again for minutes."""
    lab = crowded
    harvest = Harvesting(lab)
    harvest.submit(tasks=4)
    harvest.fill(lab.nodes)
    with pytest.raises(LabError, match="Invalid job array"):
        lab.submit("true", "-p", "batch", "--hold", "--array=0-16", user="bob")
    for _ in range(6):
        lab.submit("true", "-p", "batch", "--hold", "--array=0-14", user="bob")
    known = held_task_limits.read(harvest.commands)
    with pytest.raises(held_task_limits.TooManyHeldTasks, match=naming("94", "100 jobs (MaxJobCount)")) as refusal:
        held_task_limits.check_headroom(harvest.commands, known, tasks=2)
    assert "\n" not in str(refusal.value)
    submission = Submission(("sbatch", "--parsable", "--hold", "--array=0-14", "--wrap=true"), b"", lab.env)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submit, "SBATCH_TIMEOUT_S", 2.0)
        with pytest.raises(submit.SubmissionRefused, match=naming("queue")):
            submit.run_sbatch(submission, "/", print)
    harvest.tick()
    assert set(harvest.held()) == set(lab.nodes), "pilots and daemon go on"
    lab.clear()


@pytest.mark.nightly
def test_a_hetjob_of_which_slurm_starts_a_part_waits_for_cred_expire(any_lab: Lab) -> None:
    """What docs/how-to/admin-rollout.md says of Slurm itself: only an ample reserve is a remedy."""
    lab, n = any_lab, any_lab.nodes
    auth = next(line for line in (lab.path / "slurm.conf").read_text().splitlines() if line.startswith("AuthInfo="))
    with lab.changed(Change(settings={"AuthInfo": f"{auth.removeprefix('AuthInfo=')},cred_expire=20"}), restart=True):
        for name in n[1:]:
            low = lab.submit("exec sleep 600", "-p", "harvest", "-w", name, "--exclusive", "--time=30", user="alice")
            lab.wait_for_state(low, "RUNNING")
        submitted = time.time()
        job = hetjob(lab, 1, len(n) - 1)
        lab.wait_for(lambda: lab.job(job)["Reason"] == "BeginTime", 90, "its first part was started and given up")
        begins = time.mktime(time.strptime(lab.job(job)["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
        assert 19 <= begins - submitted <= 55


@pytest.mark.nightly
def test_a_hetjob_that_was_put_off_once_starts_when_it_may(any_lab: Lab) -> None:
    """Its first part found an idle node before the daemon had looked; its nodes are free when its time comes."""
    lab, n = any_lab, any_lab.nodes
    auth = next(line for line in (lab.path / "slurm.conf").read_text().splitlines() if line.startswith("AuthInfo="))
    with lab.changed(Change(settings={"AuthInfo": f"{auth.removeprefix('AuthInfo=')},cred_expire=20"}), restart=True):
        harvest = Harvesting(lab, overrides={"keep_idle": 1, "begin_lead_s": 8.0})
        harvest.submit(most=len(n))
        lab.wait_for(lambda: harvest.tick() and len(harvest.held()) == len(n) - 1, 90, "pilots on all nodes but one")
        job = hetjob(lab, 1, len(n) - 2)

        def put_off() -> bool:
            return lab.job(job)["Reason"] == "BeginTime"

        lab.wait_for(put_off, 90, "its first part was started and given up")
        begins = time.mktime(time.strptime(lab.job(job)["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
        lab.wait_for(lambda: harvest.tick() and lab.job_state(job) == "RUNNING", 60, "it runs")
        started = time.mktime(time.strptime(lab.job(job)["StartTime"], "%Y-%m-%dT%H:%M:%S"))
        assert 0 <= started - begins <= 5, "it was put off once"
        assert {row.state for row in harvest.snapshot().jobs if row.het_id == job} == {"running"}
        lab.clear()
