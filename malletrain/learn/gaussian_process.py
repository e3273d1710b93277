"""How throughput leaves the shape of its family: a Gaussian process over the logarithm of the node count.

With g the family's log shape, job j of an application measures on n nodes

    y_j(n) = level_j + g(n) + a(n) + b_j(n) + e,     e ~ N(0, noise^2 / windows)

- `level_j` is the job's own, and free: models of different widths train at different rates;
- `a` is common to the application: a random walk in log2 n whose variance grows by `misfit`^2 a doubling, and a step
  of its own at every size (`QUIRK_OVER_MISFIT`): throughput has steps that no smooth family has (placement, rings,
  batches);
- `b_j` is the same for this job alone, much smaller (`OWN_OVER_MISFIT`).

Between two measured points the mean is a straight line over log n, beyond them it follows the shape; the variance is
that of a Brownian bridge (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.sizing.values import Floats, Ints

#: Standard deviation of a job's level, around the mean of its own points: wide enough to be no knowledge.
LEVEL_SIGMA = 30.0
#: Of the misfit a doubling: what a single size leaves by, and what jobs of one application differ by.
QUIRK_OVER_MISFIT = 1.0
OWN_OVER_MISFIT = 0.25
#: Windows of one size are not quite independent: no level is known better than this.
MIN_LEVEL_SIGMA = 0.003


@dataclass(frozen=True)
class Points:
    """Measured sizes: nodes, log samples/s less the mean of their job, variance of that, and whose they are (0: the
    job that is asked about)."""

    nodes: Floats
    level: Floats
    variance: Floats
    owner: Ints

    @staticmethod
    def of(jobs: list[tuple[int, list[tuple[int, float, int, float]]]]) -> Points:
        """From each job's (nodes, samples/s, windows, noise of a window)."""
        rows = [(n, rate, windows, noise, owner) for owner, found in jobs for n, rate, windows, noise in found]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), 5)
        level, owner = np.log(table[:, 1]), table[:, 4].astype(np.int64)
        for job in set(owner.tolist()):
            level[owner == job] -= level[owner == job].mean()
        return Points(table[:, 0], level, table[:, 3] ** 2 / table[:, 2] + MIN_LEVEL_SIGMA**2, owner)

    def __len__(self) -> int:
        return len(self.nodes)

    def and_also(self, others: Points) -> Points:
        """These first, then the others."""
        return Points(
            *(
                np.concatenate((getattr(self, name), getattr(others, name)))
                for name in ("nodes", "level", "variance", "owner")
            )
        )


def covariance(first: Points, second: Points, misfit: float) -> Floats:
    """Of what is measured at the first points (rows) and at the second, less noise."""
    a, b = np.log2(first.nodes)[:, None], np.log2(second.nodes)[None, :]
    walk = np.minimum(a, b) + QUIRK_OVER_MISFIT**2 * (a == b)
    same = first.owner[:, None] == second.owner[None, :]
    out: Floats = misfit**2 * walk * (1 + OWN_OVER_MISFIT**2 * same) + LEVEL_SIGMA**2 * same
    return out


def log_likelihoods(points: Points, shape: Floats, misfits: Sequence[float]) -> Floats:
    """Of the points, for each misfit (row) and each shape (rows of `shape`, one column a point), up to a constant."""
    if not len(points):
        return np.zeros((len(misfits), len(shape)))
    # numpy's cost is that of its calls: all misfits in one.
    matrices = np.stack([covariance(points, points, misfit) for misfit in misfits]) + np.diag(points.variance)
    lower = np.linalg.cholesky(matrices)
    white = np.linalg.solve(lower, (points.level - shape).T)
    half_log_det = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    return np.asarray(-0.5 * (white**2).sum(axis=1) - half_log_det[:, None])


def posterior_mean(points: Points, shape: Floats, wanted: Floats, wanted_shape: Floats, misfit: float) -> Floats:
    """What job 0 is expected to train on the wanted sizes, in the scale of its points, for every shape (row)."""
    if not len(points):
        return wanted_shape
    gain = _gain(points, covariance(_asked(wanted), points, misfit), misfit)
    return np.asarray(wanted_shape + (points.level - shape) @ gain.T)


def posterior_covariance(points: Points, wanted: Floats, misfit: float) -> Floats:
    """Of what `posterior_mean` expects: the same for all shapes."""
    asked = _asked(wanted)
    prior = covariance(asked, asked, misfit)
    if not len(points):
        return prior
    across = covariance(asked, points, misfit)
    return np.asarray(prior - _gain(points, across, misfit) @ across.T)


def _asked(wanted: Floats) -> Points:
    return Points(wanted, np.zeros_like(wanted), np.zeros_like(wanted), np.zeros(len(wanted), dtype=np.int64))


def _gain(points: Points, across: Floats, misfit: float) -> Floats:
    """Of the measured levels (columns) on what is expected at the sizes of `across` (rows)."""
    among = covariance(points, points, misfit) + np.diag(points.variance)
    return np.asarray(np.linalg.solve(among, across.T).T)


def normal_quantile(weight: Floats, mean: Floats, sigma: Floats, part: float) -> Floats:
    """The quantile of each column's mixture of normals (`weight` by row, summing to 1), to 1e-4: Newton's steps, and
    bisection where one leaves the bracket."""
    sigma = np.maximum(sigma, 1e-6)
    low, high = (mean - 9 * sigma).min(axis=0), (mean + 9 * sigma).max(axis=0)
    at = weight @ mean
    for _ in range(60):
        below, density = _mixture(weight, (at - mean) / sigma, sigma)
        low, high = np.where(below < part, at, low), np.where(below < part, high, at)
        step = (part - below) / np.maximum(density, 1e-12)
        newton = at + step
        is_inside = (low < newton) & (newton < high)
        after = np.where(is_inside, newton, (low + high) / 2)
        moved, at = np.abs(after - at), after
        if float(np.minimum(moved, high - low).max()) < 1e-4:
            break
    return np.asarray(at)


def _mixture(weight: Floats, z: Floats, sigma: Floats) -> tuple[Floats, Floats]:
    """Distribution function and density of each column's mixture. The normal's are to 1e-4 (a logistic in z and z^3:
    Bowling et al., 2009)."""
    z = np.clip(z, -6.0, 6.0)
    below = 1 / (1 + np.exp(-z * (1.5976 + 0.07056 * z**2)))
    density = below * (1 - below) * (1.5976 + 0.21168 * z**2) / sigma
    return np.asarray(weight @ below), np.asarray(weight @ density)
