"""What becomes of pilots and of the main queue while the daemon is dead?

Two labs play the same main queue. On one, pilots train on every idle node when malletraind is killed with SIGKILL; it
stays dead for --minutes. Printed: pilots that started by themselves, pilots on a node at its planned end and beyond,
and the main jobs' starts beside those of the lab that never had a pilot.

    python -m scripts.bench.daemon_dead --minutes 10
"""

from __future__ import annotations

import shlex
import signal
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from scripts.bench.shared import options_of
from scripts.lab import Lab, LabConfig
from scripts.play.load import MainJob, day
from scripts.play.player import Player
from scripts.play.site import Site, folder_for_labs

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--profile", choices=("fast", "site"), default="fast")
    options = parser.parse_args()
    config = LabConfig(nodes=8, profile=options.profile, users=True)
    with (
        folder_for_labs() as folder,
        Lab.up(folder / "without", config) as without,
        Lab.up(folder / "with", config) as lab,
    ):
        return measure(lab, without, options.minutes)


def measure(lab: Lab, without: Lab, minutes: float) -> int:
    with Site(lab, settings={"loop": ["tick_s = 2.0"], "pilot": ["max_minutes = 5"]}) as site:
        site.start()
        script = Path(lab.env_for("alice")["HOME"]) / "paced.sh"
        command = shlex.join([sys.executable, f"{ROOT}/tests/e2e/paced_training.py"])
        script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-8\n{command}\n")
        site.mtbatch("alice", script)
        lab.wait_for(lambda: len(pilots(lab)) == 8, 120, "a pilot on every node")
        site.stop(signal.SIGKILL)
        killed = time.time()
        at_death = pilots(lab)
        players = [Player(each, load(minutes), "bob", each.path / "main") for each in (lab, without)]
        for player in players:
            player.start(killed + 1)
        new: set[str] = set()
        beyond: dict[str, float] = {}
        while time.time() < killed + 60 * minutes:
            for pilot in pilots(lab):
                if pilot not in at_death:
                    new.add(pilot)
                elif time.time() > at_death[pilot]:
                    beyond[pilot] = max(beyond.get(pilot, 0.0), time.time() - at_death[pilot])
            time.sleep(1.0)
        for player in players:
            player.stop()
    plays = [{p.job.number: p.start_s for p in player.played()} for player in players]
    later = [a - b for n, a in plays[0].items() if a is not None and (b := plays[1].get(n)) is not None]
    lost = [n for n, a in plays[0].items() if a is None and plays[1].get(n) is not None]
    print(f"{len(at_death)} pilots ran when the daemon was killed; {minutes:g} minutes later {len(pilots(lab))} do")
    print(f"pilots that started by themselves: {len(new)}")
    print(
        f"pilots past their time limit: {len(beyond)}; the longest by {max(beyond.values(), default=0.0):.1f} s "
        "(Slurm looks at limits about every 30 s)"
    )
    print(
        f"main jobs: {len(later)} pairs, later by median {statistics.median(later):+.2f} s, "
        f"mean {statistics.fmean(later):+.2f} s, worst {max(later):+.2f} s; not started here but there: {len(lost)}"
    )
    return 1 if new or lost else 0


def load(minutes: float) -> list[MainJob]:
    """The day in miniature, again and again."""
    turns = range(int(minutes * 60 // 150) + 1)
    jobs = [replace(job, submit_s=job.submit_s + 150 * turn) for turn in turns for job in day()]
    return [replace(job, number=i) for i, job in enumerate(jobs) if job.submit_s < minutes * 60 - 30]


def pilots(lab: Lab) -> dict[str, float]:
    """Running pilots: id -> when the time limit ends (Unix seconds)."""
    asked = ["squeue", "-h", "-r", "-p", "harvest", "-t", "running", "-o", "%i %e"]
    rows = lab.run(["env", "SLURM_TIME_FORMAT=%s", *asked]).stdout.splitlines()
    return {pilot: float(end) for pilot, end in map(str.split, rows)}


if __name__ == "__main__":
    sys.exit(main())
