"""Throughput by nodes and batch, for jobs whose batch is free.

A step of b samples on k nodes takes, after Pollux (Qiao et al., OSDI 2021, section 3.2, with sync not overlapped),

    t(k, b) = fixed + each b / k + [k > 1] (join + more (k - 2))      seconds

with nothing below zero. It is fitted to the windows that the job has reported, whose batch is samples over steps. Two
shares per node that differ are needed to tell `fixed` from `each`; the sizes that the job gets anyway show them. What
cannot be distinguished yet is counted as fixed, which speaks for larger batches, and these then show the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.job import Curve, MalleableJob, ThroughputSample
from malletrain.learn.curve import grid_sizes
from malletrain.sizing.batching import best_batch, statistical_efficiency
from malletrain.sizing.problem import JobDemand, Sizes

#: Samples a node that differ by less tell nothing.
MIN_SHARE_RATIO = 1.1
#: A node is not given more than so many times the samples that it has held already: its memory is not known (Pollux
#: explores in the same steps).
MAX_EXPLORATION_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step; `most_each` is the most samples that a node has held."""

    fixed: float
    each: float
    join: float
    more: float
    most_each: float

    def seconds(self, nodes: int, batch: float) -> float:
        """Of a step of `batch` samples on `nodes` nodes, both at least 1."""
        sync = self.join + self.more * (nodes - 2) if nodes > 1 else 0.0
        return self.fixed + self.each * batch / nodes + sync

    def rate(self, nodes: int, batch: float) -> float:
        """Samples/s; 0 where a node would hold more than can be known to fit."""
        return 0.0 if batch / nodes > MAX_EXPLORATION_FACTOR * self.most_each else batch / self.seconds(nodes, batch)


def fit_step_time(samples: Iterable[ThroughputSample]) -> StepTime | None:
    """From a job's windows; None while they do not tell shares apart."""
    seen = [(s.nodes, s.samples / s.steps, s.seconds / s.steps) for s in samples if s.steps > 0 and s.seconds > 0]
    shares = [batch / nodes for nodes, batch, _ in seen]
    if not shares or max(shares) < MIN_SHARE_RATIO * min(shares):
        return None
    rows = [(1.0, batch / nodes, float(nodes > 1), float(max(0, nodes - 2))) for nodes, batch, _ in seen]
    seconds = np.array([t for _, _, t in seen])
    # Relative errors count: a short step matters as much as a long one.
    table = np.array(rows) / seconds[:, None]
    from scipy.optimize import nnls  # a daemon that starts does not wait for SciPy

    # What cannot be distinguished yet is taken together: first the cost of each further node, then that of any.
    columns = next(n for n in (4, 3, 2) if n == 2 or _rank(table[:, :n]) == n)
    found, _ = nnls(table[:, :columns], np.ones(len(seen)))
    fixed, each, join, more = (*found.tolist(), 0.0, 0.0)[:4]
    if fixed + each <= 0.0:
        return None
    return StepTime(fixed, each, join, more, max(shares))


def _rank(table: NDArray[np.float64]) -> int:
    """How many columns can be distinguished, by more than the hundredths that the last batch of an epoch makes."""
    scaled = table / np.maximum(np.abs(table).max(axis=0), 1e-300)
    return int(np.linalg.matrix_rank(scaled, tol=0.02 * len(table) ** 0.5))


def candidate_batches(low: int, high: int) -> tuple[int, ...]:
    """Batches to choose from: the bounds, and the powers of two between them."""
    between = {1 << power for power in range(low.bit_length(), high.bit_length() + 1)}
    return tuple(sorted({low, high, *(b for b in between if low < b < high)}))


def batch_curves(job: MalleableJob, samples: Iterable[ThroughputSample]) -> tuple[tuple[int, Curve], ...]:
    """(batch, curve) for each batch that a job may have; empty where it is not free, or nothing is known yet."""
    if job.batch_min is None or job.batch_max is None:
        return ()
    model = fit_step_time(samples)
    if model is None:
        return ()
    sizes = grid_sizes(job.max_nodes)
    curves = []
    for batch in candidate_batches(job.batch_min, job.batch_max):
        curve = Curve(tuple((n, model.rate(n, batch)) for n in sizes))
        if any(rate for _, rate in curve.points):
            curves.append((batch, curve))
    return tuple(curves)


def chosen_batches(demands: Sequence[JobDemand], answer: Sizes) -> dict[int, tuple[tuple[int, int], ...]]:
    """For each job whose batch is free and known enough: (nodes, batch) from so many nodes on.

    At the size that the policy gave it, the policy's own choice, if it made one; elsewhere the batch of most
    progress: throughput, times what a sample is worth at that batch by the noise scale, where the job reports it.
    """
    found = {}
    for job in demands:
        if not job.batches:
            continue
        size = answer.sizes.get(job.id, 0)
        sizes = {*grid_sizes(job.max), max(1, size)}
        table = {nodes: best_batch(job, nodes, statistical_efficiency) for nodes in sizes}
        if size and job.id in answer.batches:
            table[size] = answer.batches[job.id]
        steps: list[tuple[int, int]] = []
        for nodes, batch in sorted(table.items()):
            if not steps or steps[-1][1] != batch:
                steps.append((nodes, batch))
        found[int(job.id)] = tuple(steps)
    return found
