"""What each size is worth to each job: the one place where the gain formulas are written.

With T the horizon, c the present and k the next size, O(n) samples/s on n nodes (O(0) = 0), P_up and P_down the stall
of growing and shrinking and W the activation of new nodes, a job's value is weight times

`elastic`, the samples really trained over the horizon:
    k = c            T O(c)
    k > c > 0        W O(c) + (T - W - P_up) O(k)      the old world trains on while new nodes get ready
    k > c = 0        (T - W) O(k)                      nothing is interrupted
    k < c            (T - P_down) O(k)
  Times are cut to the horizon: what is not ready within it gains nothing (W = min(W, T), later spans at least 0).
  What a change gains lasts until the job's next change, not over the horizon: of a job whose nodes change every I
  seconds in the mean (`interval_s`), P_up and P_down count T/I times, up to .95 T: a job that changes is worth more
  than one that has no nodes. Sia prices restarts so (Jayaram Subramanya et al., SOSP 2023).

`bftrainer` (arXiv 2106.12091, its objective):
    T O(k) - [k > c] P_up O(c) - [k < c] P_down O(c)

Taking nodes from a job, k < c, is worth  doubt T O(c)  less, with `doubt` the relative error that its curve may have
at c: a gain below the curves' own uncertainty moves no job. Growing has no such term: nodes that
no other job can use are taken for the least gain.

Either is capped by the samples that remain. With alpha > 0 it is then made alpha-fair (Mo and Walrand, 2000) over the
mean speed-up x = v / (T O(1)):  T U(x),  U(x) = x^(1-alpha)/(1-alpha), and log x at alpha = 1. From alpha = 1 on,
where no nodes would be worth minus infinity, U is taken as U(max(x, 0.001)) - U(0.001).

Last come what measuring is worth: `bonus` of a size is added as it is; a job that is `locked` at a size while it is
measured there has no other size but zero, and zero costs it more than everyone together can gain; zero for a job that
`must_run`, with any of its sizes, costs more than all locks together.

What the objective makes of weights: `malletrain.sizing.objective`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from malletrain.sizing.problem import JobDemand, JobId, Problem, Value

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Of a horizon, what a stall takes at most where it counts by the job's own interval.
MAX_STALL = 0.95

#: Mean speed-up that counts as no training at all, where alpha is 1 or more.
MIN_SPEEDUP = 1e-3


@dataclass(frozen=True)
class ValueTable:
    """Every permitted (job, size) with its value: one row each, jobs by id, sizes ascending from 0.

    Rows of job i are `start[i]:start[i + 1]`. `row_job`, `size`, `value` (samples, times weight; seconds of speed-up
    when alpha > 0) and `changed` (the size is not the present one) have one entry a row.
    """

    ids: tuple[JobId, ...]
    current: Ints
    start: Ints
    row_job: Ints
    size: Ints
    value: Floats
    changed: Bools

    def has(self, sizes: Mapping[JobId, int]) -> bool:
        """Whether every job's size is one of its rows. A permitted size is not while its job is locked at another."""
        wanted = np.array([sizes[job] for job in self.ids], dtype=np.int64)
        return int((self.size == wanted[self.row_job]).sum()) == len(self.ids)

    def rows_of(self, sizes: dict[JobId, int] | Ints) -> Ints:
        """The row of each job's size.
        Raises ValueError: a size is not permitted."""
        wanted = sizes if isinstance(sizes, np.ndarray) else np.array([sizes[j] for j in self.ids], dtype=np.int64)
        hit = self.size == wanted[self.row_job]
        rows = np.flatnonzero(hit)
        if len(rows) != len(self.ids):
            raise ValueError("a size is not permitted")
        return rows

    def worth(self, rows: Ints) -> float:
        """The objective of one row a job, summed in the jobs' order."""
        return float(np.sum(self.value[rows]))


