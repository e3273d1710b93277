"""How far beyond what was measured a job is sized: no further than nodes would stand idle else."""

from __future__ import annotations

from malletrain.domain.job import Curve, JobPhase, JobView, MalleableJob, ResizeCosts
from malletrain.learn.advisor import JobKnowledge, ProbeRules
from malletrain.learn.prior_jobs import PriorJobs
from malletrain.learn.profiling import within_reach
from malletrain.sizing.problem import JobDemand

#: Jobs of its application were measured on 1 and 4 nodes.
SEEN_ON_4 = JobKnowledge(prior_jobs=PriorJobs((((1, 1.0, 4, 0.02), (4, 4.0, 4, 0.02)),)))
JOBS = (1, 2)


def most(nodes: int, known: JobKnowledge, *, jobs: tuple[int, ...] = JOBS, widest: int = 64) -> list[int]:
    """The most nodes of each job when `nodes` are shared out."""
    views = {
        j: JobView(MalleableJob(j, f"j{j}", "user", 1, "", 1, widest, 0.0), JobPhase.RUNNING, costs=ResizeCosts())
        for j in jobs
    }
    demands = {j: JobDemand(j, 1, 1, widest, Curve.linear(widest)) for j in jobs}
    return [each.max for each in within_reach(demands, views, dict.fromkeys(jobs, known), nodes, ProbeRules())]


def test_a_job_is_given_twice_what_was_measured_while_others_use_the_rest() -> None:
    assert most(16, SEEN_ON_4) == [8, 8]


def test_nodes_that_would_stand_idle_are_tried() -> None:
    assert most(17, SEEN_ON_4) == [16, 16]
    assert most(54, SEEN_ON_4) == [32, 32]
    assert most(500, SEEN_ON_4) == [64, 64], "all that the jobs may have"


def test_a_job_that_was_never_measured_begins_with_its_share() -> None:
    assert most(20, JobKnowledge()) == [10, 10]
    assert most(21, JobKnowledge(), jobs=(1,)) == [21]
    assert most(20, JobKnowledge(), widest=4) == [4, 4]


def test_no_jobs_need_no_reach() -> None:
    assert most(20, JobKnowledge(), jobs=()) == []
