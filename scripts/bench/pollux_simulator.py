"""Our sizing in the simulator that Pollux's authors published, beside the completion times that they published.

    python -m scripts.bench.pollux_simulator SIMULATOR [--workloads 6] [--objective throughput] [--alpha 0]
        [--horizon 300] [--json FILE]

SIMULATOR is the folder `simulator` of github.com/petuum/adaptdl, branch osdi21-artifact (Pollux: Qiao et al., OSDI
2021); it needs pandas, scipy and autograd. Its jobs, its cluster (16 nodes of four GPUs), its models of goodput,
which are learnt while jobs run, a look every 60 s and a restart of 30 s are as they come; in the place of its policy
stands the exact core over the speed-ups in goodput that its policy gets, with stalls of 30 s. GPUs of a job are
packed on whole nodes, and a job whose size stays keeps its GPUs.

With --objective jct the work that was done stands for what is left, as in the daemon where the length is not known.
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
from malletrain.sizing.objective import Objective, urgency_by_rest
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
    seconds: list[float] = field(default_factory=list)
    _done: dict[str, float] = field(default_factory=dict)

    def optimize(
        self, jobs: Mapping[str, Any], nodes: Mapping[int, Any], before: Allocations, template: Any
    ) -> tuple[dict[str, list[int]], int]:
        """The GPUs of each job, and how many nodes are wanted: as many as there are."""
        began = time.process_time()
        demands = []
        for name, info in jobs.items():
            have = before.get(name, [])
            if have:
                self._done[name] = self._done.get(name, 0.0) + LOOK_S * float(
                    info.speedup_fn(len(set(have)), len(have))
                )
            counts = np.arange(1, info.max_replicas + 1)
            speedups = np.asarray(info.speedup_fn(-(-counts // GPUS_A_NODE), counts), dtype=np.float64).tolist()
            weight = 1.0
            if self.objective is Objective.JCT:
                weight = urgency_by_rest(None, self._done.get(name, 0.0))
            points = tuple((int(n), rate) for n, rate in zip(counts, speedups, strict=True) if rate > 0)
            demands.append(
                JobDemand(
                    name,
                    len(have),
                    1,
                    points[-1][0],
                    Curve(points),
                    weight=weight,
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


def completions(simulator: ModuleType, folder: Path, workload: int, policy: Sizing) -> list[float]:
    """Seconds from submission to completion of each job of a workload."""
    # The simulator asks of which class a policy is, and makes its jobs by that.
    members = {"__init__": lambda self: None, "optimize": staticmethod(policy.optimize)}
    cluster = simulator.Cluster(
        published_simulators.workload(folder / "workloads" / f"workload-{workload}.csv"),
        type("Ours", (simulator.PolluxPolicy,), members)(),
        16,
        num_gpus=GPUS_A_NODE,
    )
    while not cluster.all_complete():
        cluster.step(LOOK_S)
        del cluster.logs[:-1]
    return [float(seconds) for seconds in cluster.get_jcts().values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulator", type=Path)
    parser.add_argument("--workloads", default="6", help="numbers from 1 to 8, with commas")
    parser.add_argument("--objective", choices=[str(Objective.THROUGHPUT), str(Objective.JCT)], default="throughput")
    parser.add_argument("--alpha", type=float, default=0.0)
    parser.add_argument("--horizon", type=float, default=300.0)
    parser.add_argument("--json", type=Path, help="append each workload's completion times here, one object a line")
    options = parser.parse_args()
    simulator = load(options.simulator)
    ours: list[list[float]] = []
    theirs: dict[str, list[list[float]]] = {name: [] for name in PUBLISHED}
    looks: list[float] = []
    for number in [int(part) for part in options.workloads.split(",")]:
        policy = Sizing(Objective(options.objective), options.alpha, options.horizon)
        ours.append(completions(simulator, options.simulator, number, policy))
        looks += policy.seconds
        if options.json is not None:
            with options.json.open("a") as file:
                line = {"workload": number, "objective": options.objective, "alpha": options.alpha,
                        "horizon_s": options.horizon, "completion_s": ours[-1]}  # fmt: skip
                file.write(json.dumps(line) + "\n")
        for name, values in theirs.items():
            path = options.simulator / "results-jobload" / f"{name}-1.0" / "summary.json"
            values.append([*json.loads(path.read_text())["jcts"][f"workload-{number}"].values()])
    print("| | mean completion, s | median | p95 | p99 |")
    print("|---|---|---|---|---|")
    for name, values in theirs.items():
        row(f"{name}, published", values)
    row(f"ours, {options.objective}, alpha {options.alpha:g}", ours, float(np.mean(looks)))
    by_workload("Pollux", ours, theirs["pollux"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
