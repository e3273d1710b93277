"""One process for each GPU of a node: variables, endings, and a pilot whose launcher starts them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from malletrain.domain.event import EventKind
from malletrain.elastic.launch.node_processes import NoSuchCount, environments, visible_gpus
from tests.elastic.coordinator import HERE, running
from tests.elastic.digits import SCRIPT, Static, assert_equal, assert_every_sample_once, diary
from tests.elastic.test_launch import launched
from tests.waiting import wait_until

MODULE = "malletrain.elastic.launch.node_processes"


def run(count: str, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", MODULE, count, "--", "/bin/bash", "-c", script],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a, MIG-b"}, ["MIG-a", "MIG-b"]),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "2"}, ["0", "1"]),
    ],
)
def test_the_gpus_are_those_that_slurm_gives(given: dict[str, str], found: list[str]) -> None:
    assert visible_gpus(given) == found


def test_each_process_has_a_local_rank_and_sees_all_whole_gpus() -> None:
    first, second = environments("gpu", {"CUDA_VISIBLE_DEVICES": "4,5"}, 2999)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    assert second.items() >= {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "MASTER_PORT": "2999"}.items()
    assert "CUDA_VISIBLE_DEVICES" not in second
    assert int(first["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert "OMP_NUM_THREADS" not in environments("2", {"OMP_NUM_THREADS": "7"}, 2999)[0]


def test_each_process_has_a_slice_of_its_own() -> None:
    made = environments("gpu", {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b,MIG-c"}, 2999)
    assert [own["CUDA_VISIBLE_DEVICES"] for own in made] == ["MIG-a", "MIG-b", "MIG-c"]


@pytest.mark.parametrize(
    ("count", "given", "says"),
    [
        ("gpu", {}, "no GPU .* submit with --gpus-per-node"),
        ("3", {"CUDA_VISIBLE_DEVICES": "0,1"}, "this node has 2 GPUs for it: 0,1"),
        ("0", {}, "neither a number above 0 nor gpu"),
        ("two", {}, "neither a number above 0 nor gpu"),
    ],
)
def test_a_count_that_cannot_be_met_is_an_error(count: str, given: dict[str, str], says: str) -> None:
    with pytest.raises(NoSuchCount, match=says):
        environments(count, given, 2999)
    done = run(count, "echo began", **{"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "", **given})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("malletrain: --processes-per-node=")


def test_the_status_is_that_of_the_first_that_fails_and_the_others_are_ended() -> None:
    assert run("2", "exit 0").returncode == 0
    done = run("3", 'if [ "$LOCAL_RANK" = 1 ]; then exit 7; fi; exec sleep 60')
    assert done.returncode == 7
    assert run("2", 'if [ "$LOCAL_RANK" = 1 ]; then kill -9 $$; fi; exec sleep 60').returncode == 137


def test_a_signal_reaches_all_of_them(tmp_path: Path) -> None:
    script = f'trap "exit 143" TERM; touch {tmp_path}/$LOCAL_RANK; while true; do sleep 0.05; done'
    process = subprocess.Popen([sys.executable, "-m", MODULE, "2", "--", "/bin/bash", "-c", script])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 90, "two processes")
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 143


def test_a_pilot_with_a_process_for_each_gpu_trains_and_leaves_in_order(tmp_path: Path) -> None:
    """As torchrun in the script, by the command that mtbatch writes."""
    worker = [sys.executable, str(HERE / "as_worker.py"), SCRIPT, "--epochs", "100", "--step-seconds", "0.1"]
    body = f"trap 'exit 143' TERM; {shlex.join(worker)}; touch {tmp_path}/after"
    command = [sys.executable, "-m", MODULE, "2", "--", "/bin/bash", "-c", body]
    with running(tmp_path) as (daemon, _), launched(daemon.url, tmp_path, "--", *command) as process:
        daemon.wait_world([0])
        wait_until(lambda: any(line["size"] == 2 for line in diary(tmp_path)), 60, "a step of both")
        daemon.leave(0)
        wait_until(lambda: bool(daemon.seen(EventKind.WORKER_LEFT)), 90, "the node has left")
        assert process.wait(60) == 143
        assert not daemon.seen(EventKind.WORKER_LOST)
    assert not (tmp_path / "after").exists()


def test_a_pilot_with_a_process_for_each_gpu_trains_to_the_same_result(tmp_path: Path, static: Static) -> None:
    worker = [sys.executable, str(HERE / "as_worker.py"), SCRIPT, "--epochs", "2"]
    command = [sys.executable, "-m", MODULE, "2", "--", "/bin/bash", "-c", shlex.join(worker)]
    with running(tmp_path) as (daemon, _), launched(daemon.url, tmp_path, "--", *command) as process:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert {line["size"] for line in diary(tmp_path) if "step" in line} == {2}
    assert_every_sample_once(diary(tmp_path), 2)
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", "2"), 1e-12)
