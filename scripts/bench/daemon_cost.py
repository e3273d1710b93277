"""What malletraind itself takes at 10,000 nodes: processor time, of its Slurm commands too, and memory.

A slurmctld alone with so many cloud nodes, main jobs on half of them, and a job of --pilots held tasks: the daemon
looks, decides, serves HTTP, keeps its journal, and finds no node, since all are powered down.

    python -m scripts.bench.daemon_cost --nodes 10000 --tick 10 --seconds 90
"""

from __future__ import annotations

import argparse
import sys
import time

from scripts.bench.shared import controller_alone, fill, memory_mib, options_of, spent
from scripts.lab import Lab
from scripts.play.site import Site

#: Daemons begin with imports and with reading the journal; that is not what they take from day to day.
SETTLE_S = 25.0


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--main", type=int, default=40, help="main jobs that run, on half of the nodes")
    parser.add_argument("--waiting", type=int, default=100, help="main jobs that wait")
    parser.add_argument("--pilots", type=int, default=500, help="held tasks of the job that the daemon serves")
    parser.add_argument("--tick", type=float, default=10.0, help="loop.tick_s")
    parser.add_argument("--seconds", type=float, default=90.0, help="watched so long")
    return controller_alone(bench, parser.parse_args())


def bench(lab: Lab, options: argparse.Namespace) -> None:
    fill(lab, options.main, options.nodes // 2, options.waiting)
    with Site(lab, settings={"loop": [f"tick_s = {options.tick}"]}) as site:
        site.start()
        if lab.users:
            site.harvest("alice", 100, tasks=options.pilots, payload="exec sleep 9")
        time.sleep(SETTLE_S)
        own, children = spent(site.pid)
        began = time.monotonic()
        time.sleep(options.seconds)
        own_after, children_after = spent(site.pid)
        passed = time.monotonic() - began
        whole = own_after - own + children_after - children
        resident, most = (memory_mib(site.pid, key) for key in ("VmRSS", "VmHWM"))
    print(f"{options.nodes} nodes, {options.main + options.waiting} main jobs, tick {options.tick:g} s")
    print("share of a core   of that its commands    resident MiB    at most")
    print(f"{whole / passed:15.1%}{(children_after - children) / passed:23.1%}{resident:16.0f}{most:11.0f}")


if __name__ == "__main__":
    sys.exit(main())
