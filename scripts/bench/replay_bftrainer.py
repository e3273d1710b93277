"""A race against BFTrainer's replayer on Summit's events, and whether its trajectory is reproduced.

    python -m scripts.bench.replay_bftrainer [--peer-limit 10] [--recorded FILE] [--hours 24] [--nodes 256]

Every 18th node by name, from 2021-02-10 20:21:15 on, where the published replayer begins; the ImageNet jobs, ten at
once, a horizon of 10 s.

- `malletrain`: its accounting, its horizon, the fault of its big M, no time-outs; each programme by the exact core.
- the peer: the same, each programme as published, one binary for each job and node, by CBC through PuLP with a time
  limit of `--peer-limit` seconds (its default is 10), anything but an optimum discarded.
- `--recorded`: a trajectory that the published code itself wrote (github.com/BFTrainer/Replayer, with CBC through
  python-mip), one JSON object an event: {"t", "credited"} (the columns evtTime and Thr of its step-logs.csv) and,
  where it decided, {"before": {job: [node, ..]}, "free": [..], "after": {..}, "optimal", "solve_s"}. Each of its
  decisions is compared with the optimum from the same state, and the trajectory is followed: where several plans are
  equally good, the recorded one is taken.

Processor seconds of one thread; children of the process are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.replay import ClusterTrace, ResizeCosts, Window, cluster_trace, read_jobs, read_trace
from malletrain.replay.traces import NodeChanges
from scripts.bench.bftrainer_replayer import HORIZON_S, Exact, Plan, Running, Step, replay_as_published

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "bftrainer"
BEGIN = datetime(2021, 2, 10, 20, 21, 15, tzinfo=UTC).timestamp()


def seconds() -> float:
    return sum(os.times()[:4])


class PerNode:
    """The published programme (arXiv 2106.12091): x_jn says that job j has node n.

    No job moves: the nodes that change hands, sum_n |x_jn - c_jn|, are the change of its size. Its size is a
    combination of two neighbouring points of its curve (special ordered set of type 2, here by binaries).
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.unsolved = limit_s, 0

    def __call__(self, running: Sequence[Running], idle: frozenset[int]) -> Plan | None:
        import pulp

        nodes = sorted(idle)
        big = len(nodes) + 1
        model = pulp.LpProblem("bftrainer", pulp.LpMaximize)
        x: list[dict[int, Any]] = []
        gain = []
        for j, job in enumerate(running):
            held, costs = set(job.held), job.each.costs
            rate_now = job.each.curve.throughput(len(held))
            x.append({n: model.add_variable(f"x_{j}_{n}", cat="Binary") for n in nodes})
            size = pulp.lpSum(x[j].values())
            least, most, moves, up, down = (
                model.add_variable(f"{name}_{j}", cat="Binary") for name in ("least", "most", "moves", "up", "down")
            )
            model += size >= job.each.job.min_nodes - big * least
            model += size <= big * (1 - least)
            model += size <= job.each.job.max_nodes + big * most
            model += size <= big * (1 - most)
            changed = []
            for n in nodes:
                differs = model.add_variable(f"d_{j}_{n}", cat="Binary")
                had = int(n in held)
                model += differs <= x[j][n] + had
                model += differs >= x[j][n] - had
                model += differs >= had - x[j][n]
                model += differs <= 2 - x[j][n] - had
                changed.append(differs)
            model += size - len(held) >= pulp.lpSum(changed) - big * moves
            model += size - len(held) <= -pulp.lpSum(changed) + big * (1 - moves)
            points = [(0, 0.0), *job.each.curve.points]
            weight = [model.add_variable(f"w_{j}_{i}", 0, 1) for i in range(len(points))]
            span = [model.add_variable(f"s_{j}_{i}", cat="Binary") for i in range(len(points) - 1)]
            model += pulp.lpSum(weight) == 1
            model += pulp.lpSum(span) == 1
            for i, one in enumerate(weight):
                model += one <= pulp.lpSum(span[max(0, i - 1) : i + 1])
            model += size == pulp.lpSum(n * one for (n, _), one in zip(points, weight, strict=True))
            model += size <= len(held) + (big - len(held)) * up
            model += size >= (len(held) + 1) * up
            model += size <= (len(held) - 1) + (big - (len(held) - 1)) * (1 - down)
            model += size >= len(held) * (1 - down)
            gain += [HORIZON_S * rate * one for (_, rate), one in zip(points, weight, strict=True)]
            gain += [-costs.grow_s * rate_now * up, -costs.shrink_s * rate_now * down]
        for n in nodes:
            model += pulp.lpSum(mine[n] for mine in x) <= 1
        model.setObjective(pulp.lpSum(gain))
        model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=self.limit_s))
        if model.sol_status != pulp.LpSolutionOptimal:
            self.unsolved += 1
            return None
        return [[n for n in nodes if (mine[n].value() or 0.0) > 0.5] for mine in x]


