"""What jobs of one application have shown, as a prior for the next: its curve is likely one of theirs.

A hierarchical model in its plainest form: the prior of a new job's curve is a mixture of the general one and of the
curves of up to `MOST` earlier jobs, each `1 / _DOUBT` times as likely as the general one (a Dirichlet process of that
concentration). After eight jobs the general prior holds 1 %; a job that differs says so by its own samples, which
weigh the mixture as they weigh any shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.families import grid
from malletrain.domain.job import Curve, MalleableJob

Floats = NDArray[np.float64]

#: So many earlier jobs are remembered for each application.
MOST = 8
#: By how much throughput a doubling of nodes may leave its shape, and how likely that is: for families, and for the
#: curves of earlier jobs of the application, which hold its own steps already.
MISFITS = (0.01, 0.03, 0.1, 0.25)
_OF_FAMILIES = (0.0, 0.4, 0.4, 0.2)
_OF_SIBLINGS = (0.7, 0.29, 0.01, 0.0)
_DOUBT = 0.1
#: The family of shapes that came from other jobs.
POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Pooled:
    """The curves of other jobs of an application, and the largest size that any of them was measured on."""

    curves: tuple[Curve, ...]
    largest: int

    def expected(self, max_nodes: int) -> Curve:
        """The mean speed-up of these jobs up to `max_nodes`, for a job that nobody has measured; 1 on one node."""
        sizes = sorted({1, max(1, max_nodes), *(n for c in self.curves for n, _ in c.points if n <= max_nodes)})
        mean = _siblings(self.curves, np.array(sizes, dtype=np.float64)).mean(axis=0)
        return Curve(tuple(zip(sizes, np.exp(mean - mean[0]).tolist(), strict=True)))


@dataclass(frozen=True)
class Shapes:
    """All shapes that a curve may have, and how likely each is with each misfit (rows: `MISFITS`)."""

    names: tuple[str, ...]
    family: NDArray[np.int64]
    prior: Floats
    _siblings: tuple[Curve, ...]

    def log_shape(self, nodes: Floats) -> Floats:
        """Logarithm of the throughput, up to a constant a shape: one row a shape, one column for each of `nodes`."""
        general = grid().log_shape(nodes)
        return np.concatenate((general, _siblings(self._siblings, nodes))) if self._siblings else general


def shapes(pooled: Pooled | None) -> Shapes:
    """The families' shapes, and the curves of other jobs of the application."""
    general = grid()
    siblings = () if pooled is None else pooled.curves
    share = 1.0 / (_DOUBT + len(siblings))
    prior = _DOUBT * share * np.outer(_OF_FAMILIES, general.prior)
    prior = np.concatenate((prior, np.outer(_OF_SIBLINGS, np.full(len(siblings), share))), axis=1)
    family = np.concatenate((general.family, np.full(len(siblings), len(general.names), dtype=np.int64)))
    return Shapes((*general.names, POOLED), family, prior, siblings)


def application(job: MalleableJob) -> tuple[str, str]:
    """Jobs with the same are taken for trials of one study, or runs of one script: user, and name without number."""
    return job.user, re.sub(r"[-_.# ]*\d+$", "", job.name)


def _siblings(curves: tuple[Curve, ...], nodes: Floats) -> Floats:
    """Log throughput over log nodes, straight between the points; below the first it falls in proportion."""
    rows = []
    for curve in curves:
        at = np.log([n for n, _ in curve.points])
        level = np.log([rate for _, rate in curve.points])
        row = np.interp(np.log(nodes), at, level)
        rows.append(row + np.minimum(np.log(nodes) - at[0], 0.0))
    return np.array(rows).reshape(len(curves), len(nodes))
