"""Policy `matching`: nodes of several classes (Liu, Wang, Huang, Pan: Sampling-Based Multi-Job Placement for
Heterogeneous Deep Learning Clusters, TPDS 2024).

Minimised is the sum of weighted completion times, remaining samples over the throughput of `Synchronous`. Plans are
put in categories, which say how many nodes each job has. Within a category jobs compete for fast nodes: a matching
market, in which a job demands the nodes of most use to it less their price, and prices of what is over-demanded rise
until nothing is. Categories are sampled, half of them at random, half one node away from the best so far.

The market's equilibrium is found as the transportation problem whose multipliers its prices are, not by raising
prices step by step; what a node is worth to a job is its share in the completion time at the job's mean speed.
Samples come from a fixed seed: equal problems get equal answers. Jobs are admitted in the order of ids while their
minima fit. Among categories of equal time the one with the fewest changed jobs is taken. Fairness is reported as
Jain's index of the jobs' speeds against those in an equal split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from malletrain.domain.decision import SizingStatus
from malletrain.sizing.constraints import checked, fallback
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import JobDemand, JobId, Problem, Sizes
from malletrain.sizing.values import Floats, Ints, ValueRowCache, permitted_sizes, value_table


class Matching(Policy):
    """The best of `samples` categories, each matched at its market's prices."""

    name = "matching"
    places_classes = True
    needs = frozenset({Need.NODE_CLASSES})

    def __init__(self, samples: int = 64, seed: int = 0) -> None:
        self._samples, self._seed = samples, seed

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        market = _Market.of(problem)
        if not market.jobs:
            return fallback(problem, "no job's minimum fits")
        random = np.random.default_rng(self._seed)
        current = np.array([job.current for job in market.jobs], dtype=np.int64)
        equal = market.nearest(np.full(len(market.jobs), problem.nodes / len(market.jobs)))
        even = market.matched(equal)
        best, best_key = even, market.key(even, current)
        tried = {tuple(equal.tolist())}
        for i in range(self._samples):
            if i % 2:
                category = market.neighbour(best.sum(axis=1), random)
            else:
                share = random.dirichlet(np.ones(len(market.jobs)))
                category = market.nearest(share * problem.nodes)
            if tuple(category.tolist()) in tried:
                continue
            tried.add(tuple(category.tolist()))
            plan = market.matched(category)
            key = market.key(plan, current)
            if key < best_key:
                best, best_key = plan, key
        return checked(problem, market.answer(problem, best, even, len(tried)))


