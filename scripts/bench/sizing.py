"""How long sizing takes and how good it is, beside its peers in the same run.

    python -m scripts.bench.sizing [--grid 64x10,1000x100,10000x1000] [--kinds imagenet,rough,linear] [--repeats 5]
                         [--peers greedy,milp,full_dp,highs,pulp,per_node] [--peer-limit 20] [--json FILE]

Times are processor seconds of one thread, the building of the problem's table included, each on the same problems.
A ratio is peer over `exact` on one problem; given are the median over the repeats and a 95 % bootstrap interval.
Peers: `full_dp` the textbook's dynamic programme; `highs` one binary for each job and count, in arrays; `pulp` the
same through PuLP (policy `lp`); `per_node` BFTrainer's form, one binary for each job and node (once a grid point, up
to 10,000 binaries); `greedy` and `milp` the policies. A peer that ran out of its limit, which HiGHS counts in seconds
of the wall clock, is left out of the larger problems of that kind.
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
from malletrain.replay import curves
from malletrain.sizing.papers.greedy import Greedy
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.milp import Milp
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import value_table

#: Speed-ups on 1-64 nodes of the seven ImageNet models that BFTrainer measured.
IMAGENET = tuple(curve.over_one() for curve in curves.IMAGENET.values())

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


def full_dp(given: Problem) -> float:
    """P(j, n) = max_k v_jk + P(j - 1, n - k)."""
    table = value_table(given)
    best = np.zeros(given.nodes + 1)
    for i in range(len(table.ids)):
        with_job = np.full(given.nodes + 1, -np.inf)
        for row in range(table.start[i], table.start[i + 1]):
            k = table.size[row]
            np.maximum(with_job[k:], best[: given.nodes + 1 - k] + table.value[row], out=with_job[k:])
        best = with_job
    return float(best[-1])


def highs(given: Problem, limit_s: float) -> float | None:
    """One binary for each job and count, nothing fixed first."""
    import highspy

    table = value_table(given)
    rows, jobs = len(table.size), len(table.ids)
    scale = float(np.abs(table.value).max())
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = rows, jobs + 1
    model.col_cost_ = -table.value / scale
    model.col_lower_, model.col_upper_ = np.zeros(rows), np.ones(rows)
    model.row_lower_ = np.concatenate((np.ones(jobs), [-highspy.kHighsInf]))
    model.row_upper_ = np.concatenate((np.ones(jobs), [float(given.nodes)]))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.arange(0, 2 * rows + 1, 2, dtype=np.int32)
    model.a_matrix_.index_ = np.column_stack((table.row_job, np.full(rows, jobs))).ravel().astype(np.int32)
    model.a_matrix_.value_ = np.column_stack((np.ones(rows), table.size)).ravel().astype(np.float64)
    model.integrality_ = [highspy.HighsVarType.kInteger] * rows
    solver = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0),
                          ("time_limit", limit_s)):  # fmt: skip
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return -solver.getInfo().objective_function_value * scale


def pulp_counts(given: Problem, limit_s: float) -> float | None:
    """The same model through PuLP."""
    import pulp

    from malletrain.sizing.policies.lp import statement

    table = value_table(given)
    scale = float(np.abs(table.value).max())
    model = statement(given, table, scale).model
    model.solve(pulp.HiGHS(msg=False, threads=1, timeLimit=limit_s, gapRel=0.0, gapAbs=0.0))
    return pulp.value(model.objective) * scale if model.sol_status == pulp.LpSolutionOptimal else None


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
    parser.add_argument(
        "--exact-repeats", type=int, default=9, help="solves of each problem by exact; the median counts"
    )
    parser.add_argument("--peers", default="greedy,milp,full_dp,highs,pulp,per_node")
    parser.add_argument("--peer-limit", type=float, default=20.0, help="seconds for one solve of a peer")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    peers: dict[str, Solver] = {
        "greedy": lambda given: Greedy().size(given).objective,
        "milp": lambda given: Milp().size(given).objective,
        "full_dp": full_dp,
        "highs": lambda given: highs(given, args.peer_limit),
        "pulp": lambda given: pulp_counts(given, args.peer_limit),
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
                runs = [timed(partial(exact_objective, p)) for _ in range(args.exact_repeats)]
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
