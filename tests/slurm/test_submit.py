"""Submitting: what may not happen on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.slurm.submit import NotTaken, set_aside


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
    with pytest.raises(NotTaken, match="cannot be moved"):
        set_aside(saved, print)
