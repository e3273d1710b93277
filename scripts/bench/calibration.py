"""What replay predicts of a play, and what the play then harvests: side by side, with where the difference goes.

A piece of a real log is scaled to a lab of real Slurm and its times divided by a factor. Before it is played,
`malletrain replay` says from these jobs, the same malletrain.toml and the same Slurm settings how many node-seconds
will train. Then it is played with real workers (a training script whose steps wait). Columns:

    predicted   before the play: queue simulated, costs as the pages say (or --activate, --rescale)
    costs       the same with the activation and the stalls that the play measured
    holes       the play's own holes instead of the simulated ones, and its costs
    played      the journal

    python -m scripts.bench.calibration --log LOG.swf.gz --hours 2 --seconds 600 --json play1.json
    python -m scripts.bench.calibration --summarise play1.json play2.json --table plays.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

from malletrain.domain.event import WorkerWarm
from malletrain.domain.job import ResizeCosts
from malletrain.replay.scoring.journal_waterfall import pilot_spans, stalls_seen, waterfall_of
from malletrain.replay.scoring.realism import measured_costs
from malletrain.replay.scoring.waterfall import LABELS
from malletrain.store.event_reader import read_events
from scripts.lab import Lab, LabConfig
from scripts.play.arm import Arm, lab_config
from scripts.play.harm import PILOTS
from scripts.play.load import from_log
from scripts.play.predicted import ReplayedSite, from_holes, from_jobs, idle_spans, swf
from scripts.play.site import FAST_LOOP, Site

ROOT = Path(__file__).resolve().parents[2]

#: Seconds from the decision to start a pilot to its warm worker, by profile (docs/figures.md,
#: "Harvest").
ACTIVATE_S = {"fast": 3.5, "site": 14.0}

#: The load average is looked at so often (seconds).
LOAD_EVERY_S = 10.0

#: Tasks of the training job at the start (MaxArraySize is 1001 by default); more follow as they are used.
MAX_TASKS = 1000

COLUMNS = ("predicted", "costs", "holes", "played")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, help="SWF or sacct log")
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of the lab, a multiple of 4")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the play")
    parser.add_argument("--hours", type=float, default=2.0, help="hours of the log that are played in it")
    parser.add_argument("--choice", type=int, default=0, help="which window: 0 is the one nearest to --fill")
    parser.add_argument("--fill", type=float, default=0.6, help="share of the machine that the main queue takes")
    parser.add_argument("--activate", type=float, help="predicted activation, s; by profile when not given")
    parser.add_argument("--rescale", default="0.3,0.1", help="predicted stalls to grow and to shrink, s")
    parser.add_argument("--keep-idle", type=int, default=1, help="pool.keep_idle")
    parser.add_argument("--tick", type=float, help="loop.tick_s; that of fast plays, or the default, when not given")
    parser.add_argument("--json", type=Path, help="write the play to this file")
    parser.add_argument("--journal", type=Path, help="keep the journal here (SQLite)")
    parser.add_argument("--summarise", type=Path, nargs="+", metavar="FILE", help="put earlier plays side by side")
    parser.add_argument("--table", type=Path, help="write what `malletrain replay --calibration` reads")
    options = parser.parse_args()
    if options.summarise:
        plays = [json.loads(path.read_text()) for path in options.summarise]
    elif options.log is None:
        parser.error("--log is missing, or --summarise")
    else:
        plays = [play(options)]
        if options.json:
            options.json.write_text(json.dumps(plays[0], indent=1))
    for each in plays:
        print("\n".join(shown(each)), flush=True)
    if options.table:
        with options.table.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("play", "predicted", "measured"))
            for each in plays:
                done = [f"{each['columns'][name]['productive']:.1f}" for name in ("predicted", "played")]
                rows.writerow((each["name"], *done))
    return 0


def play(options: argparse.Namespace) -> dict[str, Any]:
    jobs, factor = from_log(
        options.log, options.nodes, options.seconds * 0.95, options.hours * 3600.0, options.choice, options.fill
    )
    name = f"{options.log.name.partition('.')[0]} window {options.choice}, time / {factor:.3g}, {options.profile}"
    print(f"{name}: {len(jobs)} main jobs on {options.nodes} nodes", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="mt-calibration-", dir="/tmp"))
    directory.chmod(0o755)
    config = lab_config(options.nodes, options.profile, preemption=True)
    loop = FAST_LOOP if options.profile == "fast" else []
    if options.tick is not None:
        loop = [f"tick_s = {options.tick}"]
    settings = {"loop": loop, "pool": [f"keep_idle = {options.keep_idle}"]}
    try:
        with Lab.up(directory / "lab", config) as lab, Site(lab, settings=settings) as site:
            replayed = ReplayedSite(site.config, directory / "scheduler.txt", options.nodes, options.seconds)
            replayed.scheduler.write_text(scheduler(lab, config))
            log = directory / "piece.swf"
            log.write_text(swf(jobs, options.nodes, config.prolog_seconds + config.epilog_seconds))
            activate = ACTIVATE_S[options.profile] if options.activate is None else options.activate
            stated = ["--activate", f"{activate:g}", "--rescale", options.rescale]
            columns = {"predicted": parts(from_jobs(replayed, log, stated))}
            print(f"predicted: {columns['predicted']['productive']:.0f} node-seconds of training", flush=True)
            site.start()
            arm = Arm(PILOTS, lab, jobs)
            begin, load = played(arm, site, options)
            journal = site.directory / "malletrain.db"
            events = list(read_events(journal))
            if options.journal:
                with closing(sqlite3.connect(journal)) as live, closing(sqlite3.connect(options.journal)) as copy:
                    live.backup(copy)
            end = begin + options.seconds
            events = [event for event in events if event.at <= end]
            costs = measured_costs(events, ResizeCosts(activate)).costs
            paid = ["--activate", f"{costs.activate_s:.2f}", "--rescale", f"{costs.grow_s:.3f},{costs.shrink_s:.3f}"]
            columns["costs"] = parts(from_jobs(replayed, log, paid))
            arm.end_all()
            holes = idle_spans(arm.busy(config.epilog_seconds), lab.nodes, begin, end)
            columns["holes"] = parts(from_holes(replayed, holes, begin, directory / "holes.csv", paid))
            pilots = [span for span in pilot_spans(events, end) if span.end > begin]
            fall = waterfall_of(holes, pilots, stalls_seen(events), (begin, end), options.keep_idle)
            columns["played"] = {part: seconds for part, _, seconds in fall.rows()}
            waits = [each.start_s for each in arm.player.played() if each.start_s is not None]
            return {
                "name": name, "profile": options.profile, "nodes": options.nodes, "factor": factor,
                "seconds": options.seconds, "jobs": len(jobs), "started": len(waits), "load": load,
                "stated": {"activate_s": activate, "rescale": options.rescale},
                "measured": {"activate_s": costs.activate_s, "grow_s": costs.grow_s, "shrink_s": costs.shrink_s},
                "stages": stages(events), "pilots": len(pilots), "columns": columns,
            }  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def played(arm: Arm, site: Site, options: argparse.Namespace) -> tuple[float, list[float]]:
    """Play; when it began (Unix seconds), and the load average in its course."""
    home = Path(arm.lab.env_for("alice")["HOME"])
    script = home / "paced.sh"
    training = shlex.join([sys.executable, f"{ROOT}/scripts/bench/paced_training.py", "--sample-s", "0.01"])
    tasks = max(64, min(MAX_TASKS, int(options.nodes * options.seconds / 15)))
    script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-{options.nodes} --tasks={tasks}\nexec {training}\n")
    load: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOAD_EVERY_S):
            load.append(os.getloadavg()[0])

    watcher = threading.Thread(target=watch, name="load", daemon=True)
    begin = time.time()
    watcher.start()
    arm.player.start(begin)
    site.mtbatch("alice", script)
    time.sleep(max(0.0, begin + options.seconds - time.time()))
    over.set()
    watcher.join()
    arm.player.stop()
    return begin, load


def scheduler(lab: Lab, config: LabConfig) -> str:
    """What `malletrain replay --scheduler` reads."""
    shown = [lab.run(["scontrol", "show", "config"]).stdout, lab.run(["sdiag"]).stdout]
    return "\n".join([*shown, f"epilog_s={config.epilog_seconds:g}\n"])


def parts(policy: dict[str, Any] | Any) -> dict[str, float]:
    """The parts of a replay's waterfall, in node-seconds."""
    return {name: float(policy["waterfall"][name]) for name in LABELS}


