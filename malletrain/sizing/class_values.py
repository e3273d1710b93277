"""What nodes of several classes are worth to each job: the table of values by job, class and size.

A job that takes one class at a time has a row for each (class q, k nodes of it), with the throughput O_q(k) of its
curve there. A job that spans classes has rows for mixtures too: for all where they are few, else of two classes. On
n_q nodes of class q, K in all, its shares are in proportion to speed, so that no worker waits for another, and it
trains

    B / ( B / sum_q rho_q n_q + 2 (K - 1) D / (K r) )      samples/s, by `Synchronous` (Liu et al., TPDS 2024)
    sum_q (n_q / K) O_q(K)                                  by its curves
    min_q O_q(K)                                            with equal shares: the slowest class gates it

The second is never above the first where both hold: B x / (B + c x) is concave in the compute speed x. At a given
price of each class and a given K a mixture of two classes is as good as any, but for whole numbers and for classes
that run out (a linear programme with two equations).

The value of a row is that of `malletrain.sizing.values`; a job that moves from one class to another has new nodes,
which take W to get ready, and trains meanwhile on those that it keeps: also one that keeps none of them goes on from
where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.sizing.problem import JobDemand, JobId, OnClasses, Problem
from malletrain.sizing.values import (
    FEWER,
    NEW,
    SAME,
    Bools,
    Floats,
    Ints,
    ValueTable,
    add_profiling_terms,
    gains,
    permitted_sizes,
    thinned,
)

#: Up to so many mixtures of one job are all looked at.
MAX_WHOLE_MIXTURES = 2000
#: Mixtures of one job for two classes: above so many only some sizes are looked at.
MAX_MIXTURES_PER_PAIR = 2100
#: Pairs of a job and two classes: above so many, jobs that fit on one class keep to one, or to the mixture that they
#: have (what mixtures add there is below .001 %, and 1,000 jobs on four classes took 1.3 s with them).
MAX_PAIRS_OF_CLASSES = 1500
#: Mixtures of all jobs together.
MAX_MIXTURES = 600_000


@dataclass(frozen=True)
class ClassTable:
    """`values`: a row for each job and mixture of nodes, the first of each job without nodes; `names`: the classes;
    `counts[q, row]`: nodes of class q; `whole`: every permitted mixture has its row."""

    values: ValueTable
    names: tuple[str, ...]
    counts: Ints
    whole: bool = True

    def classes_of(self, rows: Ints) -> dict[JobId, dict[str, int]]:
        """Of one row a job, its nodes by class; jobs without nodes are left out."""
        return {
            self.values.ids[int(self.values.row_job[row])]: {
                name: int(n) for name, n in zip(self.names, self.counts[:, row], strict=True) if n
            }
            for row in rows.tolist()
            if self.values.size[row]
        }


class RatesOnClasses:
    """Samples/s of one job on nodes of each of the classes `names`. `usable[q]`: it may take nodes of class q."""

    def __init__(self, job: JobDemand, names: Sequence[str]) -> None:
        on = job.on_classes or OnClasses()
        self.spans = on.spans if job.on_classes is not None else job.synchronous is not None
        self._in_proportion = self.spans and not on.equal_shares
        self._ring = None if on.curves else job.synchronous
        curves = [on.curves.get(name) if on.curves else job.curve for name in names]
        self._points = [np.array([(0, 0.0), *curve.points]).T if curve else np.zeros((2, 1)) for curve in curves]
        self.usable = np.array([curve is not None for curve in curves])
        if self._ring is not None:
            self._speeds = [self._ring.class_rates.get(name, 0.0) for name in names]
            self.usable = np.array(self._speeds) > 0

    def at(self, counts: Ints) -> Floats:
        """On so many nodes of each class, one column a mixture; 0 where it may not take some of them."""
        nodes, used = counts.sum(axis=0), counts > 0
        may = (nodes > 0) & ~used[~self.usable].any(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self._ring is not None:
                compute = sum(speed * of_class for speed, of_class in zip(self._speeds, counts, strict=True))
                seconds = self._ring.step_samples / compute + self._ring.exchange_s * (nodes - 1) / nodes
                rate = self._ring.step_samples / seconds
            else:
                each = np.array([np.interp(nodes, points, rates) for points, rates in self._points])
                rate = np.where(used, each, np.inf).min(axis=0, initial=np.inf)
                if self._in_proportion:
                    shared = sum(k * of_class for k, of_class in zip(counts, each, strict=True)) / nodes
                    rate = np.where(used.sum(axis=0) > 1, shared, rate)
        return np.where(may, rate, 0.0)


def class_table(problem: Problem) -> ClassTable:
    """Values of every permitted mixture of every job."""
    names = tuple(sorted(problem.classes))
    supply = [problem.classes[name] for name in names]
    jobs = problem.in_order()
    rates = [RatesOnClasses(job, names) for job in jobs]
    most = _most_of_a_pair(jobs, rates, supply)
    blocks, states, kept_rates, whole = [], [], [], True
    for job, of_job, few in zip(jobs, rates, most, strict=True):
        counts = _single_classes(job, of_job, names, supply)
        if of_job.spans and of_job.usable.sum() > 1:
            mixtures, all_of_them = _mixtures(job, of_job, names, supply, few)
            counts, whole = np.concatenate((counts, mixtures), axis=1), whole and all_of_them
        state, kept_rate = _change(job, of_job, names, counts)
        blocks.append(counts)
        states.append(state)
        kept_rates.append(kept_rate)
    none = np.zeros((len(names), 0), dtype=np.int64)
    counts = np.concatenate([none, *blocks], axis=1)
    length = np.array([block.shape[1] for block in blocks], dtype=np.int64)
    start = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(length)))
    row_job, size = np.repeat(np.arange(len(jobs), dtype=np.int64), length), counts.sum(axis=0)
    state = np.concatenate([none[0], *states])
    value = gains(
        problem,
        jobs,
        row_job,
        np.concatenate([np.zeros(0), *map(RatesOnClasses.at, rates, blocks)]),
        np.concatenate([np.zeros(0), *kept_rates]),
        np.array([_rate_now(job, of_job, names) for job, of_job in zip(jobs, rates, strict=True)], dtype=np.float64),
        state,
    )
    here = _of_present_class(jobs, start, size, counts, names)
    add_profiling_terms(jobs, problem.nodes, start, size, value, here)
    current = np.array([job.current for job in jobs], dtype=np.int64)
    table = ValueTable(tuple(job.id for job in jobs), current, start, row_job, size, value, state != SAME)
    return ClassTable(table, names, counts, whole)


def _held(job: JobDemand, names: Sequence[str]) -> Ints | None:
    """The job's present nodes of each class, as a column; None where they are not told apart."""
    if job.on_classes is None or not job.on_classes.current:
        return None
    return np.array([[job.on_classes.current.get(name, 0)] for name in names], dtype=np.int64)


