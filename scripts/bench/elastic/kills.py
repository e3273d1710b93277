"""How long `kill -9` stops training: one of four workers, at any moment of a step, again and again.

    python -m scripts.bench.elastic.kills [--kills 200] [--workers 4] [--width 600] [--launcher] [--json FILE]

The victims take turns: the main worker, which also serves the store of the newest worlds, and any other. The moment
is drawn uniformly from two steps. Pause: the greatest excess of a survivor's step beyond the median of its world,
from the kill to the second step of the smaller world. With --launcher every worker is started as in a pilot, by a
process that reports its end to the daemon; without, the others must notice it by themselves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from malletrain.elastic.launch.launcher import HUGE_PAGE_ENVIRONMENT
from malletrain.loop.membership.state import MembershipSettings
from scripts.bench.elastic.resize import SCRIPT
from scripts.lab.ports import free_port
from tests.elastic.coordinator import ARRAY, HERE, JOB, Coordinator, Pod, outside_slurm
from tests.waiting import wait_until

#: Steps of the new world by which its median is known.
STEPS_AFTER = 6


@dataclass(frozen=True, slots=True)
class Kill:
    """What one kill came to; seconds."""

    victim: str
    into_step: float
    step_s: float
    pause_s: float
    load: float


class World:
    """Workers that train, of which one is killed and another started."""

    def __init__(self, directory: Path, width: int, *, launcher: bool) -> None:
        self.directory, self.launcher = directory, launcher
        self.daemon = Coordinator(free_port())
        self.daemon.start()
        self.pod = Pod(directory)
        self.restarts: dict[int, int] = {}
        self.options = ["--width", str(width), "--batch", "16", "--stop", str(directory / "stop")]

    def add(self, task: int) -> None:
        self.restarts[task] = self.restarts.get(task, -1) + 1
        if not self.launcher:
            self.pod.spawn(self.daemon.url, task, [SCRIPT, *self.options], restart=self.restarts[task])
            return
        environment = outside_slurm() | {
            "MALLETRAIN_URL": self.daemon.url, "MALLETRAIN_JOB": str(JOB), "SLURM_JOB_ID": str(1000 + task),
            "MALLETRAIN_TEST_DIR": str(self.directory), "SLURM_SUBMIT_DIR": str(self.directory),
            "SLURM_ARRAY_JOB_ID": str(ARRAY), "SLURM_ARRAY_TASK_ID": str(task), "SLURMD_NODENAME": f"node{task}",
            "SLURM_RESTART_COUNT": str(self.restarts[task]),
        }  # fmt: skip
        with (self.directory / f"launcher-{task}.{self.restarts[task]}.log").open("wb") as log:
            self.pod.processes[task] = subprocess.Popen(
                [sys.executable, str(HERE / "launched.py"), "--", sys.executable, SCRIPT, *self.options],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def oldest_first(self) -> list[int]:
        return [int(pilot.rpartition("_")[2]) for pilot in self.daemon.world()]

    def commits(self, task: int) -> list[tuple[float, int, int]]:
        path = self.directory / f"commits-{task}.{self.restarts[task]}"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def kill(self, task: int) -> None:
        if not self.launcher:
            self.pod.kill(task, signal.SIGKILL)
            return
        for script in self._scripts(task):
            os.kill(script, signal.SIGKILL)

    def _scripts(self, task: int) -> list[int]:
        """What the task's launcher runs, in a session of its own."""
        launcher = self.pod.processes[task].pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children")
        return [int(child) for child in children.read_text().split()] if children.exists() else []

    def close(self) -> None:
        if self.launcher:
            for task in self.restarts:
                self.kill(task)
        self.pod.end()
        self.daemon.stop()


def pause_of(commits: list[tuple[float, int, int]], at: float) -> float:
    """The greatest excess of a step from `at` to the second one of the world after it."""
    times = [row[0] for row in commits]
    took = [0.0, *(late - early for early, late in itertools.pairwise(times))]
    first = next(i for i in range(1, len(commits)) if times[i] > at and commits[i][2] != commits[i - 1][2])
    new = statistics.median(took[first + 2 :])
    old = statistics.median([took[i] for i in range(max(1, first - 20), first) if times[i] <= at] or [new])
    return max(took[i] - (old if i < first else new) for i in range(1, first + 2) if times[i] > at)


def one_kill(world: World, workers: int, chance: random.Random, *, main: bool) -> Kill:
    """Kill one worker once all train, and wait until the others have gone on."""
    wait_until(lambda: len(world.oldest_first()) == workers, 120, f"a world of {workers}")
    members = world.oldest_first()

    def steps(task: int, size: int, since: float) -> int:
        return sum(1 for at, _, n in world.commits(task) if n == size and at > since)

    begun = time.time()
    wait_until(lambda: all(steps(task, workers, begun) >= 8 for task in members), 120, "steps of all")
    rows = world.commits(members[0])
    step = statistics.median(late[0] - early[0] for early, late in itertools.pairwise(rows[-8:]))
    victim = members[0] if main else chance.choice(members[1:])
    time.sleep(chance.uniform(0.0, 2 * step))
    before = rows[-1][0]
    at = time.time()
    world.kill(victim)
    survivors = [task for task in members if task != victim]
    wait_until(
        lambda: all(steps(task, workers - 1, at) >= STEPS_AFTER for task in survivors), 120, "steps of the others"
    )
    pause = max(pause_of(world.commits(task), at) for task in survivors)
    world.pod.processes[victim].wait(30)
    world.add(victim)
    return Kill("main" if main else "other", (at - before) / step % 1.0, step, pause, os.getloadavg()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--width", type=int, default=600)
    parser.add_argument("--launcher", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="append each kill as a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`: nothing is left running
    os.environ.update({**HUGE_PAGE_ENVIRONMENT, **os.environ})
    chance = random.Random(options.seed)
    found: list[Kill] = []
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), options.width, launcher=options.launcher)
        try:
            for task in range(options.workers):
                world.add(task)
            for number in range(options.kills):
                kill = one_kill(world, options.workers, chance, main=number % 2 == 0)
                found.append(kill)
                print(json.dumps(asdict(kill)), flush=True)
                if options.json:
                    with options.json.open("a") as stream:
                        stream.write(json.dumps(asdict(kill)) + "\n")
        finally:
            world.close()
    pauses = sorted(kill.pause_s for kill in found)
    p99 = pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))]
    step, limit = statistics.median(kill.step_s for kill in found), MembershipSettings().check_in_s
    print(f"{len(pauses)} kills: median {statistics.median(pauses):.3f} s, p99 {p99:.3f} s, most {pauses[-1]:.3f} s")
    print(f"a step {step:.3f} s: p99 is {p99 / step:.1f} of them, and {p99 / limit:.2f} of the limit of a check")


if __name__ == "__main__":
    main()