def rates(problem: Problem, table: ValueTable) -> tuple[Floats, Floats]:
    """Samples/s of every row, and of each job on one node, as `Curve.of_one` has it."""
    jobs = problem.in_order()
    of_one = np.array([job.curve.of_one for job in jobs], dtype=np.float64)
    return Throughput(jobs).at(table.row_job, table.size), of_one


def permitted_sizes(job: JobDemand, nodes: int) -> Ints:
    """Permitted node counts up to `nodes`, ascending, with 0."""
    top = min(job.max, nodes)
    low = max(job.min, 1)
    if job.locked is not None and job.locked <= top:
        return np.array([0, job.locked], dtype=np.int64)
    if job.sizes:
        return np.array([0, *sorted({k for k in job.sizes if low <= k <= top})], dtype=np.int64)
    if low > top:
        return np.zeros(1, dtype=np.int64)
    return np.concatenate((np.zeros(1, dtype=np.int64), np.arange(low, top + 1, dtype=np.int64)))


def thinned(sizes: Sequence[int], whole: int) -> list[int]:
    """Of ascending sizes all up to `whole`, then those that are an eighth apart, and the last."""
    kept, last = list[int](), 0
    for size in sizes:
        if size <= whole or size >= last * 9 / 8 or size == sizes[-1]:
            kept.append(size)
            last = size
    return kept


@dataclass
class ValueRowCache:
    """The rows of the last problem's jobs, for the next one: most jobs are the same, and so are their rows. `price`:
    of a node in its answer, near which the next one's is looked for.

    With a cache or without, the table is the same. Not thread-safe; each caller has its own.
    """

    price: float = 0.0
    _terms: tuple[float, Value, float, int] | None = None
    _kept: dict[int, tuple[JobDemand, Ints, Floats]] = field(default_factory=dict)  #: by identity of the job

    def rows(self, problem: Problem, jobs: tuple[JobDemand, ...]) -> tuple[Ints, Ints, Ints, Floats]:
        """As `_rows` of all jobs."""
        # A job may have its rows from a problem of other nodes where neither cuts its sizes.
        widest = max([job.max for job in jobs], default=0)
        terms = problem.horizon_s, problem.value, problem.alpha, min(problem.nodes, widest)
        kept = self._kept if terms == self._terms else {}
        found = {id(job): kept.get(id(job)) for job in jobs}
        fresh = tuple([job for job in jobs if found[id(job)] is None])
        start, row_job, size, value = _rows(problem, fresh)
        bounds = start.tolist()
        for i, job in enumerate(fresh):
            rows = slice(bounds[i], bounds[i + 1])
            found[id(job)] = job, size[rows].copy(), value[rows].copy()
        self._terms, self._kept = terms, {key: each for key, each in found.items() if each is not None}
        if len(fresh) < len(jobs):
            parts = list(self._kept.values())
            size = np.concatenate([part[1] for part in parts])
            value = np.concatenate([part[2] for part in parts])
            count = [len(part[1]) for part in parts]
            start = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(count)))
            row_job = np.repeat(np.arange(len(jobs), dtype=np.int64), count)
        return start, row_job, size, value


def value_table(problem: Problem, cache: ValueRowCache | None = None) -> ValueTable:
    """Values of every permitted size of every job. `cache`: the caller's, which takes these rows in."""
    jobs = problem.in_order()
    start, row_job, size, value = (cache or ValueRowCache()).rows(problem, jobs)
    add_profiling_terms(jobs, problem.nodes, start, size, value)
    current = np.array([job.current for job in jobs], dtype=np.int64)
    return ValueTable(tuple(job.id for job in jobs), current, start, row_job, size, value, size != current[row_job])


