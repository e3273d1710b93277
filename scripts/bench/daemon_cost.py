"""What malletraind itself takes at 10,000 nodes: processor time, of its Slurm commands too, and memory.

A slurmctld alone with so many cloud nodes, and main jobs on half of them. Two daemons, one after the other:
`serving`, with a job of --pilots held tasks: it looks, decides, serves HTTP, keeps its journal, and finds no node,
since all are powered down; and `observing` (malletraind --observe), for which a wrapper around scontrol takes the
words CLOUD, POWERED_DOWN and SuspendProgram out, so that thousands of nodes are idle and pilots are imagined on them.

    python -m scripts.bench.daemon_cost --nodes 10000 --tick 10 --seconds 90
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from scripts.bench.shared import controller_alone, fill, memory_mib, options_of, spent
from scripts.lab import Lab
from scripts.play.site import Site

#: Daemons begin with imports and with reading the journal; that is not what they take from day to day.
SETTLE_S = 25.0


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--main", type=int, default=40, help="main jobs that run, on half of the nodes")
    parser.add_argument("--waiting", type=int, default=100, help="main jobs that wait")
    parser.add_argument("--pilots", type=int, default=500, help="held tasks of the job that the daemon serves")
    parser.add_argument("--tick", type=float, default=10.0, help="loop.tick_s")
    parser.add_argument("--seconds", type=float, default=90.0, help="watched so long, each")
    return controller_alone(bench, parser.parse_args())


def bench(lab: Lab, options: argparse.Namespace) -> None:
    fill(lab, options.main, options.nodes // 2, options.waiting)
    with Site(lab, settings={"loop": [f"tick_s = {options.tick}"]}) as site:
        both_daemons(lab, site, options)


def both_daemons(lab: Lab, site: Site, options: argparse.Namespace) -> None:
    print(f"{options.nodes} nodes, {options.main + options.waiting} main jobs, tick {options.tick:g} s")
    print("             share of a core   of that its commands    resident MiB    at most")
    site.start()
    if lab.users:
        site.harvest("alice", 100, tasks=options.pilots, payload="exec sleep 9")
    told("serving", site.pid, options.seconds)
    site.stop()
    folder = site.directory / "bin"
    folder.mkdir()
    wrapper = folder / "scontrol"
    real = shutil.which("scontrol", path=lab.env["PATH"])
    awake = "s/+CLOUD//;s/+POWERED_DOWN//;/^SuspendProgram/d"
    wrapper.write_text(f'#!/bin/bash\n{real} "$@" | sed "{awake}"\nexit ${{PIPESTATUS[0]}}\n')
    wrapper.chmod(0o755)
    daemon = Path(sys.executable).parent / "malletraind"
    path = f"PATH={folder}:{lab.env['PATH']}"
    with site.log.open("a") as log:
        process = lab.popen(
            ["setpriv", "--pdeathsig", "TERM", "env", path, daemon, "--config", site.config, "--observe"],
            cwd=site.directory,
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
    try:
        lab.wait_for(lambda: "observing" in site.log.read_text() or process.poll() is not None, 60, "observing")
        told("observing", process.pid, options.seconds)
    finally:
        process.terminate()
        process.wait(60)


def told(name: str, pid: int, seconds: float) -> None:
    time.sleep(SETTLE_S)
    own, children = spent(pid)
    began = time.monotonic()
    time.sleep(seconds)
    own_after, children_after = spent(pid)
    passed = time.monotonic() - began
    whole = own_after - own + children_after - children
    resident, most = (memory_mib(pid, key) for key in ("VmRSS", "VmHWM"))
    print(
        f"{name:12}{whole / passed:15.1%}{(children_after - children) / passed:20.1%}{resident:20.0f}{most:11.0f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
