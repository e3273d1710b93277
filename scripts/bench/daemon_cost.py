"""What malletraind itself takes at 10,000 nodes: processor time, of its Slurm commands too, and memory.

A slurmctld alone with so many cloud nodes, and main jobs on half of them. Two daemons, one after the other:
`serving`, with a job of --pilots held tasks: it looks, decides, serves HTTP, keeps its journal, and finds no node,
since all are powered down; and `observing` (malletraind --observe), for which a wrapper around scontrol takes the
words CLOUD, POWERED_DOWN and SuspendProgram out, so that thousands of nodes are idle and pilots are imagined on them.

    python -m scripts.bench.daemon_cost --nodes 10000 --tick 10 --seconds 90
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import time
from pathlib import Path

from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import Site

#: Daemons begin with imports and with reading the journal; that is not what they take from day to day.
SETTLE_S = 25.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--main", type=int, default=40, help="main jobs that run, on half of the nodes")
    parser.add_argument("--waiting", type=int, default=100, help="main jobs that wait")
    parser.add_argument("--pilots", type=int, default=500, help="held tasks of the job that the daemon serves")
    parser.add_argument("--tick", type=float, default=10.0, help="loop.tick_s")
    parser.add_argument("--seconds", type=float, default=90.0, help="watched so long, each")
    options = parser.parse_args()
    config = LabConfig(
        nodes=options.nodes,
        profile="site",
        controller_only=True,
        users=os.geteuid() == 0,
        settings=(("MessageTimeout", "60"), ("MaxArraySize", "10001")),
    )
    try:
        with Lab.up(f"/tmp/mtbench-{secrets.token_hex(3)}", config, deadline_s=120) as lab:
            fill(lab, options)
            settings = {"loop": [f"tick_s = {options.tick}"]}
            with Site(lab, settings=settings) as site:
                bench(lab, site, options)
    except LabError as error:
        print(f"daemon_cost: {error}", file=sys.stderr)
        return 2
    return 0


def fill(lab: Lab, options: argparse.Namespace) -> None:
    half = options.nodes // 2
    for _ in range(options.main):
        lab.submit("true", "-p", "batch", f"--nodes={half // options.main}", "--exclusive", "--time=600")
    for _ in range(options.waiting):
        lab.submit("true", "-p", "batch", f"--nodes={options.nodes}", "--exclusive", "--time=60")


def bench(lab: Lab, site: Site, options: argparse.Namespace) -> None:
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
    resident, most = (memory(pid, key) for key in ("VmRSS", "VmHWM"))
    print(
        f"{name:12}{whole / passed:15.1%}{(children_after - children) / passed:20.1%}{resident:20.0f}{most:11.0f}",
        flush=True,
    )


def spent(pid: int) -> tuple[float, float]:
    """Processor seconds of the process, and of its children that have ended (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, (int(fields[13]) + int(fields[14])) / tick


def memory(pid: int, key: str) -> float:
    """MiB."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
