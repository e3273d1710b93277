"""The examples of the adapters, at changing sizes in real processes: equal to the same script alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from malletrain.domain.event import EventKind
from tests.elastic.coordinator import ROOT, outside_slurm, running
from tests.elastic.digits import State, assert_equal, diary, wait_lines
from tests.waiting import wait_until

EXAMPLE = str(Path(__file__).parent / "example.py")
SAMPLES = 1437


def alone(home: Path, script: str, *options: str) -> State:
    home.mkdir()
    env = outside_slurm(MALLETRAIN_TEST_DIR=str(home))
    run = subprocess.run([sys.executable, EXAMPLE, script, *options], env=env, cwd=home, timeout=300, check=False,
                         capture_output=True, text=True)  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    final: State = torch.load(home / "final.pt")
    return final


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
    script = str(ROOT / "examples" / f"digits_{name}.py")
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
        pod.kill(1)
        daemon.wait_world([0, 2], 90)
        wait_until(lambda: any(line["epoch"] >= 1 for line in diary(tmp_path)), 60, "the second epoch")
        daemon.leave(0)
        daemon.wait_world([2], 90)
        wait_lines(tmp_path, 3, 60, "steps of the one that joined")
        (tmp_path / "start-3.0").touch()
        daemon.wait_world([2, 3])
        (tmp_path / "go").touch()
        assert pod.wait(2) == pod.wait(3) == 0
        assert daemon.seen(EventKind.JOB_COMPLETED)
    lines, missing = diary(tmp_path), 0
    for epoch in range(epochs):
        seen = [index for line in lines if line["epoch"] == epoch for index in line["indices"]]
        assert len(seen) == len(set(seen)), f"epoch {epoch}: a sample came twice"
        missing += SAMPLES - len(seen)
    # One that is killed may have given its part of a step and not have come to write it down.
    assert missing <= 64 / 2
    # Adam divides by roots of second moments: near zero they make much of rounding.
    assert_equal(torch.load(tmp_path / "final.pt"), alone(tmp_path / "alone", script, *options), 1e-6)
