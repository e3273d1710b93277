"""What a prolog and an epilog cost pilots and main jobs, and what it brings to skip them in the harvest partition.

On a lab of profile `site` (prolog and epilog of 10 s each, backfill every 30 s): as the site has them, and behind the
script of docs/how-to/admin-slurm.md. Printed for each: seconds from a pilot's start in Slurm to its first command;
from its end to an idle node; and from a main job's submission, half a second after which two pilots leave its nodes,
to its start in Slurm.

    python -m scripts.bench.harvest_epilog --runs 5
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from scripts.lab import Lab, LabConfig

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "docs" / "how-to" / "admin-slurm.md"

NODES = 4
WHAT = ("pilot's first command", "node idle again", "main job's start")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", choices=("fast", "site"), default="site")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mt-epilog-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        with Lab.up(directory / "lab", LabConfig(nodes=NODES, profile=options.profile, users=True)) as lab:
            print(f"load {os.getloadavg()[0]:.1f}, profile {options.profile}, {options.runs} runs; median (worst), s")
            show("as the site has them", [measured(lab) for _ in range(options.runs)])
            install(lab)
            show("skipped in harvest", [measured(lab) for _ in range(options.runs)])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def wrapper(text: str, scripts: Path, which: str) -> str:
    """The document's script for `which` (prolog or epilog), its folder /etc/slurm put at `scripts`."""
    found = re.search(r"```sh\n( *#!/bin/sh\n *# /etc/slurm/epilog.*?)```", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{RECIPE} has no script that begins with `# /etc/slurm/epilog`")
    return textwrap.dedent(found[1]).rstrip(" ").replace("epilog", which).replace("/etc/slurm", str(scripts))


def install(lab: Lab) -> None:
    """Put the script before the lab's own prolog and epilog; slurmd reads them at each job."""
    scripts = lab.path / "scripts"
    for which in ("prolog", "epilog"):
        own = scripts / which
        own.rename(scripts / f"{which}.site")
        quick = scripts / f"{which}.harvest"
        quick.write_text("#!/bin/sh\nexit 0\n")
        own.write_text(wrapper(RECIPE.read_text(encoding="utf-8"), scripts, which))
        for each in (own, quick):
            each.chmod(0o755)


def measured(lab: Lab) -> tuple[float, float, float]:
    """One run: the three figures of `WHAT`."""
    lab.clear(120)
    note = lab.output / f"first-{time.time_ns()}"
    pilot = lab.submit(f"date +%s.%N > {note}; sleep 900", "-p", "harvest", "-w", lab.nodes[0], user="alice")
    lab.wait_for(lambda: note.exists() and note.read_text().strip(), 90, "the pilot's first command")
    first = float(note.read_text()) - began(lab, pilot)
    node = lab.nodes[0]
    lab.run(["scancel", str(pilot)])
    ended = time.time()
    lab.wait_for(lambda: lab.node_states()[node].lower() == "idle", 90, f"{node} idle")
    idle = time.time() - ended
    pilots = [lab.submit("sleep 900", "-p", "harvest", "-w", each, user="alice") for each in lab.nodes]
    for each in pilots:
        lab.wait_for_state(each, "RUNNING", deadline_s=90)
    lab.wait_for(lambda: all(step_runs(lab, each) for each in pilots), 90, "pilots that run")
    submitted = time.time()
    main_job = lab.submit("sleep 1", "--nodes=2", "--exclusive", "-p", "batch", user="bob")
    time.sleep(0.5)  # the daemon's look
    for each in pilots[:2]:
        lab.run(["scancel", str(each)])
    lab.wait_for_state(main_job, "RUNNING", "COMPLETED", deadline_s=180)
    return max(0.0, first), idle, max(0.0, began(lab, main_job) - submitted)


def step_runs(lab: Lab, job: int) -> bool:
    """Whether the job's batch script runs: its prolog is over."""
    return bool(lab.run(["squeue", "-h", "-s", "-j", str(job)]).stdout.strip())


def began(lab: Lab, job: int) -> float:
    """When Slurm started the job (Unix seconds, whole)."""
    return time.mktime(time.strptime(lab.job(job)["StartTime"], "%Y-%m-%dT%H:%M:%S"))


def show(name: str, runs: list[tuple[float, float, float]]) -> None:
    """One line for each figure."""
    for what, values in zip(WHAT, zip(*runs, strict=True), strict=True):
        print(f"{name:22} {what:22} {statistics.median(values):6.1f} ({max(values):.1f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
