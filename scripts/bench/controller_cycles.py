"""What pilots cost slurmctld: its main and backfill cycles with so many pilots, as ratios to none.

A slurmctld alone with so many (powered-down cloud) nodes, profile `site`: main jobs on most of them, a queue that
is blocked, and small main jobs that come and go all the time, so that the scheduler runs. Pilots are jobs of one
node (or of `--pilot-nodes`) of the harvest partition, placed by Slurm itself; on cloud nodes they stay in
CONFIGURING, which the scheduler counts as running. Times are sdiag's own, reset for each number of
pilots.

    python -m scripts.bench.controller_cycles --nodes 10000 --pilots 0,100,200,1000,3000
    python -m scripts.bench.controller_cycles --nodes 10000 --pilots 0,200,1000 --pilot-nodes 4
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
from dataclasses import dataclass

from scripts.lab import Lab, LabConfig, LabError
from scripts.lab.conf import SCHEDULER_PARAMETERS

#: What each main job that comes and goes makes the scheduler do: one cycle at its submission, one at its end.
PAUSE_S = 0.25


@dataclass(frozen=True)
class Cycles:
    """Seconds, as sdiag counts them since its reset."""

    main_mean: float
    main_max: float
    main_count: int
    backfill_mean: float
    backfill_max: float
    backfill_count: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument(
        "--pilots", default="0,100,200,1000,3000", help="nodes that they hold, a round each, ascending"
    )
    parser.add_argument("--pilot-nodes", type=int, default=1, help="nodes of each pilot (pilot.max_nodes)")
    parser.add_argument("--main", type=int, default=40, help="main jobs that run, on half of the nodes")
    parser.add_argument("--waiting", type=int, default=100, help="main jobs that wait for more nodes than are free")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each round; backfill runs every 5 s")
    parser.add_argument("--release", help="of Slurm, as scripts/slurm-lab takes it")
    options = parser.parse_args()
    config = LabConfig(
        nodes=options.nodes,
        profile="site",
        controller_only=True,
        release=options.release,
        settings=(
            ("MessageTimeout", "60"),
            ("MaxArraySize", "10001"),
            # As the profile, but backfill more often: a round sees several cycles.
            ("SchedulerParameters", SCHEDULER_PARAMETERS["site"].replace("bf_interval=30", "bf_interval=5")),
        ),
    )
    try:
        with Lab.up(f"/tmp/mtbench-{secrets.token_hex(3)}", config, deadline_s=120) as lab:
            return bench(lab, options)
    except LabError as error:
        print(f"controller_cycles: {error}", file=sys.stderr)
        return 2


def bench(lab: Lab, options: argparse.Namespace) -> int:
    half = options.nodes // 2
    for _ in range(options.main):
        lab.submit("true", "-p", "batch", f"--nodes={half // options.main}", "--exclusive", "--time=600")
    lab.wait_for(lambda: placed(lab, "batch") == options.main, 120, "main jobs that hold half of the nodes")
    print(f"{options.nodes} nodes, {options.main} main jobs on half of them, {options.waiting} waiting")
    print(" nodes    main mean    max (s)   ratio     backfill mean    max (s)   ratio    cycles")
    none: Cycles | None = None
    for wanted in map(int, options.pilots.split(",")):
        harvest(lab, wanted, options.pilot_nodes)
        queue = [block(lab, options.nodes) for _ in range(options.waiting)]
        seen = round_of(lab, options.seconds)
        lab.run(["scancel", *map(str, queue)])
        none = none or seen
        if not (none.main_count and none.backfill_count and seen.backfill_count):
            raise LabError("no backfill cycle in a round: raise --seconds")
        ratios = seen.main_mean / none.main_mean, seen.backfill_mean / none.backfill_mean
        print(
            f"{wanted:6d}{seen.main_mean:13.4f}{seen.main_max:11.4f}{ratios[0]:8.1f}"
            f"{seen.backfill_mean:18.4f}{seen.backfill_max:11.4f}{ratios[1]:8.1f}"
            f"    {seen.main_count}, {seen.backfill_count}",
            flush=True,
        )
    return 0


def block(lab: Lab, nodes: int) -> int:
    """A main job that has to wait: it needs more nodes than main jobs leave."""
    return lab.submit("true", "-p", "batch", f"--nodes={nodes // 2 + nodes // 10}", "--exclusive", "--time=60")


def harvest(lab: Lab, nodes: int, width: int) -> None:
    """Bring the nodes that pilots hold, `width` each, up to `nodes`."""
    wanted = nodes // width
    lack = wanted - placed(lab, "harvest")
    if lack <= 0:
        return
    lab.submit("true", "-p", "harvest", f"--array=0-{lack - 1}", "--exclusive", f"--nodes={width}", "--time=60")
    lab.wait_for(lambda: placed(lab, "harvest") >= wanted, 240, f"{wanted} pilots of {width} nodes")


def placed(lab: Lab, partition: str) -> int:
    rows = lab.run(["squeue", "-h", "-r", "-p", partition, "-t", "R,CF", "-o", "%A"], timeout=60).stdout
    return len(rows.split())


def round_of(lab: Lab, seconds: float) -> Cycles:
    """Main jobs come and go for so long; what sdiag counted meanwhile."""
    lab.run(["sdiag", "-r"], timeout=60)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job = lab.submit("true", "-p", "batch", "--nodes=1", "--time=5")
        time.sleep(PAUSE_S)
        lab.run(["scancel", str(job)], timeout=60)
        time.sleep(PAUSE_S)
    return read(lab.run(["sdiag"], timeout=60).stdout)


def read(answer: str) -> Cycles:
    main, _, backfill = answer.partition("Backfilling stats")

    def of(text: str, words: str) -> int:
        found = re.search(rf"{words}:\s*(\d+)", text)
        return int(found[1]) if found else 0

    return Cycles(
        of(main, "Mean cycle") / 1e6,
        of(main, "Max cycle") / 1e6,
        of(main, "Total cycles"),
        of(backfill, "Mean cycle") / 1e6,
        of(backfill, "Max cycle") / 1e6,
        of(backfill, "Total cycles"),
    )


if __name__ == "__main__":
    sys.exit(main())
