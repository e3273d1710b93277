"""All nodes of a job are taken, at random moments of joins, leaves and saves: no step is lost while the grace lasts.

TAKEN_ROUNDS=400 TAKEN_SEED=7 python -m pytest tests/elastic/test_all_taken.py -s
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.elastic.coordinator import Coordinator, Pod, running
from tests.elastic.digits import SCRIPT
from tests.waiting import wait_until

pytestmark = pytest.mark.alone  # all are to be saved within the seconds that Slurm gives them

#: Seconds from the daemon's word to SIGTERM, and from that to SIGKILL: Slurm's KillWait is 30 by default.
LEAVE_S, GRACE_S = 10.0, 20.0
SEATS = 4


class Taking:
    """One job whose nodes come, and are all taken, again and again."""

    def __init__(self, seed: int, daemon: Coordinator, pod: Pod, script: list[str]) -> None:
        self.random = random.Random(seed)
        self.daemon, self.pod, self.script = daemon, pod, script
        self.runs = itertools.count()
        self.tasks: list[int] = []
        self.harmed: list[int] = []
        self.run = 0
        self.done: list[str] = []

    def join(self, count: int, **environ: str) -> None:
        first = len(self.tasks) + len(self.harmed)  # no two of a round have one number: each is to be ended
        begun = range(first, first + count)
        for task in begun:
            self.pod.spawn(self.daemon.url, task, self.script, self.run, **environ)
        self.tasks += begun

    def begin(self) -> None:
        """A world of one to four that trains, and most often a change of it that is under way."""
        self.tasks, self.run, self.done = [], next(self.runs), []
        for task in self.harmed:
            self.pod.kill(task)
            self.pod.wait(task)
        self.harmed = []
        first = self.random.choice([1, 2, 3, 4, 4])
        self.note(f"world of {first}")
        self.join(first)
        self.daemon.wait_world(self.tasks)
        wait_until(lambda: self.last_step() > 1 + self.saved_step(), 60, "steps are made")
        for _ in range(self.random.randint(0, 2)):
            self.change()

    def change(self) -> None:
        kind = self.random.choice(["join", "join", "troubled", "troubled", "troubled", "leave", "term", "lose"])
        if kind in ("join", "troubled") and len(self.tasks) < SEATS:
            worlds = len(self.daemon.seen("generation"))
            self.note(kind)
            if kind == "join":
                self.join(self.random.randint(1, SEATS - len(self.tasks)))
            else:
                trouble, place = (
                    self.random.choice(["freeze", "term", "kill"]),
                    self.random.choice(["roll", "roll", "take", "build"]),
                )
                self.note(f"{trouble} {place}")
                self.join(1, TROUBLE=f"{trouble}@{place}")
                if trouble != "term":
                    self.harmed.append(self.tasks.pop())
            wait_until(lambda: len(self.daemon.seen("generation")) > worlds, 60, "a change is under way")
        elif kind == "lose" and len(self.tasks) > 2:
            number = self.random.choice([signal.SIGSTOP, signal.SIGKILL])
            self.note(f"{number.name} {self.tasks[-1]}")
            self.pod.kill(self.tasks[-1], number)
            self.harmed.append(self.tasks.pop())
        elif kind in ("leave", "term"):
            task = self.random.choice(self.tasks)
            self.note(f"{kind} {task}")
            self.ask(task, kind)
        self.wait(0.3)

    def ask(self, task: int, kind: str) -> None:
        if kind == "leave":
            self.daemon.leave(task)
        else:
            self.pod.kill(task, signal.SIGTERM)

    def wait(self, most: float) -> None:
        time.sleep(self.random.random() * most)

    def take_all(self) -> None:
        """By signals, by the daemon's word, or by both; at once, or one after the other."""
        way = self.random.choice(["term", "leave", "leave, then term", "mixed"])
        apart = self.random.choice([0.0, 0.3, 3.0])
        self.note(f"{way}, {apart} s apart")
        began = time.monotonic()
        for task in self.random.sample(self.tasks, len(self.tasks)):
            self.ask(
                task,
                "leave" if way.startswith("leave") else way.replace("mixed", self.random.choice(["leave", "term"])),
            )
            self.wait(apart)
        if way == "leave, then term":
            self.wait(2.0)
        if way == "leave":
            with suppress(AssertionError):  # one that had not said hello was not told
                self.wait_for_all(began + LEAVE_S)
        for task in self.tasks:
            self.pod.kill(task, signal.SIGTERM)
        self.wait_for_all(time.monotonic() + GRACE_S)

    def wait_for_all(self, deadline: float) -> None:
        for task in self.tasks:
            self.pod.wait(task, max(0.1, deadline - time.monotonic()))

    def note(self, what: str) -> None:
        self.done.append(f"{time.monotonic():.2f} {what}")

    def last_step(self) -> int:
        """That a worker has made which was not harmed: what another has made alone, goes with it."""
        made = 0
        for task in self.tasks:
            path = self.pod.directory / f"diary-{task}.{self.run}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            made = max([made, *(json.loads(line)["step"] for line in lines if line.endswith("}"))])
        return made

    def saved_step(self) -> int:
        kept = self.pod.directory.glob("checkpoints/step-*")
        return max((int(path.name.partition("-")[2]) for path in kept), default=0)


SCRIPT_TO_TAKE = [SCRIPT, "--epochs", "1000000", "--slow-until", "never", "--step-seconds", "0.1"]


@pytest.mark.parametrize("rounds", [6, pytest.param(300, marks=pytest.mark.nightly)])
def test_no_step_is_lost_when_all_nodes_are_taken(tmp_path: Path, rounds: int) -> None:
    seed, rounds = int(os.environ.get("TAKEN_SEED", "1")), int(os.environ.get("TAKEN_ROUNDS", str(rounds)))
    script = [*SCRIPT_TO_TAKE, "--checkpoint-s", "1"]
    with running(tmp_path, check_in_s=3.0) as (daemon, pod):
        game = Taking(seed, daemon, pod, script)
        for number in range(rounds):
            game.begin()
            game.take_all()
            made, saved = game.last_step(), game.saved_step()
            assert made == saved, f"round {number}: {made} steps made, {saved} kept: {game.done}"
        assert not daemon.seen("job_failed")


def test_a_world_whose_newcomer_froze_as_all_nodes_are_taken_is_kept(tmp_path: Path) -> None:
    """The daemon finds the frozen one later than those that wait for it would go on without a plan."""
    with running(tmp_path) as (daemon, pod):
        game = Taking(0, daemon, pod, SCRIPT_TO_TAKE)
        game.join(3)
        daemon.wait_world([0, 1, 2])
        pod.spawn(daemon.url, 3, SCRIPT_TO_TAKE, 0, TROUBLE="freeze@roll")
        frozen = Path(f"/proc/{pod.processes[3].pid}/stat")
        wait_until(lambda: frozen.read_text().rpartition(")")[2].split()[0] == "T", 60, "the newcomer is frozen")
        time.sleep(0.5)  # a few steps: the others wait for it in their next world
        for task in range(3):
            pod.kill(task, signal.SIGTERM)
        for task in range(3):
            assert pod.wait(task, GRACE_S) == 143
        assert game.saved_step() == game.last_step()
