"""Jobs whose batch size is free: the curve and the batch that each size should use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from malletrain.domain.job import Curve
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import permitted_sizes

#: (job, batch) -> what a sample is worth at that batch
SampleWorth = Callable[[JobDemand, int], float]


def equal_sample_worth(_: JobDemand, __: int) -> float:
    """Every batch trains equally much a sample."""
    return 1.0


def statistical_efficiency(job: JobDemand, batch: int) -> float:
    """Progress of a sample at `batch`, over that at the job's smallest batch: at most 1, and 1 where the job reports
    no noise scale (Pollux: Qiao et al., OSDI 2021, eq. 7)."""
    if job.noise_scale is None:
        return 1.0
    least = min(batch for batch, _ in job.batches)
    return (job.noise_scale + least) / (job.noise_scale + batch)


def at_best_batches(problem: Problem, worth: SampleWorth = equal_sample_worth) -> Problem:
    """The problem in which each job has the curve of its best batch at every size; others are left as they are."""
    return replace(problem, jobs=tuple(_at_best_batch(job, problem.nodes, worth) for job in problem.jobs))


def best_batch(job: JobDemand, nodes: int, worth: SampleWorth = equal_sample_worth) -> int:
    """The batch worth most on `nodes` nodes; of equals the smallest."""
    return max(job.batches, key=lambda option: (option[1].throughput(nodes) * worth(job, option[0]), -option[0]))[0]


def _at_best_batch(job: JobDemand, nodes: int, worth: SampleWorth) -> JobDemand:
    if not job.batches:
        return job
    sizes = sorted({1, *permitted_sizes(job, nodes).tolist()[1:]})
    best = [max(curve.throughput(k) * worth(job, batch) for batch, curve in job.batches) for k in sizes]
    return replace(job, curve=Curve(tuple(zip(sizes, best, strict=True))))
