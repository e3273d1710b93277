"""The papers' policies beside their papers' claims.

    python -m scripts.bench.policies [matching,classes,budget,batch,efficiency,fairness,deadline] \
        [--pollux ../shared/data/pollux]
                           [--instances 500] [--workloads 8] [--json FILE]

matching    against enumeration on random instances, with the default's solver for classes on the same objective, and
            time against the exact programme in HiGHS
classes     nodes of three classes with Gavel's measurements, against classes split beforehand; 1,000 jobs on 10,000
            nodes of four classes
budget      mean completion at equal GPU-hours on the Pollux workloads, against pools of `equal` and `efficiency`, and
            against a tuned threshold and a tuned width that rent without limit too
batch       `elastic_batch` against the same without choice of batch, arrivals at a half to eight times their rate
efficiency  time and node-time to the size at which the search settles
deadline    deadlines met on the Pollux workloads, against the most speed-up and an equal split
fairness    throughput against Jain's index for alpha 0, .5 and 1 on the ImageNet mix

Ratios come with 95 % bootstrap intervals over workloads or instances. Workers are GPUs in the Pollux runs: its
measurements are by GPU (64 of them, four a node), with the step times of the placement on the fewest nodes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.domain.job import Curve
from malletrain.replay.curves import POLLUX_SAMPLES
from malletrain.sizing.class_values import class_table
from malletrain.sizing.papers.budget import Budget
from malletrain.sizing.papers.deadline import Deadline
from malletrain.sizing.papers.efficiency import Efficiency
from malletrain.sizing.papers.elastic_batch import ElasticBatch
from malletrain.sizing.papers.matching import Matching
from malletrain.sizing.policies.equal import Equal
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.goodput import Goodput
from malletrain.sizing.policies.milp.milp_policy import sized_by_class
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Due, JobDemand, JobId, NodeBudget, OnClasses, Problem, Sizes, Synchronous
from malletrain.sizing.values import ValueRowCache
from scripts.bench import sizing

GPUS = 64

Found = dict[str, Any]


def interval(values: list[float]) -> dict[str, float]:
    """The mean and its 95 % bootstrap interval."""
    random, sample = np.random.default_rng(1), np.array(values)
    draws = np.mean(random.choice(sample, size=(4000, len(sample))), axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return {"value": float(np.mean(sample)), "low": float(low), "high": float(high)}


def text(found: dict[str, float], digits: int = 2) -> str:
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


# -- matching --------------------------------------------------------------------------------------------------------


def market(random: np.random.Generator, jobs: int, supply: int, most_exchange_s: float = 1.0) -> Problem:
    """Jobs on two classes of up to `supply` nodes each, the newer one to four times as fast."""
    classes = {name: int(random.integers(max(1, supply // 2), supply + 1)) for name in ("old", "new")}
    nodes, demands = sum(classes.values()), []
    for i in range(min(jobs, nodes)):
        old = random.uniform(10, 100)
        steps = Synchronous(
            random.uniform(50, 500),
            {"old": old, "new": old * random.uniform(1, 4)},
            random.uniform(0, most_exchange_s),
        )
        demands.append(
            JobDemand(
                i, 0, 1, nodes, Curve.linear(nodes), weight=random.uniform(0.5, 2), synchronous=steps,
                remaining_samples=random.uniform(1e3, 1e5),
            )
        )  # fmt: skip
    return Problem(300.0, nodes, tuple(demands), classes=classes)


def completion(job: JobDemand, old: int, new: int) -> float:
    """The paper's weighted completion time of a job on so many nodes of each class."""
    of, k = job.synchronous, old + new
    assert of is not None and job.remaining_samples is not None
    step = of.step_samples / (of.class_rates["old"] * old + of.class_rates["new"] * new) + of.exchange_s * (k - 1) / k
    return job.weight * job.remaining_samples / of.step_samples * step


def total(problem: Problem, plan: Mapping[JobId, Mapping[str, int]]) -> float:
    return sum(completion(j, plan[j.id].get("old", 0), plan[j.id].get("new", 0)) for j in problem.jobs)


def enumerated(problem: Problem) -> float:
    """The least time over all plans: a dynamic programme over the nodes left of both classes, job by job."""
    olds, news = problem.classes["old"], problem.classes["new"]
    best = np.zeros((olds + 1, news + 1))
    for job in problem.jobs:
        here = np.full_like(best, np.inf)
        for a, b in itertools.product(range(olds + 1), range(news + 1)):
            if a + b:
                cost = completion(job, a, b)
                here[a:, b:] = np.minimum(here[a:, b:], best[: olds + 1 - a, : news + 1 - b] + cost)
        best = here
    return float(best[-1, -1])


