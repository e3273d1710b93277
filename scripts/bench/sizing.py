"""How long sizing takes and how good it is, beside its peers in the same run.

    python -m scripts.bench.sizing [--grid 64x10,1000x100,10000x1000] [--kinds imagenet,rough,linear] [--repeats 5]
                         [--peers greedy,milp,per_node] [--peer-limit 20] [--json FILE]

Times are processor seconds of one thread, the building of the problem's table included, each on the same problems.
A ratio is peer over `exact` on one problem; given are the median over the repeats and a 95 % bootstrap interval.
Peers: `per_node` BFTrainer's form, one binary for each job and node (once a grid point, up to 10,000 binaries);
`greedy` and `milp` the policies. A peer that ran out of its limit, which HiGHS counts in seconds of the wall clock,
is left out of the larger problems of that kind.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from malletrain.domain.job import Curve
from malletrain.replay import workload
from malletrain.sizing.papers.greedy import Greedy
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.milp import Milp
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import value_table

#: Speed-ups on 1-64 nodes of the seven ImageNet models that BFTrainer measured.
IMAGENET = tuple(curve.over_one() for curve in workload.IMAGENET.values())

#: Solves of each problem by `exact`.
EXACT_REPEATS = 9

Solver = Callable[[Problem], float | None]


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


def per_node(given: Problem, limit_s: float) -> float | None:
    """BFTrainer's form: which job has which node. A job keeps its nodes when it grows and gets none when it shrinks
    (the number of nodes that change hands is the change of size), written with exclusive-ors and big-M of 2 N."""
    import pulp

    table = value_table(given)
    scale = float(np.abs(table.value).max())
    model = pulp.LpProblem("per_node", pulp.LpMaximize)
    holder, next_node = {}, 0
    for job in given.in_order():
        for node in range(next_node, next_node + job.current):
            holder[node] = job.id
        next_node += job.current
    gains = []
    on = {}
    for i, job in enumerate(given.in_order()):
        mine = [model.add_variable(f"x_{i}_{n}", cat="Binary") for n in range(given.nodes)]
        on[job.id] = mine
        runs = range(int(table.start[i]), int(table.start[i + 1]))
        y = {row: model.add_variable(f"y_{i}_{row}", cat="Binary") for row in runs}
        model += pulp.lpSum(y.values()) == 1
        count = pulp.lpSum(mine)
        model += count == pulp.lpSum(int(table.size[row]) * one for row, one in y.items())
        moved = pulp.lpSum(1 - x if holder.get(n) == job.id else x for n, x in enumerate(mine))
        grows = model.add_variable(f"g_{i}", cat="Binary")
        model += moved <= count - job.current + 2 * given.nodes * (1 - grows)
        model += moved <= job.current - count + 2 * given.nodes * grows
        gains += [float(table.value[row]) / scale * one for row, one in y.items()]
    for n in range(given.nodes):
        model += pulp.lpSum(mine[n] for mine in on.values()) <= 1
    model.setObjective(pulp.lpSum(gains))
    model.solve(pulp.HiGHS(msg=False, threads=1, timeLimit=limit_s, gapRel=0.0, gapAbs=0.0))
    return pulp.value(model.objective) * scale if model.sol_status == pulp.LpSolutionOptimal else None


def exact_objective(given: Problem) -> float | None:
    return Exact().size(given).objective


def timed(solve: Callable[[], float | None]) -> tuple[float, float | None]:
    begin = time.process_time()
    found = solve()
    return time.process_time() - begin, found


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval."""
    random = np.random.default_rng(1)
    draws = np.median(random.choice(ratios, size=(2000, len(ratios))), axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default="64x10,256x30,1000x100,4734x100,10000x1000")
    parser.add_argument("--kinds", default="imagenet,rough,linear")
    parser.add_argument("--repeats", type=int, default=5, help="problems for each point of the grid")
    parser.add_argument("--peers", default="greedy,milp,per_node")
    parser.add_argument("--peer-limit", type=float, default=20.0, help="seconds for one solve of a peer")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    peers: dict[str, Solver] = {
        "greedy": lambda given: Greedy().size(given).objective,
        "milp": lambda given: Milp().size(given).objective,
        "per_node": lambda given: per_node(given, args.peer_limit),
    }
    Milp().size(problem("linear", 8, 2, 0))  # imports are not part of a decision
    results = []
    for kind in args.kinds.split(","):
        gone: set[str] = set()
        for point in args.grid.split(","):
            nodes, jobs = map(int, point.split("x"))
            given = [problem(kind, nodes, jobs, seed) for seed in range(args.repeats)]
            own = []
            for p in given:
                runs = [timed(partial(exact_objective, p)) for _ in range(EXACT_REPEATS)]
                own.append((sorted(t for t, _ in runs), float(runs[0][1] or 0.0)))
            every = [t for times, _ in own for t in times]
            line = {
                "kind": kind, "nodes": nodes, "jobs": jobs,
                "exact_ms": {"median": 1e3 * float(np.median(every)), "p99": 1e3 * float(np.quantile(every, 0.99))},
                "peers": {},
            }  # fmt: skip
            print(f"{kind} {nodes} x {jobs}: exact median {line['exact_ms']['median']:.2f} ms, "
                  f"p99 {line['exact_ms']['p99']:.2f} ms")  # fmt: skip
            for name in args.peers.split(","):
                # BFTrainer's form has a binary for each job and node: beyond ten thousand there is no point.
                if name in gone or (name == "per_node" and nodes * jobs > 10_000):
                    continue
                ratios, gaps, times = [], [], []
                for p, (mine, objective) in zip(given[: 1 if name == "per_node" else None], own, strict=False):
                    seconds, found = timed(partial(peers[name], p))
                    times.append(seconds)
                    if found is None:
                        gone.add(name)
                        break
                    ratios.append(seconds / mine[len(mine) // 2])
                    gaps.append((objective - found) / abs(objective))
                if name in gone:
                    print(f"    {name:9s} not done after {times[-1]:.1f} s")
                    line["peers"][name] = {"not_done_after_s": times[-1]}
                    continue
                ratio, low, high = interval(ratios)
                line["peers"][name] = {
                    "median_ms": 1e3 * float(np.median(times)), "ratio": ratio, "ratio_95": [low, high],
                    "gap_mean": float(np.mean(gaps)), "gap_max": float(np.max(gaps)),
                }  # fmt: skip
                print(
                    f"    {name:9s} {1e3 * float(np.median(times)):10.2f} ms  {ratio:8.1f} times exact "
                    f"[{low:.1f}, {high:.1f}]  below exact: mean {np.mean(gaps):.1e}, max {np.max(gaps):.1e}"
                )
            results.append(line)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory at most {memory:.0f} MB")
    if args.json:
        args.json.write_text(json.dumps({"results": results, "memory_mb": memory}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
