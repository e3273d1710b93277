"""Unknown jobs on a pool that does not change, and jobs whose scaling changes while they train.

    python -m scripts.bench.learning [steady,phases] [--minutes 60] [--runs 4] [--seed 0] [--guess NAME ...]
        [--json FILE]

steady   jobs with unknown curves, all there from the start on a constant number of nodes: the speed-up trained
         as a part of what an oracle with the true curves trains, by time since the start
phases   the same, and after half of the time the curves of half of the jobs are others (a job that scaled as n^.9 is
         flat, and back): by time since the change. A change that leaves throughput at the present size as it was is
         not found, and none of these is such a one

The jobs, their windows and the guesses are those of `scripts.bench.advisor`. Means over runs with 95 % bootstrap
intervals; a run draws the number of nodes, of jobs, and which job has which curve. Nothing depends on the load of
the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np

from malletrain.domain.job import Curve, MalleableJob
from malletrain.replay.curves import IMAGENET, POLLUX
from scripts.bench import advisor

GUESSES = ("passive", "active", "linear")
#: Ends of the spans of time in the table, in minutes.
SPANS = {"steady": (5, 10, 20, 60), "phases": (2, 5, 10, 30)}


def power(exponent: float, of_one: float = 100.0, most: int = 64) -> Curve:
    return Curve(tuple((n, of_one * n**exponent) for n in range(1, most + 1)))


def mixes() -> dict[str, list[Curve]]:
    """Curves by mix."""
    return {
        "ImageNet models": [IMAGENET[name] for name in sorted(IMAGENET)],
        "Pollux models": [POLLUX[name] for name in sorted(POLLUX)],
        "n^.9 and flat": [power(0.9), power(0.02, 60.0)],
    }


def jobs_of(curves: list[Curve], random: np.random.Generator) -> list[advisor.Training]:
    """Three to eight jobs of applications of their own."""
    found = []
    for i in range(int(random.integers(3, 9))):
        curve = curves[int(random.integers(len(curves)))]
        most = min(64, curve.points[-1][0])
        found.append(advisor.Training(MalleableJob(i + 1, f"app{chr(97 + i)}", "user", 1, "", 1, most, 0.0), curve))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", default=",".join(SPANS))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guess", action="append", choices=tuple(advisor.GUESSES))
    parser.add_argument("--mix", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out: dict[str, list[list[float]]] = {}
    for part in options.parts.split(","):
        ticks = int(options.minutes * 60 / advisor.TICK_S)
        begin_s = options.minutes * 30.0 if part == "phases" else 0.0
        ends = [int((begin_s + 60.0 * span) / advisor.TICK_S) for span in SPANS[part]]
        spans = list(zip([int(begin_s / advisor.TICK_S), *ends], ends, strict=False))
        for mix, curves in mixes().items():
            if options.mix not in mix:
                continue
            shares: dict[str, list[list[float]]] = defaultdict(list)
            for seed in range(options.seed, options.seed + options.runs):
                trained = {}
                for name in ("oracle", *(options.guess or GUESSES)):
                    random = np.random.default_rng(seed)
                    jobs, nodes = jobs_of(curves, random), int(random.integers(16, 97))
                    if part == "phases":
                        for job in jobs[::2]:
                            others = [curve for curve in curves if curve is not job.truth]
                            job.later = (begin_s, others[int(random.integers(len(others)))])
                    trained[name], _ = advisor.run(name, [(0.0, job) for job in jobs], [nodes] * ticks, seed)
                for name in options.guess or GUESSES:
                    parts = [sum(trained[name][a:b]) / max(sum(trained["oracle"][a:b]), 1e-9) for a, b in spans]
                    shares[name].append(parts)
            random = np.random.default_rng(1)
            for name, runs in shares.items():
                cells = []
                for i, (a, b) in enumerate(spans):
                    if b > a:
                        low, high = advisor.bootstrap([run[i] for run in runs], random)
                        cells.append(f"{fmean(run[i] for run in runs):.3f} [{low:.3f}, {high:.3f}]")
                print(f"| {part} | {mix} | {name} | {' | '.join(cells)} |", flush=True)
                out[f"{part}, {mix}, {name}"] = runs
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
