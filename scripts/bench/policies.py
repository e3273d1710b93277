"""The papers' policies beside their papers' claims, on named data.

    python -m scripts.bench.policies [PART ...] [--count 4] [--data ../shared/data] [--write]

malletrain  jobs of unknown curves against an oracle, and against perfect scaling (see `scripts.bench.advisor`)
bftrainer   against its objective, an equal split and one node a job, on Summit's idle nodes
batch       `elastic_batch` and `goodput` against the same without choice of batch, on the Pollux workloads
matching    against the optimum by enumeration, with the default's solver for classes on the same objective
classes     nodes of three classes with Gavel's measurements, against classes split beforehand; 1,000 jobs on 10,000
            nodes of four classes
budget      mean completion at equal GPU-hours on the Pollux workloads, against a pool of `equal`, and against a tuned
            threshold that rents without limit too
efficiency  time and node-time to the size at which the search settles
fairness    throughput against Jain's index for alpha 0, .5 and 1 on the ImageNet mix

What was measured has the mean and its 95 % bootstrap interval over workloads or instances. Workers are GPUs in the
Pollux runs: its measurements are by GPU (64 of them, four a node), with the step times of the placement on the fewest
nodes. `--write` puts the table of all parts into docs/figures.md.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from malletrain.domain.job import Curve, ResizeCosts
from malletrain.replay import Window, cluster_trace, mix, parse_policy, read_trace, replay
from malletrain.replay.workload import POLLUX_SAMPLES
from malletrain.sizing.class_values import class_table
from malletrain.sizing.papers.budget import Budget
from malletrain.sizing.papers.efficiency import Efficiency
from malletrain.sizing.papers.elastic_batch import ElasticBatch
from malletrain.sizing.papers.matching import Matching
from malletrain.sizing.policies.equal import Equal
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.goodput import Goodput
from malletrain.sizing.policies.milp.milp_policy import sized_by_class
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobDemand, JobId, NodeBudget, OnClasses, Problem, Synchronous
from scripts.bench import advisor, figures, sizing
from scripts.bench.published import gavel_rows, pollux_rows, rows_of
from scripts.bench.shared import bootstrap, data_options_of

GPUS = 64

#: Seconds that a change of size stalls a job of the Pollux workloads.
STALL_S = 10.0

#: A paper, what it claims, what was measured and against what, and the figure.
Row = tuple[str, str, str, str]


def text(values: list[float], digits: int = 2) -> str:
    """The mean and its 95 % bootstrap interval."""
    low, high = bootstrap(values)
    return f"{np.mean(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


# -- matching --------------------------------------------------------------------------------------------------------


def market(random: np.random.Generator, jobs: int, supply: int, most_exchange_s: float) -> Problem:
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
                i,
                0,
                1,
                nodes,
                Curve.linear(nodes),
                weight=random.uniform(0.5, 2),
                synchronous=steps,
                remaining_samples=random.uniform(1e3, 1e5),
            )
        )
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


def matching(data: Path, count: int) -> list[Row]:
    """Ten jobs on two classes of 24 nodes: above the optimum by the paper's market and by the default's solver, with
    rings that cost little and much."""
    rows: list[Row] = []
    head = "Liu et al. (TPDS 2024)", "within 2.04 % of the optimum"
    for rings, most_exchange_s in (("fast rings", 1.0), ("slow rings", 20.0)):
        gaps: dict[str, list[float]] = {"their market": [], "our default": []}
        for seed in range(5 * count):
            problem = market(np.random.default_rng(seed), 10, 24, most_exchange_s)
            least = enumerated(problem)
            gaps["their market"].append(100 * (total(problem, Matching().size(problem).classes) / least - 1))
            gaps["our default"].append(100 * (total(problem, by_class(problem)) / least - 1))
        rows += [(*head, f"% above it, {name}, {rings}", text(values)) for name, values in gaps.items()]
    return rows


# -- nodes of several classes ----------------------------------------------------------------------------------------


def gavel_curves(data: Path) -> dict[str, dict[str, Curve]]:
    """Steps/s of each model configuration by GPU type and GPUs, as measured for Gavel; on the machine with the
    workers close together."""
    rates: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in gavel_rows(data):
        if row.consolidated:
            rates[f"{row.model}:{row.batch}"][row.gpu_type][row.gpus] = row.steps_per_s
    return {
        config: {name: Curve(tuple(sorted(by_gpus.items()))) for name, by_gpus in of.items()}
        for config, of in rates.items()
        if len(of) == 3 and all(1 in by_gpus for by_gpus in of.values())
    }


def class_problem(random: np.random.Generator, jobs: int, nodes: int, curves: dict[str, dict[str, Curve]]) -> Problem:
    """Jobs of Gavel's models on three GPU types, each worth its speed-up over one of the slowest."""
    configs, names = sorted(curves), sorted(next(iter(curves.values())))
    demands = []
    for i in range(jobs):
        of = curves[configs[int(random.integers(len(configs)))]]
        one = min(of[name].throughput(1) for name in names)
        each = {name: Curve(tuple((k, rate / one) for k, rate in of[name].points)) for name in names}
        slow = min(names, key=lambda name: of[name].throughput(1))
        demands.append(JobDemand(i, 0, 1, 8, each[slow], on_classes=OnClasses(each)))
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
                i,
                sum(held.values()),
                1,
                64,
                curves["class0"],
                grow_s=0.3,
                shrink_s=0.1,
                activate_s=5.0,
                on_classes=OnClasses(curves, held),
            )
        )
    return Problem(300.0, 10_000, tuple(demands), classes=dict.fromkeys(names, 2500))


