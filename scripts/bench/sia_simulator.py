"""Our sizing by class in the simulator that Sia's authors published, and their policy in the same run.

    python -m scripts.bench.sia_simulator SIMULATOR [--traces philly] [--workloads 1,2] [--policies ours,sia]
        [--objective throughput|srpt] [--alpha 1.5] [--horizon 900] [--restarts interval|horizon] [--json FILE]

SIMULATOR is the folder `sia-simulator` of github.com/siasosp23/artifacts (Sia: Jayaram Subramanya et al., SOSP 2023);
it needs pandas, scipy, autograd and, for `sia`, cvxpy. As they come are its jobs; its cluster (6 nodes of four T4, 2
of eight A100, 3 of eight RTX 2080); its models of goodput by class, learnt while jobs run and carried over to classes
that a job did not run on by the ratio of one GPU; its sizes and placement; a look every 60 s; its restarts (15 to
250 s). In the place of Sia's programme stands the default sizing by (job, class), over the same goodputs.

`sia` is theirs with the parameters of their run_experiment.sh (p = -.5, lambda_n = 1.1, lambda_a = .01), solved by
HiGHS to their gap. alpha = 1.5 is their p: exponents of the mean are 1 - alpha. With --objective srpt jobs say how
many epochs they train, which Sia does not use: what is left is the progress up to the last.

--restarts: over which time a restart has to pay. `interval`: over the time that the job has had its nodes in the mean
between two restarts, which is what Sia's factor is too; `horizon`: over that of the sizing, for all jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from malletrain.domain.job import Curve
from malletrain.sizing.objective import Objective, alpha_of, urgencies_by_rank
from malletrain.sizing.policies.exact import Auto
from malletrain.sizing.problem import JobDemand, OnClasses, Problem
from malletrain.sizing.values import mean_interval_s
from scripts.bench import published_simulators
from scripts.bench.published_simulators import by_workload, row

LOOK_S = 60.0
P_FAIRNESS, LAMBDA_N, LAMBDA_A = -0.5, 1.1, 0.01
#: Relative gap of Sia's solver.
SOLVER_GAP = 1e-4
#: Of the fit of step times, in this simulator.
FIT_TOLERANCE = 1e-5

#: A class and, of its nodes, one entry a GPU; what no GPUs are.
Allocation = tuple[str | None, Sequence[int]]
NOWHERE: Allocation = (None, ())


@dataclass
class Sizing:
    """Stands in the place of Sia's programme: `sizes` is asked at each look.

    Args:
        sia: the simulator's own policy, for what both share: its goodputs by class and size, and its placement.
    """

    alpha: float
    horizon_s: float
    sia: Any
    restart_s: Any
    objective: Objective = Objective.THROUGHPUT
    restarts: str = "interval"
    seconds: list[float] = field(default_factory=list)
    #: The simulator's jobs by name, for what is left of them.
    simulated: Mapping[str, Any] = field(default_factory=dict)

    def optimize(
        self, jobs: Mapping[str, Any], nodes: Mapping[str, Mapping[int, Any]], before: Mapping[str, Allocation]
    ) -> dict[str, Allocation]:
        """The class and the GPUs of each job."""
        began = time.process_time()
        gpus = {
            name: sum(int(node.resources["nvidia.com/gpu"]) for node in each.values()) for name, each in nodes.items()
        }
        urgencies = [1.0] * len(jobs)
        if self.objective is Objective.SRPT:
            urgencies = urgencies_by_rank([self.rest_s(name, info) for name, info in jobs.items()])
        demands = tuple(
            replace(self.demand(name, info, before.get(name, NOWHERE)), weight=urgency)
            for (name, info), urgency in zip(jobs.items(), urgencies, strict=True)
        )
        problem = Problem(self.horizon_s, sum(gpus.values()), demands, alpha=self.alpha, classes=gpus)
        answer = Auto().size(problem)
        found = dict.fromkeys(jobs, NOWHERE)
        for cluster in nodes:
            sizes = {name: held[cluster] for name, held in answer.classes.items() if held.get(cluster)}
            whole = int(self.sia.cluster_ngpus_per_node[cluster])
            shapes = {name: (-(-size // whole), size) for name, size in sizes.items()}
            free = np.array([int(node.resources["nvidia.com/gpu"]) for node in nodes[cluster].values()])
            placed = self.sia.alloc_to_placement(cluster, shapes, {}, free) if shapes else {}
            found |= {str(name): (cluster, where) for name, where in placed.items()}
        self.seconds.append(time.process_time() - began)
        return found

    def demand(self, name: str, info: Any, has: Allocation) -> JobDemand:
        """A job's curves by class: goodputs over that of one GPU of its slowest class."""
        rates = self.goodputs(info)
        one = min(min(points.values()) for points in rates.values())
        curves = {
            cluster: Curve(tuple((n, rate / one) for n, rate in sorted(points.items())))
            for cluster, points in rates.items()
        }
        cluster, where = has
        restart_s = float(self.restart_s(name))
        held = len(where)
        sizes = {n for points in rates.values() for n in points}
        locked = None
        if held and cluster is not None and info.scaling_underway:
            # As in Sia: who restarts is left alone.
            curves = {cluster: curves.get(cluster) or Curve(((held, 1.0),))}
            locked, sizes = held, sizes | {held}
        slowest = min(curves, key=lambda each: (curves[each].throughput(min(sizes)), each))
        return JobDemand(
            name, held, 1, max(sizes), curves[slowest], sizes=tuple(sorted(sizes)), locked=locked,
            grow_s=restart_s, shrink_s=restart_s, activate_s=0.0 if held else restart_s,
            interval_s=self.interval_s(info, restart_s),
            on_classes=OnClasses(curves, {cluster: held} if cluster is not None and held else {}),
        )  # fmt: skip

    def interval_s(self, info: Any, restart_s: float) -> float | None:
        """Seconds over which a restart has to pay; None: the horizon."""
        if self.restarts == "horizon":
            return None
        # Nobody forecasts how long GPUs stay: before anything was seen, a restart pays over what it takes, as in Sia.
        return mean_interval_s(restart_s, float(info.age), int(info.num_restarts))

    def rest_s(self, name: str, info: Any) -> float:
        """Seconds that are left on one GPU of the job's slowest class; none before its speed was measured."""
        if all(each is None for each in info.speedup_fn.values()):
            return 0.0
        job = self.simulated[name]
        app, one = job.reference_app, min(min(points.values()) for points in self.goodputs(info).values())
        # Progress counts steps of the first batch size, goodput samples.
        return float((app.get_progress(app.max_epochs) - job.progress) * app.init_batch_size / one)

    def goodputs(self, info: Any) -> dict[str, dict[int, float]]:
        """Goodput by class and GPUs, of the sizes that Sia permits; 1 on one GPU before anything was measured."""
        if all(each is None for each in info.speedup_fn.values()):
            return {cluster: {1: 1.0} for cluster in self.sia.cluster_ordering}
        most = max(1, *info.max_replicas.values())
        found: dict[str, dict[int, float]] = {}
        for cluster in self.sia.cluster_ordering:
            nodes, gpus = self.sia.configs[cluster]
            use = gpus <= most
            rates = np.asarray(self.sia._compute_goodputs_v2(info, cluster, nodes[use], gpus[use]), dtype=np.float64)
            points = {int(n): float(rate) for n, rate in zip(gpus[use], rates, strict=True) if rate > 0}
            if points:
                found[cluster] = points
        return found


