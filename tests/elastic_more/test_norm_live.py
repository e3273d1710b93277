"""SyncBatchNorm in real processes, through resizes and lost nodes: equal to one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import running
from tests.elastic.digits import assert_equal, assert_every_sample_once, diary, run_alone, wait_lines
from tests.waiting import wait_until

SCRIPT = str(Path(__file__).parent / "train_live.py")


@pytest.mark.parametrize("options", [(), pytest.param(("--sum",), marks=pytest.mark.nightly)], ids=["mean", "sum"])
def test_batchnorm_over_the_whole_batch_is_that_of_one_process(tmp_path: Path, options: tuple[str, ...]) -> None:
    epochs = ["norm", "--epochs", "6"]
    slow = ["--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, *epochs, *options, *slow])
        daemon.wait_world([0])
        for task in (1, 2):
            pod.spawn(daemon.url, task, [SCRIPT, *epochs, *options, *slow])
        daemon.wait_world([0, 1, 2])
        wait_until(lambda: any(line["size"] == 3 for line in diary(tmp_path)), 60, "a step of three")
        pod.kill_after_a_step(1)
        daemon.wait_world([0, 2], 90)
        wait_lines(tmp_path, 3, 60, "steps of two")
        (tmp_path / "go").touch()
        assert pod.wait(0) == pod.wait(2) == 0
    assert (tmp_path / "equality-0.0").read_text().startswith("sync batchnorm: equal")
    lines = diary(tmp_path)
    assert_every_sample_once(lines, 6)
    static = run_alone(tmp_path / "alone", SCRIPT, *epochs, *options)
    assert (tmp_path / "alone" / "equality-x.0").read_text().startswith("statistical")
    assert_equal(torch.load(tmp_path / "final.pt"), static, 1e-10)


def test_members_without_a_sample_take_no_part_in_the_statistics(tmp_path: Path) -> None:
    """Batches of three on four workers: one of them computes on a sample of weight 0. (Few steps: BatchNorm over
    three samples makes much of rounding.)"""
    options = ["norm", "--epochs", "1", "--batch", "3", "--samples", "45"]
    with running(tmp_path) as (daemon, pod):
        for task in range(4):
            slow = ["--step-seconds", "0.3", "--slow-until", str(tmp_path / "go")]
            pod.spawn(daemon.url, task, [SCRIPT, *options, "--wait-for", "4", *slow])
        wait_until(lambda: any(line["size"] == 4 for line in diary(tmp_path)), 60, "a step of four")
        (tmp_path / "go").touch()
        assert [pod.wait(task) for task in range(4)] == [0, 0, 0, 0]
    assert_equal(torch.load(tmp_path / "final.pt"), run_alone(tmp_path / "alone", SCRIPT, *options), 1e-9)