def classes(data: Path, count: int) -> list[Row]:
    """Thirty jobs on three types of 32 GPUs each; and what is proven of a thousand jobs on ten thousand nodes."""
    curves = gavel_curves(data)
    over = []
    for seed in range(2 * count):
        problem = class_problem(np.random.default_rng(seed), 30, 32, curves)
        over.append(Exact().size(problem).objective / split_by_class(problem))
    ms, gaps = [], []
    for seed in range(9):
        problem = large_classes(seed)
        begin = time.process_time()
        answer = Exact().size(problem)
        ms.append(1e3 * (time.process_time() - begin))
        gaps.append(100 * (answer.bound / answer.objective - 1))
    print(
        f"1,000 jobs on 4 x 2,500 nodes: median {np.median(ms):.0f} ms, worst {max(ms):.0f} ms of processor time; "
        f"proven within {max(gaps):.4f} %",
        flush=True,
    )
    head = "Liu et al. (TPDS 2024)", "within 2.04 % of the optimum"
    return [(*head, "times classes split beforehand, 3 x 32 GPUs", text(over))]


# -- Pollux's measurements -------------------------------------------------------------------------------------------


class Pollux:
    """Samples/s of each model by GPUs and batch, and the workloads."""

    def __init__(self, data: Path) -> None:
        step: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        spread: dict[tuple[str, int, int], int] = {}
        for row in pollux_rows(data):
            if row.nodes <= spread.get((row.app, row.gpus, row.batch), 99):
                spread[row.app, row.gpus, row.batch] = row.nodes
                step[row.app][row.gpus][row.batch] = row.step_s
        self._step, self._data = step, data
        self.workloads: dict[int, list[dict[str, str]]] = defaultdict(list)
        for job in rows_of(data / "pollux" / "workloads-realistic.csv.gz"):
            self.workloads[int(job["workload"])].append(job)

    def curve(self, app: str, batch: int) -> Curve:
        """Throughput at a fixed batch over GPUs: step times between measured batches on a line. Sizes at which the
        batch does not fit, or was not measured, train as much as the next smaller one."""
        points: list[tuple[int, float]] = []
        best = 0.0
        for gpus, by_local in sorted(self._step[app].items()):
            if gpus > GPUS:
                continue
            locals_ = np.array(sorted(by_local), dtype=np.float64)
            each = batch / gpus
            if locals_[0] <= each <= locals_[-1]:
                best = batch / float(np.interp(each, locals_, [by_local[int(b)] for b in locals_]))
            elif each < locals_[0] and points:  # fewer samples a GPU than was measured: no faster
                best = max(best, batch / by_local[int(locals_[0])])
            elif each > locals_[-1]:  # too large for so few GPUs: accumulated in several passes
                passes = math.ceil(each / locals_[-1])
                step = float(np.interp(each / passes, locals_, [by_local[int(b)] for b in locals_]))
                best = batch / (passes * step)
            points.append((gpus, best))
        return Curve(tuple(points))

    @cache  # noqa: B019 - there is one for a run
    def noise(self, app: str) -> tuple[tuple[float, float], ...]:
        """(progress, noise scale in samples) over a training at the smallest batch, progress as a part of the whole:
        b0 var / sqr of the gradients, as measured."""
        first = self.batches(app)[0]
        measured = [
            (float(row["progress"]), first * float(row["grad_var"]) / float(row["grad_sqr"]))
            for row in rows_of(self._data / "pollux" / "validation.csv.gz")
            if row["app"] == app and int(row["batch_size"]) == first and float(row["grad_sqr"]) > 0
        ]
        last = max(at for at, _ in measured)
        return tuple((at / last, scale) for at, scale in sorted(measured))

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
    own_batch: int = 0
    noise: tuple[tuple[float, float], ...] = ()  #: by progress; none: samples of any batch count alike

    @property
    def noise_scale(self) -> float | None:
        """Now."""
        if not self.noise:
            return None
        progress = 1 - self.left / POLLUX_SAMPLES[self.app]
        return float(np.interp(progress, [at for at, _ in self.noise], [scale for _, scale in self.noise]))

    def worth(self, batch: int) -> float:
        """Of a sample at that batch, over one of the smallest."""
        scale = self.noise_scale
        return 1.0 if scale is None else (scale + self.batches[0][0]) / (scale + batch)


