"""Submitting: what may not happen on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from malletrain.slurm.command import Commands
from malletrain.slurm.submission.sbatch import BatchRequest
from malletrain.slurm.submission.submit import SubmissionRefused, Submitter, set_aside
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
