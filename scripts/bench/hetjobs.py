"""How often does Slurm put off a heterogeneous job because pilots hold some of its nodes and the reserve the others?

Slurm starts such a job component by component. Where one found idle nodes and a later one has to preempt, Slurm gives
the first one's nodes up and sets the job's BeginTime `cred_expire` and a second ahead, two minutes by default. A lab
with pilots on all nodes but the reserve gets a heterogeneous job again and again at a random moment. Before that, the
same lab without pilots, its other nodes held by a main job that ends meanwhile: what Slurm does by itself.

    python -m scripts.bench.hetjobs --rounds 20 --keep-idle 1
    python -m scripts.bench.hetjobs --rounds 3 --keep-idle 1 --follow    # until a job that was put off has started
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from scripts.lab import Lab, LabError
from scripts.play.arm import lab_config
from scripts.play.site import FAST_LOOP, SLEEPING, Site

#: A job that is neither running nor put off by then (seconds) is reported as an error.
PATIENCE_S = 90.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=8, help="nodes of the lab, a multiple of 4")
    parser.add_argument("--sizes", default="1,3", help="nodes of the components")
    parser.add_argument("--keep-idle", type=int, default=1, help="pool.keep_idle")
    parser.add_argument("--leave-s", type=int, default=0, help="a pilot's script takes up to so long to end")
    parser.add_argument("--alone", type=int, default=5, help="rounds without pilots")
    parser.add_argument("--follow", action="store_true", help="wait until a job that was put off has started")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rounds to this file")
    options = parser.parse_args()
    sizes = [int(each) for each in options.sizes.split(",")]
    directory = Path(tempfile.mkdtemp(prefix="mt-hetjobs-", dir="/tmp"))
    directory.chmod(0o755)
    rng = random.Random(options.seed)
    quick = FAST_LOOP if options.profile == "fast" else []
    settings = {
        "loop": quick,
        "pool": [f"keep_idle = {options.keep_idle}"],
        "breaker": ["preemptions_per_hour = 10000"],
    }
    load = os.getloadavg()[0]
    rows: list[dict[str, object]] = []
    try:
        with Lab.up(directory / "lab", lab_config(options.nodes, options.profile, preemption=True)) as lab:
            for number in range(options.alone):
                rows.append(alone(lab, sizes, options.keep_idle, rng) | {"round": number, "pilots": False})
                print(told(rows[-1]), flush=True)
            with Site(lab, settings=settings) as site:
                site.start()
                late = f"trap 'sleep $((RANDOM % {options.leave_s + 1})); exit 0' TERM\nsleep 86400 &\nwait"
                site.harvest("alice", options.nodes, payload=late if options.leave_s else SLEEPING)
                for number in range(options.rounds):
                    rows.append(with_pilots(lab, site, sizes, options, rng) | {"round": number, "pilots": True})
                    print(told(rows[-1]), flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for pilots in (False, True):
        kind = [row for row in rows if row["pilots"] is pilots]
        took = [float(str(row["took_s"])) for row in kind if not row["put_off"]]
        later = sum(bool(row["put_off"]) for row in kind)
        at_once = f"; the others started after {median(took):.2f} s" if took else ""
        print(f"{'with' if pilots else 'without'} pilots: {later} of {len(kind)} put off{at_once}")
    print(f"load {load:.1f} to {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def alone(lab: Lab, sizes: list[int], idle: int, rng: random.Random) -> dict[str, object]:
    """Without pilots: `idle` nodes idle, the others held by a main job that ends while this one waits."""
    held = ",".join(sorted(lab.nodes)[idle:])
    count = f"--nodes={len(lab.nodes) - idle}"
    main = lab.submit("sleep 600", "-p", "batch", count, "-w", held, "--exclusive", "--time=9", user="bob")
    lab.wait_for_state(main, "RUNNING", deadline_s=60)
    job, submitted = submit_hetjob(lab, sizes), time.time()
    time.sleep(rng.uniform(0.0, 3.0))
    lab.run(["scancel", str(main)])
    return outcome(lab, job, submitted, follow=False)


def with_pilots(
    lab: Lab, site: Site, sizes: list[int], options: argparse.Namespace, rng: random.Random
) -> dict[str, object]:
    """A heterogeneous job arrives at a random moment of the backfill cycle."""
    held = options.nodes - options.keep_idle
    lab.wait_for(lambda: site.pilot_nodes("alice") >= held, 300, "pilots on every node but the reserve")
    time.sleep(rng.uniform(0.0, 30.0 if options.profile == "site" else 2.0))
    job, submitted = submit_hetjob(lab, sizes), time.time()
    return outcome(lab, job, submitted, follow=options.follow)


def submit_hetjob(lab: Lab, sizes: list[int]) -> int:
    script = lab.output / "het.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    words = [word for size in sizes for word in (":", "-p", "batch", f"--nodes={size}", "--exclusive", "--time=2")]
    return int(lab.run(["sbatch", "--parsable", *words[1:], script], "bob").stdout.split(";")[0])


def outcome(lab: Lab, job: int, submitted: float, *, follow: bool) -> dict[str, object]:
    """What became of the job; it is ended."""
    put_off = 0
    was = False
    end = time.monotonic() + (600.0 if follow else PATIENCE_S)
    while True:
        shown = [
            line.split("|") for line in lab.run(["squeue", "-h", "-o", "%A|%T|%r", "-j", str(job)]).stdout.split()
        ]
        if shown and all(state == "RUNNING" for _, state, _ in shown):
            break
        now_put_off = any(reason == "BeginTime" for _, _, reason in shown)
        put_off += now_put_off and not was
        was = now_put_off
        if put_off and not follow:
            break
        if time.monotonic() > end:
            raise LabError(f"heterogeneous job {job} neither runs nor is put off: {shown}")
        time.sleep(0.1)
    took_s = time.time() - submitted
    lab.run(["scancel", str(job)])
    lab.wait_for(lambda: not lab.run(["squeue", "-h", "-p", "batch"]).stdout.strip(), 60, "no main job")
    return {"put_off": put_off, "took_s": took_s}


def told(row: dict[str, object]) -> str:
    arm = "with" if row["pilots"] else "without"
    return f"{row['round']:>3} {arm} pilots: put off {row['put_off']}, {row['took_s']:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
