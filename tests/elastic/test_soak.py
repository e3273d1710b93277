"""Hundreds of changes around one worker that stays: no hang, no step lost, and nothing kept of worlds that are gone.

SOAK_CHANGES=5000 SOAK_SEED=7 python -m pytest --nightly tests/elastic/test_soak.py -s
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.domain.event import EventKind
from malletrain.elastic.resize.reconfigure import BUILD_PATIENCE
from tests.elastic.coordinator import running
from tests.elastic.digits import SCRIPT
from tests.elastic.test_schedules import Play
from tests.waiting import wait_until

CHANGES = int(os.environ.get("SOAK_CHANGES", "500"))
SEED = int(os.environ.get("SOAK_SEED", "5"))
#: Between two looks at what the process holds.
EVERY = max(1, min(25, CHANGES // 4))
#: A machine that others use too may be slow.
PATIENCE_S = 240


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
    # Wide enough that one forgotten set of gradients shows: 2.5 MB.
    script = [SCRIPT, "--epochs", "1000000", "--step-seconds", "0.02", "--slow-until", "never", "--width", "4096"]
    looks: list[Held] = []
    with running(tmp_path) as (daemon, pod):
        game = Play(SEED, daemon, pod, script, frozenset({0}))
        game.join(0)
        daemon.wait_world([0])
        pid = pod.processes[0].pid
        for number in range(1, CHANGES + 1):
            game.change()
            game.abandon()
            if game.random.random() < 0.6:
                wait_steps(tmp_path, 3, "steps go on")
            else:
                time.sleep(game.random.random() * 0.2)  # the next change meets this one half-way
            if number % EVERY == 0:
                settle(game)
                wait_steps(tmp_path, 5, "steps alone")
                looks.append(held_at_rest(pid, min((look.threads for look in looks), default=sys.maxsize)))
                print(number, looks[-1], f"{len(daemon.seen(EventKind.GENERATION))} generations", flush=True)
        game.check_evictions()
        steps = steps_of(tmp_path)
        assert steps == list(range(1, len(steps) + 1)), "worker 0 commits every step, once"
    early, late = looks[len(looks) // 4], looks[-1]
    assert late.threads <= early.threads + 2
    assert late.files <= early.files + 2
    assert late.sockets <= early.sockets + 2
    # The allocator keeps some of what was freed; a set of gradients a fault would be far more.
    assert late.memory_mib <= early.memory_mib + 60
