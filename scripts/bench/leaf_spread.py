"""On how many leaf switches are main jobs, with pilots and without?

A main queue of a real log is played in memory, first come, first served, on a machine of equal leaf switches. Slurm's
part is its rule alone (`leaf_choice.leaf_order`: the fullest leaf that holds the job, else the widest, of the nodes
that are idle); the pilots that leave and the reserve are decided on by the daemon's own functions, once with the
machine's leaves and once as if there were none. Pilots are of one job whose curve is concave, so that each costs
differently, by when it started.

    python -m scripts.bench.leaf_spread --log NASA-iPSC-1993-3.1-cln.swf.gz --nodes 16 --leaf 4
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from malletrain.decide.leaf_choice import leaf_order
from malletrain.decide.reserve import plan_reserve
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import HarvestedNode, plan_yields
from malletrain.domain.decision import Hole
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from scripts.play.load import MainJob, from_log

HARVEST, MAIN = "harvest", "batch"
DAY_S = 86_400.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True, help="SWF or sacct log")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--leaf", type=int, default=4, help="nodes of a leaf switch")
    parser.add_argument("--keep-idle", type=int, default=1)
    parser.add_argument("--days", type=float, default=14.0, help="days of the log")
    parser.add_argument("--fill", type=float, default=0.6, help="share of the machine that the main queue takes")
    options = parser.parse_args()
    span_s = options.days * DAY_S
    jobs, _ = from_log(options.log, options.nodes, span_s, span_s, 0, options.fill)
    leaves = {f"n{at:05d}": f"leaf{at // options.leaf}" for at in range(options.nodes)}
    print(f"{len(jobs)} main jobs of {options.log.name} on {options.nodes} nodes, {options.leaf} a leaf")
    print(f"{'':32}{'leaves a job':>14}{'of several nodes':>18}{'whole leaves':>14}{'pilots left':>13}")
    for words, pilots, seen in (
        ("without pilots", False, leaves),
        ("the cheapest pilots leave", True, {}),
        ("those on few leaves leave", True, leaves),
    ):
        machine = Machine(leaves, seen, options.keep_idle, pilots)
        machine.play(jobs)
        wide = [on for on, nodes in machine.spread if nodes > 1]
        print(
            f"{words:32}{fmean(on for on, _ in machine.spread):14.3f}{fmean(wide or [0]):18.3f}"
            f"{fmean(machine.whole):14.2f}{machine.left:13d}"
        )
    return 0


@dataclass
class Machine:
    """A machine with a main queue and, if `pilots`, a pilot on each node that neither has nor is kept for a main job.

    `leaves`: leaf of each node; `seen`: what the daemon sees of them. `spread`: leaves and nodes of each job that
    started; `whole`: at each start, how many leaves have no main job; `left`: how many pilots left.
    """

    leaves: Mapping[str, str]
    seen: Mapping[str, str]
    keep_idle: int
    pilots: bool
    spread: list[tuple[int, int]] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    left: int = 0

    def __post_init__(self) -> None:
        self._rules = Rules(keep_idle=self.keep_idle)
        self._free = set(self.leaves)
        self._pilots: dict[str, int] = {}  # node -> when its pilot started, by order
        self._started = 0

    def play(self, jobs: Sequence[MainJob]) -> None:
        ends: list[tuple[float, int, list[str]]] = []
        queue: list[MainJob] = []
        self._settle(0.0)
        arrivals = sorted(jobs, key=lambda job: (job.submit_s, job.number), reverse=True)
        while arrivals or queue:
            coming = arrivals[-1].submit_s if arrivals else float("inf")
            now = min(coming, ends[0][0] if ends else float("inf"))
            while ends and ends[0][0] <= now:
                self._free.update(heapq.heappop(ends)[2])
            while arrivals and arrivals[-1].submit_s <= now:
                queue.append(arrivals.pop())
            while queue and queue[0].nodes <= len(self._free) + len(self._pilots):
                job = queue.pop(0)
                nodes = self._start(job, now)
                heapq.heappush(ends, (now + job.run_s, job.number, nodes))
            self._settle(now)

    def _start(self, job: MainJob, now: float) -> list[str]:
        """Pilots leave if the job needs their nodes; then Slurm chooses among the idle ones."""
        if job.nodes > len(self._free):
            waiting = _row(f"{job.number}", MAIN, SlurmState.PENDING, job.nodes, job.limit_s)
            given = plan_yields(self._snapshot(now, waiting), self._harvested(), {}, now, self._rules).given
            going = given & self._pilots.keys()
            self.left += len(going)
            for node in going:
                del self._pilots[node]
            self._free |= going
        on = Counter(self.leaves[node] for node in self._free)
        place_of = {leaf: at for at, leaf in enumerate(leaf_order(on, job.nodes))}
        chosen = sorted(self._free, key=lambda node: (place_of.get(self.leaves[node], len(on)), node))[: job.nodes]
        self._free.difference_update(chosen)
        self.spread.append((len({self.leaves[node] for node in chosen}), job.nodes))
        main_on = {leaf for node, leaf in self.leaves.items() if node not in self._free and node not in self._pilots}
        self.whole.append(len(set(self.leaves.values())) - len(main_on))
        return chosen

    def _settle(self, now: float) -> None:
        """The reserve is made whole, and pilots start on all other free nodes."""
        if not self.pilots:
            return
        holes = [Hole(node, now + DAY_S, "") for node in sorted(self._free)]
        reserve = plan_reserve(holes, self._harvested(), (), self._snapshot(now), self._rules)
        going = {node for node in self._pilots if _pilot(node) in reserve.leave}
        self.left += len(going)
        for node in going:
            del self._pilots[node]
        for node in sorted(self._free.difference(reserve.kept)):
            self._pilots[node] = self._started
            self._started += 1
        self._free = set(reserve.kept) | going

    def _harvested(self) -> list[HarvestedNode]:
        """The last to start is the first to go, and costs least: O(k) = the square root of k."""
        order = sorted(self._pilots, key=lambda node: -self._pilots[node])
        held = len(order)
        costs = ((held - at) ** 0.5 - (held - at - 1) ** 0.5 for at in range(held))
        return [HarvestedNode(node, _pilot(node), 1, cost) for node, cost in zip(order, costs, strict=True)]

    def _snapshot(self, now: float, *waiting: SlurmJob) -> Snapshot:
        nodes = tuple(
            Node(name, NodeState.IDLE if name in self._free else NodeState.ALLOCATED, (MAIN, HARVEST))
            for name in self.leaves
        )
        pilots = (_row(_pilot(node), HARVEST, SlurmState.RUNNING, 1, DAY_S, node) for node in sorted(self._pilots))
        main = self.leaves.keys() - self._free - self._pilots.keys()
        running = (_row(f"1{at}", MAIN, SlurmState.RUNNING, 1, DAY_S, node) for at, node in enumerate(sorted(main)))
        return Snapshot(now, nodes, (*pilots, *running, *waiting), leaves=self.seen)


def _pilot(node: str) -> str:
    return f"9_{int(node[1:])}"


def _row(name: str, partition: str, state: SlurmState, count: int, limit_s: float, *nodes: str) -> SlurmJob:
    return SlurmJob(
        id=name, raw_id=int(name.replace("_", "")), user="", account="", partition=partition, qos="", state=state,
        reason="Resources" if state is SlurmState.PENDING else "None", node_count=count, time_limit_s=limit_s,
        nodes=nodes, priority=1,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