def simulate(jobs: list[Running], policy: Policy, until: float, *, fixed: bool = False) -> None:
    """Jobs on a fixed pool: sized anew at every arrival and completion; a change of size costs a stall. `fixed`: the
    policy does not choose batches."""
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
                GPUS,
                j.curve,
                batches=() if fixed else j.batches,
                noise_scale=j.noise_scale,
                sizes=_sizes(j.curve),
                weight=1 / j.curve.throughput(_sizes(j.curve)[0]),
            )
            for j in live
        )
        answer = policy.size(Problem(300.0, GPUS, demands))
        for j in live:
            size = answer.sizes[j.id]
            by_batch = dict(j.batches)
            batch = answer.batches.get(j.id, j.own_batch)
            rate = by_batch.get(batch, j.curve).throughput(size) * (j.worth(batch) if batch else 1.0)
            if size != j.size and size and j.size:
                j.stalled_until = now + STALL_S
            j.size, j.rate = size, rate


def _sizes(curve: Curve) -> tuple[int, ...]:
    return tuple(n for n, rate in curve.points if rate > 0)


def batch(data: Path, count: int) -> list[Row]:
    """Where samples of any batch count alike, as in the paper, and where they count by the measured statistics of the
    gradients; there `goodput` chooses by what a sample is worth, too."""
    pollux = Pollux(data)
    curves = {app: tuple((b, pollux.curve(app, b)) for b in pollux.batches(app)) for app in POLLUX_SAMPLES}
    head = "Saxena et al. (MASCOTS 2020)", "2x the jobs, up to 10x faster completion"
    cases: tuple[tuple[str, Policy, bool], ...] = (
        ("all samples alike", ElasticBatch(), False),
        ("by gradient statistics", ElasticBatch(), True),
        ("goodput, by gradient statistics", Goodput(), True),
    )
    rows: list[Row] = []
    until = 10 * 3600.0
    for name, policy, worth in cases:
        shorter = []
        for number in range(1, count + 1):
            mean = []
            for chooses in (True, False):
                jobs = []
                for i, row in enumerate(pollux.workloads[number]):
                    app, asked = row["app"], int(row["batch_size"])
                    own = min(curves[app], key=lambda option: abs(option[0] - asked))
                    noise = pollux.noise(app) if worth else ()
                    job = Running(i, app, float(row["submit_s"]), POLLUX_SAMPLES[app], curves[app], own[1])
                    jobs.append(replace(job, own_batch=own[0], noise=noise))
                simulate(jobs, policy if chooses else ElasticBatch(), until, fixed=not chooses)
                spent = [(until if math.isnan(j.finished) else j.finished) - j.submit_s for j in jobs]
                mean.append(float(np.mean(spent)))
            shorter.append(mean[1] / mean[0])
        rows.append((*head, f"times shorter completion: {name}", text(shorter)))
    return rows


