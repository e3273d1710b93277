"""How a sample of days compares with the replay of all of them.

    python -m scripts.bench.sampled_days LOG [--start-after DAYS] [--days 60] [--draws 1000] [--run-in 3,12]
                                         [--every 3] [--nodes N] [--procs-per-node N] [--mix imagenet:100]

The window is replayed without a break (in parts, as `malletrain replay --sample all` does it), and what it trains,
holds and starts is summed by day. Two tables:

- days drawn of these, as `--sample` draws them, by many seeds: half of the interval and the root mean square of the
  error, as parts of the figure, and how often the interval held the whole;
- each `--every`-th day replayed alone after a run-in of so many hours that does not count: how much more it trains,
  holds and starts than the same day did within the whole.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from malletrain.cli.replays import replayed_site
from malletrain.domain.job import ResizeCosts
from malletrain.replay import ClusterTrace, Options, Window, cluster_trace, mix, parse_policy, read_trace
from malletrain.replay.likely_outages import likely_outages, without_outages
from malletrain.replay.parallel.parts import parts_of
from malletrain.replay.result import Result, joined
from malletrain.replay.sampling.days import DAY_S, Sample, drawn_days
from malletrain.replay.sampling.estimate import estimate
from malletrain.replay.sampling.estimated import KnownOfDays, found_in, known_of
from malletrain.replay.scoring.integral import integral_between
from malletrain.replay.workload import TrainingJob, shifted

Floats = NDArray[np.float64]
#: What is compared, and whether it is estimated beside the best possible (else beside idle time).
FIGURES = {"trained": True, "held": False, "starts": False}
#: Days drawn of the window.
COUNTS = (12, 16, 24, 32)


def by_day(result: Result, days: Sample) -> dict[str, Floats]:
    """What was trained and held (node-seconds) and how many nodes started a pilot on each of the days."""
    log, end = result.log, float(days.end[-1])
    at, trained = np.append(log.time, end), np.append(log.trained, result.totals.speedup)
    order = np.argsort(log.pilots.start, kind="stable")
    start, started = log.pilots.start[order], np.append(0, np.cumsum(log.pilots.count[order]))
    first, last = np.searchsorted(start, days.begin), np.searchsorted(start, days.end)
    return {
        "trained": np.interp(days.end, at, trained) - np.interp(days.begin, at, trained),
        "held": integral_between(log.time, log.held, end, days.begin, days.end),
        "starts": (started[last] - started[first]).astype(np.float64),
    }


def coverage(
    trace: ClusterTrace, known: KnownOfDays, whole: dict[str, Floats], count: int, draws: int, tick_s: float
) -> dict[str, tuple[float, float, float]]:
    """By figure: half of the interval and root mean square of the error as parts of the whole, and how often the
    interval held it."""
    found: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in FIGURES}
    for seed in range(draws):
        sample = drawn_days(trace, count, seed, tick_s)
        for name, beside_best in FIGURES.items():
            truth = float(whole[name].sum())
            x = known.ideal if beside_best else known.idle
            each = estimate(sample, x, whole[name][sample.drawn])
            found[name].append(
                ((each.high - each.low) / 2 / truth, each.value / truth - 1, each.low <= truth <= each.high)
            )
    tables = {name: np.array(rows, dtype=np.float64) for name, rows in found.items()}
    return {
        name: (float(t[:, 0].mean()), float(np.sqrt((t[:, 1] ** 2).mean())), float(t[:, 2].mean()))
        for name, t in tables.items()
    }


def alone(
    trace: ClusterTrace, jobs: list[TrainingJob], options: Options, days: Sample, run_in_s: float
) -> dict[str, Floats]:
    """Each drawn day replayed by itself after a run-in."""
    choice = parse_policy("auto", None)
    found = found_in([part.run(jobs, choice, options) for part in parts_of(trace, options, days.spans, run_in_s)])
    return {"trained": found.speedup, "held": found.occupied, "starts": found.activations}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--start-after", type=float, default=5.0, help="days")
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--run-in", default="3,12", help="hours")
    parser.add_argument("--every", type=int, default=3, help="each so many-th day is replayed alone")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--procs-per-node", type=int)
    parser.add_argument("--mix", default="imagenet:100")
    given = parser.parse_args()
    window = Window(
        start_after=given.start_after * DAY_S, end_after=(given.start_after + given.days) * DAY_S,
        node_count=given.nodes, procs_per_node=given.procs_per_node,
    )  # fmt: skip
    counted = cluster_trace(read_trace(given.log), window)
    trace = without_outages(counted, likely_outages(counted))
    config, _ = replayed_site.shipped()
    options = Options.of_daemon(replayed_site.replayed_rules(config, "", None), config.loop.tick_s)
    jobs = list(shifted(mix(given.mix, ResizeCosts()), trace.start))
    choice = parse_policy("auto", None)
    begun = time.process_time()
    result = joined([part.run(jobs, choice, options) for part in parts_of(trace, options)])
    took_s = time.process_time() - begun
    all_days = drawn_days(trace, given.days, 0, options.tick_s)
    known = known_of(trace, jobs, all_days)
    whole = by_day(result, all_days)
    print(f"{given.log.name}: {len(trace.nodes):,} nodes, {len(all_days)} days, {took_s:.0f} s of processor time\n")
    print("| days drawn | " + " | ".join(f"{name}: half-width, error, coverage" for name in FIGURES) + " |")
    print("|---|" + "---|" * len(FIGURES))
    for count in COUNTS:
        if count < len(all_days):
            row = coverage(trace, known, whole, count, given.draws, options.tick_s)
            cells = " | ".join(f"{a:.1%}, {b:.1%}, {c:.2f}" for a, b, c in row.values())
            print(f"| {count} | {cells} |", flush=True)
    print("\n| run-in, hours | " + " | ".join(f"{name} alone over whole, less one" for name in FIGURES) + " |")
    print("|---|" + "---|" * len(FIGURES))
    some = replace(all_days, drawn=np.arange(len(all_days)) % given.every == given.every - 1)
    for hours in map(float, given.run_in.split(",")):
        found = alone(trace, jobs, options, some, hours * 3600.0)
        cells = " | ".join(f"{found[name].sum() / whole[name][some.drawn].sum() - 1:+.2%}" for name in FIGURES)
        print(f"| {hours:g} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
