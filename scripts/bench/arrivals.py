"""How much later does a main job start that arrives while pilots hold every node?

Three labs of real Slurm side by side: one without preemption and pilots; its twin (what differs between these two is
noise); and one with pilots on all nodes but the reserve. Again and again, at a random moment, the same jobs are
submitted to all three: of one node and of many, a burst, hetjobs, arrays, `--switches=1`, `srun -I`. Each trial waits
until the machine is harvested again, so delays do not add up along a queue as they do in
`scripts.bench.harm`: this is what one arrival costs, in the worst case that nothing but the reserve is idle.

    python -m scripts.bench.arrivals --rounds 12
    python -m scripts.bench.arrivals --profile site --rounds 3 --keep-idle 4
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from statistics import fmean
from typing import Any

from scripts.bench.shared import options_of
from scripts.lab import Lab, LabError
from scripts.play.arm import lab_config, labs_up
from scripts.play.harm import HEAD, p99, row
from scripts.play.load import Kind, MainJob
from scripts.play.player import Player
from scripts.play.site import FAST_LOOP, Site, folder_for_labs

#: Goals beyond the noise floor: 99th percentile and mean (seconds).
P99_S, MEAN_S = 2.0, 0.5

Row = dict[str, Any]  #: of one job: trial, label, took_s by lab

NONE, TWIN, PILOTS = "none", "twin", "pilots"

#: A hetjob that Slurm starts in part waits for two minutes and starts then.
PATIENCE_S = 200.0


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    parser.add_argument("--rounds", type=int, default=12, help="trials of each kind")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of each lab, a multiple of 4")
    parser.add_argument("--keep-idle", type=int, default=0, help="pool.keep_idle")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = stack.enter_context(folder_for_labs())
        configs = {
            arm: lab_config(options.nodes, options.profile, preemption=arm == PILOTS) for arm in (NONE, TWIN, PILOTS)
        }
        labs = labs_up(stack, directory, configs)
        settings = {
            "loop": FAST_LOOP if options.profile == "fast" else [],
            "pool": [f"keep_idle = {options.keep_idle}"],
            "breaker": ["preemptions_per_hour = 10000"],
        }
        site = stack.enter_context(Site(labs[PILOTS], settings=settings))
        site.start()
        site.harvest("alice", options.nodes)
        for number, (label, jobs) in enumerate(trials(options)):
            try:
                rows += trial(number, label, jobs, labs, site, options)
            except LabError as error:
                print(f"trial {number} ({label}): {error}", file=sys.stderr)
                break
    print("\n".join(summary(rows, options)))
    return 0


def trials(options: argparse.Namespace) -> Iterator[tuple[str, list[MainJob]]]:
    """Each kind once a round, in an order of its own."""
    every = options.nodes
    kinds: dict[str, list[tuple[int, Kind]]] = {
        "one node": [(1, Kind.PLAIN)],
        "half of the nodes": [(every // 2, Kind.PLAIN)],
        "all nodes": [(every, Kind.PLAIN)],
        "burst of one-node jobs": [(1, Kind.PLAIN)] * every,
        "array of four": [(4, Kind.ARRAY)],
        "hetjob of 1 + 3": [(4, Kind.HETJOB)],
        "--switches=1, four nodes": [(4, Kind.SWITCHES)],
        "srun -I, two nodes": [(2, Kind.IMMEDIATE)],
    }
    rng = random.Random(options.seed)
    for _ in range(options.rounds):
        labels = list(kinds)
        rng.shuffle(labels)
        for label in labels:
            yield label, [MainJob(n, 0.0, nodes, 0.5, 120.0, kind) for n, (nodes, kind) in enumerate(kinds[label])]


def no_main_job(lab: Lab) -> bool:
    return not lab.run(["squeue", "-h", "-p", "batch"]).stdout.strip()


def trial(
    number: int, label: str, jobs: list[MainJob], labs: Mapping[str, Lab], site: Site, options: argparse.Namespace
) -> list[Row]:
    """One arrival on all three labs; a row for each of its jobs with the seconds until it started, by arm."""
    lab = labs[PILOTS]
    lab.wait_for(lambda: site.pilot_nodes("alice") == options.nodes - options.keep_idle, 300, "pilots on every node")
    for each in (labs[NONE], labs[TWIN], lab):
        each.wait_for(partial(no_main_job, each), 300, "no main job")
    phase = random.Random(options.seed * 1000 + number).uniform(0.0, 30.0 if options.profile == "site" else 2.0)
    begin = time.time() + 0.5 + phase
    players = {arm: Player(each, jobs, "bob", each.path / f"trial{number}") for arm, each in labs.items()}
    for player in players.values():
        player.start(begin)
    for arm, player in players.items():
        player.wait()
        player.answered()
        if all(job.kind is not Kind.IMMEDIATE for job in jobs):
            for job in jobs:
                labs[arm].wait_for(partial(player.started, job), PATIENCE_S, f"{label} to start")
    rows: list[Row] = []
    for job in jobs:
        at = {arm: player.started(job) for arm, player in players.items()}
        took = {arm: None if start is None else start - begin for arm, start in at.items()}
        rows.append({"trial": number, "label": label, "took_s": took})
    told = ", ".join(f"{arm} {max((r['took_s'][arm] or -1.0) for r in rows):.2f}" for arm in labs)
    print(f"{number:3d} {label}: {told}", flush=True)
    for player in players.values():
        player.stop()
    return rows


def summary(rows: list[Row], options: argparse.Namespace) -> Iterator[str]:
    """Paired delays by kind, and whether the goals of `scripts.bench.harm` are met by single arrivals."""
    yield f"profile {options.profile}, {options.nodes} nodes, keep_idle {options.keep_idle}"
    yield HEAD
    labels = ["all", *dict.fromkeys(str(row["label"]) for row in rows)]
    found: dict[tuple[str, str], list[float]] = {}
    for label in labels:
        for arm in (TWIN, PILOTS):
            took = [row["took_s"] for row in rows if label in ("all", row["label"])]
            pairs = [t[arm] - t[NONE] for t in took if t[arm] is not None and t[NONE] is not None]
            found[label, arm] = pairs
            if pairs:
                yield row(f"{label}: {arm}", pairs)
    for arm in (NONE, TWIN, PILOTS):
        refused = sum(1 for row in rows if row["took_s"][arm] is None)
        yield f"srun -I refused, {arm}: {refused}"
    if found["all", PILOTS] and found["all", TWIN]:
        for name, figure, goal in (("p99", p99, P99_S), ("mean", fmean, MEAN_S)):
            beyond = figure(found["all", PILOTS]) - figure(found["all", TWIN])
            met = "met    " if beyond < goal else "NOT met"
            yield f"{met}  {name} beyond the noise: {beyond:+.2f} s; goal < {goal:g} s"


if __name__ == "__main__":
    sys.exit(main())
