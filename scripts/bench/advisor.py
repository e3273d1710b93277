"""What it costs not to know a job's curve.

    python -m scripts.bench.advisor [--data ../shared/data] [--runs 5] [--hours 2] [--seed 0] [--tick 10]
        [--mix NAME] [--guess active|linear]

Jobs with unknown curves, in three waves, on the idle nodes of Summit (random windows of its log); sizes by policy
`exact` every tick, a window of training with 2 % noise from every job that was left alone. Printed is the speed-up
trained as a part of what an oracle with the true curves trains, mean and 95 % interval over the runs, its ratio to
that of `linear` (paired), and the share of node time that measuring costs: nodes that probes move away from where
they would have been, and nodes that wait while their job is measured on its way up.

`active` climbs (`malletrain.learn.scale_up_profiling`; a window there takes 5 s and a stall) and probes; `linear`
takes every job to scale perfectly.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean

import numpy as np

from malletrain.decide.rules import Rules
from malletrain.domain.event import ProbeBegun
from malletrain.domain.job import (
    Curve,
    JobPhase,
    JobView,
    MalleableJob,
    Probe,
    ResizeCosts,
    ThroughputSample,
)
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.curve import CurveFit, fit_curve, shared_evidence
from malletrain.learn.prior_jobs import MAX_PRIOR_JOBS, Evidence, PriorJobs, application
from malletrain.learn.profiling import advice_for, expected_curve, probe_changes, with_advice, within_reach
from malletrain.learn.samples import KeptWindows
from malletrain.learn.scale_up_profiling import next_measurement_size
from malletrain.replay.workload import IMAGENET, POLLUX
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobDemand, Problem
from scripts.bench.published import pollux, rows_of
from scripts.bench.shared import bootstrap, data_options_of

TICK_S = 10.0
#: Seconds of a window of training: `elastic.link.training_reports` drops 4 steps and takes 10 more and 3 s at least.
STOP_S = 5.0
COSTS = ResizeCosts(activate_s=10.0, grow_s=0.5, shrink_s=0.2)
RULES = Rules()
NOISE = 0.02


@dataclass
class Training:
    """One job: the truth, and what was measured of it."""

    job: MalleableJob
    truth: Curve
    nodes: int = 0
    samples: KeptWindows = field(default_factory=KeptWindows)
    found: CurveFit | None = None
    probe: Probe | None = None
    probes: list[tuple[float, int]] = field(default_factory=list)
    phase_began: float | None = None
    level: int = 1
    evidence: Evidence = ()
    curve: tuple[CurveFit, Curve] | None = None
    climb: dict[int, float] | None = None  #: samples/s of the stops so far; None: before the first
    climbing: bool = False  #: measured on its way up, which may take several ticks
    at_stop_s: float = 0.0  #: since it stopped at its present size
    first_at: float | None = None
    waited: float = 0.0  #: node-seconds of nodes that waited meanwhile

    def speedup(self, nodes: int) -> float:
        return self.truth.throughput(nodes) / self.truth.throughput(1)


Jobs = Sequence[Training]

GUESSES = ("active", "linear")


def pooled(job: Training, jobs: Jobs) -> PriorJobs | None:
    mine = application(job.job)
    others = [j.evidence for j in jobs if j is not job and j.evidence and application(j.job) == mine][
        -MAX_PRIOR_JOBS:
    ]
    return PriorJobs(tuple(others)) if others else None


def view(job: Training) -> JobView:
    if job.found is not None and (job.curve is None or job.curve[0] is not job.found):
        job.curve = job.found, job.found.curve(job.job.max_nodes)
    return JobView(job.job, JobPhase.RUNNING, curve=job.curve[1] if job.curve else None, costs=COSTS)


def windows_of(job: Training) -> tuple[tuple[int, int], ...]:
    """Sizes and windows, as finely as a fit would tell."""
    counted: dict[int, int] = defaultdict(int)
    for sample in job.samples:
        counted[sample.nodes] += 1
    return tuple(sorted((n, count if count < 4 else 2 ** count.bit_length()) for n, count in counted.items()))


def climb(job: Training, nodes: int, seconds: float, measure: Callable[[Training, int], None]) -> tuple[float, float]:
    """A job that begins and has so many nodes ready: what it trains less in the next `seconds` for being measured on
    its way up, and how many of them that took."""
    lost, left_s = 0.0, seconds
    job.climb = {} if job.climb is None else job.climb
    while (stop := next_measurement_size(job.climb, nodes, lambda n: True, job.job.max_nodes)) is not None:
        spent_s = min(left_s, STOP_S - job.at_stop_s)
        lost += spent_s * (job.speedup(nodes) - job.speedup(stop))
        job.waited += spent_s * (nodes - stop)
        left_s -= spent_s
        job.at_stop_s += spent_s
        if job.at_stop_s < STOP_S:
            return lost, seconds
        measure(job, stop)
        job.climb[stop], job.at_stop_s = tuple(job.samples)[-1].rate, 0.0
        lost += COSTS.grow_s * job.speedup(nodes)
    job.climbing = False
    return lost, seconds - left_s


def plan(name: str, jobs: Jobs, nodes: int, now: float) -> tuple[dict[int, int], int]:
    """Sizes, and how many nodes probes move."""

    def demand(job: Training, curve: Curve, most: int) -> JobDemand:
        unit = curve.throughput(1) or 1.0
        points = tuple((n, rate / unit) for n, rate in curve.points)
        return JobDemand(
            job.job.id,
            job.nodes,
            1,
            max(1, most),
            Curve(points),
            grow_s=COSTS.grow_s,
            shrink_s=COSTS.shrink_s,
            activate_s=COSTS.activate_s,
        )

    if name != "active":
        curves = [j.truth if name == "oracle" else Curve.linear(j.job.max_nodes) for j in jobs]
        demands = [demand(j, curve, j.job.max_nodes) for j, curve in zip(jobs, curves, strict=True)]
        problem = Problem(RULES.horizon_s, nodes, tuple(demands))
        return {int(j): n for j, n in Exact().size(problem).sizes.items()}, 0
    views = {j.job.id: view(j) for j in jobs}
    known = {
        j.job.id: JobKnowledge(
            j.found,
            None if j.found else pooled(j, jobs),
            j.probe,
            tuple(j.probes),
            application(j.job),
            since=j.first_at,
            phase_began=j.phase_began,
        )
        for j in jobs
    }
    wanted = {
        j.job.id: demand(j, expected_curve(views[j.job.id], known[j.job.id], RULES.probing), j.job.max_nodes)
        for j in jobs
    }
    demands = within_reach(wanted, views, known, nodes, RULES.probing)
    problem = Problem(RULES.horizon_s, nodes, tuple(demands))
    plain = {int(j): n for j, n in Exact().size(problem).sizes.items()}
    advice = advice_for(problem, views, known, now, RULES.probing)
    sizes = {int(j): n for j, n in Exact().size(with_advice(problem, advice)).sizes.items()}
    by_id = {j.job.id: j for j in jobs}
    for number, change, _ in probe_changes(advice, sizes, known):
        job, begun = by_id[number], isinstance(change, ProbeBegun)
        job.probe = Probe(change.nodes, now) if begun else None
        if begun:
            job.probes.append((now, change.nodes))
    return sizes, sum(abs(sizes[j] - plain[j]) for j in sizes) // 2 if sizes != plain else 0


def run(
    name: str, arrivals: Sequence[tuple[float, Training]], idle: Sequence[int], seed: int
) -> tuple[list[float], float]:
    """Speed-up seconds trained in each tick, and the share of node time that probes moved."""
    random = np.random.default_rng(seed)
    moved = held = 0.0
    by_tick: list[float] = []
    last: tuple[object, dict[int, int]] | None = None
    fitted: dict[int, object] = {}

    def measure(job: Training, nodes: int) -> None:
        measured = job.truth.throughput(nodes) * float(np.exp(NOISE * random.standard_normal()))
        sample = ThroughputSample(now, nodes, 1e3, 1e3 / measured, 20)
        job.samples.keep(sample)
        job.first_at = now if job.first_at is None else job.first_at
        began = job.samples.forget_earlier_phase(sample)
        job.phase_began = job.phase_began if began is None else began
        if name == "active":
            others = pooled(job, jobs)
            key = (windows_of(job), others, job.phase_began)
            if fitted.get(job.job.id) != key:
                fitted[job.job.id] = key
                job.found = fit_curve(job.samples, others)
                job.evidence = shared_evidence(job.found, job.evidence)

    for i, nodes in enumerate(idle):
        trained = 0.0
        now = i * TICK_S
        jobs = [job for at, job in arrivals if at <= now]
        # What is asked again is answered again.
        asked = nodes, [j.nodes for j in jobs]
        if name != "active" and last is not None and last[0] == asked:
            sizes, displaced = last[1], 0
        else:
            sizes, displaced = plan(name, jobs, nodes, now)
            last = asked, sizes
        moved += displaced * TICK_S
        for job in jobs:
            was, job.nodes = job.nodes, sizes[job.job.id]
            held += job.nodes * TICK_S
            rate = job.speedup
            if job.nodes > was:
                trained += COSTS.activate_s * rate(was)
                trained += (TICK_S - COSTS.activate_s - (COSTS.grow_s if was else 0.0)) * rate(job.nodes)
            else:
                trained += (TICK_S - (COSTS.shrink_s if job.nodes < was else 0.0)) * rate(job.nodes)
            windows, left_s = 0, TICK_S
            settled = job.nodes > 0 and job.nodes == was
            unknown = settled and job.climb is None and job.found is None and pooled(job, jobs) is None
            if name == "active" and min(was, job.nodes) and (unknown or job.climbing):
                job.climbing = True
                less, took_s = climb(job, min(was, job.nodes), TICK_S, measure)
                trained -= less
                left_s -= took_s
            if settled and not job.climbing and name == "active":
                windows = max(1, int(left_s / STOP_S))
                for _ in range(windows):
                    measure(job, was)
            if job.probe is not None and job.nodes == job.probe.nodes:
                job.probe = replace(job.probe, reached=True, windows=job.probe.windows + windows)
        by_tick.append(trained)
    return by_tick, (moved + sum(job.waited for _, job in arrivals)) / max(held, 1.0)


def _measured_children(random: np.random.Generator, data: Path) -> Iterator[tuple[str, Curve, int]]:
    """21 children of three models whose curves are measurements, not of any family that the estimator has: Pollux's
    tables at a fixed batch a GPU; each child scales a little better or worse, and each of its sizes is off by 3 %."""
    tables = pollux(data)
    kinds = sorted(tables)
    chosen = [kinds[int(i)] for i in random.choice(len(kinds), 3, replace=False)]
    for i in range(21):
        truth, bend = tables[chosen[i % 3]], float(random.normal(0.0, 0.05))
        speed = float(np.exp(0.3 * random.standard_normal()))
        points = [
            (n, speed * rate * n**bend * float(np.exp(0.03 * random.standard_normal())))
            for n, rate in sorted(truth.items())
        ]
        yield f"{'abc'[i % 3]}-{i}", Curve(tuple(points)), max(truth)


def mixes(random: np.random.Generator, data: Path) -> Iterator[tuple[str, list[tuple[str, Curve, int]]]]:
    """Mixes of 21 jobs: application's name, curve, most nodes."""
    names = sorted(IMAGENET)
    yield "ImageNet models", [(f"{names[i % 7]}{i}", IMAGENET[names[i % 7]], 64) for i in range(21)]
    diverse = sorted(POLLUX)
    yield "Pollux models", [(f"{diverse[i % 6]}{i}", POLLUX[diverse[i % 6]], 16) for i in range(21)]
    yield "Children of measured models", list(_measured_children(random, data))


