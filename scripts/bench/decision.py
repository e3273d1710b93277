"""How long one whole decision takes: holes, yielding, values, sizing, placement, reconciliation.

    python -m scripts.bench.decision [--grid 4734x100,10000x1000] [--kinds imagenet,rough] [--idle 0.1,0.25] \
        [--ticks 60]
                           [--churn 0.02] [--queue 500]

A machine of N nodes, the share `idle` of them without main job, J malleable jobs of 1-64 nodes. Between two
decisions a tick passes: main jobs start on the share `churn` of the holes and end on as many other nodes, what was
decided is done, and Slurm is looked at anew: records of nodes and rows of main jobs that did not change are the
objects that they were, pilots' rows are made anew. A queue of main jobs waits, the first fifty of them with planned
nodes. For scale: on the Summit log 1 % of the idle nodes change hands in ten seconds.

Times are processor seconds of one thread, the first five ticks left out (the cluster fills then).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from malletrain.decide.decision import decide
from malletrain.decide.draft import DecisionCache, Situation
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, CutLimit, LeavePilot, RecyclePilot, StartPilot
from malletrain.domain.job import Curve, JobPhase, JobView, MalleableJob, Pilot, PilotPhase
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from malletrain.sizing.registry import policy as policy_named
from scripts.bench import sizing
from scripts.bench.shared import options_of, peak_mib

START = 1.7e9
TICK_S = 10.0
WARM_UP = 5


class Machine:
    """A cluster and its malleable jobs, moved on tick by tick."""

    def __init__(self, nodes: int, jobs: int, kind: str, idle: float, churn: float, queue: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.names = [f"n{i:06d}" for i in range(nodes)]
        self.nodes = {n: Node(n, NodeState.ALLOCATED, ("batch", "harvest"), 64, 500_000) for n in self.names}
        self.now, self.serial, self.kind = START, 1, kind
        self.main: dict[int, SlurmJob] = {}
        self.holes: dict[str, float] = {}
        self.idle = round(nodes * idle)
        self.swap = round(self.idle * churn)
        self._open(self.names[: self.idle])
        self._fill(self.names[self.idle :])
        self.queue = [self._waiting(i, nodes) for i in range(queue)]
        self.views = {j: self._job(j) for j in range(1, jobs + 1)}

    def _job(self, number: int) -> JobView:
        if self.kind == "rough":
            rates = np.arange(1, 65) ** self.random.uniform(0.6, 1.0) * self.random.uniform(0.95, 1.05, 64)
            curve = Curve(tuple((n + 1, rate) for n, rate in enumerate(rates.tolist())))
        else:
            curve = Curve(tuple((n, 400.0 * s) for n, s in sizing.IMAGENET[number % 7].points))
        job = MalleableJob(number, f"job{number}", "alice", 1001, "harvest", 1, 64, START, given_curve=curve)
        tasks = [Pilot(f"{number}_{t}", number, PilotPhase.HELD, START) for t in range(70)]
        return JobView(job, JobPhase.RUNNING, {p.id: p for p in tasks}, curve=curve, nodes_since=START)

    def _open(self, names: list[str]) -> None:
        for name in names:
            self.nodes[name] = replace(self.nodes[name], state=NodeState.IDLE)
            self.holes[name] = self.now

    def _fill(self, names: list[str]) -> None:
        while names:
            count = int(self.random.integers(1, 65))
            held, names = names[:count], names[count:]
            for name in held:
                self.nodes[name] = replace(self.nodes[name], state=NodeState.ALLOCATED)
                self.holes.pop(name, None)
            self.serial += 1
            self.main[self.serial] = self._slurm_job(self.serial, SlurmState.RUNNING, tuple(held))

    def _slurm_job(self, number: int, state: SlurmState, held: tuple[str, ...] = (), **more: Any) -> SlurmJob:
        fields: dict[str, Any] = {"node_count": len(held), "time_limit_s": 7200.0, "priority": 1000} | more
        return SlurmJob(str(number), number, "main", "main", "batch", "normal", state, nodes=held, **fields)

    def _waiting(self, i: int, nodes: int) -> SlurmJob:
        """A main job too large for the holes there are; the first fifty have their plan."""
        least = min(2 * len(self.holes), nodes // 2 - 1)
        count = int(np.exp(self.random.uniform(np.log(least), np.log(nodes // 2))))
        begin = int(self.random.integers(0, nodes - count))
        planned = tuple(self.names[begin : begin + count]) if i < 50 else ()
        start = START + 3600.0 + 600.0 * i if planned else None
        return self._slurm_job(
            10_000_000 + i,
            SlurmState.PENDING,
            node_count=count,
            planned_nodes=planned,
            start_time=start,
            reason="Resources" if i == 0 else "Priority",
            priority=1000 - i,
        )

    def tick(self, actions: tuple[Action, ...]) -> Situation:
        """What was decided is done, the main queue moves on, and Slurm is looked at."""
        self.now += TICK_S
        changed: dict[int, dict[str, Pilot]] = {}
        for action in actions:
            if isinstance(action, StartPilot | LeavePilot | RecyclePilot | CutLimit):
                pilots = changed.setdefault(action.job_id, dict(self.views[action.job_id].pilots))
                if isinstance(action, StartPilot):
                    ends = self.now + action.limit_s
                    pilots[action.pilot] = Pilot(
                        action.pilot, action.job_id, PilotPhase.RUNNING, self.now, action.node, self.now, ends
                    )
                elif isinstance(action, CutLimit):
                    pilots[action.pilot] = replace(pilots[action.pilot], ends_at=action.ends_at)
                else:
                    pilots[action.pilot] = Pilot(action.pilot, action.job_id, PilotPhase.HELD, self.now)
        taken = sorted(self.random.choice(sorted(self.holes), self.swap, replace=False).tolist())
        gone = set(taken)
        for job_id, view in self.views.items():
            for pilot in view.active:
                if pilot.node in gone:
                    pilots = changed.setdefault(job_id, dict(view.pilots))
                    pilots[pilot.id] = Pilot(pilot.id, job_id, PilotPhase.HELD, self.now)
        ended: list[str] = []
        for number, job in sorted(self.main.items()):
            if len(ended) + len(job.nodes) <= self.swap:
                ended += self.main.pop(number).nodes
        self._open(ended)
        self._fill(taken)
        for job_id, pilots in changed.items():
            self.views[job_id] = replace(self.views[job_id], pilots=pilots)
        return self.look()

    def look(self) -> Situation:
        """Rows of Slurm's answers made anew: nothing cached is carried over."""
        rows = list(self.main.values()) + self.queue
        for view in self.views.values():
            rows += [
                SlurmJob(p.id, view.job.id, "alice", "harvest", "harvest", "low", SlurmState.RUNNING, nodes=(p.node,))
                for p in view.active
            ]
        snapshot = Snapshot(self.now, tuple(self.nodes.values()), tuple(rows))
        return Situation(snapshot, dict(self.views), self.now, open_holes=dict(self.holes))


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--grid", default="4734x100,10000x1000")
    parser.add_argument("--kinds", default="imagenet,rough")
    parser.add_argument("--idle", default="0.1,0.25", help="shares of the nodes without main job")
    parser.add_argument("--churn", type=float, default=0.02, help="share of the holes that change hands in a tick")
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--queue", type=int, default=500, help="waiting main jobs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [
        measure(point, kind, float(idle), args)
        for point in args.grid.split(",")
        for kind in args.kinds.split(",")
        for idle in args.idle.split(",")
    ]
    if args.json:
        args.json.write_text(json.dumps(rows))
    return 0


