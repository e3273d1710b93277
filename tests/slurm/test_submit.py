"""Submitting: what may not happen on the way."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from malletrain.config import ConfigError, parse
from malletrain.slurm.command import Commands
from malletrain.slurm.submission.sbatch import SITE_OPTIONS, BatchRequest
from malletrain.slurm.submission.submit import SubmissionRefused, Submitter, as_the_site_submits, set_aside
from malletrain.wire.address import Address
from malletrain.wire.daemon import DaemonClient
from malletrain.wire.http import DaemonRefused
from tests.messages import naming, says


class Refusing(DaemonClient):
    """A daemon that takes no array."""

    url = "http://127.0.0.1:1"

    def __init__(self) -> None:
        self.address = Address(self.url)

    def site(self) -> dict[str, str]:
        return {}

    def attach(self, job: int, array_id: int, tasks: int) -> None:
        raise DaemonRefused(409, "the job has ended")


@pytest.mark.parametrize(
    ("scancel", "became"),
    [
        ("exit 0", ("nothing",)),
        ("echo slow >&2; exit 1", ("held array 41", "(slow)", "scancel 41")),
    ],
)
def test_more_tasks_that_the_daemon_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scancel: str, became: tuple[str, ...]
) -> None:
    """Whether Slurm cancelled the array is said as it is: a held array without a job is in its owner's way."""
    programs = {"sbatch": "cat >/dev/null; echo 41", "scancel": scancel, "scontrol": "exit 0", "squeue": "exit 0"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    request = BatchRequest("small", 1, 2, "harvest", str(tmp_path), b"#!/bin/sh\ntrue\n", tasks=2)
    with pytest.raises(SubmissionRefused) as refused:
        Submitter(Refusing(), Commands(), os.environ, print).add_tasks(7, request)
    assert says(refused.value, "ended;", *became)
    assert says(refused.value, "scancel") == ("41" in became[0])


class Site(Refusing):
    def __init__(self, sbatch: str) -> None:
        super().__init__()
        self.sbatch = sbatch

    def site(self) -> dict[str, str]:
        return {"sbatch": self.sbatch}


@pytest.mark.parametrize("name", ["output", "wckey", "uid", "nodelist", "mem", "chdir", "hint", "reservation"])
def test_a_site_may_add_what_its_configuration_takes_and_a_daemon_no_more(name: str) -> None:
    request = BatchRequest("small", 1, 2, "harvest", "/", b"#!/bin/sh\ntrue\n")
    may = name in SITE_OPTIONS
    with nullcontext() if may else pytest.raises(SubmissionRefused, match=f"--{name}=7"):
        assert as_the_site_submits(Site(f"--exclusive --{name}=7"), request).pilot_options[-1] == f"--{name}=7"
    with nullcontext() if may else pytest.raises(ConfigError, match="sbatch"):
        assert parse(f'[pilot]\nsbatch = ["--{name}=7"]', "f").pilot.sbatch == [f"--{name}=7"]


def test_the_state_of_another_job_of_this_number_is_set_aside(tmp_path: Path) -> None:
    said: list[str] = []
    for turn in (1, 2):
        saved = tmp_path / ".malletrain" / "7"
        saved.mkdir(parents=True)
        (saved / "state.pt").write_text(f"turn {turn}")
        set_aside(saved, said.append)
        assert not saved.exists()
        assert (tmp_path / ".malletrain" / f"7.before-{turn}" / "state.pt").read_text() == f"turn {turn}"
    assert len(said) == 2
    set_aside(tmp_path / ".malletrain" / "7", said.append)
    assert len(said) == 2


def test_what_cannot_be_moved_stops_the_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "7"
    saved.mkdir()

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(SubmissionRefused, match=naming(saved, "Permission denied")):
        set_aside(saved, print)