def _rate_now(job: JobDemand, rates: RatesOnClasses, names: Sequence[str]) -> float:
    held = _held(job, names)
    if held is None:  # of whichever class is best
        held = job.current * np.eye(len(names), dtype=np.int64)
    return float(rates.at(held).max(initial=0.0)) if job.current else 0.0


def _change(job: JobDemand, rates: RatesOnClasses, names: Sequence[str], counts: Ints) -> tuple[Ints, Floats]:
    """What mixtures are to a job, and what the nodes that it keeps train meanwhile."""
    nodes, held = counts.sum(axis=0), _held(job, names)
    if held is None:
        state = np.where(nodes > job.current, NEW, np.where(nodes == job.current, SAME, FEWER))
        now = np.minimum(counts, job.current)
        single = (counts > 0).sum(axis=0) <= 1
        kept_rate = np.where(single, rates.at(now), _rate_now(job, rates, names))
    else:
        same = (counts == held).all(axis=0) & (int(held.sum()) == job.current)
        state = np.where((counts > held).any(axis=0), NEW, np.where(same, SAME, FEWER))
        kept_rate = rates.at(np.minimum(counts, held))
    return state, np.where(state == NEW, kept_rate, 0.0)


def _single_classes(job: JobDemand, rates: RatesOnClasses, names: Sequence[str], supply: Sequence[int]) -> Ints:
    """No nodes, and every size on nodes of one class."""
    blocks = [np.zeros((len(names), 1), dtype=np.int64)]
    for q in np.flatnonzero(rates.usable).tolist():
        sizes = permitted_sizes(job, supply[q])[1:]
        if job.on_classes is not None:
            sizes = sizes[sizes >= job.on_classes.min.get(names[q], 0)]
        block = np.zeros((len(names), len(sizes)), dtype=np.int64)
        block[q] = sizes
        blocks.append(block)
    return np.concatenate(blocks, axis=1)