def budget(data: Path, count: int) -> list[Row]:
    """Everyone at equal GPU-seconds: what an equal split of 64 GPUs uses is the budget."""
    pollux = Pollux(data)
    curves = {app: pollux.curve(app, pollux.batches(app)[3]) for app in POLLUX_SAMPLES}
    pool = f"equal split of {GPUS} GPUs"
    ratios: dict[str, list[float]] = defaultdict(list)
    for number in range(1, count + 1):
        jobs = [
            Running(i, row["app"], float(row["submit_s"]), POLLUX_SAMPLES[row["app"]], (), curves[row["app"]])
            for i, row in enumerate(pollux.workloads[number])
        ]
        simulate(jobs, Equal(), math.inf)
        used = sum(j.held_s for j in jobs)
        demands = tuple(
            JobDemand(j.id, 0, 1, GPUS, j.curve, sizes=_sizes(j.curve), remaining_samples=POLLUX_SAMPLES[j.app])
            for j in jobs
        )
        # The paper rents without limit: as many GPUs as all jobs at once could take.
        rented = Problem(
            300.0, GPUS * len(jobs), demands, budgets=(NodeBudget("all", frozenset(j.id for j in jobs), used),)
        )
        widths = Budget().size(rented).sizes
        assert sum(widths[j.id] * _seconds(j, widths[j.id]) for j in jobs) <= used * (1 + 1e-9)
        ours = float(np.mean([_seconds(j, widths[j.id]) for j in jobs]))
        ratios[pool].append(float(np.mean([j.finished - j.submit_s for j in jobs])) / ours)
        theirs = _mixed(jobs, {app: thresholds(curve) for app, curve in curves.items()}, used)
        ratios[f"threshold that rents, GPU-hours of the {pool}"].append(theirs / ours)
    head = "BOA Constrictor (arXiv 2602.01404)", "mean completion 1.6x lower at equal budget"
    return [(*head, f"times shorter completion than {name}", text(values)) for name, values in ratios.items()]


def thresholds(curve: Curve) -> list[tuple[float, int]]:
    """Sizes by falling efficiency: beyond which threshold of scaling efficiency (Or et al.) a job goes on to each."""
    rates = [curve.throughput(k) for k in _sizes(curve)]
    # The sizes that train more than every smaller one.
    sizes = [k for i, k in enumerate(_sizes(curve)) if rates[i] > max(rates[:i], default=0.0)]
    steps = [(math.inf, sizes[0])]
    for less, more in itertools.pairwise(sizes):
        a, b = curve.throughput(less), curve.throughput(more)
        steps.append((min(((b - a) / (more - less)) / (a / less), steps[-1][0]), more))
    return steps


def _mixed(jobs: list[Running], ladders: Mapping[str, list[tuple[float, int]]], budget: float) -> float:
    """The least mean completion of a rule with one number, tuned in hindsight to the budget: of any two numbers the
    wider in the order of ids while the budget lasts, as `budget` mixes."""
    tuned = []
    for least in sorted({gain for ladder in ladders.values() for gain, _ in ladder}, reverse=True):
        at = {app: [k for gain, k in ladder if gain >= least] or [ladder[0][1]] for app, ladder in ladders.items()}
        seconds = np.array([_seconds(j, at[j.app][-1]) for j in jobs])
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


def _seconds(job: Running, width: int) -> float:
    rate = job.curve.throughput(width)
    return POLLUX_SAMPLES[job.app] / rate if rate > 0 else math.inf


def efficiency(data: Path, count: int) -> list[Row]:
    """The search for the size: up by doubling, each size measured for a minute, settled at the last that passed."""
    pollux = Pollux(data)
    measure_s, stall_s = 60.0, 10.0
    shares, completion, node = [], [], []
    for app, samples in POLLUX_SAMPLES.items():
        curve = pollux.curve(app, pollux.batches(app)[3])
        sizes = [k for k in (1, 2, 4, 8, 16, 32, 64) if curve.throughput(k) > 0]
        demand = JobDemand(0, 0, sizes[0], sizes[-1], curve, sizes=tuple(sizes))
        target = Efficiency().size(Problem(300.0, GPUS, (demand,))).sizes[0]
        tried = sizes[: min(sizes.index(target) + 2, len(sizes))]
        left, searched, held = samples, 0.0, 0.0
        for k in tried[:-1] if tried[-1] == target else tried:
            left -= curve.throughput(k) * measure_s
            searched += measure_s + stall_s
            held += k * (measure_s + stall_s)
        rest = max(left, 0.0) / curve.throughput(target)
        shares.append(100 * searched / (searched + rest))
        completion.append(100 * (1 - (searched + rest) * curve.throughput(4) / samples))
        widest = samples / curve.throughput(sizes[-1]) * sizes[-1]
        node.append(100 * (1 - (held + target * rest) / widest))
    head = "Or et al. (MLSys 2020)", "completion -45 %, GPU time -85.1 % at most; search < 2 or 6 %"
    return [
        (*head, "% completion shorter than on four GPUs", text(completion, 0)),
        (*head, "% GPU time less than on the widest pool", text(node, 0)),
        (*head, "% of the time for the search", text(shares, 0)),
    ]


