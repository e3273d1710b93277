"""Worlds whose devices are connected, by the stand-in: nodes of two processes, processes started together, faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from malletrain.domain.event import EventKind
from scripts.lab.ports import free_port
from tests.elastic.coordinator import Forked, outside_slurm, running
from tests.elastic.digits import EPOCHS, SCRIPT, Static, assert_equal, assert_every_sample_once, diary, slow
from tests.waiting import wait_until

PLACES = 2


def test_nodes_of_two_processes_grow_and_shrink(tmp_path: Path, static: Static) -> None:
    script = [SCRIPT, *slow(tmp_path)]
    with running(tmp_path) as (daemon, pod):
        pod.spawn_node(daemon.url, 0, script, PLACES, STANDIN="20")
        daemon.wait_world([0])
        pod.spawn_node(daemon.url, 1, script, PLACES, STANDIN="20")
        daemon.wait_world([0, 1])
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 60, "a step of four processes")
        daemon.leave(0)
        daemon.wait_world([1], 90)
        (tmp_path / "go").touch()
        assert pod.wait_node(1) == [0, 0]
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_processes_that_were_started_together_use_their_devices(tmp_path: Path, static: Static) -> None:
    given = ["--epochs", "2", "--clip"]
    place = {"MASTER_PORT": str(free_port()), "MASTER_ADDR": "127.0.0.1", "MALLETRAIN_TEST_DIR": str(tmp_path)}
    place |= {"MALLETRAIN_MEETING_DIR": str(tmp_path / "meeting"), "STANDIN": "20", "WORLD_SIZE": "2"}
    (tmp_path / "meeting").mkdir(mode=0o700)
    script = [SCRIPT, *given, "--world", "environment"]
    processes = [Forked(outside_slurm(**place, RANK=str(n)), tmp_path / f"log-{n}", script) for n in range(2)]
    try:
        assert [process.wait(240) for process in processes] == [0, 0], (tmp_path / "log-0").read_text()
    finally:
        for process in processes:
            process.kill()
    assert_every_sample_once(diary(tmp_path), 2)
    assert_equal(torch.load(tmp_path / "final.pt"), static(*given), 1e-12)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"TROUBLE": "memory@backward#9"}, r"100_1\.0: OutOfMemoryError: CUDA out of memory"),
        ({"STANDIN_FAILS": "60"}, r"100_1\.0: ElasticError: cuda:0 of this process has failed: CUDA error: .* Xid"),
    ],
    ids=["out of memory", "the device is lost"],
)
def test_a_device_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, static: Static, environ: dict[str, str], says: str
) -> None:
    given = [*slow(tmp_path), "--wait-for", "3"]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            more = environ if task == 1 else {}
            pod.spawn(daemon.url, task, [SCRIPT, *given], STANDIN="20", **more)  # type: ignore[arg-type]  # text only
        wait_until(lambda: bool(daemon.seen(EventKind.WORKER_LOST)), 60, "one is lost")
        daemon.wait_world([0, 2])
        (tmp_path / "go").touch()
        assert pod.wait(0) == pod.wait(2) == 0
        assert pod.wait(1) not in (0, 143)
        reason = daemon.seen(EventKind.WORKER_LOST)[0].reason
    assert re.search(says, reason), reason
    # The others may have committed the step in which the device was lost, with this worker's part of it.
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_a_newcomer_that_sums_in_another_way_is_refused_and_the_others_go_on(
    tmp_path: Path, static: Static, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of a GPU beside whole GPUs: its sums by gloo would wait for the others', by NCCL, for ever."""
    monkeypatch.delenv("STANDIN", raising=False)
    given = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        for task in range(2):
            pod.spawn(daemon.url, task, [SCRIPT, *given], STANDIN="20")
        daemon.wait_world([0, 1])
        pod.spawn(daemon.url, 2, [SCRIPT, *given])
        assert pod.wait(2) not in (0, 143)
        daemon.wait_world([0, 1])
        (tmp_path / "go").touch()
        assert pod.wait(0) == pod.wait(1) == 0
        reason = daemon.seen(EventKind.WORKER_LOST)[0].reason
    assert re.search(r"100_2\.0: ElasticError: this process sums gradients over gloo, .* over NCCL", reason), reason
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_processes_started_together_on_unlike_devices_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STANDIN", raising=False)
    place = {"MASTER_PORT": str(free_port()), "MASTER_ADDR": "127.0.0.1", "MALLETRAIN_TEST_DIR": str(tmp_path)}
    place |= {"MALLETRAIN_MEETING_DIR": str(tmp_path / "meeting"), "WORLD_SIZE": "2"}
    (tmp_path / "meeting").mkdir(mode=0o700)
    script = [SCRIPT, "--epochs", "2", "--world", "environment"]
    kinds: list[dict[str, str]] = [{"STANDIN": "20"}, {}]
    processes = [
        Forked(outside_slurm(**place, **kinds[n], RANK=str(n)), tmp_path / f"log-{n}", script) for n in range(2)
    ]
    try:
        assert [process.wait(120) != 0 for process in processes] == [True, True]
    finally:
        for process in processes:
            process.kill()
    assert "rank 1 sums gradients in another way than rank 0" in (tmp_path / "log-0").read_text()
    assert "this process sums gradients over gloo" in (tmp_path / "log-1").read_text()
