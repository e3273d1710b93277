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
which take W to get ready, and trains meanwhile on those that it keeps:

    no new node     (T - P_down) O(n)          T O(n) where nothing changes
    new nodes       W O(kept) + (T - W - [c > 0] P_up) O(n)

with c its nodes before: also one that keeps none of them goes on from where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from malletrain.domain.job import Curve
from malletrain.sizing.problem import JobDemand, JobId, OnClasses, Problem, Synchronous, Value
from malletrain.sizing.values import (
    Floats,
    Ints,
    Throughput,
    ValueTable,
    alpha_fair,
    charge_zero,
    permitted_sizes,
    stalls,
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


def class_curves(job: JobDemand, classes: Mapping[str, int]) -> dict[str, Curve]:
    """The job's curve on each class that it may take."""
    on = job.on_classes or OnClasses()
    if on.curves:
        return {name: on.curves[name] for name in sorted(classes) if name in on.curves}
    if job.synchronous is not None:
        sizes = range(1, min(job.max, max(classes.values(), default=0)) + 1)
        return {
            name: Curve(tuple((k, synchronous_rate(job.synchronous, {name: k})) for k in sizes))
            for name in sorted(classes)
            if job.synchronous.class_rates.get(name, 0.0) > 0 and sizes
        }
    return dict.fromkeys(sorted(classes), job.curve)


def synchronous_rate(of: Synchronous, counts: Mapping[str, int]) -> float:
    """Samples/s on so many nodes of each class, by TPDS."""
    nodes = sum(counts.values())
    compute = sum(of.class_rates.get(name, 0.0) * k for name, k in counts.items())
    if compute <= 0 or of.step_samples <= 0:
        return 0.0
    return of.step_samples / (of.step_samples / compute + of.exchange_s * (nodes - 1) / nodes)


def mixed_rate(job: JobDemand, counts: Mapping[str, int], curves: Mapping[str, Curve]) -> float:
    """Samples/s on so many nodes of each class. Without shares in proportion the slowest class gates a job."""
    held = {name: k for name, k in counts.items() if k}
    nodes = sum(held.values())
    if not held or any(name not in curves for name in held):
        return 0.0
    if job.synchronous is not None and (job.on_classes is None or not job.on_classes.curves):
        return synchronous_rate(job.synchronous, held)
    rates = {name: curves[name].throughput(nodes) for name in held}
    if len(held) > 1 and (not spans(job) or (job.on_classes is not None and job.on_classes.equal_shares)):
        return min(rates.values())
    return sum(k * rates[name] for name, k in held.items()) / nodes


def spans(job: JobDemand) -> bool:
    """Whether the job may train on several classes at once."""
    return job.on_classes.spans if job.on_classes is not None else job.synchronous is not None


def class_table(problem: Problem) -> ClassTable:
    """Values of every permitted mixture of every job."""
    names = tuple(sorted(problem.classes))
    jobs = problem.in_order()
    curves = [class_curves(job, problem.classes) for job in jobs]
    pure = _pure_rows(problem, jobs, curves, names)
    parts = [pure, *_mixtures(problem, jobs, curves, names)]
    job_of = np.concatenate([part.job for part in parts])
    order = np.argsort(job_of, kind="stable")
    job_of = job_of[order]
    counts = np.concatenate([part.counts for part in parts], axis=1)[:, order]
    rate = np.concatenate([part.rate for part in parts])[order]
    kept_rate = np.concatenate([part.kept_rate for part in parts])[order]
    state = np.concatenate([part.state for part in parts])[order]
    size = counts.sum(axis=0)
    start = np.searchsorted(job_of, np.arange(len(jobs) + 1)).astype(np.int64)
    rate_now = np.array([_rate_now(job, each) for job, each in zip(jobs, curves, strict=True)], dtype=np.float64)
    value = _values(problem, jobs, job_of, rate, kept_rate, rate_now, state, _of_one(jobs))
    _add_profiling_terms(problem, jobs, start, size, counts, names, value)
    current = np.array([job.current for job in jobs], dtype=np.int64)
    table = ValueTable(tuple(job.id for job in jobs), current, start, job_of, size, value, state != _SAME)
    whole = not any(part.thinned for part in parts)
    return ClassTable(table, names, counts, whole)


#: What a row is to its job: its present nodes, fewer of them, or some new ones.
_SAME, _FEWER, _NEW = 0, 1, 2


class _Rows(NamedTuple):
    """Rows of some jobs: job, counts by class, throughput, throughput of those nodes that are kept, state; `thinned`:
    not all of their mixtures."""

    job: Ints
    counts: Ints
    rate: Floats
    kept_rate: Floats
    state: Ints
    thinned: bool = False


class _OfClass(NamedTuple):
    """A job on one class, for the interpolation of all curves at once."""

    curve: Curve
    current: int
    max: int


def held_now(job: JobDemand, name: str) -> int:
    """The job's present nodes of a class."""
    if job.on_classes is None or not job.on_classes.current:
        return job.current
    return job.on_classes.current.get(name, 0)


def _pure_rows(
    problem: Problem, jobs: tuple[JobDemand, ...], curves: list[dict[str, Curve]], names: tuple[str, ...]
) -> _Rows:
    """No nodes, and every size on nodes of one class."""
    nodes = np.array([problem.classes[name] for name in names], dtype=np.int64)
    pairs = [(i, q) for i in range(len(jobs)) for q, name in enumerate(names) if name in curves[i]]
    of = [_OfClass(curves[i][names[q]], jobs[i].current, jobs[i].max) for i, q in pairs]
    job = np.array([i for i, _ in pairs], dtype=np.int64)
    kind = np.array([q for _, q in pairs], dtype=np.int64)
    least = {(i, q): jobs[i].on_classes.min.get(names[q], 0) if jobs[i].on_classes else 0 for i, q in pairs}  # type: ignore[union-attr]
    low = np.maximum(np.array([max(jobs[i].min, least[i, q], 1) for i, q in pairs], dtype=np.int64), 1)
    top = np.minimum(np.array([jobs[i].max for i, _ in pairs], dtype=np.int64), nodes[kind] if pairs else 0)
    count = np.maximum(top - low + 1, 0)
    listed = {
        p: [k for k in permitted_sizes(jobs[i], int(nodes[q])).tolist()[1:] if k >= low[p]]
        for p, (i, q) in enumerate(pairs)
        if jobs[i].sizes or jobs[i].locked is not None
    }
    for p, sizes in listed.items():
        count[p] = len(sizes)
    start = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(count)))
    pair = np.repeat(np.arange(len(pairs), dtype=np.int64), count)
    size = np.arange(int(start[-1]), dtype=np.int64) - start[:-1][pair] + low[pair]
    for p, sizes in listed.items():
        size[start[p] : start[p + 1]] = sizes
    held = np.array([held_now(jobs[i], names[q]) for i, q in pairs], dtype=np.int64)
    whole = np.array([jobs[i].current for i, _ in pairs], dtype=np.int64)
    throughput = Throughput(of)
    rate = throughput.at(pair, size)
    kept = np.minimum(size, held[pair])
    state = np.where(
        size > held[pair], _NEW, np.where((size == held[pair]) & (held[pair] == whole[pair]), _SAME, _FEWER)
    )
    kept_rate = np.where(state == _NEW, throughput.at(pair, kept), 0.0)
    counts = np.zeros((len(names), len(size)), dtype=np.int64)
    counts[kind[pair], np.arange(len(size))] = size
    none = np.arange(len(jobs), dtype=np.int64)
    nothing = np.zeros(len(jobs))
    idle = np.where(np.array([each.current for each in jobs], dtype=np.int64) == 0, _SAME, _FEWER)
    # A job's row without nodes comes first: rows are sorted by job alone, and the sort keeps their order.
    return _Rows(
        np.concatenate((none, job[pair])),
        np.concatenate((np.zeros((len(names), len(jobs)), dtype=np.int64), counts), axis=1),
        np.concatenate((nothing, rate)),
        np.concatenate((nothing, kept_rate)),
        np.concatenate((idle, state)),
    )