def measure(point: str, kind: str, idle: float, args: argparse.Namespace) -> dict[str, float]:
    """One machine, its decisions timed."""
    nodes, jobs = map(int, point.split("x"))
    machine = Machine(nodes, jobs, kind, idle, args.churn, args.queue, seed=nodes + jobs)
    rules, policy, memo = Rules(max_pilots=10**9), policy_named("auto"), DecisionCache()
    seconds, acts = [], []
    actions: tuple[Action, ...] = ()
    gc.collect()
    gc.freeze()  # what the bench itself holds is not the decision's garbage
    for tick in range(args.ticks + WARM_UP):
        situation = machine.tick(actions)
        begin = time.process_time()
        decided = decide(situation, policy, rules, memo)
        took = time.process_time() - begin
        actions = decided.decision.actions
        if tick >= WARM_UP:
            seconds.append(took)
            acts.append(len(actions))
    gc.unfreeze()
    held = sum(decided.decision.sizes.values())
    median, p99 = 1e3 * float(np.median(seconds)), 1e3 * float(np.quantile(seconds, 0.99))
    print(
        f"{nodes} x {jobs} {kind}, {idle:.0%} idle, {args.churn:.1%} of these change: median {median:.2f} ms, p99 "
        f"{p99:.2f} ms, {np.mean(acts):.0f} actions a tick, {held} nodes held, {peak_mib():.0f} MB",
        flush=True,
    )
    return {"median_ms": median, "p99_ms": p99, "memory_mb": peak_mib()}


if __name__ == "__main__":
    sys.exit(main())
