"""Random sequences of joins, leaves, losses, freezes and restarts of the daemon: the result is a static run's, in
lower precision within its rounding or the noise of its seeds; and nothing is kept of worlds that are gone.

SOAK_CHANGES=5000 SOAK_SEED=7 python -m pytest --nightly tests/elastic/test_schedules.py -k nothing_is_kept -s
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.elastic.resize.reconfigure import BUILD_PATIENCE
from malletrain.loop.membership.next_world import JobTerms
from tests.elastic.coordinator import Coordinator, Pod, running
from tests.elastic.digits import SCRIPT, Static, run_alone, wait_lines
from tests.waiting import wait_until
from tests.world import data_of

pytestmark = pytest.mark.alone  # no healthy worker may be given up, and all settles before what is held is counted

SEATS = 5
CHANGES = int(os.environ.get("SOAK_CHANGES", "500"))
SEED = int(os.environ.get("SOAK_SEED", "5"))
#: Between two looks at what the process holds.
EVERY = max(1, min(25, CHANGES // 4))
#: A machine that others use too may be slow.
PATIENCE_S = 240


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

    def go_on(self, wait_for_steps: Callable[[], None]) -> None:
        """The next change. The one after it comes once steps go on, or meets this one half-way."""
        self.change()
        self.abandon()
        self.revive()
        if self.random.random() < 0.6:
            wait_for_steps()
        else:
            time.sleep(self.random.random() * 0.2)

    def check_evictions(self) -> None:
        """No healthy member was given up."""
        lost = {str(data_of(event)["worker"]) for event in self.daemon.seen("worker_lost")}
        assert lost <= self.harmed, f"given up though they were well: {sorted(lost - self.harmed)}"

    def abandon(self) -> bool:
        """A frozen worker that was given up is taken away, as its pilot would be; whether none is left."""
        given_up = {data_of(event)["worker"] for event in self.daemon.seen("worker_lost")}
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
                game.go_on(lambda: wait_lines(directory, 6, 60, "steps go on"))
            wait_until(game.abandon, 60, "frozen ones are out")
            (directory / "go").touch()
            game.revive()
            daemon.wait_seen("job_completed")
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


@dataclass(frozen=True)
class Held:
    """What a process holds while it trains alone."""

    memory_mib: int
    threads: int
    files: int
    sockets: int


def held(pid: int) -> Held:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
    sockets = sum(link.startswith("socket:") for link in links)
    return Held(int(status["VmRSS"].split()[0]) // 1024, int(status["Threads"]), len(links) - sockets, sockets)


def held_at_rest(pid: int, threads: int) -> Held:
    """Once it has no more than so many threads: builders of groups that met no peer give up after a minute."""
    end = time.monotonic() + 1.5 * BUILD_PATIENCE.total_seconds()
    while (now := held(pid)).threads > threads and time.monotonic() < end:
        time.sleep(0.5)
    return now


def settle(game: Play) -> None:
    """Everyone but worker 0 is sent away, and is gone."""

    def gone() -> bool:
        game.abandon()
        others = {
            task: process for task, process in game.pod.processes.items() if isinstance(task, int) and task != 0
        }
        for task, process in others.items():
            # Also one that was asked before the daemon knew it, which this coordinator forgets.
            if process.poll() is None and f"100_{task}" in game.daemon.world():
                game.leaving.add(task)
                game.daemon.leave(task)
        return game.daemon.world() == ("100_0",) and all(process.poll() is not None for process in others.values())

    wait_until(gone, PATIENCE_S, f"worker 0 is alone; {game.done[-5:]}")


def steps_of(directory: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (directory / "diary-0.0.jsonl").read_text().splitlines()]


def wait_steps(directory: Path, more: int, what: str) -> None:
    made = len(steps_of(directory))
    wait_until(lambda: len(steps_of(directory)) > made + more, PATIENCE_S, what)


@pytest.mark.nightly
def test_nothing_is_kept_of_worlds_that_are_gone(tmp_path: Path) -> None:
    """Hundreds of changes around one worker that stays: no hang, no step lost, and nothing kept."""
    # Wide enough that one forgotten set of gradients shows: 2.5 MB.
    script = [SCRIPT, "--epochs", "1000000", "--step-seconds", "0.02", "--slow-until", "never", "--width", "4096"]
    looks: list[Held] = []
    with running(tmp_path) as (daemon, pod):
        game = Play(SEED, daemon, pod, script, frozenset({0}))
        game.join(0)
        daemon.wait_world([0])
        pid = pod.processes[0].pid
        for number in range(1, CHANGES + 1):
            game.go_on(lambda: wait_steps(tmp_path, 3, "steps go on"))
            if number % EVERY == 0:
                settle(game)
                wait_steps(tmp_path, 5, "steps alone")
                looks.append(held_at_rest(pid, min((look.threads for look in looks), default=sys.maxsize)))
                print(number, looks[-1], f"{len(daemon.seen('generation'))} generations", flush=True)
        game.check_evictions()
        steps = steps_of(tmp_path)
        assert steps == list(range(1, len(steps) + 1)), "worker 0 commits every step, once"
    early, late = looks[len(looks) // 4], looks[-1]
    assert late.threads <= early.threads + 2
    assert late.files <= early.files + 2
    assert late.sockets <= early.sockets + 2
    # The allocator keeps some of what was freed; a set of gradients a fault would be far more.
    assert late.memory_mib <= early.memory_mib + 60
