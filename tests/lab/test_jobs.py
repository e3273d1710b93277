"""Jobs on a real lab: as plain users, on all nodes, preempted."""

import os

import pytest

from scripts.lab import Lab

pytestmark = pytest.mark.slurm


def test_a_job_spans_all_nodes(lab: Lab) -> None:
    job = lab.submit("srun hostname", "--nodes=8")
    assert lab.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert len((lab.output / f"{job}.txt").read_text().split()) == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as another user")
def test_a_plain_users_job_runs_as_that_user(lab: Lab) -> None:
    job = lab.submit("srun id -un; echo $HOME", "--nodes=1", user="alice")
    assert lab.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert (lab.output / f"{job}.txt").read_text().split() == ["alice", f"{lab.path}/home/alice"]
    assert lab.job(job)["UserId"].startswith("alice(")


def test_a_batch_job_takes_nodes_from_harvest(lab: Lab) -> None:
    harvested = lab.submit("srun sleep 600", "--nodes=8", "--partition=harvest", "--time=10", "--no-requeue")
    # Only a running step hears of preemption at once; a batch shell hears nothing until GraceTime is over.
    lab.wait_for(lambda: f"{harvested}.0" in lab.run(["squeue", "-h", "-s", "-o", "%i"]).stdout.split(), 90)
    main = lab.submit("true", "--nodes=8")
    assert lab.wait_for_state(main, "COMPLETED", "FAILED", deadline_s=90) == "COMPLETED"
    assert lab.job(harvested)["PreemptTime"] not in ("", "None")
