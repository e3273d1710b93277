"""`mtbatch --check`: what a check before the submission finds goes with the job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.submission.job_python import CHECK, checked_here
from malletrain.slurm.submission.sbatch import BatchRequest
from tests.messages import naming


def request(folder: Path, says: str) -> BatchRequest:
    """Of a script whose Python, a program of the test's, notes its arguments and says this."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >arguments\n{says}\n")
    python.chmod(0o755)
    return asking(folder, str(python), "train.py", "--epochs", "two words")


def asking(folder: Path, python: str, *command: str) -> BatchRequest:
    return BatchRequest("job", 1, 2, "harvest", str(folder), b"#!/bin/sh\n", python=python, to_check=command)


@pytest.mark.parametrize(("verdict", "warned"), [
    ("equal", ""),
    ("different", "--check: different: w differs: "),
    ("undecided", "--check: undecided: w differs"),
])  # fmt: skip
def test_the_jobs_python_checks_and_the_verdict_goes_with_the_job(tmp_path: Path, verdict: str, warned: str) -> None:
    said = json.dumps({"digest": "0123", "verdict": verdict, "text": "w differs"})
    heard: list[str] = []
    asked = request(tmp_path, f"echo '{said}'")
    assert checked_here(asked, os.environ, heard.append) == ("0123", verdict, "w differs")
    assert "".join(heard).startswith(warned)
    assert bool(heard) is bool(warned)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments == ["-P", "-m", CHECK, "train.py", "--epochs", "two words"]


def test_a_python_that_cannot_check_is_named_with_its_last_line(tmp_path: Path) -> None:
    asked = request(tmp_path, "echo 'No module named torch' >&2; exit 1")
    with pytest.raises(InvalidInput, match=naming("--check:", "No module named torch")):
        checked_here(asked, os.environ, print)


@pytest.mark.nightly
def test_a_script_is_checked_on_this_machine(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "digits_mlp.py"
    _, verdict, _ = checked_here(asking(tmp_path, sys.executable, str(example)), os.environ, print)
    assert verdict == "equal"
