"""The GPT example: what a script needs for MalleTrain, and a resized run that equals a static one."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import running
from tests.elastic.digits import assert_equal, diary, run_alone
from tests.waiting import wait_until

EXAMPLE = str(Path(__file__).parent / "example.py")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "gpt"
OPTIONS = [
    str(FOLDER / "train_elastic.py"), "--epochs", "1", "--context", "512", "--width", "32", "--heads", "2",
    "--layers", "1", "--accumulate", "2", "--device", "cpu", "--float64",
]  # fmt: skip


def test_the_plain_script_becomes_malleable_in_fifteen_lines() -> None:
    plain, elastic = (
        [line.strip() for line in (FOLDER / name).read_text().splitlines() if line.strip()]
        for name in ("train.py", "train_elastic.py")
    )
    added = [line for line in difflib.ndiff(plain, elastic) if line.startswith("+ ")]
    assert 5 < len(added) <= 15, "\n".join(added)


@pytest.mark.nightly  # 45 s; the ResNet is one of the daily ones
def test_a_gpt_that_grows_and_shrinks_equals_a_static_one(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            (tmp_path / f"start-{task}.0").touch()
        pod.spawn(daemon.url, 0, [EXAMPLE, *OPTIONS])
        daemon.wait_world([0])
        for task in (1, 2):
            pod.spawn(daemon.url, task, [EXAMPLE, *OPTIONS])
        daemon.wait_world([0, 1, 2])
        made = len(diary(tmp_path))
        wait_until(lambda: len(diary(tmp_path)) > made + 6, 60, "steps of three")
        daemon.leave(1)
        daemon.wait_world([0, 2])
        (tmp_path / "go").touch()
        assert pod.wait(0, 120) == 0
        assert pod.wait(2, 120) == 0
    assert_equal(torch.load(tmp_path / "final.pt"), run_alone(tmp_path / "static", EXAMPLE, *OPTIONS), 1e-10)
