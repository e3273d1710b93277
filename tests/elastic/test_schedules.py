"""Random sequences of joins, leaves, losses, freezes and restarts of the daemon: the result is a static run's, in
lower precision within its rounding or the noise of its seeds."""

from __future__ import annotations

import json
import random
import signal
import statistics
import time
from pathlib import Path

import pytest

from malletrain.domain.event import EventKind
from malletrain.loop.membership.next_world import JobTerms
from tests.elastic.coordinator import Coordinator, Pod, running
from tests.elastic.digits import SCRIPT, Static, run_alone, wait_lines
from tests.waiting import wait_until
from tests.world import data_of

SEATS = 5


class Play:
    """A sequence of changes, each begun before the last one has settled, or not; none is done to `spared` ones."""

    def __init__(
        self, seed: int, daemon: Coordinator, pod: Pod, script: list[str], spared: frozenset[int] = frozenset()
    ) -> None:
        self.random = random.Random(seed)
        self.daemon, self.pod, self.script = daemon, pod, script
        self.restarts = dict.fromkeys(range(SEATS), -1)
        self.frozen: set[int] = set()
        self.leaving: set[int] = set()
        self.done: list[str] = []
        self.harmed: set[str] = set()
        self.spared = spared

    def alive(self) -> list[int]:
        """Those that nothing was done to."""
        return [
            task
            for task, process in self.pod.processes.items()
            if isinstance(task, int) and process.poll() is None and task not in self.frozen | self.leaving
        ]

    def free(self) -> list[int]:
        return [
            task
            for task in range(SEATS)
            if task not in self.frozen and (self.restarts[task] < 0 or self.pod.processes[task].poll() is not None)
        ]

    def revive(self) -> None:
        """Somebody must be there."""
        if not self.alive():
            wait_until(lambda: bool(self.free()), 90, "a seat is free")
            self.join(self.free()[0])

    def join(self, task: int) -> None:
        self.leaving.discard(task)
        self.restarts[task] += 1
        self.pod.spawn(self.daemon.url, task, self.script, restart=self.restarts[task])

    def change(self) -> None:
        alive = [task for task in self.alive() if task not in self.spared]
        free = self.free()
        kinds = ["join"] * 3 * bool(free) + (["leave", "kill", "term"] if len(alive) + len(self.spared) > 1 else [])
        members = [task for task in alive if f"100_{task}" in self.daemon.world()]
        if not kinds:
            return  # all seats are taken by those that are about to go
        kind = self.random.choice([*kinds, *(["freeze"] if len(members) > 2 and not self.frozen else [])])
        task = self.random.choice({"join": free, "freeze": members}.get(kind, alive))
        self.done.append(f"{kind} {task}")
        if kind in ("kill", "freeze", "term"):  # also one that is asked to end before it listens
            self.harmed.add(f"100_{task}.{self.restarts[task]}")
        if kind == "join":
            self.join(task)
        elif kind == "leave":
            self.leaving.add(task)
            self.daemon.leave(task)
        elif kind == "kill":
            self.pod.kill(task)
        elif kind == "term":
            self.leaving.add(task)
            self.pod.kill(task, signal.SIGTERM)
        else:
            self.frozen.add(task)
            self.pod.kill(task, signal.SIGSTOP)

    def check_evictions(self) -> None:
        """No healthy member was given up."""
        lost = {str(data_of(event)["worker"]) for event in self.daemon.seen(EventKind.WORKER_LOST)}
        assert lost <= self.harmed, f"given up though they were well: {sorted(lost - self.harmed)}"

    def abandon(self) -> bool:
        """A frozen worker that was given up is taken away, as its pilot would be; whether none is left."""
        given_up = {data_of(event)["worker"] for event in self.daemon.seen(EventKind.WORKER_LOST)}
        for task in list(self.frozen):
            if f"100_{task}.{self.restarts[task]}" in given_up:
                self.pod.kill(task)
                self.pod.wait(task)
                self.frozen.discard(task)
        return not self.frozen


def play(directory: Path, seed: int, changes: int, options: list[str]) -> None:
    script = [SCRIPT, *options, "--step-seconds", "0.1", "--slow-until", str(directory / "go")]
    terms = JobTerms(undecided=seed % 2 == 0, checked="0123")  # a step is tried as it grows
    with running(directory, terms, check_in_s=6.0) as (daemon, pod):  # the machine may be slow, and is no fault
        game = Play(seed, daemon, pod, script)
        try:
            game.join(0)
            daemon.wait_world([0])
            for _ in range(changes):
                game.change()
                game.abandon()
                game.revive()
                if game.random.random() < 0.6:
                    wait_lines(directory, 6, 60, "steps go on")
                else:
                    time.sleep(game.random.random() * 0.2)  # the next change meets this one half-way
            wait_until(game.abandon, 60, "frozen ones are out")
            (directory / "go").touch()
            game.revive()
            daemon.wait_seen(EventKind.JOB_COMPLETED)
            for task in game.alive():
                assert pod.wait(task) == 0
            game.check_evictions()
        except BaseException:
            print("changes:", game.done)
            raise


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_short_random_schedule(tmp_path: Path, static: Static, seed: int) -> None:
    play(tmp_path, seed, 12, ["--epochs", "25"])
    static.assert_like(tmp_path, "--epochs", "25")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 140))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_long_random_schedules(tmp_path: Path, static: Static, seed: int, optimizer: str) -> None:
    options = ["--epochs", "60", "--optimizer", optimizer]
    play(tmp_path, seed, 50, options)
    # Adam divides by the root of second moments, which near zero makes much of rounding.
    static.assert_like(tmp_path, *options, tolerance=1e-12 if optimizer == "sgd" else 1e-8)


def loss_in(directory: Path) -> float:
    """The mean over all digits, at the end."""
    return float(json.loads((directory / "figures.json").read_text())["loss"])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_float32_is_within_its_rounding(tmp_path: Path, static: Static, seed: int) -> None:
    options = ["--epochs", "20", "--float32"]
    play(tmp_path, seed, 12, options)
    static.assert_like(tmp_path, *options, tolerance=1e-5)


@pytest.mark.nightly
def test_autocast_is_within_its_own_noise(tmp_path: Path) -> None:
    """bfloat16 rounds other sums at another split. What that does to the result has to be less than what another
    seed does."""
    options = ["--epochs", "20", "--autocast"]
    losses = []
    for seed in range(5):
        run_alone(tmp_path / f"seed-{seed}", SCRIPT, *options, "--seed", str(seed))
        losses.append(loss_in(tmp_path / f"seed-{seed}"))
    noise = statistics.stdev(losses)
    assert noise > 0
    home = tmp_path / "resized"
    home.mkdir()
    play(home, 21, 12, options)
    assert abs(loss_in(home) - losses[0]) < noise