def by_highs(problem: Problem, limit_s: float) -> tuple[float, bool]:
    """One binary for each job and pair of counts, in HiGHS: the least time found, and whether it is proven."""
    import highspy

    olds, news = problem.classes["old"], problem.classes["new"]
    pairs = [(a, b) for a in range(olds + 1) for b in range(news + 1) if a + b]
    jobs = len(problem.jobs)
    cost = np.array([completion(j, a, b) for j in problem.jobs for a, b in pairs])
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), jobs + 2
    model.col_cost_, model.col_lower_, model.col_upper_ = cost / cost.max(), np.zeros(len(cost)), np.ones(len(cost))
    model.row_lower_ = np.concatenate((np.ones(jobs), [-highspy.kHighsInf] * 2))
    model.row_upper_ = np.concatenate((np.ones(jobs), [olds, news]))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.arange(0, 3 * len(cost) + 1, 3, dtype=np.int32)
    index = np.array([[j, jobs, jobs + 1] for j in range(jobs) for _ in pairs], dtype=np.int32)
    model.a_matrix_.index_ = index.ravel()
    model.a_matrix_.value_ = np.array([[1.0, a, b] for _ in range(jobs) for a, b in pairs]).ravel()
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(cost)
    solver = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0), ("time_limit", limit_s)):
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver.getInfo().objective_function_value * cost.max(), proven


def by_class(problem: Problem) -> Mapping[JobId, Mapping[str, int]]:
    """The default's solver for nodes of several classes, on the paper's objective: its values are minus the weighted
    completion times, and a job without nodes is later than all others together."""
    table = class_table(replace(problem, jobs=tuple(replace(j, remaining_samples=None) for j in problem.jobs)))
    order = problem.in_order()
    work = np.array([j.weight * (j.remaining_samples or 0.0) for j in order])
    weight = np.array([j.weight for j in order])
    of = table.values.row_job
    rate = table.values.value / (problem.horizon_s * weight[of])
    late = np.where(rate > 0, -work[of] / np.maximum(rate, 1e-300), 0.0)
    least = np.array([late[table.values.start[i] + 1 : table.values.start[i + 1]].min() for i in range(len(order))])
    late[table.values.start[:-1]] = 2.0 * least.sum()
    timed = replace(table, values=replace(table.values, value=late))
    return sized_by_class(problem, timed).classes


