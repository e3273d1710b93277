"""What jobs of one application have shown: evidence for the next, which is likely as one of them.

Trials of one study may be one model with other rates, or models of several kinds. So earlier jobs are put in *kinds*,
one after the other: to the kind that best explains what the job measured, or to a new one (a Chinese restaurant
process, taken greedily; concentration `NEW_KIND_CONCENTRATION`). A new job is of a kind with probability in
proportion to the kind's jobs, of none with that of one tenth of a job; its own samples then weigh kinds as they weigh
any shape.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from malletrain.domain.job import MalleableJob
from malletrain.learn.curve_families import Scaling, grid
from malletrain.learn.gaussian_process import Points, log_likelihoods
from malletrain.sizing.values import Floats, Ints

#: Most earlier jobs that are kept of each application.
MAX_PRIOR_JOBS = 8
#: By how much throughput a doubling of nodes may leave its shape, and how likely that is.
MISFITS = (0.01, 0.03, 0.1, 0.3)
MISFIT_PROBABILITIES = (0.16, 0.37, 0.27, 0.2)
NEW_KIND_CONCENTRATION = 0.1
#: Shapes less likely than this part of the likeliest are not looked at again.
MIN_RELATIVE_LIKELIHOOD = 1e-4

#: One job's measured sizes: nodes, samples/s, windows, relative noise of a window.
Evidence = tuple[tuple[int, float, int, float], ...]


@dataclass(frozen=True, slots=True)
class PriorJobs:
    """What other jobs of an application have measured, each on two sizes or more."""

    jobs: tuple[Evidence, ...]

    @property
    def largest(self) -> int:
        """The largest size that any of them was measured on."""
        return max((n for job in self.jobs for n, *_ in job), default=0)


@dataclass(frozen=True)
class Kind:
    """A hypothesis about a job: its shapes (indices into the grid) with each misfit (rows) and their log probability
    before the job has shown anything; the points of other jobs that it is like; its own log probability."""

    shape: Ints
    log_weight: Floats
    points: Points
    log_prior: float


def kinds(prior_jobs: PriorJobs | None, scaling: Scaling | None = None) -> tuple[Kind, ...]:
    """What a job may be like: any curve at all first, then each kind of its application. `scaling`: the job's, where
    it is known."""
    found = _sorted(prior_jobs.jobs) if prior_jobs is not None else ()
    total = math.log(NEW_KIND_CONCENTRATION + sum(len(jobs) for jobs in found))
    out = [Kind(*_unconditional(scaling), _NO_POINTS, math.log(NEW_KIND_CONCENTRATION) - total)]
    for jobs in found:
        shape, log_weight, points = _posterior(jobs)
        out.append(Kind(shape, log_weight, points, math.log(len(jobs)) - total))
    return tuple(out)


def application(job: MalleableJob) -> tuple[str, str]:
    """That of a job: see `application_of`."""
    return application_of(job.user, job.name)


def application_of(user: str, name: str) -> tuple[str, str]:
    """Jobs with the same are taken for trials of one study, or runs of one script: user, and name without number."""
    return user, re.sub(r"[-_.# ]*\d+$", "", name)


_NO_POINTS = Points.of([])


@lru_cache(maxsize=3)
def _unconditional(scaling: Scaling | None = None) -> tuple[Ints, Floats]:
    prior = np.log(np.outer(MISFIT_PROBABILITIES, grid().prior_with(scaling)) + 1e-300)
    return np.arange(len(grid().prior), dtype=np.int64), prior


@lru_cache(maxsize=256)
def _sorted(jobs: tuple[Evidence, ...]) -> tuple[tuple[Evidence, ...], ...]:
    """The jobs by kind."""
    found: list[list[Evidence]] = []
    for job in jobs:
        own = Points.of([(0, list(job))])
        alone = math.log(NEW_KIND_CONCENTRATION) + _evidence(*_unconditional(), _NO_POINTS, own)
        scores = [math.log(len(kind)) + _evidence(*_posterior(tuple(kind)), own) for kind in found]
        best = max(range(len(found)), key=lambda i: (scores[i], -i), default=None)
        if best is None or scores[best] < alone:
            found.append([job])
        else:
            found[best].append(job)
    return tuple(tuple(kind) for kind in found)


@lru_cache(maxsize=256)
def _posterior(jobs: tuple[Evidence, ...]) -> tuple[Ints, Floats, Points]:
    """The shapes that explain jobs of one kind, their log probabilities by misfit, and the jobs' points."""
    points = Points.of([(i + 1, list(job)) for i, job in enumerate(jobs)])
    shape = grid().log_shape(points.nodes)
    weight = _unconditional()[1] + log_likelihoods(points, shape, MISFITS)
    likely = np.flatnonzero(weight.max(axis=0) > weight.max() + math.log(MIN_RELATIVE_LIKELIHOOD))
    kept = weight[:, likely]
    return likely, kept - _log_sum(kept), points


def _evidence(shape: Ints, log_weight: Floats, points: Points, own: Points) -> float:
    """Log probability of what a job measured, given the points of others."""
    everything = own.and_also(points)
    table = grid().log_shape(everything.nodes)[shape]
    new = log_likelihoods(everything, table, MISFITS) - log_likelihoods(points, table[:, len(own) :], MISFITS)
    return _log_sum(log_weight + new)


def _log_sum(values: Floats) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
