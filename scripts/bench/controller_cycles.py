"""What pilots cost slurmctld: its main and backfill cycles with so many pilots, as ratios to none.

A slurmctld alone with so many (powered-down cloud) nodes, profile `site`: main jobs on most of them, a queue that
is blocked, and small main jobs that come and go all the time, so that the scheduler runs. Pilots are jobs of the
harvest partition, placed by Slurm itself; on cloud nodes they stay in CONFIGURING, which the scheduler counts as
running. Times are sdiag's own: of main cycles the median of the last one, read beside each job that comes and goes,
as the daemon reads it; of backfill the mean. Each number of pilots stands between two rounds without. `allowed`: the
longest main cycle that `[promise] controller_cycle = "auto"` lets pilots cause.

    python -m scripts.bench.controller_cycles --nodes 10000 --pilots 100x1,900x1,900x8,900x64
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from malletrain.loop.queue_promise import ControllerBudget, harmless_cycle_s
from malletrain.slurm.formats import sdiag
from scripts.bench.shared import controller_alone, fill, options_of, placed
from scripts.lab import Lab, LabError
from scripts.lab.conf import SCHEDULER_PARAMETERS

#: What each main job that comes and goes makes the scheduler do: one cycle at its submission, one at its end.
PAUSE_S = 0.25

#: What `[promise] controller_cycle = "auto"` allows.
BUDGET_RATIO = 1.5


@dataclass(frozen=True)
class Cycles:
    """Seconds, as sdiag counts them since its reset."""

    main: tuple[float, ...]
    main_max: float
    main_count: int
    backfill_mean: float
    backfill_count: int


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument(
        "--pilots", default="100x1,900x1,900x8,900x64", help="nodes that they hold, and nodes of each; a round each"
    )
    parser.add_argument("--main", type=int, default=40, help="main jobs that run")
    parser.add_argument("--busy", type=float, default=0.9, help="share of the nodes that they hold")
    parser.add_argument("--waiting", type=int, default=20, help="main jobs that wait for more nodes than are free")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each round; backfill runs every 5 s")
    parser.add_argument("--release", help="of Slurm, as scripts/slurm-lab takes it")
    options = parser.parse_args()
    # As the profile, but backfill more often: a round sees several cycles.
    often = SCHEDULER_PARAMETERS["site"].replace("bf_interval=30", "bf_interval=5")
    return controller_alone(bench, options, ("SchedulerParameters", often), release=options.release)


def bench(lab: Lab, options: argparse.Namespace) -> None:
    busy = int(options.busy * options.nodes)
    fill(lab, options.main, busy)
    print(f"{options.nodes} nodes, main jobs on {busy}, {options.waiting} waiting; milliseconds, from sdiag")
    print(
        "  nodes  pilots   main cycle     allowed     without       ratio     longest    backfill     without       "
        "ratio  cycles"
    )
    before = round_of(lab, options, busy)
    for nodes, width in (tuple(map(int, each.split("x"))) for each in options.pilots.split(",")):
        harvest(lab, nodes, width)
        seen = round_of(lab, options, busy)
        lab.run(["scancel", "-p", "harvest"], timeout=60)
        lab.wait_for(lambda: placed(lab, "harvest") == 0, 120, "no pilots")
        after = round_of(lab, options, busy)
        alone, backfill = before.main + after.main, fmean((before.backfill_mean, after.backfill_mean))
        if not (alone and seen.main and backfill):
            raise LabError("no main or no backfill cycle in a round: raise --seconds")
        cycle, budget = median(seen.main), ControllerBudget(cap=0, alone=alone)
        a_minute = 60.0 * seen.main_count / options.seconds
        allowed = budget.budget_s(BUDGET_RATIO, harmless_cycle_s(a_minute))
        strictly = "within" if cycle <= budget.budget_s(BUDGET_RATIO, 0.0) else "beyond"
        columns = [cycle, allowed, median(alone), cycle / median(alone) * 1e-3, seen.main_max]
        columns += [seen.backfill_mean, backfill, seen.backfill_mean / backfill * 1e-3]
        print(
            f"{nodes:7d}{nodes // width:8d}"
            + "".join(f"{1e3 * each:12.2f}" for each in columns)
            + f"  {seen.main_count}, {seen.backfill_count}"
            + f"  {'within' if cycle <= allowed else 'beyond'} the budget, {strictly} {BUDGET_RATIO:g} times",
            flush=True,
        )
        before = after


def harvest(lab: Lab, nodes: int, width: int) -> None:
    """Let pilots of `width` nodes hold `nodes` of them."""
    wanted = nodes // width
    lab.submit("true", "-p", "harvest", f"--array=0-{wanted - 1}", "--exclusive", f"--nodes={width}", "--time=60")
    lab.wait_for(lambda: placed(lab, "harvest") >= wanted, 240, f"{wanted} pilots of {width} nodes")


def round_of(lab: Lab, options: argparse.Namespace, busy: int) -> Cycles:
    """Main jobs come and go beside those that wait, for so long; what sdiag counted meanwhile."""
    # More nodes than main jobs leave: they have to wait.
    wide = [f"--nodes={options.nodes - busy + options.nodes // 10}", "--exclusive", "--time=60"]
    queue = [lab.submit("true", "-p", "batch", *wide) for _ in range(options.waiting)]
    lab.run(["sdiag", "-r"], timeout=60)
    end = time.monotonic() + options.seconds
    last: list[float] = []
    while time.monotonic() < end:
        job = lab.submit("true", "-p", "batch", "--nodes=1", "--time=5")
        time.sleep(PAUSE_S)
        last += last_cycle(lab)
        lab.run(["scancel", str(job)], timeout=60)
        time.sleep(PAUSE_S)
        last += last_cycle(lab)
    seen = read(lab.run(["sdiag"], timeout=60).stdout, last)
    lab.run(["scancel", *map(str, queue)], timeout=60)
    return seen


def last_cycle(lab: Lab) -> list[float]:
    """The last main cycle (seconds), if any since the reset."""
    cycle = sdiag.parse(lab.run(["sdiag"], timeout=60).stdout).plan.main_cycle_s
    return [cycle] if cycle else []


def read(answer: str, last: Sequence[float]) -> Cycles:
    main, _, backfill = answer.partition("Backfilling stats")

    def of(text: str, words: str) -> int:
        found = re.search(rf"{words}:\s*(\d+)", text)
        return int(found[1]) if found else 0

    return Cycles(
        main=tuple(last),
        main_max=of(main, "Max cycle") / 1e6,
        main_count=of(main, "Total cycles"),
        backfill_mean=of(backfill, "Mean cycle") / 1e6,
        backfill_count=of(backfill, "Total cycles"),
    )


if __name__ == "__main__":
    sys.exit(main())