def matching(args: argparse.Namespace) -> Found:
    found: Found = {"paper": "2.04 % above the optimum; orders of magnitude faster than a solver"}
    for rings in ("fast rings", "slow rings"):
        for text_of in args.markets.split(","):
            jobs, supply = (int(part) for part in text_of.split("x"))
            count = max(10, min(args.instances, args.instances * 27 // (jobs * supply)))
            found |= _market(jobs, supply, count, 1.0 if rings == "fast rings" else 20.0, rings)
    return found


def _market(jobs: int, supply: int, count: int, most_exchange_s: float, rings: str) -> Found:
    gaps: dict[str, list[float]] = {"matching": [], "default": []}
    ms: dict[str, list[float]] = {"matching": [], "default": [], "HiGHS": []}
    for seed in range(count):
        problem = market(np.random.default_rng(seed), jobs, supply, most_exchange_s)
        least = enumerated(problem)
        for name, solve in (("matching", lambda p: Matching().size(p).classes), ("default", by_class)):
            begin = time.process_time()
            plan = solve(problem)
            ms[name].append(1e3 * (time.process_time() - begin))
            gaps[name].append(100 * (total(problem, plan) / least - 1))
        if seed < 5 and jobs * supply <= 300:
            begin = time.process_time()
            by_highs(problem, 30.0)
            ms["HiGHS"].append(1e3 * (time.process_time() - begin))
    line: dict[str, Any] = {"instances": count}
    for name, values in gaps.items():
        line[name] = {
            "mean_gap_percent": interval(values), "max_gap_percent": max(values), "ms": float(np.median(ms[name])),
            "optimal_share": float(np.mean(np.array(values) < 1e-6)),
        }  # fmt: skip
        said = line[name]
        print(f"{rings}, {jobs} jobs x {supply} nodes a class: {name} above the optimum mean "
              f"{text(said['mean_gap_percent'])} %, max {max(values):.2f} %, optimal {said['optimal_share']:.0%}, "
              f"{said['ms']:.0f} ms ({count} instances)", flush=True)  # fmt: skip
    if ms["HiGHS"]:
        line["HiGHS_ms"] = float(np.median(ms["HiGHS"]))
        print(f"    one binary for each job and pair of counts, in HiGHS: {line['HiGHS_ms']:.0f} ms", flush=True)
    return {f"{rings}, {jobs} jobs, 2 x {supply} nodes": line}


# -- nodes of several classes ----------------------------------------------------------------------------------------


def gavel_curves(folder: Path) -> dict[str, dict[str, Curve]]:
    """Steps/s of each model configuration by GPU type and GPUs, as measured for Gavel; on the machine with the
    workers close together."""
    rates: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    with gzip.open(folder / "throughputs.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if float(row["steps_per_s"]) > 0 and row["consolidated"] == "yes":
                config = f"{row['model']}:{row['batch_size']}"
                rates[config][row["gpu_type"]][int(row["gpus"])] = float(row["steps_per_s"])
    return {
        config: {name: Curve(tuple(sorted(by_gpus.items()))) for name, by_gpus in of.items()}
        for config, of in rates.items()
        if len(of) == 3 and all(1 in by_gpus for by_gpus in of.values())
    }


def class_problem(
    random: np.random.Generator, jobs: int, nodes: int, curves: dict[str, dict[str, Curve]], spans: bool
) -> Problem:
    """Jobs of Gavel's models on three GPU types, each worth its speed-up over one of the slowest."""
    configs, names = sorted(curves), sorted(next(iter(curves.values())))
    demands = []
    for i in range(jobs):
        of = curves[configs[int(random.integers(len(configs)))]]
        one = min(of[name].throughput(1) for name in names)
        each = {name: Curve(tuple((k, rate / one) for k, rate in of[name].points)) for name in names}
        slow = min(names, key=lambda name: of[name].throughput(1))
        demands.append(JobDemand(i, 0, 1, 8, each[slow], on_classes=OnClasses(each, spans=spans)))
    return Problem(300.0, 3 * nodes, tuple(demands), classes=dict.fromkeys(names, nodes))


def split_by_class(problem: Problem) -> float:
    """The objective where each job is put on one class beforehand, in turn on that which it gains most by for what is
    left, and each class is then sized exactly by itself."""
    names = sorted(problem.classes)
    share = {name: problem.classes[name] / max(1.0, len(problem.jobs) / len(names)) for name in names}
    left = {name: float(problem.classes[name]) for name in names}
    mine: dict[str, list[JobDemand]] = defaultdict(list)

    def gain(job: JobDemand) -> float:
        assert job.on_classes is not None
        ones = sorted((curve.throughput(1) for curve in job.on_classes.curves.values()), reverse=True)
        return ones[0] / ones[1]

    for job in sorted(problem.jobs, key=lambda job: -gain(job)):
        assert job.on_classes is not None
        free = [name for name in names if left[name] >= share[name] * 0.5] or names
        best = max(free, key=lambda name: job.on_classes.curves[name].throughput(1))  # type: ignore[union-attr]
        left[best] -= share[best]
        mine[best].append(replace(job, curve=job.on_classes.curves[best], on_classes=None))
    return sum(
        Exact().size(Problem(problem.horizon_s, problem.classes[name], tuple(mine[name]))).objective for name in names
    )


def large_classes(seed: int) -> Problem:
    """1,000 jobs on 10,000 nodes of four classes: ImageNet curves, each model up to four times as fast on another
    class; seven tenths of the jobs train already."""
    random = np.random.default_rng(seed)
    names = [f"class{q}" for q in range(4)]
    left, demands = dict.fromkeys(names, 2500), []
    for i in range(1000):
        speed, bend = random.uniform(1, 4, 4), random.uniform(0.9, 1.0)
        base = sizing.IMAGENET[i % 7].over_one().points
        curves = {
            name: Curve(tuple((k, rate * float(f) * k ** (bend - 1)) for k, rate in base))
            for name, f in zip(names, speed, strict=True)
        }
        held: dict[str, int] = {}
        if random.random() < 0.7:
            name = names[int(random.integers(4))]
            take = min(left[name], int(random.integers(1, 20)))
            held = {name: take} if take else {}
            left[name] -= take
        demands.append(
            JobDemand(
                i, sum(held.values()), 1, 64, curves["class0"], grow_s=0.3, shrink_s=0.1, activate_s=5.0,
                on_classes=OnClasses(curves, held),
            )
        )  # fmt: skip
    return Problem(300.0, 10_000, tuple(demands), classes=dict.fromkeys(names, 2500))


def classes(args: argparse.Namespace) -> Found:
    found: Found = {}
    curves = gavel_curves(args.gavel)
    count = max(5, args.instances // 25)
    for jobs, nodes in ((8, 8), (30, 32), (100, 128)):
        over, mixed, gaps, ms = [], [], [], []
        for seed in range(count):
            problem = class_problem(np.random.default_rng(seed), jobs, nodes, curves, spans=False)
            begin = time.process_time()
            answer = Exact().size(problem)
            ms.append(1e3 * (time.process_time() - begin))
            gaps.append(100 * (answer.bound / answer.objective - 1))
            over.append(answer.objective / split_by_class(problem))
            spanning = class_problem(np.random.default_rng(seed), jobs, nodes, curves, spans=True)
            mixed.append(Exact().size(spanning).objective / answer.objective)
        split, both = interval(over), interval(mixed)
        found[f"{jobs} jobs, 3 x {nodes}"] = {
            "over_split": split, "mixtures_over_one_class": both, "max_gap_percent": max(gaps),
            "ms": float(np.median(ms)),
        }  # fmt: skip
        print(f"classes, {jobs} jobs on 3 x {nodes} GPUs of Gavel's types: {text(split, 3)} times what classes split "
              f"beforehand train; jobs that span classes {text(both, 3)} times that; proven within "
              f"{max(gaps):.4f} %; {np.median(ms):.0f} ms ({count} instances)", flush=True)  # fmt: skip
    ms, gaps = [], []
    Exact().size(class_problem(np.random.default_rng(0), 8, 8, curves, spans=False))  # solvers are loaded by now
    for seed in range(9):
        problem = large_classes(seed)
        begin = time.process_time()
        answer = Exact().size(problem)
        ms.append(1e3 * (time.process_time() - begin))
        gaps.append(100 * (answer.bound / answer.objective - 1))
    found["1,000 jobs, 4 x 2,500"] = {"ms": ms, "gap_percent": gaps}
    print(f"classes, 1,000 jobs on 4 x 2,500 nodes: median {np.median(ms):.0f} ms, worst {max(ms):.0f} ms of "
          f"processor time; proven within {max(gaps):.4f} %", flush=True)  # fmt: skip
    return found


# -- Pollux's measurements -------------------------------------------------------------------------------------------


class Pollux:
    """Samples/s of each model by GPUs and batch, and the workloads."""

    def __init__(self, folder: Path) -> None:
        step: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        spread: dict[tuple[str, int, int], int] = {}
        for name in ("placements.csv.gz", "scalability.csv.gz"):
            with gzip.open(folder / name, "rt") as file:
                for row in csv.DictReader(file):
                    app, gpus, local = row["app"], int(row["gpus"]), int(row["local_bsz"])
                    nodes = int(row["nodes"])
                    if nodes <= spread.get((app, gpus, local), 99):
                        spread[app, gpus, local] = nodes
                        step[app][gpus][local] = float(row["step_time_s"])
        self._step, self._folder = step, folder
        self._noise: dict[str, tuple[tuple[float, float], ...]] = {}
        self.workloads: dict[int, list[dict[str, str]]] = defaultdict(list)
        with gzip.open(folder / "workloads-realistic.csv.gz", "rt") as file:
            for row in csv.DictReader(file):
                self.workloads[int(row["workload"])].append(row)

    def curve(self, app: str, batch: int, most: int = GPUS) -> Curve:
        """Throughput at a fixed batch over GPUs: step times between measured batches on a line. Sizes at which the
        batch does not fit, or was not measured, train as much as the next smaller one."""
        points: list[tuple[int, float]] = []
        best = 0.0
        for gpus, by_local in sorted(self._step[app].items()):
            if gpus > most:
                continue
            locals_ = np.array(sorted(by_local), dtype=np.float64)
            each = batch / gpus
            if locals_[0] <= each <= locals_[-1]:
                best = batch / float(np.interp(each, locals_, [by_local[int(b)] for b in locals_]))
            elif each < locals_[0] and points:  # fewer samples a GPU than was measured: no faster
                best = max(best, batch / by_local[int(locals_[0])])
            elif each > locals_[-1]:  # too large for so few GPUs: accumulated in several passes
                passes = math.ceil(each / locals_[-1])
                best = batch / (
                    passes * float(np.interp(each / passes, locals_, [by_local[int(b)] for b in locals_]))
                )
            points.append((gpus, best))
        return Curve(tuple(points))

    def noise(self, app: str) -> tuple[tuple[float, float], ...]:
        """(progress, noise scale in samples) over a training at the smallest batch, progress as a part of the whole:
        b0 var / sqr of the gradients, as measured."""
        if app not in self._noise:
            first, rows = self.batches(app)[0], []
            with gzip.open(self._folder / "validation.csv.gz", "rt") as file:
                for row in csv.DictReader(file):
                    if row["app"] == app and int(row["batch_size"]) == first and float(row["grad_sqr"]) > 0:
                        scale = first * float(row["grad_var"]) / float(row["grad_sqr"])
                        rows.append((float(row["progress"]), scale))
            last = max(at for at, _ in rows)
            self._noise[app] = tuple((at / last, scale) for at, scale in sorted(rows))
        return self._noise[app]

    def batches(self, app: str) -> tuple[int, ...]:
        """From the smallest batch on one GPU up to 32 times as much, doubling."""
        first = {"bert": 12, "cifar10": 128, "deepspeech2": 20, "imagenet": 200, "ncf": 256, "yolov3": 8}[app]
        return tuple(first * 2**i for i in range(6))


@dataclass
class Running:
    """A job of the simulation."""

    id: int
    app: str
    submit_s: float
    left: float
    batches: tuple[tuple[int, Curve], ...]
    curve: Curve
    size: int = 0
    rate: float = 0.0
    stalled_until: float = 0.0
    held_s: float = 0.0
    finished: float = math.nan
    due: float = math.inf
    own_batch: int = 0
    noise: tuple[tuple[float, float], ...] = ()  #: by progress; none: samples of any batch count alike
    whole: float = 0.0

    @property
    def noise_scale(self) -> float | None:
        """Now."""
        if not self.noise:
            return None
        return float(np.interp(1 - self.left / self.whole, [at for at, _ in self.noise], [s for _, s in self.noise]))

    def worth(self, batch: int) -> float:
        """Of a sample at that batch, over one of the smallest."""
        scale = self.noise_scale
        return 1.0 if scale is None else (scale + self.batches[0][0]) / (scale + batch)


def simulate(jobs: list[Running], policy: Policy, gpus: int, until: float, stall_s: float) -> None:
    """Jobs on a fixed pool: sized anew at every arrival and completion; a change of size costs a stall."""
    waiting = sorted(jobs, key=lambda j: (j.submit_s, j.id))
    live: list[Running] = []
    now = 0.0
    while waiting or live:
        ends = [max(now, j.stalled_until) + j.left / j.rate for j in live if j.rate > 0]
        nxt = min([*ends, waiting[0].submit_s if waiting else math.inf, until])
        for j in live:
            running = max(0.0, nxt - max(now, j.stalled_until))
            j.left -= j.rate * running
            j.held_s += j.size * (nxt - now)
        now = nxt
        if now >= until:
            return
        for j in live:
            if j.rate > 0 and j.left <= j.rate * 1e-6:
                j.finished = now
        live = [j for j in live if math.isnan(j.finished)]
        while waiting and waiting[0].submit_s <= now:
            live.append(waiting.pop(0))
        demands = tuple(
            JobDemand(
                j.id,
                j.size,
                1,
                gpus,
                j.curve,
                batches=j.batches,
                noise_scale=j.noise_scale,
                remaining_samples=None,
                sizes=_sizes(j.curve),
                weight=1 / j.curve.throughput(_sizes(j.curve)[0]),
                due=None if j.due == math.inf else Due(max(0.0, j.due - now), max(0.0, j.left)),
            )
            for j in live
        )
        answer = policy.size(Problem(300.0, gpus, demands))
        for j in live:
            size = answer.sizes[j.id]
            by_batch = dict(j.batches)
            batch = answer.batches.get(j.id, j.own_batch)
            rate = by_batch.get(batch, j.curve).throughput(size) * (j.worth(batch) if batch else 1.0)
            if size != j.size and size and j.size:
                j.stalled_until = now + stall_s
            j.size, j.rate = size, rate


def _sizes(curve: Curve) -> tuple[int, ...]:
    return tuple(n for n, rate in curve.points if rate > 0)


class FixedBatch(Policy):
    """`elastic_batch` without its choice: the paper's baseline."""

    name = "fixed_batch"

    def size(self, problem: Problem, cache: ValueRowCache | None = None) -> Sizes:
        fixed = replace(problem, jobs=tuple(replace(j, batches=()) for j in problem.jobs))
        return ElasticBatch().size(fixed, cache)


def batch(args: argparse.Namespace) -> Found:
    """Twice: where samples of any batch count alike, as in the paper, and where they count by the measured statistics
    of the gradients. In the second `goodput` chooses by what a sample is worth, too."""
    pollux = Pollux(args.pollux)
    found: Found = {"paper": "up to about 2x as many jobs completed, up to about 10x faster average completion"}
    curves = {app: tuple((b, pollux.curve(app, b)) for b in pollux.batches(app)) for app in POLLUX_SAMPLES}
    cases: tuple[tuple[str, Policy, bool], ...] = (
        ("all samples alike", ElasticBatch(), False), ("by gradient statistics", ElasticBatch(), True),
        ("goodput, by gradient statistics", Goodput(), True),
    )  # fmt: skip
    for rate, (name, policy, worth) in itertools.product((0.5, 1, 2, 4, 8), cases):
        done, mean = [], []
        for number in range(1, args.workloads + 1):
            outcome = []
            for each in (policy, FixedBatch()):
                jobs = []
                for i, row in enumerate(pollux.workloads[number]):
                    app, asked = row["app"], int(row["batch_size"])
                    own = min(curves[app], key=lambda option: abs(option[0] - asked))
                    noise = pollux.noise(app) if worth else ()
                    jobs.append(
                        Running(
                            i, app, float(row["submit_s"]) / rate, POLLUX_SAMPLES[app] * args.scale, curves[app],
                            own[1], own_batch=own[0], noise=noise, whole=POLLUX_SAMPLES[app] * args.scale,
                        )
                    )  # fmt: skip
                until = 8 * 3600.0 / rate + 2 * 3600.0
                simulate(jobs, each, GPUS, until, 10.0)
                spent = [(until if math.isnan(j.finished) else j.finished) - j.submit_s for j in jobs]
                outcome.append((sum(not math.isnan(j.finished) for j in jobs), float(np.mean(spent))))
            done.append(outcome[0][0] / max(1, outcome[1][0]))
            mean.append(outcome[1][1] / outcome[0][1])
        line = {"completed_ratio": interval(done), "mean_completion_ratio": interval(mean)}
        found[f"{name}, arrivals x {rate}"] = line
        print(f"batch, {name}, arrivals x {rate}: {text(line['completed_ratio'])} times the jobs completed, mean "
              f"completion {text(line['mean_completion_ratio'])} times shorter than with users' own batches "
              f"({args.workloads} workloads)", flush=True)  # fmt: skip
    return found


def budget(args: argparse.Namespace) -> Found:
    """Everyone at equal GPU-seconds: what the other has used is the budget."""
    pollux = Pollux(args.pollux)
    curves = {app: pollux.curve(app, pollux.batches(app)[3]) for app in POLLUX_SAMPLES}
    found: Found = {"paper": "mean completion 1.6x lower in experiments, 2x in large simulations, at equal budget"}
    ratios: dict[str, list[float]] = defaultdict(list)
    for name, policy, gpus in (
        ("equal split of 16 GPUs", Equal(), 16), ("equal split of 64 GPUs", Equal(), 64),
        ("efficiency on 64 GPUs", Efficiency(), 64), ("efficiency above .5 on 64 GPUs", Efficiency(0.5), 64),
    ):  # fmt: skip
        for number in range(1, args.workloads + 1):
            rows = pollux.workloads[number]
            jobs = [
                Running(
                    i,
                    row["app"],
                    float(row["submit_s"]),
                    POLLUX_SAMPLES[row["app"]] * args.scale,
                    (),
                    curves[row["app"]],
                )
                for i, row in enumerate(rows)
            ]
            simulate(jobs, policy, gpus, math.inf, 10.0)
            used = sum(j.held_s for j in jobs)
            other = float(np.mean([j.finished - j.submit_s for j in jobs]))
            demands = tuple(
                JobDemand(
                    j.id, 0, 1, GPUS, j.curve, sizes=_sizes(j.curve),
                    remaining_samples=POLLUX_SAMPLES[j.app] * args.scale,
                )
                for j in jobs
            )  # fmt: skip
            # The paper rents without limit: as many GPUs as all jobs at once could take.
            rented = Problem(
                300.0, GPUS * len(jobs), demands, budgets=(NodeBudget("all", frozenset(j.id for j in jobs), used),)
            )
            widths = Budget().size(rented).sizes
            spent = sum(widths[j.id] * _seconds(j, widths[j.id], args.scale) for j in jobs)
            assert spent <= used * (1 + 1e-9)
            ours = float(np.mean([_seconds(j, widths[j.id], args.scale) for j in jobs]))
            ratios[name].append(other / ours)
            for rule, ladder in (("threshold", thresholds), ("one width", one_widths)):
                theirs = _mixed(jobs, {app: ladder(curve) for app, curve in curves.items()}, used, args.scale)
                ratios[f"{rule} that rents, GPU-hours of the {name}"].append(theirs / ours)
        for each in [each for each in ratios if each.endswith(name)]:
            found[each] = interval(ratios[each])
            print(f"budget: mean completion {text(found[each])} times shorter than {each}", flush=True)
    return found


def _rising(curve: Curve) -> list[int]:
    """The sizes that train more than every smaller one."""
    found: list[int] = []
    for k in _sizes(curve):
        if not found or curve.throughput(k) > curve.throughput(found[-1]):
            found.append(k)
    return found


def thresholds(curve: Curve) -> list[tuple[float, int]]:
    """Sizes by falling efficiency: beyond which threshold of scaling efficiency (Or et al.) a job goes on to each."""
    sizes = _rising(curve)
    steps = [(math.inf, sizes[0])]
    for less, more in itertools.pairwise(sizes):
        a, b = curve.throughput(less), curve.throughput(more)
        steps.append((min(((b - a) / (more - less)) / (a / less), steps[-1][0]), more))
    return steps


def one_widths(curve: Curve) -> list[tuple[float, int]]:
    """The same width for all jobs, or the next smaller that they may have; wider for a lower number."""
    sizes = _rising(curve)
    return [(1.0 / k, max((n for n in sizes if n <= k), default=sizes[0])) for k in range(1, GPUS + 1)]


def _mixed(jobs: list[Running], ladders: Mapping[str, list[tuple[float, int]]], budget: float, scale: float) -> float:
    """The least mean completion of a rule with one number, tuned in hindsight to the budget: of any two numbers the
    wider in the order of ids while the budget lasts, as `budget` mixes."""
    tuned = []
    for least in sorted({gain for ladder in ladders.values() for gain, _ in ladder}, reverse=True):
        at = {app: [k for gain, k in ladder if gain >= least] or [ladder[0][1]] for app, ladder in ladders.items()}
        seconds = np.array([_seconds(j, at[j.app][-1], scale) for j in jobs])
        tuned.append((seconds, seconds * np.array([at[j.app][-1] for j in jobs])))
    best = math.inf
    for (slow, lean), (fast, wide) in itertools.product(tuned, tuned):
        left, spent = budget - float(lean.sum()), 0.0
        if left < 0:
            continue
        for own, other, more in zip(slow.tolist(), fast.tolist(), (wide - lean).tolist(), strict=True):
            taken = more <= left and other < own
            left -= more if taken else 0.0
            spent += other if taken else own
        best = min(best, spent / len(jobs))
    return best


def _seconds(job: Running, width: int, scale: float) -> float:
    rate = job.curve.throughput(width)
    return POLLUX_SAMPLES[job.app] * scale / rate if rate > 0 else math.inf


def efficiency(args: argparse.Namespace) -> Found:
    """The search for the size: up by doubling, each size measured for a minute, settled at the last that passed."""
    pollux = Pollux(args.pollux)
    found: Found = {
        "paper": "target found in 61 / 264 s on average, < 2 % / < 6 % of the total time; JCT -45 %, GPU time -85 %"
    }
    measure_s, stall_s = 60.0, 10.0
    shares, node_shares, seconds, jct, node, over_widest = [], [], [], [], [], []
    for app, samples in POLLUX_SAMPLES.items():
        curve = pollux.curve(app, pollux.batches(app)[3])
        sizes = [k for k in (1, 2, 4, 8, 16, 32, 64) if curve.throughput(k) > 0]
        demand = JobDemand(0, 0, sizes[0], sizes[-1], curve, sizes=tuple(sizes))
        target = Efficiency().size(Problem(300.0, GPUS, (demand,))).sizes[0]
        tried = sizes[: min(sizes.index(target) + 2, len(sizes))]
        left, searched, held = samples * args.scale, 0.0, 0.0
        for k in tried[:-1] if tried[-1] == target else tried:
            left -= curve.throughput(k) * measure_s
            searched += measure_s + stall_s
            held += k * (measure_s + stall_s)
        rest = max(left, 0.0) / curve.throughput(target)
        whole, all_held = searched + rest, held + target * rest
        fixed = samples * args.scale / curve.throughput(4)
        widest = samples * args.scale / curve.throughput(sizes[-1]) * sizes[-1]
        shares.append(100 * searched / whole)
        node_shares.append(100 * held / all_held)
        seconds.append(searched)
        jct.append(100 * (1 - whole / fixed))
        node.append(100 * (1 - all_held / widest))
        over_widest.append(whole / (samples * args.scale / curve.throughput(sizes[-1])))
        print(f"efficiency {app}: settles at {target} GPUs after {searched:.0f} s ({shares[-1]:.1f} % of the time, "
              f"{node_shares[-1]:.1f} % of the GPU time); completion {jct[-1]:+.0f} % shorter than on four GPUs, "
              f"{over_widest[-1]:.2f} times that on {sizes[-1]}; GPU time {node[-1]:.0f} % less",
              flush=True)  # fmt: skip
    found |= {"search_s": interval(seconds), "share_percent": interval(shares),
              "gpu_share_percent": interval(node_shares), "jct_saved_percent": interval(jct),
              "gpu_time_saved_percent": interval(node), "completion_over_widest": interval(over_widest)}  # fmt: skip
    print(f"efficiency: found after {text(found['search_s'], 0)} s, {text(found['share_percent'], 1)} % of the time, "
          f"{text(found['gpu_share_percent'], 1)} % of the GPU time; completion "
          f"{text(found['jct_saved_percent'], 0)} % shorter than on four GPUs", flush=True)  # fmt: skip
    return found


def fairness(args: argparse.Namespace) -> Found:
    """Speed-up and Jain's index of the jobs' speed-ups, by alpha; jobs and nodes as in the published mix."""
    found: Found = {}
    for jobs, nodes in ((14, 84), (100, 1000), (10, 256)):
        demands = tuple(JobDemand(i, 0, 1, 64, sizing.IMAGENET[i % 7]) for i in range(jobs))
        least = None
        for alpha in (0.0, 0.5, 1.0):
            sizes = Exact().size(Problem(300.0, nodes, demands, alpha=alpha)).sizes
            speed = np.array([j.curve.throughput(sizes[j.id]) for j in demands])
            least = least or float(speed.sum())
            jain = float(speed.sum() ** 2 / (len(speed) * (speed**2).sum()))
            found[f"{jobs} x {nodes}, alpha {alpha:g}"] = {"throughput": float(speed.sum()) / least, "jain": jain}
            print(f"fairness {jobs} jobs, {nodes} nodes, alpha {alpha:g}: {speed.sum() / least:.3f} of the speed-up, "
                  f"Jain {jain:.2f}, sizes {min(sizes.values())}-{max(sizes.values())}", flush=True)  # fmt: skip
    return found


def deadline(args: argparse.Namespace) -> Found:
    """Deadlines of one to four times what a job takes alone on four GPUs: the share of them that is met."""
    pollux = Pollux(args.pollux)
    curves = {app: pollux.curve(app, pollux.batches(app)[3]) for app in POLLUX_SAMPLES}
    found: Found = {"source": "ElasticFlow: 1.46-7.65 times as many deadlines met as the systems it is compared with"}
    for gpus in (16, 32, 64):
        line = {}
        for policy in (Deadline(), Exact(), Equal()):
            met = []
            for number in range(1, args.workloads + 1):
                random, jobs = np.random.default_rng(number), []
                for i, row in enumerate(pollux.workloads[number]):
                    app, at = row["app"], float(row["submit_s"])
                    samples = POLLUX_SAMPLES[app] * args.scale
                    due = at + random.uniform(1, 4) * samples / curves[app].throughput(4)
                    jobs.append(Running(i, app, at, samples, (), curves[app], due=due))
                simulate(jobs, policy, gpus, 1e6, 10.0)
                met.append(float(np.mean([j.finished <= j.due for j in jobs])))
            line[policy.name] = interval(met)
        found[f"{gpus} GPUs"] = line
        said = ", ".join(f"{name} {text(share)}" for name, share in line.items())
        print(f"deadline, {gpus} GPUs: share of deadlines met: {said}", flush=True)
    return found


PARTS = {"matching": matching, "classes": classes, "budget": budget, "batch": batch, "efficiency": efficiency,
         "fairness": fairness, "deadline": deadline}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", default=",".join(PARTS))
    parser.add_argument(
        "--pollux", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data" / "pollux"
    )
    parser.add_argument(
        "--gavel", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data" / "gavel"
    )
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--markets", default="3x4,6x12,10x24,20x48", help="jobs x nodes of either class")
    parser.add_argument("--workloads", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0, help="length of the jobs, as a part of Pollux's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {part: PARTS[part](args) for part in args.parts.split(",")}
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
