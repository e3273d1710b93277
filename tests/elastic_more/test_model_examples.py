"""The ResNet and GPT examples: what a script needs for MalleTrain, and a resized run that equals a static one."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import running
from tests.elastic.digits import assert_equal, run_alone, wait_lines

EXAMPLE = str(Path(__file__).parent / "example.py")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OPTIONS = {
    "resnet/train_resnet": "--epochs 2 --model tiny --size 16 --device cpu --float64 --batch-size 32",
    "gpt/train": "--epochs 1 --context 512 --width 32 --heads 2 --layers 1 --accumulate 2 --device cpu --float64",
}


@pytest.mark.parametrize("example", OPTIONS)
def test_the_plain_script_becomes_malleable_in_fifteen_lines(example: str) -> None:
    plain, elastic = (
        [line.strip() for line in (EXAMPLES / f"{name}.py").read_text().splitlines() if line.strip()]
        for name in (example, f"{example}_elastic")
    )
    added = [line for line in difflib.ndiff(plain, elastic) if line.startswith("+ ")]
    assert 5 < len(added) <= 15, "\n".join(added)


@pytest.mark.parametrize("example", ["resnet/train_resnet", pytest.param("gpt/train", marks=pytest.mark.nightly)])
def test_a_model_that_grows_and_shrinks_equals_a_static_one(tmp_path: Path, example: str) -> None:
    script = [EXAMPLE, str(EXAMPLES / f"{example}_elastic.py"), *OPTIONS[example].split()]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            (tmp_path / f"start-{task}.0").touch()
        pod.spawn(daemon.url, 0, script)
        daemon.wait_world([0])
        for task in (1, 2):
            pod.spawn(daemon.url, task, script)
        daemon.wait_world([0, 1, 2])
        wait_lines(tmp_path, 6, 60, "steps of three")
        daemon.leave(1)
        daemon.wait_world([0, 2])
        (tmp_path / "go").touch()
        assert pod.wait(0, 120) == pod.wait(2, 120) == 0
    assert_equal(torch.load(tmp_path / "final.pt"), run_alone(tmp_path / "static", *script), 1e-10)
