"""Objectives in a replay: short jobs first, or evenly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay.sizer import PolicySizer, parse_policy
from malletrain.replay.workload import training_job
from malletrain.sizing.objective import Objective

CURVE = Curve(((1, 10.0), (8, 40.0)))
JOBS = [
    training_job(1, "long", CURVE, ResizeCosts(), max_nodes=8, total_samples=1e6),
    training_job(2, "short", CURVE, ResizeCosts(), max_nodes=8, total_samples=1e4),
]


@pytest.mark.parametrize(("objective", "sizes"), [("throughput", [7, 1]), ("jct", [0, 8]), ("srpt", [1, 7])])
def test_the_job_that_ends_sooner_has_the_nodes_or_most_of_them(objective: str, sizes: list[int]) -> None:
    sizer = PolicySizer(parse_policy("exact", 300.0, objective=Objective(objective)), JOBS)
    sizer.left = lambda j: JOBS[j].job.total_samples or 0.0
    assert sizer([0, 1], [0, 0], 8) == sizes


def test_fair_splits_what_throughput_would_not() -> None:
    steep = replace(JOBS[0], job=replace(JOBS[0].job, given_curve=Curve(((1, 10.0), (8, 80.0)))))
    less = replace(JOBS[1], job=replace(JOBS[1].job, given_curve=Curve(((1, 10.0), (8, 70.0)))))
    sizes = {
        objective: PolicySizer(parse_policy("exact", 300.0, objective=objective), [steep, less])([0, 1], [0, 0], 8)
        for objective in (Objective.THROUGHPUT, Objective.FAIR)
    }
    assert sizes == {Objective.THROUGHPUT: [8, 0], Objective.FAIR: [4, 4]}