def idle_windows(data: Path, hours: float, random: np.random.Generator) -> list[int]:
    """Idle nodes of Summit in a random window, every tick, at most 600."""
    table = rows_of(data / "bftrainer" / "summit_idle_count.csv.gz")
    rows = [(datetime.fromisoformat(row["time"]).timestamp(), int(row["idle_nodes"])) for row in table]
    at = np.array([t for t, _ in rows])
    start = float(random.uniform(at[0], at[-1] - hours * 3600))
    ticks = start + TICK_S * np.arange(int(hours * 3600 / TICK_S))
    counts = np.array([n for _, n in rows])[np.searchsorted(at, ticks, "right") - 1]
    return [int(n) for n in np.clip(counts, 0, 600)]


def waves(
    data: Path, seeds: Sequence[int], hours: float, only: str, guesses: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    """By mix and guess, for each run: what was trained over the oracle's; of `active`, what measuring cost, too."""
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in seeds:
        random = np.random.default_rng(seed)
        idle = idle_windows(data, hours, random)
        for mix, models in mixes(random, data):
            if only not in mix:
                continue

            def arrivals() -> list[tuple[float, Training]]:
                return [
                    (
                        hours * 900.0 * (i // 7),
                        Training(MalleableJob(i + 1, name, "user", 1, "", 1, most, 0.0), curve),
                    )
                    for i, (name, curve, most) in enumerate(models)  # noqa: B023
                ]

            best, _ = run("oracle", arrivals(), idle, seed)
            for name in guesses:
                trained, moved = run(name, arrivals(), idle, seed)
                results[mix][name].append(sum(trained) / sum(best))
                if name == "active":
                    results[mix]["cost"].append(moved)
        print(f"run {seed}: mean idle nodes {fmean(idle):.0f}", file=sys.stderr)
    return results


def told(results: Mapping[str, Mapping[str, list[float]]]) -> None:
    """The table of the waves."""

    def cell(values: Sequence[float]) -> str:
        low, high = bootstrap(values)
        return f"{fmean(values):.3f} [{low:.3f}, {high:.3f}]"

    names = (*GUESSES, "cost")
    print(f"\n| mix | runs | {' | '.join(names)} | active over linear |\n|---|---|---|---|---|---|")
    for mix, named in results.items():
        cells = [cell(named[name]) if name in named else "" for name in names]
        both = all(name in named for name in GUESSES)
        gains = [a / b for a, b in zip(named["active"], named["linear"], strict=True)] if both else []
        print(f"| {mix} | {max(map(len, named.values()))} | {' | '.join(cells)} | {cell(gains) if gains else ''} |")


def main() -> int:
    parser = data_options_of(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--mix", default="", help="ImageNet, Pollux or Children; all by default")
    parser.add_argument("--guess", action="append", choices=GUESSES, help="these only")
    parser.add_argument("--tick", type=float, default=TICK_S, help="seconds between two decisions")
    options = parser.parse_args()
    globals()["TICK_S"] = options.tick
    seeds = range(options.seed, options.seed + options.runs)
    told(waves(options.data, seeds, options.hours, options.mix, options.guess or GUESSES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
