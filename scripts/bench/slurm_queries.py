"""What one round of queries costs: wall and processor seconds, of the commands and of reading them.

    python -m scripts.bench.slurm_queries [--nodes 10000] [--jobs 150] [--rounds 20]

A slurmctld alone, with so many (powered-down cloud) nodes and so many jobs on a third of them. Wall times are of
this machine under whatever load it has; processor times hardly depend on that.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from malletrain.domain.snapshot import MainQueue, Snapshot
from malletrain.slurm.command import Commands
from malletrain.slurm.read_commands import CommandReader
from scripts.lab import Lab, LabConfig, LabError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=150, help="main jobs")
    parser.add_argument("--pilots", type=int, default=500, help="held pilots, in arrays of at most 500")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    config = LabConfig(
        nodes=options.nodes, profile="site", controller_only=True, settings=(("MessageTimeout", "60"),)
    )
    try:
        with Lab.up(f"/tmp/mtbench-{secrets.token_hex(3)}", config, deadline_s=120) as lab:
            fill(lab, options.nodes, options.jobs, options.pilots)
            measure(lab, options.rounds)
    except LabError as error:
        print(f"slurm_queries: {error}", file=sys.stderr)
        return 2
    return 0


def fill(lab: Lab, nodes: int, jobs: int, pilots: int) -> None:
    for _ in range(jobs):
        lab.submit("true", "-p", "batch", f"--nodes={max(1, nodes // 3 // jobs)}", "--exclusive", "--time=600")
    for first in range(0, pilots, 500):
        tasks = min(500, pilots - first)
        lab.submit("true", "-p", "harvest", "--hold", f"--array=0-{tasks - 1}", "--no-requeue", "--time=1")


def measure(lab: Lab, rounds: int) -> None:
    reader = CommandReader(Commands(lab.env, timeout_s=60.0), time.time, "harvest", bf_interval_s=30.0)
    seen = reader.snapshot()
    print(f"{len(seen.nodes)} nodes, {len(seen.jobs)} jobs and tasks, warnings: {list(seen.warnings) or 'none'}")
    print(f"{'':22}{'wall s':>18}{'commands CPU s':>18}{'reading CPU s':>18}   (median, worst of {rounds})")
    look = partial(reader.main_queue, seen.active_ids("harvest"))
    for name, query in (("snapshot", reader.snapshot), ("look at the queue", look)):
        costs = [cost(query) for _ in range(rounds)]
        columns = zip(*costs, strict=True)
        shown = "".join(f"{statistics.median(c):12.3f}{max(c):6.2f}" for c in columns)
        print(f"{name:22}{shown}")


def cost(query: Callable[[], Snapshot | MainQueue]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds of the commands, and our own."""
    own, children, started = _cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN), time.perf_counter()
    query()
    wall = time.perf_counter() - started
    return wall, _cpu(resource.RUSAGE_CHILDREN) - children, _cpu(resource.RUSAGE_SELF) - own


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
