"""The processor time of the decision who leaves, while 500 main jobs wait that fit on the harvested nodes.

    python -m scripts.bench.yielding --burst 10000

Or an array with a task for each node.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import HarvestedNode, plan_yields
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from scripts.bench.shared import options_of

#: What waits in a burst, by name: what its jobs ask for.
BURSTS: dict[str, dict[str, Any]] = {
    "one node each": {},
    "two nodes, --switches=1": {"node_count": 2, "switches": 1},
    "hetjobs of two": {"het": True},
    "each planned, of another limit": {"planned": True},
    "an array": {"array": True},
    "an array, --switches=1": {"array": True, "switches": 1},
    "wide": {"node_count": 300},
}
BURST_JOBS = 500
BURST_AT = 1_000_000.0


def burst(nodes: int, waiting: str, leaf: int = 0, width: int = 1) -> tuple[Snapshot, list[HarvestedNode]]:
    """A machine of harvested nodes, `leaf` of them on a leaf switch (0: without switches), pilots of `width` nodes,
    and what waits for them, a key of `BURSTS`."""
    names = [f"n{at:05d}" for at in range(nodes)]
    asked = {"node_count": 1} | BURSTS[waiting]
    het, planned, array = (asked.pop(key, False) for key in ("het", "planned", "array"))
    rows = []
    for number in range(1, 2 if array else BURST_JOBS + 1):
        more: dict[str, Any] = {"task_count": nodes} if array else {}
        more |= {"het_id": (number + 1) // 2 * 2} if het else {}
        if planned:
            more |= {
                "start_time": BURST_AT + number,
                "planned_nodes": (names[number],),
                "time_limit_s": 60.0 * number,
            }
        fields = asked | {"reason": "Priority", "priority": 100, "time_limit_s": 600.0} | more
        row = SlurmJob(str(number), number, "main", "main", "batch", "normal", SlurmState.PENDING, **fields)
        rows.append(row)
    tasks = [names[at : at + width] for at in range(0, nodes, width)]
    for at, task in enumerate(tasks):
        running = SlurmState.RUNNING
        rows.append(SlurmJob(f"9_{at}", 90_000 + at, "al", "harvest", "harvest", "", running, nodes=tuple(task)))
    wholes = [frozenset(task if width > 1 else ()) for task in tasks]
    harvested = [
        HarvestedNode(name, f"9_{at}", 1.0 + at % 97 / 100, whole)
        for at, whole in enumerate(wholes)
        for name in tasks[at]
    ]
    leaves = {name: f"leaf{at // leaf}" for at, name in enumerate(names)} if leaf else {}
    machine = tuple(Node(name, NodeState.ALLOCATED, ("batch", "harvest")) for name in names)
    return Snapshot(BURST_AT, machine, tuple(rows), leaves=leaves), harvested


def time_bursts(nodes: int) -> None:
    """Print the processor time of each burst."""
    print(
        f"{'waiting on ' + str(nodes) + ' nodes':34}{'no switches':>12}{'leaves of 32':>14}{'pilots of 40':>14}  (s)"
    )
    for waiting in BURSTS:
        row = f"{waiting:34}"
        for leaf, width, columns in ((0, 1, 12), (32, 1, 14), (32, 40, 14)):
            snapshot, harvested = burst(nodes, waiting, leaf, width)
            began = time.process_time()
            plan_yields(snapshot, harvested, {}, BURST_AT, Rules())
            row += f"{time.process_time() - began:{columns}.3f}"
        print(row, flush=True)


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--burst", type=int, metavar="NODES", default=10_000, help="harvested nodes")
    time_bursts(parser.parse_args().burst)
    return 0


if __name__ == "__main__":
    sys.exit(main())