# -- idle nodes ------------------------------------------------------------------------------------------------------


def bftrainer(data: Path, count: int) -> list[Row]:
    """Whole days of Summit's first 1,024 nodes, 30 endless ImageNet jobs, stalls of 18 and 12 s."""
    log = read_trace(data / "bftrainer" / "summit_node_events.csv.gz")
    jobs = mix("imagenet:30", ResizeCosts(activate_s=20.0, grow_s=18.0, shrink_s=12.0))
    names = ("auto", "bftrainer", "equal", "one-node")
    shares: dict[str, list[float]] = {name: [] for name in names}
    days = 2 * count
    for day in [1 + 13 * i // days for i in range(days)]:
        window = Window(start_after=86400.0 * day, end_after=86400.0 * (day + 1), first_node=0, node_count=1024)
        found = replay(cluster_trace(log, window), jobs, [parse_policy(n, None) for n in names], processes=1)
        for name in names:
            shares[name].append(found.scores[name].share_of_ideal or 0.0)
    head = "BFTrainer (arXiv 2106.12091)", "up to 93 % of dedicated nodes' efficiency"
    rows = [(*head, f"of the best at no cost, {days} days", text(shares["auto"], 3))]
    for name, what in (
        ("bftrainer", "its objective at its 10 s, solved exactly"),
        ("equal", "an equal split"),
        ("one-node", "one node a job, no resizes"),
    ):
        gains = [a / b for a, b in zip(shares["auto"], shares[name], strict=True)]
        rows.append((*head, f"times {what}", text(gains, 3)))
    return rows


def malletrain(data: Path, count: int) -> list[Row]:
    """Half hours of Summit's idle nodes, 21 jobs in three waves, their curves unknown."""
    advisor.TICK_S = 20.0
    head = "MalleTrain (ICPE 2024)", "up to 22.3 % more training; its baseline is not known here"
    rows: list[Row] = []
    for mix_name in ("ImageNet", "Children of measured"):
        for found in advisor.waves(data, range(4, 4 + count), 0.5, mix_name, ("active", "linear")).values():
            rows.append((*head, f"of an oracle's training, {mix_name} models", text(found["active"], 3)))
            gains = [a / b for a, b in zip(found["active"], found["linear"], strict=True)]
            rows.append((*head, f"times perfect scaling for all, {mix_name} models", text(gains, 3)))
    return rows


def fairness(data: Path, count: int) -> list[Row]:
    """Speed-up and Jain's index of the jobs' speed-ups, by alpha; jobs and nodes as in the published mix."""
    for jobs, nodes in ((14, 84), (100, 1000)):
        demands = tuple(JobDemand(i, 0, 1, 64, sizing.IMAGENET[i % 7]) for i in range(jobs))
        least = 0.0
        for alpha in (0.0, 0.5, 1.0):
            sizes = Exact().size(Problem(300.0, nodes, demands, alpha=alpha)).sizes
            speed = np.array([j.curve.throughput(sizes[j.id]) for j in demands])
            least = least or float(speed.sum())
            jain = float(speed.sum() ** 2 / (len(speed) * (speed**2).sum()))
            print(
                f"{jobs} jobs, {nodes} nodes, alpha {alpha:g}: {speed.sum() / least:.3f} of the speed-up, Jain "
                f"{jain:.2f}",
                flush=True,
            )
    return []


#: In the order of the table.
PARTS: Mapping[str, Callable[[Path, int], list[Row]]] = {
    part.__name__: part for part in (malletrain, bftrainer, batch, matching, classes, budget, efficiency, fairness)
}


def table(rows: list[Row]) -> dict[str, list[list[str]] | list[str]]:
    """Paper and claim stand in the first row of each paper alone."""
    pairs = zip([("",) * 4, *rows], rows, strict=False)
    lines = [["" if row[:2] == before[:2] else f"{row[0]}: {row[1]}", *row[2:]] for before, row in pairs]
    return {"columns": ["Paper and its claim", "Measured here", "Mean [95 %]"], "rows": lines}


def main() -> int:
    parser = data_options_of(__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--count", type=int, default=4, help="workloads, or as many instances as take as long")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [row for part in options.parts or PARTS for row in PARTS[part](options.data, options.count)]
    print(figures.markdown(table(rows)))
    if options.write:
        figures.keep({**figures.tables(), "papers": table(rows)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
