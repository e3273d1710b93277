"""Our sizing in the simulator that Pollux's authors published, beside the completion times that they published.

    python -m scripts.bench.pollux_simulator SIMULATOR [--workloads 6] [--objective throughput] [--alpha 0]
        [--horizon 300] [--unknown-lengths] [--json FILE]

SIMULATOR is the folder `simulator` of github.com/petuum/adaptdl, branch osdi21-artifact (Pollux: Qiao et al., OSDI
2021); it needs pandas, scipy and autograd. Its jobs, its cluster (16 nodes of four GPUs), its models of goodput,
which are learnt while jobs run, a look every 60 s and a restart of 30 s are as they come; in the place of its policy
stands the exact core over the speed-ups in goodput that its policy gets, with stalls of 30 s. GPUs of a job are
packed on whole nodes, and a job whose size stays keeps its GPUs.

With --objective srpt or jct jobs say how many epochs they train, as users of the daemon do and as the simulator's
Optimus is given: what is left is the progress up to their last epoch. Pollux does not use it. With --unknown-lengths
nobody says so, and the work that was done stands for what is left.
The published figures are those of the simulator's own results-jobload/*-1.0/summary.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from malletrain.domain.job import Curve
from malletrain.sizing.objective import Objective, alpha_of, rest_by_attained, urgencies_by_rank, urgency_by_rest
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobDemand, Problem
from scripts.bench import published_simulators
from scripts.bench.published_simulators import by_workload, row

LOOK_S = 60.0
RESTART_S = 30.0
GPUS_A_NODE = 4
PUBLISHED = ("pollux", "tiresias", "optimus")

Allocations = Mapping[str, list[int]]


def pack(sizes: Mapping[str, int], before: Allocations, nodes: Mapping[int, int]) -> dict[str, list[int]]:
    """The GPUs of each job, as a list of nodes with one entry a GPU.

    Args:
        sizes: GPUs by job; together no more than there are.
        before: where the jobs are; those whose size stays are left there.
        nodes: GPUs by node.
    """
    free = dict(nodes)
    found: dict[str, list[int]] = {}
    for name, size in sizes.items():
        if size and len(before.get(name, [])) == size:
            found[name] = list(before[name])
            for node in found[name]:
                free[node] -= 1
    for name, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        if name in found:
            continue
        taken: list[int] = []
        while len(taken) < size:
            left = size - len(taken)
            # The fullest node that takes all of the rest, else the emptiest.
            fits = [(gpus, node) for node, gpus in free.items() if gpus >= left]
            gpus, node = min(fits) if fits else max((gpus, -node) for node, gpus in free.items())
            node = node if fits else -node
            count = min(gpus, left)
            taken += [node] * count
            free[node] -= count
        found[name] = sorted(taken)
    return found


@dataclass
class Sizing:
    """Stands in the place of the simulator's policy: its `optimize` is called at each look."""

    objective: Objective
    alpha: float
    horizon_s: float
    lengths: bool = True
    seconds: list[float] = field(default_factory=list)
    #: The simulator's jobs by name, for what they have done and what is left.
    simulated: Mapping[str, Any] = field(default_factory=dict)

    def optimize(
        self, jobs: Mapping[str, Any], nodes: Mapping[int, Any], before: Allocations, template: Any
    ) -> tuple[dict[str, list[int]], int]:
        """The GPUs of each job, and how many nodes are wanted: as many as there are."""
        began = time.process_time()
        demands = []
        urgencies = [1.0] * len(jobs)
        if self.objective is Objective.SRPT:
            urgencies = urgencies_by_rank([self.rest_s(name, info) for name, info in jobs.items()])
        elif self.objective is Objective.JCT:
            urgencies = [urgency_by_rest(self.rest_s(name, info), 0.0) for name, info in jobs.items()]
        for (name, info), urgency in zip(jobs.items(), urgencies, strict=True):
            have = before.get(name, [])
            counts = np.arange(1, info.max_replicas + 1)
            speedups = np.asarray(info.speedup_fn(-(-counts // GPUS_A_NODE), counts), dtype=np.float64).tolist()
            points = tuple((int(n), rate) for n, rate in zip(counts, speedups, strict=True) if rate > 0)
            demands.append(
                JobDemand(
                    name,
                    len(have),
                    1,
                    points[-1][0],
                    Curve(points),
                    weight=urgency,
                    grow_s=RESTART_S,
                    shrink_s=RESTART_S,
                    activate_s=RESTART_S if not have else 0.0,
                )
            )
        gpus = {int(node): int(info.resources["nvidia.com/gpu"]) for node, info in nodes.items()}
        answer = Exact().size(Problem(self.horizon_s, sum(gpus.values()), tuple(demands), alpha=self.alpha))
        sizes = {name: int(answer.sizes.get(name, 0)) for name in jobs}
        found = pack(sizes, before, gpus)
        self.seconds.append(time.process_time() - began)
        return found, len(nodes)

    def rest_s(self, name: str, info: Any) -> float:
        """Seconds on one GPU that are left, or what stands for them; none before the job's speed was measured."""
        if not hasattr(info.speedup_fn, "_base_goodput"):
            return 0.0
        job = self.simulated[name]
        # Progress counts steps of the first batch size, goodput samples.
        rate = float(info.speedup_fn._base_goodput) / job.application.init_batch_size
        if not self.lengths:
            return rest_by_attained(job.progress / rate)
        left = job.application.get_progress(job.application.max_epochs) - job.progress
        return float(left / rate)


def load(folder: Path) -> ModuleType:
    """The simulator, without the genetic algorithm of its own policy."""
    for name in ("", ".model", ".model.crossover", ".model.mutation", ".model.problem", ".model.repair", ".optimize",
                 ".algorithms", ".algorithms.nsga2", ".operators", ".operators.crossover",
                 ".operators.crossover.util", ".util", ".util.nds", ".util.nds.non_dominated_sorting"):  # fmt: skip
        sys.modules[f"pymoo{name}"] = MagicMock()
    for base in ("Crossover", "Mutation", "Problem", "Repair"):
        setattr(sys.modules[f"pymoo.model.{base.lower()}"], base, object)
        setattr(getattr(sys.modules["pymoo"].model, base.lower()), base, object)
    return published_simulators.load(folder, "simulator")


def completions(
    simulator: ModuleType, folder: Path, workload: int, policy: Sizing
) -> tuple[list[float], float, float]:
    """Seconds from submission to completion of each job of a workload, seconds to the last, and restarts a job."""
    # The simulator asks of which class a policy is, and makes its jobs by that.
    members = {"__init__": lambda self: None, "optimize": staticmethod(policy.optimize)}
    cluster = simulator.Cluster(
        published_simulators.workload(folder / "workloads" / f"workload-{workload}.csv"),
        type("Ours", (simulator.PolluxPolicy,), members)(),
        16,
        num_gpus=GPUS_A_NODE,
    )
    policy.simulated = {job.name: job for job in cluster.jobs}
    while not cluster.all_complete():
        cluster.step(LOOK_S)
        del cluster.logs[:-1]
    restarts = float(np.mean([job.num_restarts or 0 for job in cluster.jobs]))
    makespan_s = float(max(job.completion_time for job in cluster.jobs))
    return [float(seconds) for seconds in cluster.get_jcts().values()], makespan_s, restarts


def makespan_of(folder: Path, workload: int, seconds: Mapping[str, float]) -> float:
    """Seconds to the end of a workload's last job, by published completion times."""
    jobs = published_simulators.workload(folder / "workloads" / f"workload-{workload}.csv")
    return max(float(at) + seconds[name] for name, at in zip(jobs.name, jobs.time, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulator", type=Path)
    parser.add_argument("--workloads", default="6", help="numbers from 1 to 8, with commas")
    parser.add_argument("--objective", choices=["throughput", "jct", "srpt"], default="throughput")
    parser.add_argument("--alpha", type=float, default=0.0, help="0: the objective's own")
    parser.add_argument("--horizon", type=float, default=300.0)
    parser.add_argument("--unknown-lengths", action="store_true", help="no job says how long it trains")
    parser.add_argument("--json", type=Path, help="append each workload's completion times here, one object a line")
    options = parser.parse_args()
    simulator = load(options.simulator)
    objective = Objective(options.objective)
    alpha = alpha_of(objective, options.alpha)
    ours: list[list[float]] = []
    theirs: dict[str, list[list[float]]] = {name: [] for name in PUBLISHED}
    ends: dict[str, list[float]] = {name: [] for name in (*PUBLISHED, "ours")}
    looks: list[float] = []
    restarts: list[float] = []
    for number in [int(part) for part in options.workloads.split(",")]:
        policy = Sizing(objective, alpha, options.horizon, lengths=not options.unknown_lengths)
        times, makespan_s, each = completions(simulator, options.simulator, number, policy)
        ours.append(times)
        ends["ours"].append(makespan_s)
        restarts.append(each)
        looks += policy.seconds
        if options.json is not None:
            with options.json.open("a") as file:
                line = {"workload": number, "objective": options.objective, "alpha": alpha, "lengths": policy.lengths,
                        "horizon_s": options.horizon, "makespan_s": makespan_s, "restarts": each,
                        "completion_s": times}  # fmt: skip
                file.write(json.dumps(line) + "\n")
        for name, values in theirs.items():
            path = options.simulator / "results-jobload" / f"{name}-1.0" / "summary.json"
            found = json.loads(path.read_text())["jcts"][f"workload-{number}"]
            values.append([*found.values()])
            ends[name].append(makespan_of(options.simulator, number, found))
    print("| | mean completion, s | median | p95 | p99 |")
    print("|---|---|---|---|---|")
    for name, values in theirs.items():
        row(f"{name}, published; last job ends after {np.mean(ends[name]):,.0f} s", values)
    row(f"ours, {objective}, alpha {alpha:g}; {np.mean(ends['ours']):,.0f} s; {np.mean(restarts):.1f} restarts a job",
        ours, float(np.mean(looks)))  # fmt: skip
    by_workload("Pollux", ours, theirs["pollux"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