class Following:
    """Takes the recorded plan where it is as good as the optimum, counting how often it is not."""

    def __init__(self, trace: ClusterTrace, recorded: list[dict[str, Any]]) -> None:
        self.exact, self.number = Exact(), {name: i for i, name in enumerate(trace.nodes)}
        self.names = trace.nodes
        self.steps: dict[tuple[tuple[str, tuple[str, ...]], ...], list[dict[str, Any]]] = {}
        for step in (step for step in recorded if "before" in step):
            self.steps.setdefault(self._key(step["before"]), []).append(step)
        self.worse = self.unknown = self.ties = self.followed = 0

    @staticmethod
    def _key(held: Mapping[str, Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple(sorted((job.partition("-")[0], tuple(sorted(nodes))) for job, nodes in held.items()))

    def __call__(self, running: Sequence[Running], idle: frozenset[int]) -> Plan | None:
        key = self._key({job.each.job.name: [self.names[n] for n in job.held] for job in running})
        own = self.exact(running, idle)
        free = {self.names[n] for n in idle}
        step = next(
            (s for s in self.steps.get(key, []) if set(s["free"]) | set().union(*s["before"].values()) == free), None
        )
        if step is None:
            self.unknown += 1
            return own
        if not step["optimal"]:
            return None  # it ran out of time, and left all as it was
        after = {job.partition("-")[0]: nodes for job, nodes in step["after"].items()}
        plan = [[self.number[node] for node in after[job.each.job.name]] for job in running]
        sizes = [len(nodes) for nodes in plan]
        self.followed += 1
        if self.exact.shortfall(running, idle, sizes) > 1e-9:
            self.worse += 1
        self.ties += sizes != [len(nodes) for nodes in own]
        return plan


def told(name: str, steps: list[Step], spent: float, base: float = 0.0) -> float:
    trained = sum(step.credited for step in steps)
    ratio = f"   {spent / base:7.0f} times malletrain" if base else ""
    print(f"{name:32} {spent:9.2f} s   {len(steps)} events   {trained:.6e} samples{ratio}")
    return trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-limit", type=float, default=10.0)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"the data set is not at {DATA}")
    log = read_trace(DATA / "summit_node_events.csv.gz")
    assert isinstance(log, NodeChanges)
    chosen = sorted(range(len(log.nodes)), key=lambda i: log.nodes[i])[::18][: args.nodes]
    rank = np.full(len(log.nodes), -1, np.int32)
    rank[chosen] = np.arange(len(chosen))
    keep = rank[log.node] >= 0
    part = replace(log, nodes=tuple(log.nodes[i] for i in chosen), time=log.time[keep], node=rank[log.node[keep]],
                   state=log.state[keep])  # fmt: skip
    trace = cluster_trace(part, Window(start=BEGIN, end=BEGIN + 3600 * args.hours))
    jobs = read_jobs(DATA / "jobs_imagenet_1001.csv.gz", ResizeCosts())
    began = seconds()
    own = replay_as_published(trace, jobs)
    spent = seconds() - began
    told("malletrain", own, spent)
    told("malletrain, big M mended", replay_as_published(trace, jobs, Exact(big_m_fault=False)), spent)
    if args.recorded is not None:
        recorded = [json.loads(line) for line in args.recorded.read_text().splitlines()]
        following = Following(trace, recorded)
        followed = replay_as_published(trace, jobs, following)
        last = datetime.fromisoformat(recorded[-1]["t"]).replace(tzinfo=UTC).timestamp()
        trained = told("malletrain, following the record", [step for step in followed if step.at <= last], spent)
        theirs = sum(step["credited"] for step in recorded)
        solves = sum(step.get("solve_s", 0.0) for step in recorded)
        late = sum(not step.get("optimal", True) for step in recorded)
        print(f"the record: {theirs:.6e} samples, difference {trained / theirs - 1:+.1e}; {solves:.1f} s in CBC,")
        print(f"  {solves / spent:.0f} times malletrain; {late} programmes not solved in time")
        print(f"  of {following.followed} optimal decisions {following.worse} are worth less than the optimum,")
        print(f"  {following.ties} take another of several equal plans; {following.unknown} events not in the record")
    if not args.no_peer:
        peer = PerNode(args.peer_limit)
        began = seconds()
        steps = replay_as_published(trace, jobs, peer)
        told(f"peer, CBC by PuLP ({peer.unsolved} unsolved)", steps, seconds() - began, spent)


if __name__ == "__main__":
    main()
