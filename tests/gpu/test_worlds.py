"""Worlds on a real GPU, several ranks on one: nodes of two processes, processes without a daemon,
checkpoints, random schedules, and the first context."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.lab.ports import free_port
from tests.elastic.coordinator import Coordinator, Forked, Pod, outside_slurm, running
from tests.elastic.digits import (
    EPOCHS,
    SCRIPT,
    State,
    assert_equal,
    assert_every_sample_once,
    diary,
    run_alone,
)
from tests.gpu.one_gpu import DEVICE, WHY_NOT, environment_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")]

PLACES = 2


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> State:
    """What one process without a daemon ends with, on the device."""
    return run_alone(tmp_path_factory.mktemp("alone"), SCRIPT, "--epochs", EPOCHS, "--device", DEVICE)


def options(directory: Path, *more: str) -> list[str]:
    return [
        "--epochs", EPOCHS, "--device", DEVICE, "--step-seconds", "0.1", "--slow-until", str(directory / "go"), *more,
    ]  # fmt: skip


def spawn(pod: Pod, daemon: Coordinator, task: int, given: list[str], restart: int = 0, **more: str) -> None:
    pod.spawn(daemon.url, task, [SCRIPT, *given], restart, **environment_of(task), **more)


def spawn_node(pod: Pod, daemon: Coordinator, task: int, given: list[str]) -> None:
    for place in range(PLACES):
        local = {"LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(PLACES)}
        pod.spawn(daemon.url, task, [SCRIPT, *given], 0, **local, **environment_of(task * PLACES + place))


@pytest.mark.parametrize("ends", ["leaves", "killed"])
def test_nodes_of_two_processes(tmp_path: Path, alone: State, ends: str) -> None:
    given = options(tmp_path)
    with running(tmp_path) as (daemon, pod):
        spawn_node(pod, daemon, 0, given)
        daemon.wait_world([0], 120)
        spawn_node(pod, daemon, 1, given)
        daemon.wait_world([0, 1], 120)
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 120, "a step of four processes")
        if ends == "leaves":
            daemon.leave(0)
        else:
            pod.kill_between_steps((0, 1))
        daemon.wait_world([1], 60)
        (tmp_path / "go").touch()
        assert pod.wait_node(1, 120) == [0, 0]
    if ends == "leaves":
        assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), alone, 1e-12)


def test_processes_that_were_started_together(tmp_path: Path, alone: State) -> None:
    place = {"MASTER_PORT": str(free_port()), "MASTER_ADDR": "127.0.0.1", "MALLETRAIN_TEST_DIR": str(tmp_path)}
    place |= {"MALLETRAIN_MEETING_DIR": str(tmp_path / "meeting"), "WORLD_SIZE": "3"}
    (tmp_path / "meeting").mkdir(mode=0o700)
    script = [SCRIPT, "--epochs", EPOCHS, "--device", DEVICE, "--world", "environment"]
    processes = [
        Forked(outside_slurm(**place, **environment_of(n), RANK=str(n)), tmp_path / f"log-{n}", script)
        for n in range(3)
    ]
    try:
        assert [process.wait(240) for process in processes] == [0, 0, 0], (tmp_path / "log-0").read_text()
    finally:
        for process in processes:
            process.kill()
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), alone, 1e-12)


def test_a_job_goes_on_from_a_checkpoint_that_the_device_copied_beside_its_steps(tmp_path: Path) -> None:
    given = options(tmp_path, "--width", "1200")
    with running(tmp_path) as (daemon, pod):
        spawn(pod, daemon, 0, [*given, "--checkpoint-s", "0.3"])
        wait_until(lambda: bool(list((tmp_path / "checkpoints").glob("step-*"))), 120, "a checkpoint")
        pod.kill(0)
        wait_until(lambda: bool(daemon.seen("worker_lost")), 30, "it is lost")
        made = len(diary(tmp_path))
        spawn(pod, daemon, 0, given, restart=1)
        wait_until(lambda: len(diary(tmp_path)) > made, 120, "steps")
        (tmp_path / "go").touch()
        assert pod.wait(0, 120) == 0
    alone = run_alone(tmp_path / "alone", SCRIPT, "--epochs", EPOCHS, "--device", DEVICE, "--width", "1200")
    assert_equal(torch.load(tmp_path / "final.pt"), alone, 1e-12)


def test_the_state_by_host_memory_where_gloo_is_asked_for(tmp_path: Path, alone: State) -> None:
    given = options(tmp_path)
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            spawn(pod, daemon, task, given, MALLETRAIN_BACKEND="gloo")
            daemon.wait_world(list(range(task + 1)), 120)
        (tmp_path / "go").touch()
        assert [pod.wait(task, 120) for task in range(3)] == [0, 0, 0]
    assert_equal(torch.load(tmp_path / "final.pt"), alone, 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_equal_a_static_run(tmp_path: Path, alone: State, seed: int) -> None:
    """Grow, shrink, kill and freeze, in any order; two workers at least, four at most."""
    chance = random.Random(seed)
    members, following = [0, 1], 2
    with running(tmp_path) as (daemon, pod):
        for task in members:
            spawn(pod, daemon, task, options(tmp_path))
        daemon.wait_world(members, 120)
        for _ in range(5):
            act = chance.choice(["grow"] if len(members) < 3 else ["grow", "leave", "kill", "freeze"])
            if act == "grow" and len(members) < 4:
                spawn(pod, daemon, following, options(tmp_path))
                members.append(following)
                following += 1
            else:
                gone = members.pop(chance.randrange(len(members)))
                if act == "leave":
                    daemon.leave(gone)
                elif act == "freeze":
                    pod.kill(gone, signal.SIGSTOP)
                else:
                    pod.kill_after_a_step(gone)
            daemon.wait_world(members, 120)
        (tmp_path / "go").touch()
        assert [pod.wait(task, 120) for task in members] == [0] * len(members)
    assert_equal(torch.load(tmp_path / "final.pt"), alone, 1e-12)


START = """
import time
import torch
from malletrain.elastic.comm.carrier import load_nccl
load_nccl(torch.device("cuda:0"))
began = time.monotonic()
load_nccl(torch.device("cuda:0"))
print(f"a second communicator {time.monotonic() - began:.2f} s", flush=True)
"""


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_nccl_is_loaded_ahead() -> None:
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=outside_slurm(**environment_of(0)),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
