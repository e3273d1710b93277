"""What knowing how jobs scale is worth on a real Slurm: children of two models, with four ways to know their curves.

    python -m scripts.bench.unknown_curves [--ways active,passive,linear,given] [--runs 1] [--seconds 100]
        [--json FILE] [--also FILE ...]

Eight nodes of a lab (`scripts.lab`), a daemon with its defaults but for a tick of 2 s, and `paced_training`, whose
steps are waits: children of one model halve their step with twice the nodes (up to six), those of the other take
half as long again on two nodes as on one. Two waves, one child of each model in each; the second comes after 40 s.
Counted is what is trained from the first submission on, in samples/s over `--seconds`, start-up included.

active, passive  learnt, with and without sizes that are tried
linear           perfect scaling is taken for all (`mtbatch --profile=none`)
given            the true curve comes from the user (`--curve`)

Ways are run one after the other in an order that turns with each run; names differ, so that nothing is learnt from
another way. Ratios are paired by run, with 95 % bootstrap intervals. `--also` reads earlier runs' --json.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import numpy as np

from malletrain.domain.event import SamplesReported
from malletrain.store.event_reader import read_events
from scripts.bench.advisor import bootstrap
from scripts.lab import Lab, LabConfig
from scripts.play.site import Site

WAYS = ("active", "passive", "linear", "given")
PACED = Path(__file__).resolve().parent / "paced_training.py"
SAMPLE_S, BATCH, MOST = 0.005, 64, 6
SECOND_WAVE_S = 40.0
#: Options of `paced_training` by model.
MODELS = {"grow": (), "stall": ("--stall-beyond", "1")}


def rate(model: str, nodes: int) -> float:
    """Samples/s, by construction."""
    step = SAMPLE_S * BATCH / nodes + (SAMPLE_S * 64 if model == "stall" and nodes > 1 else 0.0)
    return BATCH / step


def script(home: Path, way: str, model: str, child: int) -> Path:
    """A batch script of one child."""
    curve = ",".join(f"{n}:{rate(model, n):.1f}" for n in range(1, MOST + 1))
    learnt = f"--curve={curve}" if way == "given" else f"--profile={'none' if way == 'linear' else way}"
    command = shlex.join([sys.executable, str(PACED), "--sample-s", str(SAMPLE_S), *MODELS[model]])
    path = home / f"{model}-{way}-{child}.sh"
    head = f"#SBATCH --job-name={model}{way}-{child}\n#MALLETRAIN --nodes=1-{MOST} --tasks=30 {learnt}\n"
    path.write_text(f"#!/bin/bash\n{head}exec {command}\n")
    return path


def measured(site: Site, way: str, seconds: float, run: int) -> float:
    """Samples/s of all children of one way."""
    home = Path(site.lab.env_for("alice")["HOME"])
    began, jobs = time.time(), []
    for wave in (0, 1):
        time.sleep(max(0.0, began + wave * SECOND_WAVE_S - time.time()))
        jobs += [site.mtbatch("alice", script(home, way, model, 10 * run + wave)) for model in MODELS]
    time.sleep(max(0.0, began + seconds - time.time()))
    totals = dict.fromkeys(jobs, 0.0)
    for event in read_events(site.directory / "malletrain.db"):
        if event.job in totals and isinstance(event.payload, SamplesReported) and event.at <= began + seconds:
            totals[event.job] = max(totals[event.job], event.payload.total or 0.0)
    for job in jobs:
        site.malletrain("alice", "cancel", str(job))
    site.lab.wait_for(lambda: not site.lab.run(["squeue", "-h", "-t", "R"]).stdout.strip(), 90, "idle nodes")
    return sum(totals.values()) / seconds


def table(runs: list[dict[str, float]]) -> str:
    """The mean of each way, and `active` over it."""
    lines = ["| way | samples/s, mean | active over it, mean [95 %] |", "|---|---|---|"]
    random = np.random.default_rng(1)
    for way in WAYS:
        mine = [run[way] for run in runs if way in run]
        gains = [run["active"] / run[way] for run in runs if way in run and "active" in run]
        low, high = bootstrap(gains, random) if gains else (0.0, 0.0)
        over = f"{fmean(gains):.3f} [{low:.3f}, {high:.3f}]" if gains and way != "active" else ""
        lines.append(f"| {way} | {fmean(mine):.0f} | {over} |" if mine else f"| {way} | | |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, which turns the order")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--also", type=Path, action="append", default=[])
    options = parser.parse_args()
    ways = options.ways.split(",") if options.ways else []
    if any(way not in WAYS for way in ways):
        parser.error(f"--ways: of {', '.join(WAYS)}")
    runs: dict[int, dict[str, float]] = {}
    for file in options.also:
        for number, found in json.loads(file.read_text()).items():
            runs.setdefault(int(number), {}).update(found)
    directory = Path(tempfile.mkdtemp(prefix="mt-curves-", dir="/tmp"))
    directory.chmod(0o755)
    settings = {"loop": ["tick_s = 2.0"], "breaker": ["preemptions_per_hour = 10000"]}
    try:
        if ways:
            with (
                Lab.up(directory / "lab", LabConfig(nodes=8, profile="fast", users=True)) as lab,
                Site(lab, settings=settings) as site,
            ):
                site.start()
                for run in range(options.first, options.first + options.runs):
                    for way in [*ways[run % len(ways) :], *ways[: run % len(ways)]]:
                        found = measured(site, way, options.seconds, run)
                        runs.setdefault(run, {})[way] = found
                        print(f"run {run}, {way}: {found:.1f} samples/s, load {os.getloadavg()[0]:.1f}", flush=True)
                        if options.json:
                            options.json.write_text(json.dumps(runs, indent=1) + "\n")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(table([runs[run] for run in sorted(runs)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
