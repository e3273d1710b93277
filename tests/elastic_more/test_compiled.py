"""torch.compile with shares that change: compiled during the warm-up, never during training, equal to eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import running
from tests.elastic.digits import assert_equal, diary, run_alone, wait_lines
from tests.waiting import wait_until

SCRIPT = str(Path(__file__).parent / "train_live.py")
OPTIONS = ["compiled", "--batch", "50"]


def slow(directory: Path) -> list[str]:
    return ["--step-seconds", "0.1", "--slow-until", str(directory / "go")]


def shares(directory: Path) -> set[int]:
    return {len(line["indices"]) for line in diary(directory)}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_a_compiled_model_takes_every_share_without_recompiling(tmp_path: Path, backend: str) -> None:
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            script = [SCRIPT, *OPTIONS, "--backend", backend, "--held", *slow(tmp_path)]
            pod.spawn(daemon.url, task, script, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / f"cache-{task}"))
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 3, 120, "three workers are built")
        (tmp_path / "start-0").touch()
        daemon.wait_world([0], 120)
        wait_until(lambda: len(diary(tmp_path)) > 3, 60, "steps alone")
        (tmp_path / "start-1").touch()
        (tmp_path / "start-2").touch()
        daemon.wait_world([0, 1, 2], 120)
        wait_until(lambda: shares(tmp_path) >= {16, 17}, 60, "a whole step of three")
        pod.kill(0)
        daemon.wait_world([1, 2], 90)
        wait_lines(tmp_path, 3, 60, "steps of two")
        (tmp_path / "go").touch()
        assert pod.wait(1, 120) == pod.wait(2) == 0
    assert shares(tmp_path) >= {50, 17, 16, 25, 24}, "shares of three sizes"
    assert_equal(torch.load(tmp_path / "final.pt"), run_alone(tmp_path / "alone", SCRIPT, *OPTIONS), 1e-10)


@pytest.mark.nightly
def test_a_newcomer_can_be_ended_while_it_compiles(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, *OPTIONS, *slow(tmp_path)])
        daemon.wait_world([0], 120)
        pod.spawn(daemon.url, 1, [SCRIPT, *OPTIONS, *slow(tmp_path)], TROUBLE="term@compile")
        assert pod.wait(1, 120) == 143
        assert (tmp_path / "ready-1").exists(), "it ended in the rehearsal, not before"
        wait_lines(tmp_path, 3, 60, "steps of the other")
        assert daemon.world() == ("100_0",)
        (tmp_path / "go").touch()
        assert pod.wait(0, 120) == 0
