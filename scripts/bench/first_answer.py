"""How soon a daemon answers after kill -9, and where its time goes: `python -m scripts.bench.first_answer`.

A real Slurm (Debian's, brought up for the occasion), a job with pilots that hold nodes, and a daemon that is killed
and started again --rounds times. Of each start: seconds to the first answer of the API, and seconds of processor time
by then, of the daemon and of the Slurm commands that it ran (`/proc/PID/stat`, proc(5)).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import time
from pathlib import Path

from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import Site

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> tuple[float, float]:
    """Processor time of a process, and of its children that have ended, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    return (user + system) / _TICKS_A_SECOND, (ended_user + ended_system) / _TICKS_A_SECOND


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=4)
    options = parser.parse_args()
    try:
        config = LabConfig(nodes=options.nodes, users=os.geteuid() == 0)
        with Lab.up(f"/tmp/mtbench-{secrets.token_hex(3)}", config) as lab, Site(lab) as site:
            site.start()
            if lab.users:
                site.harvest("alice", options.nodes - 1)
            rounds = [_round(site) for _ in range(options.rounds)]
    except LabError as error:
        print(f"first_answer: {error}", file=sys.stderr)
        return 2
    for place, name in enumerate(("answer_s", "daemon_processor_s", "commands_processor_s")):
        ordered = sorted(each[place] for each in rounds)
        found = {"median": round(statistics.median(ordered), 2), "most": round(ordered[-1], 2)}
        print(json.dumps({"what": name, **found}))
    print(json.dumps({"rounds": options.rounds, "load": os.getloadavg()[0]}))
    return 0


def _round(site: Site) -> tuple[float, float, float]:
    site.kill()
    begun = time.monotonic()
    site.start()
    took = time.monotonic() - begun
    return (took, *processor_s(site.pid))


if __name__ == "__main__":
    sys.exit(main())
