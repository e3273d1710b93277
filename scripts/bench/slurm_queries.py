"""What one round of queries costs: wall and processor seconds, of the commands, of reading them and of slurmctld.

    python -m scripts.bench.slurm_queries [--nodes 10000] [--jobs 150] [--waiting 0] [--rounds 20]

A slurmctld alone, with so many (powered-down cloud) nodes, so many jobs on a third of them, and so many that wait.
Wall times are of this machine under whatever load it has; processor times hardly depend on that. slurmctld's are
those of the whole process in the mean of all rounds (`nothing asked`: what it takes for itself meanwhile); messages,
and how long they were in work, are sdiag's. Jobs on such nodes stay in CONFIGURING, and are read whole.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from malletrain.slurm.command import Commands
from malletrain.slurm.read_commands import CommandReader
from scripts.bench.shared import controller_alone, fill, options_of, spent
from scripts.lab import Lab
from scripts.play.arm import rpcs_by_kind

#: Messages of squeue and scontrol, as sdiag names them.
ASKED_KINDS = ("REQUEST_JOB_INFO", "REQUEST_PARTITION_INFO", "REQUEST_NODE_INFO", "REQUEST_RESERVATION_INFO")


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=150, help="main jobs")
    parser.add_argument("--waiting", type=int, default=0, help="main jobs that wait for more nodes than are free")
    parser.add_argument("--pilots", type=int, default=500, help="held pilots")
    parser.add_argument("--rounds", type=int, default=20)
    return controller_alone(measure, parser.parse_args())


def measure(lab: Lab, options: argparse.Namespace) -> None:
    fill(lab, options.jobs, options.nodes // 3, options.waiting)
    held = ["-p", "harvest", "--hold", "--no-requeue", "--time=1"]
    lab.submit("true", f"--array=0-{options.pilots - 1}", *held)
    rounds = options.rounds
    commands = Commands(lab.env, timeout_s=60.0)
    reader = CommandReader(commands, time.time, "harvest", bf_interval_s=30.0)
    seen = reader.snapshot()
    controller = int(Path(lab.path, "run", "slurmctld.pid").read_text())
    print(f"{len(seen.nodes)} nodes, {len(seen.jobs)} jobs and tasks, warnings: {list(seen.warnings) or 'none'}")
    columns = ("wall", "commands CPU", "reading CPU")
    print(f"{'s; median, worst':22}" + "".join(f"{each:>18}" for each in columns) + "   slurmctld, a query")
    queries: dict[str, Callable[[], object]] = {
        "nothing asked": partial(time.sleep, 0.25),
        "snapshot": reader.snapshot,
        "look at the queue": partial(reader.main_queue, seen.active_ids("harvest")),
    }
    for name, query in queries.items():
        lab.run(["sdiag", "-r"], timeout=60)
        before = spent(controller)[0]
        costs = [cost(query) for _ in range(rounds)]
        used = (spent(controller)[0] - before) / rounds
        asked = rpcs_by_kind(lab.run(["sdiag"], timeout=60).stdout)
        shown = "".join(f"{statistics.median(c):12.3f}{max(c):6.2f}" for c in zip(*costs, strict=True))
        messages = ", ".join(
            f"{kind} {seconds / rounds:.4f} s" for kind, (_, seconds) in asked.items() if kind in ASKED_KINDS
        )
        print(f"{name:22}{shown}   CPU {used:.4f} s; {messages or 'no message'}", flush=True)


def cost(query: Callable[[], object]) -> tuple[float, float, float]:
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
