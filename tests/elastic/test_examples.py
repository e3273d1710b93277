"""The examples, at changing sizes in real processes: equal to the same script alone."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import ROOT, running
from tests.elastic.digits import assert_equal, assert_every_sample_once, diary, run_alone, wait_lines
from tests.waiting import wait_until

EXAMPLE = str(Path(__file__).parent / "example.py")
EXAMPLES = ROOT / "examples"
SAMPLES = 1437


#: Four processes import the framework: the heavy ones nightly.
HEAVY = [
    pytest.param(name, marks=pytest.mark.nightly)
    for name in ("transformers", "transformers --keep-best", "lightning --one-cycle", "lightning --plateau")
]


@pytest.mark.parametrize("name", [*HEAVY, "accelerate"])
def test_an_example_resizes_and_equals_the_static_run(tmp_path: Path, name: str) -> None:
    name, *further = name.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: the extra adapters")
    script = str(EXAMPLES / f"digits_{name}.py")
    epochs = 6
    options = ["--epochs", str(epochs), "--double", *further]
    if name != "accelerate":
        options += ["--output", str(tmp_path / "output")]
    with running(tmp_path) as (daemon, pod):
        for task in range(4):
            pod.spawn(daemon.url, task, [EXAMPLE, script, *options])
        # Importing a framework takes many seconds of a core.
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 4, 180, "four workers are built")
        (tmp_path / "start-0.0").touch()
        daemon.wait_world([0])
        wait_until(lambda: len(diary(tmp_path)) > 3, 60, "steps alone")
        (tmp_path / "start-1.0").touch()
        (tmp_path / "start-2.0").touch()
        daemon.wait_world([0, 1, 2])
        wait_until(lambda: any(line["size"] == 3 for line in diary(tmp_path)), 60, "a step of three")
        pod.kill_after_a_step(1)
        daemon.wait_world([0, 2], 90)
        wait_until(lambda: any(line["epoch"] >= 1 for line in diary(tmp_path)), 60, "the second epoch")
        daemon.leave(0)
        daemon.wait_world([2], 90)
        wait_lines(tmp_path, 3, 60, "steps of the one that joined")
        (tmp_path / "start-3.0").touch()
        daemon.wait_world([2, 3])
        pod.finish(2, 3)
        assert daemon.seen("job_completed")
    assert_every_sample_once(diary(tmp_path), epochs, SAMPLES)
    # Adam divides by roots of second moments: near zero they make much of rounding.
    assert_equal(torch.load(tmp_path / "final.pt"), run_alone(tmp_path / "alone", EXAMPLE, script, *options), 1e-6)


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
        pod.begin(daemon, (0,), script)
        pod.grow(daemon, (1, 2), script)
        wait_lines(tmp_path, 6, 60, "steps of three")
        daemon.leave(1)
        daemon.wait_world([0, 2])
        pod.finish(0, 2)
    assert_equal(torch.load(tmp_path / "final.pt"), run_alone(tmp_path / "static", *script), 1e-10)