def load(folder: Path) -> ModuleType:
    """The simulator's `cluster` module, without Gavel, and with HiGHS for Sia's programme."""
    sys.modules["gavel"] = MagicMock(GavelPolicy=type("GavelPolicy", (), {}))
    try:
        import cvxpy  # type: ignore[import-not-found]
    except ImportError:
        cvxpy = sys.modules["cvxpy"] = MagicMock()
    cluster = published_simulators.load(folder, "cluster", FIT_TOLERANCE, warm=True)

    of_application = sys.modules["applications"].Application
    of_application.get_max_local_bsz = functools.lru_cache(maxsize=None)(of_application.get_max_local_bsz)

    class Solved(cvxpy.Problem):  # type: ignore[misc]
        def solve(self, **_: object) -> object:
            return super().solve(solver=cvxpy.HIGHS, mip_rel_gap=SOLVER_GAP)

    sys.modules["sia"].cp = MagicMock(wraps=cvxpy, Problem=Solved)  # type: ignore[attr-defined]
    return cluster


def completions(
    simulator: ModuleType,
    path: Path,
    policy: str,
    objective: Objective,
    alpha: float,
    horizon_s: float,
    restarts: str = "interval",
) -> tuple[list[float], float, float, float]:
    """Seconds from submission to completion of each job, seconds to the last, restarts a job, and processor seconds a
    look."""
    sia, config = sys.modules["sia"], sys.modules["simulator_config"]
    seconds: list[float] = []
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        theirs = sia.SiaPolicy(
            p_fairness=P_FAIRNESS, restart_penalty=30, lambda_a=LAMBDA_A, lambda_n=LAMBDA_N,
            project_throughputs=True, share_max_replicas=True,
        )  # fmt: skip
        per_node = {name: config.cluster_ngpus_per_node[name] for name in config.cluster_nnodes}
        theirs.populate_valid_configs(config.cluster_nnodes, per_node, config.cluster_max_physical_nnodes)
        ours = Sizing(alpha, horizon_s, theirs, sia.get_restart_penalty, objective, restarts)
        decide = ours.optimize if policy == "ours" else theirs.optimize

        def timed(*given: Any) -> object:
            began = time.process_time()
            answer = decide(*given)
            seconds.append(time.process_time() - began)
            return answer

        theirs.optimize = timed
        cluster = simulator.Cluster(
            published_simulators.workload(path), theirs, config.cluster_nnodes, per_node,
            max_physical_nodes=config.cluster_max_physical_nnodes,
        )  # fmt: skip
        ours.simulated = {job.name: job for job in cluster.jobs}
        while not cluster.all_complete():
            cluster.step(LOOK_S)
            del cluster.logs[:-1]
        jobs = cluster.jobs
    each = float(np.mean([job.num_restarts or 0 for job in jobs]))
    times = [float(job.completion_time - job.submission_time) for job in jobs]
    return times, float(max(job.completion_time for job in jobs)), each, float(np.mean(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulator", type=Path)
    parser.add_argument("--traces", default="philly", help="a folder of its workloads: philly, saturn, newtrace")
    parser.add_argument("--workloads", default="1", help="numbers, with commas")
    parser.add_argument("--policies", default="ours,sia")
    parser.add_argument("--objective", choices=["throughput", "srpt"], default="throughput")
    parser.add_argument("--alpha", type=float, help="default: Sia's 1.5, or that of the objective srpt")
    parser.add_argument("--horizon", type=float, default=900.0)
    parser.add_argument("--restarts", choices=["interval", "horizon"], default="interval")
    parser.add_argument("--json", type=Path, help="append each workload's completion times here, one object a line")
    options = parser.parse_args()
    objective, alpha = Objective(options.objective), options.alpha
    if alpha is None:
        alpha = alpha_of(objective, 0.0) or 1 - P_FAIRNESS
    simulator = load(options.simulator)
    policies = options.policies.split(",")
    found: dict[str, list[list[float]]] = {name: [] for name in policies}
    looks: dict[str, list[float]] = {name: [] for name in policies}
    print("| | mean completion, s | median | p95 | p99 |")
    print("|---|---|---|---|---|")
    for number in [int(part) for part in options.workloads.split(",")]:
        path = options.simulator / "workloads" / options.traces / f"workload-{number}.csv"
        for name in policies:
            times, makespan_s, restarts, look_s = completions(
                simulator, path, name, objective, alpha, options.horizon, options.restarts
            )
            found[name].append(times)
            looks[name].append(look_s)
            end = f"{restarts:.1f} restarts a job, last job ends after {makespan_s:,.0f} s"
            row(f"{options.traces} {number}, {name}: {end}", [times], look_s)
            if options.json is not None:
                with options.json.open("a") as file:
                    line = {"traces": options.traces, "workload": number, "policy": name,
                            "objective": options.objective, "alpha": alpha, "horizon_s": options.horizon,
                            "priced": options.restarts,
                            "makespan_s": makespan_s, "restarts": restarts, "completion_s": times}  # fmt: skip
                    file.write(json.dumps(line) + "\n")
    for name in policies:
        row(name, found[name], float(np.mean(looks[name])))
    if {"ours", "sia"} <= found.keys():
        by_workload("Sia", found["ours"], found["sia"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