def _rows(problem: Problem, jobs: tuple[JobDemand, ...]) -> tuple[Ints, Ints, Ints, Floats]:
    """Where each job's rows start, and the job, size and value of every row, but for what measuring is worth."""
    sizes = [permitted_sizes(job, problem.nodes) for job in jobs]
    count = np.array([len(of_job) for of_job in sizes], dtype=np.int64)
    start = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(count)))
    row_job = np.repeat(np.arange(len(jobs), dtype=np.int64), count)
    size = np.concatenate((np.zeros(0, dtype=np.int64), *sizes))
    current = np.array([job.current for job in jobs], dtype=np.int64)
    curves = Throughput(jobs)
    rate_now = curves.at(np.arange(len(jobs), dtype=np.int64), current)
    before = current[row_job]
    state = np.where(size > before, NEW, np.where(size < before, FEWER, SAME))
    rate = curves.at(row_job, size)
    return start, row_job, size, gains(problem, jobs, row_job, rate, rate_now[row_job], rate_now, state)


#: What a row is to its job: its present nodes, fewer of them, or some new ones.
SAME, FEWER, NEW = 0, 1, 2


def gains(
    problem: Problem,
    jobs: Sequence[JobDemand],
    row_job: Ints,
    rate: Floats,
    kept_rate: Floats,
    rate_now: Floats,
    state: Ints,
) -> Floats:
    """What rows are worth, but for what measuring is.

    Of each row its job, what it trains (samples/s), what those of its nodes train that the job has already, and its
    state; of each job what it trains now.
    """
    horizon, now = problem.horizon_s, rate_now[row_job]
    activate, doubt, weight = (
        np.array([getattr(job, name) for job in jobs], dtype=np.float64) for name in ("activate_s", "doubt", "weight")
    )
    grow, shrink = (each[row_job] for each in stalls(problem, jobs))
    if Value(problem.value) is Value.ELASTIC:
        trains = np.array([job.current > 0 for job in jobs], dtype=np.bool_)
        ready = np.minimum(activate, horizon)[row_job]
        new = ready * kept_rate + np.maximum(horizon - ready - np.where(trains[row_job], grow, 0.0), 0.0) * rate
        fewer = np.maximum(horizon - shrink, 0.0) * rate
        value = np.where(state == NEW, new, np.where(state == FEWER, fewer, horizon * rate))
    else:
        value = horizon * rate - np.where(state == NEW, grow, np.where(state == FEWER, shrink, 0.0)) * now
    if doubt.any():
        gives_up = (state == FEWER) | ((state == NEW) & (kept_rate < now))
        value -= np.where(gives_up, doubt[row_job] * now * horizon, 0.0)
    left = np.array([np.inf if j.remaining_samples is None else j.remaining_samples for j in jobs], dtype=np.float64)
    value = np.minimum(value, left[row_job])
    if problem.alpha > 0:
        of_one = np.array([job.curve.of_one for job in jobs], dtype=np.float64)
        value = alpha_fair(value, horizon, of_one[row_job], problem.alpha)
    return np.asarray(value * weight[row_job])


def mean_interval_s(prior_s: float, age_s: float, changes: int) -> float:
    """Mean seconds between two changes of a job that had `changes` in `age_s` seconds, where `prior_s` is expected
    before anything was seen: the posterior of a Poisson process whose gamma prior weighs as one change."""
    return (prior_s + age_s) / (1 + changes)


def stalls(problem: Problem, jobs: Sequence[JobDemand]) -> tuple[Floats, Floats]:
    """What growing and shrinking cost each job within the horizon, in seconds: P_up and P_down, as often as its own
    interval says."""
    grow, shrink = (np.array([getattr(job, n) for job in jobs], dtype=np.float64) for n in ("grow_s", "shrink_s"))
    own = [i for i, job in enumerate(jobs) if job.interval_s is not None]
    if own and Value(problem.value) is Value.ELASTIC:
        often = problem.horizon_s / np.array([jobs[i].interval_s for i in own], dtype=np.float64)
        for each in (grow, shrink):
            each[own] = np.minimum(each[own] * often, MAX_STALL * problem.horizon_s)
    return grow, shrink


