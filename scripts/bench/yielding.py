"""How much later does a main job start because pilots hold the nodes that it needs?

Two labs side by side, one with MalleTrain and a training job on every idle node, one without. Both hold a running job
on a third of the nodes and a blocked top job that waits for all of them. Again and again, at random moments, the same
backfillable job is submitted to both; printed are the pairs, and the share that paid another backfill cycle.

    python -m scripts.bench.yielding --profile site --runs 20
    python -m scripts.bench.yielding --burst 10000

With `--burst` no lab is started: it prints the processor time that the decision who leaves takes on so many harvested
nodes while 500 main jobs wait that fit on them, or an array with a task for each node.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import HarvestedNode, plan_yields
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState, Snapshot
from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import Site, folder_for_labs

ROOT = Path(__file__).resolve().parents[2]

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
    harvested = [
        HarvestedNode(name, f"9_{at}", at % 97, 1.0 + at % 97 / 100, frozenset(task if width > 1 else ()))
        for at, task in enumerate(tasks)
        for name in task
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=("fast", "site"), default="site")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=6, help="nodes of each lab; a third holds the running job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the pairs to this file")
    parser.add_argument("--burst", type=int, metavar="NODES", help="time the decision alone, on so many nodes")
    options = parser.parse_args()
    if options.burst:
        time_bursts(options.burst)
        return 0
    rng = random.Random(options.seed)
    config = LabConfig(nodes=options.nodes, profile=options.profile, users=True)
    settings = {"breaker": ["preemptions_per_hour = 10000"]}
    with (
        folder_for_labs() as folder,
        Lab.up(folder / "without", config) as without,
        Lab.up(folder / "with", config) as lab,
        Site(lab, settings=settings) as site,
    ):
        site.start()
        rows = measure(lab, without, site, options, rng)
    report(rows, options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def measure(
    lab: Lab, without: Lab, site: Site, options: argparse.Namespace, rng: random.Random
) -> list[dict[str, Any]]:
    third = options.nodes // 3
    free = options.nodes - third
    for each in (lab, without):
        running = each.submit("sleep 7200", f"--nodes={third}", "--exclusive", "--time=55", user="bob")
        each.wait_for_state(running, "RUNNING", deadline_s=60)
        each.submit("sleep 60", f"--nodes={options.nodes}", "--exclusive", "--time=60", "--job-name=top", user="bob")
    home = Path(lab.env_for("alice")["HOME"])
    script = home / "paced.sh"
    training = shlex.join([sys.executable, f"{ROOT}/tests/e2e/paced_training.py"])
    script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-{free}\n{training}\n")
    site.mtbatch("alice", script)
    rows = []
    for run in range(options.runs):
        try:
            lab.wait_for(lambda: harvested(lab) == free and members(site) == free, 300, "pilots on every idle node")
            without.wait_for(lambda: idle(without) == free, 120, "idle nodes in the twin")
        except LabError as error:
            print(f"run {run}: {error}", file=sys.stderr)
            print(site.last_log(), file=sys.stderr)
            break
        time.sleep(rng.uniform(0, 30 if options.profile == "site" else 2))  # a random phase of the backfill cycle
        starts = [each.output / f"start-{run}" for each in (lab, without)]
        submitted = time.time()
        for each, start in zip((lab, without), starts, strict=True):
            command = f"date +%s.%N > {start}; sleep 2"
            each.submit(command, f"--nodes={free}", "--exclusive", "--time=2", "--job-name=backfill", user="bob")
        for each, start in zip((lab, without), starts, strict=True):
            each.wait_for(partial(written, start), 240, "the job's start")
        with_s, without_s = (float(s.read_text()) - submitted for s in starts)
        preempted = site_preemptions(site)
        rows.append({"run": run, "with_s": with_s, "without_s": without_s, "preempted_so_far": preempted})
        print(
            f"run {run:3d}: with {with_s:6.2f} s, without {without_s:6.2f} s, later by {with_s - without_s:+6.2f} s, "
            f"{preempted} preemptions so far",
            flush=True,
        )
    return rows


def harvested(lab: Lab) -> int:
    return len(lab.run(["squeue", "-h", "-p", "harvest", "-t", "running", "-o", "%A"]).stdout.split())


def idle(lab: Lab) -> int:
    return sum(1 for state in lab.node_states().values() if state in ("idle", "planned"))


def members(site: Site) -> int:
    jobs = site.status("alice")["jobs"]
    return sum(job["members"] for job in jobs)


def written(path: Path) -> bool:
    return path.exists() and bool(path.read_text().strip())


def site_preemptions(site: Site) -> int:
    jobs = site.status("alice")["jobs"]
    return sum(job["preemptions"] for job in jobs)


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    if not rows:
        print("no run was completed")
        return
    later = [row["with_s"] - row["without_s"] for row in rows]
    cycle = 30.0 if options.profile == "site" else 1.0
    paid = [x for x in later if x > 0.5 * cycle]
    without, with_pilots = (statistics.median(row[key] for row in rows) for key in ("without_s", "with_s"))
    print(
        f"\nprofile {options.profile}, {len(rows)} pairs: start without pilots median {without:.2f} s, "
        f"with {with_pilots:.2f} s"
    )
    print(
        f"later by: median {statistics.median(later):+.2f} s, mean {statistics.fmean(later):+.2f} s, "
        f"worst {max(later):+.2f} s"
    )
    print(f"paid another backfill cycle: {len(paid)} of {len(rows)} ({len(paid) / len(rows):.0%})")


if __name__ == "__main__":
    sys.exit(main())