def _mixtures(
    problem: Problem, jobs: tuple[JobDemand, ...], curves: list[dict[str, Curve]], names: tuple[str, ...]
) -> list[_Rows]:
    """Mixtures, of the jobs that may have them: all where they are few, else those of two classes."""
    spanning = [i for i, job in enumerate(jobs) if spans(job) and len(curves[i]) > 1]
    whole = {i: _every_mixture(jobs[i], problem.classes, curves[i], names) for i in spanning}
    found = [
        _Rows(np.full(len(rate), i, dtype=np.int64), counts, rate, kept_rate, state)
        for i, (counts, rate, kept_rate, state) in whole.items()
        if len(rate)
    ]
    spanning = [i for i in spanning if not len(whole[i][1])]
    pairs = [(i, q, r) for i in spanning for q in range(len(names)) for r in range(q + 1, len(names))]
    pairs = [(i, q, r) for i, q, r in pairs if names[q] in curves[i] and names[r] in curves[i]]
    if len(pairs) > MAX_PAIRS_OF_CLASSES:
        found += _present_mixtures(jobs, spanning, curves, names)
        widest = max(problem.classes.values())
        pairs = [(i, q, r) for i, q, r in pairs if jobs[i].min > widest]
        none, no_counts = np.zeros(0, dtype=np.int64), np.zeros((len(names), 0), dtype=np.int64)
        no_rate = none.astype(np.float64)
        # Says that rows are left out, even where none is kept.
        found.append(_Rows(none, no_counts, no_rate, no_rate, none, thinned=True))
    each_most = min(MAX_MIXTURES_PER_PAIR, MAX_MIXTURES // max(1, len(pairs)))
    for i, q, r in pairs:
        job = jobs[i]
        a, b = _splits(job, problem.classes[names[q]], problem.classes[names[r]], each_most)
        if not len(a):
            continue
        counts = np.zeros((len(names), len(a)), dtype=np.int64)
        counts[q], counts[r] = a, b
        rate = _rates(job, a, b, names[q], names[r], curves[i])
        state, kept_rate = _change(job, counts, names, curves[i])
        full = len(curves[i]) == 2 and math.comb(min(job.max, 64), 2) <= each_most
        found.append(_Rows(np.full(len(a), i, dtype=np.int64), counts, rate, kept_rate, state, not full))
    return found


def _present_mixtures(
    jobs: tuple[JobDemand, ...], spanning: list[int], curves: list[dict[str, Curve]], names: tuple[str, ...]
) -> list[_Rows]:
    """The mixture that each of these jobs has now, where it has one and may keep it."""
    found = []
    for i in spanning:
        held = {name: held_now(jobs[i], name) if name in curves[i] else 0 for name in names}
        told_apart = jobs[i].on_classes is not None and bool(jobs[i].on_classes.current)  # type: ignore[union-attr]
        nodes = sum(held.values())
        if not told_apart or sum(map(bool, held.values())) < 2 or nodes not in permitted_sizes(jobs[i], nodes):
            continue
        counts = np.array([[held[name]] for name in names], dtype=np.int64)
        rate = np.array([mixed_rate(jobs[i], held, curves[i])])
        state, kept_rate = _change(jobs[i], counts, names, curves[i])
        found.append(_Rows(np.array([i], dtype=np.int64), counts, rate, kept_rate, state, thinned=True))
    return found


def _every_mixture(
    job: JobDemand, classes: Mapping[str, int], curves: Mapping[str, Curve], names: tuple[str, ...]
) -> tuple[Ints, Floats, Floats, Ints]:
    """Counts, throughput, kept throughput and state of every mixture of two classes or more; none where there are too
    many."""
    nothing = np.zeros((len(names), 0), dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64)
    tops = [min(classes[name], job.max) if name in curves else 0 for name in names]
    if math.prod(top + 1 for top in tops) > MAX_WHOLE_MIXTURES:
        return nothing
    counts = np.stack([each.ravel() for each in np.indices([top + 1 for top in tops])]).astype(np.int64)
    nodes = counts.sum(axis=0)
    allowed = np.isin(nodes, permitted_sizes(job, sum(tops))) & ((counts > 0).sum(axis=0) > 1)
    counts = counts[:, allowed]
    if not counts.shape[1]:
        return nothing
    rate = np.array([mixed_rate(job, dict(zip(names, each, strict=True)), curves) for each in counts.T.tolist()])
    state, kept_rate = _change(job, counts, names, curves)
    return counts, rate, kept_rate, state


def _change(job: JobDemand, counts: Ints, names: tuple[str, ...], curves: Mapping[str, Curve]) -> tuple[Ints, Floats]:
    """What mixtures are to a job, and what the nodes that it keeps train meanwhile."""
    nodes = counts.sum(axis=0)
    if job.on_classes is None or not job.on_classes.current:  # not told apart
        state = np.where(nodes > job.current, _NEW, np.where(nodes == job.current, _SAME, _FEWER))
        return state, np.where(state == _NEW, _rate_now(job, curves), 0.0)
    held = np.array([held_now(job, name) for name in names], dtype=np.int64)[:, None]
    same = (counts == held).all(axis=0) & (int(held.sum()) == job.current)
    state = np.where((counts > held).any(axis=0), _NEW, np.where(same, _SAME, _FEWER))
    kept, kept_rate = np.minimum(counts, held), np.zeros(len(nodes))
    known: dict[tuple[int, ...], float] = {}
    for at in np.flatnonzero((state == _NEW) & (kept.sum(axis=0) > 0)).tolist():
        mixture = tuple(kept[:, at].tolist())
        if mixture not in known:
            known[mixture] = mixed_rate(job, dict(zip(names, mixture, strict=True)), curves)
        kept_rate[at] = known[mixture]
    return state, kept_rate


def _splits(job: JobDemand, first: int, second: int, most: int) -> tuple[Ints, Ints]:
    """How many nodes of two classes a mixture may have; where that were too many, of some sizes only."""
    sizes = [k for k in permitted_sizes(job, first + second).tolist() if k >= max(2, job.min)]
    if sum(sizes) > most:
        kept, last = [], 0
        for k in sizes:
            if k <= 8 or k >= last * 9 / 8 or k == sizes[-1]:
                kept.append(k)
                last = k
        sizes = kept
    total = sum(sizes)
    step = max(1, -(-total // max(most, 1)))
    pairs = [(a, k - a) for k in sizes for a in range(1, k, step) if a <= first and k - a <= second]
    if not pairs:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    a, b = np.array(pairs, dtype=np.int64).T
    return a, b


def _rates(job: JobDemand, a: Ints, b: Ints, first: str, second: str, curves: Mapping[str, Curve]) -> Floats:
    """Samples/s of mixtures of two classes."""
    nodes = a + b
    if job.synchronous is not None and (job.on_classes is None or not job.on_classes.curves):
        of = job.synchronous
        compute = of.class_rates.get(first, 0.0) * a + of.class_rates.get(second, 0.0) * b
        with np.errstate(divide="ignore"):
            seconds = of.step_samples / compute + of.exchange_s * (nodes - 1) / nodes
        return np.where((compute > 0) & (of.step_samples > 0), of.step_samples / seconds, 0.0)
    throughput = Throughput([_OfClass(curves[name], 0, int(nodes.max())) for name in (first, second)])
    one, two = throughput.at(np.zeros_like(nodes), nodes), throughput.at(np.ones_like(nodes), nodes)
    if job.on_classes is not None and job.on_classes.equal_shares:
        return np.asarray(np.minimum(one, two))
    return np.asarray((a * one + b * two) / nodes)


def _rate_now(job: JobDemand, curves: Mapping[str, Curve]) -> float:
    if not job.current:
        return 0.0
    on = job.on_classes
    if on is None or not on.current:
        return max((curve.throughput(job.current) for curve in curves.values()), default=0.0)
    return mixed_rate(job, on.current, curves)


def _of_one(jobs: tuple[JobDemand, ...]) -> Floats:
    """What alpha-fairness compares with: the job's own curve on one node."""
    return Throughput([_OfClass(job.curve, 0, 1) for job in jobs]).of_one(np.arange(len(jobs), dtype=np.int64))


def _values(
    problem: Problem, jobs: tuple[JobDemand, ...], job_of: Ints, rate: Floats, kept_rate: Floats, rate_now: Floats,
    state: Ints, of_one: Floats,
) -> Floats:  # fmt: skip
    horizon = problem.horizon_s
    activate, doubt, weight = (
        np.array([getattr(job, name) for job in jobs], dtype=np.float64) for name in ("activate_s", "doubt", "weight")
    )
    grow, shrink = stalls(problem, jobs)
    trains = np.array([job.current > 0 for job in jobs], dtype=np.bool_)
    now = rate_now[job_of]
    if Value(problem.value) is Value.ELASTIC:
        ready = np.minimum(activate, horizon)[job_of]
        stall = np.where(trains[job_of], grow[job_of], 0.0)
        new = ready * kept_rate + np.maximum(horizon - ready - stall, 0.0) * rate
        fewer = np.maximum(horizon - shrink, 0.0)[job_of] * rate
        value = np.where(state == _NEW, new, np.where(state == _FEWER, fewer, horizon * rate))
    else:
        stall = np.where(state == _NEW, grow[job_of], np.where(state == _FEWER, shrink[job_of], 0.0))
        value = horizon * rate - stall * now
    if doubt.any():
        gives_up = (state == _FEWER) | ((state == _NEW) & (kept_rate < now))
        value = value - np.where(gives_up, doubt[job_of] * now * horizon, 0.0)
    left = np.array([np.inf if j.remaining_samples is None else j.remaining_samples for j in jobs], dtype=np.float64)
    value = np.minimum(value, left[job_of])
    if problem.alpha > 0:
        value = alpha_fair(value, horizon, of_one[job_of], problem.alpha)
    return np.asarray(value * weight[job_of])


def _add_profiling_terms(
    problem: Problem, jobs: tuple[JobDemand, ...], start: Ints, size: Ints, counts: Ints, names: tuple[str, ...],
    value: Floats,
) -> None:  # fmt: skip
    """Bonuses and locks, as in `malletrain.sizing.values`; on the class that the job trains on, if it does."""
    for i in [i for i, job in enumerate(jobs) if job.bonus]:
        rows = slice(int(start[i]), int(start[i + 1]))
        here = np.ones(rows.stop - rows.start, dtype=np.bool_)
        on = jobs[i].on_classes
        if on is not None and on.current and jobs[i].current:
            main = max(sorted(on.current), key=lambda name: on.current[name])
            here = counts[names.index(main), rows] == size[rows] if main in names else here
        for k, added in jobs[i].bonus:
            value[rows][(size[rows] == k) & here] += added
    charge_zero(jobs, problem.nodes, start, value)
