"""How much later does a blocked main job start because pilots hold some of its nodes, when others end early?

Two labs side by side, one with pilots on half of its nodes, one without. A main job holds the other half, with a
limit of an hour; the next needs all nodes, so that Slurm plans it for that limit's end. The first ends early, at a
random moment. Pilots that leave before they are asked to could gain at most what is printed.

    python -m scripts.bench.early_ends --profile site --runs 6
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from scripts.bench.yielding import harvested, idle, site_preemptions, written
from scripts.lab import Lab, LabConfig
from scripts.play.site import Site


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=("fast", "site"), default="site")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=4, help="nodes of each lab")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="mt-early-", dir="/tmp"))
    directory.chmod(0o755)
    config = LabConfig(nodes=options.nodes, profile=options.profile, users=True)
    later: list[float] = []
    try:
        with (
            Lab.up(directory / "without", config) as without,
            Lab.up(directory / "with", config) as lab,
            Site(lab, settings={"breaker": ["preemptions_per_hour = 10000"]}) as site,
        ):
            site.start()
            site.harvest("alice", options.nodes)
            for run in range(options.runs):
                took = one_run(run, (lab, without), options.nodes, rng.uniform(0, 30))
                later.append(took[0] - took[1])
                print(f"run {run}: with {took[0]:.2f} s, without {took[1]:.2f} s", flush=True)
            print(f"preemptions: {site_preemptions(site)}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"profile {options.profile}, {len(later)} pairs: later by {statistics.median(later):+.2f} s in the median, "
        f"{statistics.fmean(later):+.2f} in the mean, {max(later):+.2f} at worst"
    )
    return 0


def one_run(run: int, labs: tuple[Lab, Lab], nodes: int, phase_s: float) -> tuple[float, float]:
    """Seconds from the first job's early end to the blocked one's first command: with pilots, and without."""
    half = nodes // 2
    first, second = [], []
    for lab in labs:
        lab.wait_for(partial(_is_free, lab, nodes), 240, "nodes without a main job")
        first.append(lab.submit("sleep 3600", f"--nodes={half}", "--exclusive", "--time=60", user="bob"))
    for lab, number in zip(labs, first, strict=True):
        lab.wait_for_state(number, "RUNNING", deadline_s=120)
    labs[0].wait_for(lambda: harvested(labs[0]) == nodes - half, 240, "pilots on the other half")
    notes = [lab.output / f"second-{run}" for lab in labs]
    for lab, note in zip(labs, notes, strict=True):
        command = f"date +%s.%N > {note}; sleep 1"
        second.append(lab.submit(command, f"--nodes={nodes}", "--exclusive", "--time=5", user="bob"))
    time.sleep(5.0 + phase_s)  # blocked, and planned; a random phase of the backfill cycle
    ended = []
    for lab, number in zip(labs, first, strict=True):
        lab.run(["scancel", str(number)])
        ended.append(time.time())
    for lab, note in zip(labs, notes, strict=True):
        lab.wait_for(partial(written, note), 240, "the blocked job's start")
    with_s, without_s = (float(note.read_text()) - at for note, at in zip(notes, ended, strict=True))
    return with_s, without_s


def _is_free(lab: Lab, nodes: int) -> bool:
    """Whether no main job holds a node: those are idle, or a pilot's."""
    return not lab.run(["squeue", "-h", "-p", "batch", "-o", "%A"]).stdout.split() and (
        harvested(lab) + idle(lab) == nodes
    )


if __name__ == "__main__":
    sys.exit(main())
