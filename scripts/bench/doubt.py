"""Whether it pays to change sizes only where the gain exceeds the curve's own uncertainty (`JobDemand.doubt`).

    python -m scripts.bench.doubt [--hours 2] [--seeds 4] [--noise 0.02,0.05,0.1] [--costs 0.3/0.1,18/12] [--jobs 8]

Jobs of the seven ImageNet curves on a pool whose size walks up and down, no curve known beforehand. A decision
every 10 s. Each job reports windows of its true rate with log-normal noise; its curve is fitted to them as in the
daemon, and sizes come from the exact core with and without the doubt term, on the same pool and noise. What counts is
the true speed-up trained, stalls paid. Ratios with over without, mean and range over seeds, and resizes of each.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from malletrain.domain.job import Curve, ThroughputSample
from malletrain.learn.curve import CurveFit, fit_curve
from malletrain.learn.samples import keep_sample
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobDemand, Problem
from scripts.bench import sizing

TICK_S = 10.0


def run(
    seed: int, hours: float, jobs: int, noise: float, grow: float, shrink: float, doubting: bool
) -> tuple[float, int]:
    """Speed-up-seconds trained, and resizes."""
    random = np.random.default_rng(seed)
    truth = [sizing.IMAGENET[i % 7] for i in range(jobs)]
    windows: list[list[ThroughputSample]] = [[] for _ in range(jobs)]
    fits: list[CurveFit | None] = [None] * jobs
    sizes, pool, trained, resizes = [0] * jobs, 8 * jobs, 0.0, 0
    for tick in range(int(hours * 3600 / TICK_S)):
        if random.random() < 0.1:  # a main job starts or ends
            pool = int(np.clip(pool + random.integers(-6, 7), 2 * jobs, 14 * jobs))
        scatter = np.exp(random.normal(0.0, noise, jobs))  # drawn whatever is decided
        demands = []
        for j in range(jobs):
            known = fits[j]
            count = sum(w.nodes == sizes[j] for w in windows[j])
            doubt = known.noise / count**0.5 if doubting and known is not None and count else 0.0
            curve = known.curve(64).over_one() if known is not None else Curve.linear(64)
            demands.append(
                JobDemand(j, sizes[j], 1, min(64, 2 * max(4, sizes[j])), curve, grow_s=grow, shrink_s=shrink,
                          activate_s=5.0, doubt=doubt)
            )  # fmt: skip
        plan = Exact().size(Problem(300.0, pool, tuple(demands))).sizes
        for j in range(jobs):
            new, rate = plan[j], truth[j].throughput(plan[j])
            stall = 0.0
            if new != sizes[j] and sizes[j] and new:
                stall = min(TICK_S, grow if new > sizes[j] else shrink)
                resizes += 1
            trained += rate * (TICK_S - stall)
            if new and new == sizes[j]:
                keep_sample(windows[j], ThroughputSample(tick * TICK_S, new, rate * TICK_S * scatter[j], TICK_S, 10))
                if tick % 3 == j % 3 or fits[j] is None:
                    fits[j] = fit_curve(windows[j])
            sizes[j] = new
    return trained, resizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--noise", default="0.02,0.05,0.1")
    parser.add_argument("--costs", default="0.3/0.1,18/12")
    parser.add_argument("--jobs", type=int, default=8)
    args = parser.parse_args()
    for costs in args.costs.split(","):
        grow, shrink = map(float, costs.split("/"))
        for noise in map(float, args.noise.split(",")):
            ratios, counts = [], []
            for seed in range(args.seeds):
                with_it, without = (
                    run(seed, args.hours, args.jobs, noise, grow, shrink, doubting) for doubting in (True, False)
                )
                ratios.append(with_it[0] / without[0])
                counts.append((with_it[1], without[1]))
            mine, others = np.mean(counts, axis=0)
            print(
                f"stalls {costs} s, noise {noise:.0%}: with doubt {np.mean(ratios):.4f} [{min(ratios):.4f}, "
                f"{max(ratios):.4f}] times the speed-up, {mine:.0f} resizes instead of {others:.0f}", flush=True
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
