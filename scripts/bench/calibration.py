"""What replay predicts of a play, and what the play then trains, side by side.

A piece of a real log is scaled to a lab of real Slurm, its times divided by a factor, and played with real workers (a
training script whose steps wait). Then `malletrain replay` says of the holes that its main jobs left, with the same
malletrain.toml and Slurm settings, how many node-seconds train. Printed:

    predicted   with costs as the pages say
    costs       with the activation and the stalls that the play measured
    played      the journal

    python -m scripts.bench.calibration --log LOG.swf.gz --hours 2 --seconds 600
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from statistics import fmean

from malletrain.domain.job import ResizeCosts
from malletrain.replay.scoring.journal_score import measured_costs, score_journal
from malletrain.store.journal import read_events
from scripts.bench.shared import options_of
from scripts.lab import Lab
from scripts.play.arm import Arm, lab_config
from scripts.play.harm import PILOTS
from scripts.play.load import from_log
from scripts.play.predicted import idle_spans, predicted
from scripts.play.site import FAST_LOOP, Site, folder_for_labs

ROOT = Path(__file__).resolve().parents[2]

#: Seconds from the decision to start a pilot to its warm worker, by profile (docs/figures.md,
#: "Harvest").
ACTIVATE_S = {"fast": 3.5, "site": 14.0}

#: The load average is looked at so often (seconds).
LOAD_EVERY_S = 10.0

#: Tasks of the training job at the start (MaxArraySize is 1001 by default); more follow as they are used.
MAX_TASKS = 1000


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--log", type=Path, required=True, help="SWF or sacct log")
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of the lab, a multiple of 4")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the play")
    parser.add_argument("--hours", type=float, default=2.0, help="hours of the log that are played in it")
    parser.add_argument("--choice", type=int, default=0, help="which window: 0 is the one nearest to --fill")
    parser.add_argument("--fill", type=float, default=0.6, help="share of the machine that the main queue takes")
    play(parser.parse_args())
    return 0


def play(options: argparse.Namespace) -> None:
    """Play, and print node-seconds of training by each column."""
    jobs, factor = from_log(
        options.log, options.nodes, options.seconds * 0.95, options.hours * 3600.0, options.choice, options.fill
    )
    name = f"{options.log.name.partition('.')[0]} window {options.choice}, time / {factor:.3g}, {options.profile}"
    print(f"{name}: {len(jobs)} main jobs on {options.nodes} nodes", flush=True)
    config = lab_config(options.nodes, options.profile, preemption=True)
    settings = {"loop": FAST_LOOP if options.profile == "fast" else [], "pool": ["keep_idle = 1"]}
    with (
        folder_for_labs() as directory,
        Lab.up(directory / "lab", config) as lab,
        Site(lab, settings=settings) as site,
    ):
        settings_of_slurm = directory / "scheduler.txt"
        shown = [lab.run(["scontrol", "show", "config"]).stdout, lab.run(["sdiag"]).stdout]
        settings_of_slurm.write_text("\n".join([*shown, f"epilog_s={config.epilog_seconds:g}\n"]))
        activate = ACTIVATE_S[options.profile]
        stated = ["--activate", f"{activate:g}", "--rescale", "0.3,0.1"]
        site.start()
        arm = Arm(PILOTS, lab, jobs)
        begin, load = played(arm, site, options)
        end = begin + options.seconds
        events = [event for event in read_events(site.directory / "malletrain.db") if event.at <= end]
        costs, _ = measured_costs(events, ResizeCosts(activate))
        paid = ["--activate", f"{costs.activate_s:.2f}", "--rescale", f"{costs.grow_s:.3f},{costs.shrink_s:.3f}"]
        arm.end_all()
        holes = idle_spans(arm.busy(config.epilog_seconds), lab.nodes, begin, end)
        toml = f'{site.config.read_text()}\n[replay]\nlikely_outages = "count"\nprocs_per_node = 1\n'
        columns: dict[str, float] = {}
        for column, each in (("predicted", stated), ("costs", paid)):
            found = predicted(holes, begin, end, directory, toml, "--scheduler", settings_of_slurm, *each)
            columns[column] = found["productive_node_seconds"]
        columns["played"] = score_journal(events, end).productive_node_seconds
    print(f"load {min(load):.1f} to {max(load):.1f}, mean {fmean(load):.1f}; measured: {' '.join(paid)}")
    for name, seconds in columns.items():
        print(f"{name:10}{seconds:10.0f} node-seconds of training; played / this: {columns['played'] / seconds:.3f}")


def played(arm: Arm, site: Site, options: argparse.Namespace) -> tuple[float, list[float]]:
    """Play; when it began (Unix seconds), and the load average in its course."""
    home = Path(arm.lab.env_for("alice")["HOME"])
    script = home / "paced.sh"
    training = shlex.join([sys.executable, f"{ROOT}/tests/e2e/paced_training.py", "--sample-s", "0.01"])
    tasks = max(64, min(MAX_TASKS, int(options.nodes * options.seconds / 15)))
    script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-{options.nodes} --tasks={tasks}\nexec {training}\n")
    load = [os.getloadavg()[0]]
    begin = time.time()
    arm.player.start(begin)
    site.mtbatch("alice", script)
    while (left_s := begin + options.seconds - time.time()) > 0:
        time.sleep(min(LOAD_EVERY_S, left_s))
        load.append(os.getloadavg()[0])
    arm.player.stop()
    return begin, load


if __name__ == "__main__":
    sys.exit(main())