def stages(events: Sequence[Any]) -> dict[str, float]:
    """Seconds of each stage of a worker's activation, in the mean."""
    rows = [event.payload.stages for event in events if isinstance(event.payload, WorkerWarm)]
    names = sorted({name for row in rows for name in row})
    return {name: fmean(row[name] for row in rows if name in row) for name in names}


def shown(play: dict[str, Any]) -> list[str]:
    """One play for people; node-seconds."""
    columns: dict[str, dict[str, float]] = play["columns"]
    load = play["load"] or [0.0]
    lines = [
        "",
        f"{play['name']}: {play['jobs']} main jobs ({play['started']} started), {play['nodes']} nodes, "
        f"{play['seconds']:.0f} s, {play['pilots']} pilots; load {min(load):.1f} to {max(load):.1f}, mean "
        f"{fmean(load):.1f}",
        f"activation {play['stated']['activate_s']:.2f} s stated, {play['measured']['activate_s']:.2f} measured; "
        f"stalls {play['stated']['rescale']} stated, {play['measured']['grow_s']:.2f},"
        f"{play['measured']['shrink_s']:.2f} measured; stages "
        + ", ".join(f"{name} {seconds:.2f}" for name, seconds in play["stages"].items()),
        f"{'node-seconds':70}" + "".join(f"{name:>11}" for name in COLUMNS),
    ]
    for part, label in LABELS.items():
        cells = [columns[name][part] for name in COLUMNS]
        if any(abs(cell) >= 0.5 for cell in cells):
            lines.append(f"{label:70}" + "".join(f"{cell:11.0f}" for cell in cells))
    lines.append(f"{'idle, all parts':70}" + "".join(f"{sum(columns[name].values()):11.0f}" for name in COLUMNS))
    done = columns["played"]["productive"]
    ratios = "".join(f"{done / columns[name]['productive']:11.3f}" for name in COLUMNS)
    lines.append(f"{'trained, of what the column says':70}" + ratios)
    return lines


if __name__ == "__main__":
    sys.exit(main())