@dataclass(frozen=True)
class _Market:
    """The admitted jobs in order, the classes, and each job's rate on one node of each class."""

    jobs: tuple[JobDemand, ...]
    sizes: tuple[Ints, ...]  # permitted and above 0
    names: tuple[str, ...]
    supply: Ints
    rate: Floats  # (jobs, classes)

    @staticmethod
    def of(problem: Problem) -> _Market:
        classes: Mapping[str, int] = problem.classes or {"node": problem.nodes}
        names = tuple(sorted(classes))
        admitted, spare = [], problem.nodes
        for job in problem.in_order():
            sizes = permitted_sizes(job, problem.nodes)[1:]
            if len(sizes) and sizes[0] <= spare:
                admitted.append((job, sizes))
                spare -= int(sizes[0])
        rate = [
            [
                job.synchronous.class_rates.get(name, 0.0) if job.synchronous else job.curve.throughput(1)
                for name in names
            ]
            for job, _ in admitted
        ]
        return _Market(
            tuple(job for job, _ in admitted),
            tuple(sizes for _, sizes in admitted),
            names,
            np.array([classes[name] for name in names], dtype=np.int64),
            np.array(rate, dtype=np.float64).reshape(len(admitted), len(names)),
        )

    def nearest(self, wanted: Floats) -> Ints:
        """Permitted sizes no larger than wanted where that can be, grown evenly while nodes are left."""
        place = [
            max(int(np.searchsorted(s, w, side="right")) - 1, 0) for s, w in zip(self.sizes, wanted, strict=True)
        ]
        spare = int(self.supply.sum()) - sum(int(s[p]) for s, p in zip(self.sizes, place, strict=True))
        while spare < 0:
            job = max(range(len(place)), key=lambda i: (self.sizes[i][place[i]] if place[i] else 0, -i))
            spare += int(self.sizes[job][place[job]] - self.sizes[job][place[job] - 1])
            place[job] -= 1
        for job in sorted(range(len(place)), key=lambda i: (self.sizes[i][place[i]], i)):
            if place[job] + 1 < len(self.sizes[job]):
                more = int(self.sizes[job][place[job] + 1] - self.sizes[job][place[job]])
                if more <= spare:
                    place[job] += 1
                    spare -= more
        return np.array([s[p] for s, p in zip(self.sizes, place, strict=True)], dtype=np.int64)

    def neighbour(self, counts: Ints, random: np.random.Generator) -> Ints:
        """One job a step up, another a step down if that is needed to make room."""
        place = [int(np.searchsorted(s, k)) for s, k in zip(self.sizes, counts.tolist(), strict=True)]
        up, down = random.permutation(len(place))[:2] if len(place) > 1 else (0, 0)
        if place[up] + 1 < len(self.sizes[up]):
            place[up] += 1
        if up != down and place[down] and random.random() < 0.8:
            place[down] -= 1
        out = np.array([s[p] for s, p in zip(self.sizes, place, strict=True)], dtype=np.int64)
        return out if out.sum() <= self.supply.sum() else counts

    def matched(self, counts: Ints) -> Ints:
        """Nodes of each class for each job (jobs, classes) at the prices that clear the market."""
        jobs, classes = self.rate.shape
        if classes == 1:
            return counts[:, None]
        mean = np.maximum(self.rate.mean(axis=1), 1e-300)
        # Completion time falls by (work / (K mean)) / K for each further `mean` of speed.
        worth = (self.work() / (counts * mean) / counts)[:, None] * self.rate / mean[:, None]
        scale = worth.max() or 1.0
        column = np.arange(jobs * classes)
        of_job = csr_array((np.ones(jobs * classes), (column // classes, column)))
        of_class = csr_array((np.ones(jobs * classes), (column % classes, column)))
        found = linprog(
            -(worth / scale).ravel(), A_eq=of_job, b_eq=counts, A_ub=of_class, b_ub=self.supply, method="highs-ds"
        )
        if found.x is None:  # cannot be: counts fit the supply
            raise ArithmeticError(f"the market has no equilibrium: {found.message}")
        plan: Ints = np.rint(found.x).astype(np.int64).reshape(jobs, classes)
        return plan

    def work(self) -> Floats:
        """Weighted samples that are left; jobs that do not say count with a second of their fastest node."""
        left = [
            job.remaining_samples if job.remaining_samples is not None else float(rate.max(initial=0.0))
            for job, rate in zip(self.jobs, self.rate, strict=True)
        ]
        return np.array([job.weight for job in self.jobs]) * np.array(left, dtype=np.float64)

    def speeds(self, plan: Ints) -> Floats:
        """Samples/s of each job."""
        out = np.zeros(len(self.jobs))
        for i, job in enumerate(self.jobs):
            nodes, compute = int(plan[i].sum()), float(self.rate[i] @ plan[i])
            if job.synchronous is None:
                out[i] = job.curve.throughput(nodes)
            elif compute > 0 and job.synchronous.step_samples > 0:
                ring = job.synchronous.exchange_s * (nodes - 1) / nodes
                out[i] = job.synchronous.step_samples / (job.synchronous.step_samples / compute + ring)
        return out

    def key(self, plan: Ints, current: Ints) -> tuple[float, int, int]:
        """Less is better: weighted completion times, then changed jobs, then nodes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(self.work() > 0, self.work() / self.speeds(plan), 0.0)
        counts = plan.sum(axis=1)
        return (float(times.sum()), int((counts != current).sum()), int(counts.sum()))

    def answer(self, problem: Problem, plan: Ints, even: Ints, tried: int) -> Sizes:
        counts = dict(zip((job.id for job in self.jobs), plan.sum(axis=1).tolist(), strict=True))
        sizes: dict[JobId, int] = {job.id: counts.get(job.id, 0) for job in problem.in_order()}
        table = value_table(problem)
        with np.errstate(divide="ignore", invalid="ignore"):
            against = np.nan_to_num(self.speeds(plan) / self.speeds(even), nan=0.0, posinf=0.0)
        squares = float(len(against) * (against**2).sum())
        jain = float(against.sum() ** 2) / squares if squares > 0 else 1.0
        classes = {
            job.id: {name: k for name, k in zip(self.names, row, strict=True) if k}
            for job, row in zip(self.jobs, plan.tolist(), strict=True)
        }
        return Sizes(
            SizingStatus.FEASIBLE,
            table.worth(table.rows_of(sizes)),
            math.inf,
            sizes,
            f"least completion time of {tried} categories; Jain's index against an equal split {jain:.3f}",
            {"categories": tried},
            classes=classes if problem.classes else {},
        )