def add_profiling_terms(
    jobs: tuple[JobDemand, ...], nodes: int, start: Ints, size: Ints, value: Floats, here: Bools | None = None
) -> None:
    """Bonuses and locks, into `value`. `here`: the rows on which a bonus counts, where these are not all."""
    for i in [i for i, job in enumerate(jobs) if job.bonus]:
        rows = slice(int(start[i]), int(start[i + 1]))
        counts = True if here is None else here[rows]
        for k, added in jobs[i].bonus:
            value[rows][(size[rows] == k) & counts] += added
    _charge_zero(jobs, nodes, start, value)


def _charge_zero(jobs: tuple[JobDemand, ...], nodes: int, start: Ints, value: Floats) -> None:
    """What having no nodes costs jobs that are locked at a size of these `nodes`, or must run, into `value`.

    One that leaves its lock frees nodes by which all others cannot gain more than that; one that has none though it
    must run costs more than all locks together, so no measurement takes its nodes.
    """
    locked = [
        i
        for i, job in enumerate(jobs)
        if not job.must_run and job.locked is not None and job.locked <= min(job.max, nodes)
    ]
    must = [i for i, job in enumerate(jobs) if job.must_run]
    if locked or must:
        most = np.maximum.reduceat(value, start[:-1]) - np.minimum.reduceat(value, start[:-1])
        each = float(most.sum()) + 1.0
        value[start[locked]] -= each
        value[start[must]] -= each * (len(locked) + 1)


def alpha_fair(value: Floats, horizon: float, rate_of_one: Floats, alpha: float) -> Floats:
    if horizon == 0:
        return np.zeros_like(value)
    speedup = np.maximum(value / (horizon * rate_of_one), 0.0)
    if alpha < 1:
        return np.asarray(horizon * speedup ** (1 - alpha) / (1 - alpha))
    above = np.maximum(speedup, MIN_SPEEDUP)
    if alpha == 1:
        return horizon * np.log(above / MIN_SPEEDUP)
    return np.asarray(horizon * (MIN_SPEEDUP ** (1 - alpha) - above ** (1 - alpha)) / (alpha - 1))


class Throughput:
    """All jobs' curves in one interpolation: job i's points lie at i * stride + nodes."""

    def __init__(self, jobs: Sequence[JobDemand]) -> None:
        count = np.array([len(job.curve.points) for job in jobs], dtype=np.int64)
        flat = chain.from_iterable(chain.from_iterable(job.curve.points for job in jobs))
        points = np.fromiter(flat, dtype=np.float64, count=2 * int(count.sum())).reshape(-1, 2)
        widest = float(points[:, 0].max(initial=0.0))
        self._stride = int(max(widest, *(j.current for j in jobs), *(j.max for j in jobs), 0)) + 2
        # Each job's points are led by its origin and followed by one that holds the last rate: without that the next
        # job's origin would pull it down.
        at = np.arange(int(count.sum())) + 2 * np.repeat(np.arange(len(jobs)), count) + 1
        ends = np.cumsum(count + 2) - 1
        base = np.arange(len(jobs), dtype=np.float64) * self._stride
        self._nodes = np.empty(len(points) + 2 * len(jobs))
        self._rates = np.zeros_like(self._nodes)
        self._nodes[at] = points[:, 0] + np.repeat(base, count)
        self._rates[at] = points[:, 1]
        self._nodes[ends - count - 1] = base
        self._nodes[ends] = base + self._stride - 1
        self._rates[ends] = self._rates[ends - 1]

    def at(self, job: Ints, nodes: Ints) -> Floats:
        """Samples/s of each `job` on each `nodes`."""
        if not len(self._nodes):
            return np.zeros(0)
        rate: Floats = np.interp((job * self._stride + nodes).astype(np.float64), self._nodes, self._rates)
        return rate
