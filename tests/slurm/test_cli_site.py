"""`malletrain snapshot` and `malletrain doctor`, as programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lab import Lab
from tests.messages import says

FIXTURES = Path(__file__).parent / "fixtures"
ROOT = Path(__file__).resolve().parents[2]


def malletrain(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    program = "from malletrain.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**(env or os.environ), "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("version", sorted(path.name for path in FIXTURES.iterdir()))
def test_a_snapshot_of_saved_outputs(version: str, tmp_path: Path) -> None:
    for name in ("scontrol-show-node.txt", "squeue.json", "reservations.txt"):
        (tmp_path / name).write_bytes((FIXTURES / version / name).read_bytes())
    run = malletrain("snapshot", "--from", str(tmp_path))
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    expected = json.loads((FIXTURES / version / "expected.json").read_text())
    assert {node["name"]: node["state"] for node in seen["nodes"]} == expected["nodes"]
    assert {"taken_at", "nodes", "jobs", "reservations", "warnings"} <= seen.keys()
    assert [r["name"] for r in seen["reservations"]] == expected["reservations"]


def test_what_is_wrong_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    (tmp_path / "sinfo.json").write_text("{")
    run = malletrain("snapshot", "--from", str(tmp_path))
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "sinfo.json" in run.stderr
    assert run.stdout == ""


@pytest.mark.slurm
def test_a_live_snapshot_and_a_live_doctor(any_lab: Lab, tmp_path: Path) -> None:
    lab = any_lab
    lab.submit("true", "-p", "harvest", "--hold", "--array=0-2", "--time=1")
    run = malletrain("snapshot", env=lab.env)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert [node["state"] for node in seen["nodes"]] == ["idle"] * 8
    assert len(seen["jobs"]) == 3
    sound = malletrain("doctor", "--json", env=lab.env)
    assert sound.returncode == 0, sound.stdout
    assert {"level", "what", "remedy"} == json.loads(sound.stdout)[0].keys()
    tried = malletrain("doctor", "--try", "--main=-p batch", "--json", env=lab.env)
    assert tried.returncode == 0, tried.stdout
    assert len(json.loads(tried.stdout)) == len(json.loads(sound.stdout)) + 3
    file = tmp_path / "malletrain.toml"
    file.write_text('slurm.partition = "nowhere"\n')
    wrong = malletrain("doctor", "--config", str(file), env=lab.env)
    assert wrong.returncode == 1
    assert says(wrong.stdout, "nowhere", "exist")
