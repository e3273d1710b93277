"""How long sizing takes and how good it is, beside its peers in the same run.

    python -m scripts.bench.sizing [--grid 64x10,1000x100,10000x1000] [--kinds imagenet,rough,linear] [--repeats 5]
                                  [--peers greedy,milp] [--json FILE]

Times are processor seconds of one thread, the building of the problem's table included, each on the same problems.
A ratio is peer over `exact` on one problem; given are the median over the repeats and a 95 % bootstrap interval.
Peers are the policies `greedy` and `milp`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.domain.job import Curve
from malletrain.replay import workload
from malletrain.sizing.papers.greedy import Greedy
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.milp.milp_policy import Milp
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import JobDemand, Problem
from scripts.bench.shared import bootstrap, options_of, peak_mib

#: Speed-ups on 1-64 nodes of the seven ImageNet models that BFTrainer measured.
IMAGENET = tuple(curve.over_one() for curve in workload.IMAGENET.values())

#: Solves of each problem by `exact`.
EXACT_REPEATS = 9

#: What `exact` is compared with.
PEERS: dict[str, Policy] = {"greedy": Greedy(), "milp": Milp()}


def problem(kind: str, nodes: int, jobs: int, seed: int) -> Problem:
    """Jobs that hold some of the nodes already. `rough`: every size measured, with scatter, so not concave."""
    random = np.random.default_rng(seed)
    demands, left = [], nodes
    for i in range(jobs):
        if kind == "linear":
            curve = Curve.linear(64)
        elif kind == "rough":
            rates = np.arange(1, 65) ** random.uniform(0.6, 1.0) * random.uniform(0.95, 1.05, 64)
            curve = Curve(tuple((n + 1, rate) for n, rate in enumerate(rates.tolist())))
        else:
            curve = IMAGENET[i % 7]
        current = min(left, int(random.integers(0, min(64, 2 * nodes // jobs) + 1)))
        left -= current
        demands.append(
            JobDemand(id=i, current=current, min=1, max=64, curve=curve, grow_s=18.0, shrink_s=12.0, activate_s=5.0)
        )
    return Problem(300.0, nodes, tuple(demands))


def timed(policy: Policy, given: Problem) -> tuple[float, float]:
    """Seconds of one solve, and the objective of its plan."""
    begin = time.process_time()
    objective = policy.size(given).objective
    return time.process_time() - begin, objective


def measured(kind: str, point: str, peers: list[str], repeats: int) -> dict[str, Any]:
    """One point of the grid."""
    nodes, jobs = map(int, point.split("x"))
    given = [problem(kind, nodes, jobs, seed) for seed in range(repeats)]
    runs = [[timed(Exact(), each) for _ in range(EXACT_REPEATS)] for each in given]
    own = [(sorted(seconds for seconds, _ in each)[EXACT_REPEATS // 2], each[0][1]) for each in runs]
    every = [1e3 * seconds for each in runs for seconds, _ in each]
    exact = {"median": float(np.median(every)), "p99": float(np.quantile(every, 0.99))}
    print(f"{kind} {nodes} x {jobs}: exact median {exact['median']:.2f} ms, p99 {exact['p99']:.2f} ms")
    line: dict[str, Any] = {"kind": kind, "nodes": nodes, "jobs": jobs, "exact_ms": exact, "peers": {}}
    for name in peers:
        found = [timed(PEERS[name], each) for each in given]
        took = 1e3 * float(np.median([seconds for seconds, _ in found]))
        ratios = [seconds / mine for (seconds, _), (mine, _) in zip(found, own, strict=True)]
        ratio, (low, high) = float(np.median(ratios)), bootstrap(ratios, np.median)
        gaps = [(best - objective) / abs(best) for (_, objective), (_, best) in zip(found, own, strict=True)]
        line["peers"][name] = {
            "median_ms": took,
            "ratio": ratio,
            "ratio_95": [low, high],
            "gap_mean": float(np.mean(gaps)),
            "gap_max": float(np.max(gaps)),
        }
        print(
            f"    {name:9s} {took:10.2f} ms  {ratio:8.1f} times exact [{low:.1f}, {high:.1f}]  below exact: mean "
            f"{np.mean(gaps):.1e}, max {np.max(gaps):.1e}"
        )
    return line


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--grid", default="64x10,256x30,1000x100,4734x100,10000x1000")
    parser.add_argument("--kinds", default="imagenet,rough,linear")
    parser.add_argument("--repeats", type=int, default=5, help="problems for each point of the grid")
    parser.add_argument("--peers", default="greedy,milp")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    Milp().size(problem("linear", 8, 2, 0))  # imports are not part of a decision
    results = [
        measured(kind, point, args.peers.split(","), args.repeats)
        for kind in args.kinds.split(",")
        for point in args.grid.split(",")
    ]
    print(f"memory at most {peak_mib():.0f} MB")
    if args.json:
        args.json.write_text(json.dumps({"results": results, "memory_mb": peak_mib()}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