def _tops(job: JobDemand, rates: RatesOnClasses, supply: Sequence[int]) -> list[int]:
    """The most nodes of each class that the job can have."""
    return [min(nodes, job.max) if may else 0 for nodes, may in zip(supply, rates.usable.tolist(), strict=True)]


def _are_few(tops: Sequence[int]) -> bool:
    return math.prod(top + 1 for top in tops) <= MAX_WHOLE_MIXTURES


def _most_of_a_pair(jobs: Sequence[JobDemand], rates: Sequence[RatesOnClasses], supply: Sequence[int]) -> list[int]:
    """Of each job, how many of its mixtures of two classes are looked at; 0: none but what it has."""
    pairs = [
        0 if not of_job.spans or _are_few(_tops(job, of_job, supply)) else math.comb(int(of_job.usable.sum()), 2)
        for job, of_job in zip(jobs, rates, strict=True)
    ]
    if sum(pairs) > MAX_PAIRS_OF_CLASSES:  # those alone that no class has room for
        pairs = [n if job.min > max(supply) else 0 for job, n in zip(jobs, pairs, strict=True)]
    most = min(MAX_MIXTURES_PER_PAIR, MAX_MIXTURES // max(1, sum(pairs)))
    return [most if n else 0 for n in pairs]


def _mixtures(
    job: JobDemand, rates: RatesOnClasses, names: Sequence[str], supply: Sequence[int], most: int
) -> tuple[Ints, bool]:
    """Mixtures of classes, and whether these are all: all where they are few, else `most` of each two classes, or the
    one that the job has."""
    tops = _tops(job, rates, supply)
    if _are_few(tops):
        counts = np.stack([each.ravel() for each in np.indices([top + 1 for top in tops])]).astype(np.int64)
        permitted = np.isin(counts.sum(axis=0), permitted_sizes(job, sum(tops)))
        return counts[:, permitted & ((counts > 0).sum(axis=0) > 1)], True
    usable = np.flatnonzero(rates.usable).tolist()
    if not most:
        held = _held(job, names)
        keeps = held is not None and rates.usable[np.flatnonzero(held)].all() and (held > 0).sum() > 1
        if held is None or not keeps or int(held.sum()) not in permitted_sizes(job, int(held.sum())):
            held = np.zeros((len(names), 0), dtype=np.int64)
        return held, False
    blocks = []
    for at, q in enumerate(usable):
        for r in usable[at + 1 :]:
            first, second = _splits(job, supply[q], supply[r], most)
            block = np.zeros((len(names), len(first)), dtype=np.int64)
            block[q], block[r] = first, second
            blocks.append(block)
    return np.concatenate(blocks, axis=1), len(usable) == 2 and math.comb(min(job.max, 64), 2) <= most


def _splits(job: JobDemand, first: int, second: int, most: int) -> tuple[Ints, Ints]:
    """How many nodes of two classes a mixture may have; where that were too many, of some sizes only."""
    sizes = [k for k in permitted_sizes(job, first + second).tolist() if k >= max(2, job.min)]
    if sum(sizes) > most:
        sizes = thinned(sizes, 8)
    step = max(1, -(-sum(sizes) // max(most, 1)))
    pairs = [(a, k - a) for k in sizes for a in range(1, k, step) if a <= first and k - a <= second]
    split = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return split[:, 0], split[:, 1]


def _of_present_class(
    jobs: tuple[JobDemand, ...], start: Ints, size: Ints, counts: Ints, names: tuple[str, ...]
) -> Bools:
    """Rows on which a bonus counts: of a job that trains, those of the class of most of its nodes."""
    here = np.ones(len(size), dtype=np.bool_)
    for i, job in enumerate(jobs):
        held: Mapping[str, int] = job.on_classes.current if job.on_classes is not None and job.current else {}
        main = max(sorted(held), key=held.__getitem__, default="")
        if job.bonus and main in names:
            rows = slice(int(start[i]), int(start[i + 1]))
            here[rows] = counts[names.index(main), rows] == size[rows]
    return here
