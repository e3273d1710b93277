"""Habits, and loops as a stranger brings them, under `malletrain check`: wrong ones are not called equal, right ones
are. The table of all habits: `python -m scripts.bench.elastic.habits`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.habit_kinds import VERDICTS
from tests.script_check.test_check import HABITS, checked
from tests.script_check.train_strangers import RIGHT, WRONG, names

STRANGERS = str(Path(__file__).with_name("train_strangers.py"))
LOOPS = dict.fromkeys(names(RIGHT), ("equal",)) | dict.fromkeys(names(WRONG), ("different", "wrong"))

#: Half a minute each: a right and a wrong script are checked daily in test_check.py and test_compared_state.py.
pytestmark = [pytest.mark.nightly, pytest.mark.alone]


@pytest.mark.parametrize("habit", VERDICTS)
def test_a_habit_has_its_verdict(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go").touch()  # the check itself holds steps back, the script need not
    report = checked(tmp_path, monkeypatch, HABITS, habit, "--epochs", "30")
    assert report["verdict"] in VERDICTS[habit], report


@pytest.mark.parametrize("loop", LOOPS)
def test_a_strangers_loop_has_its_verdict(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(tmp_path, monkeypatch, STRANGERS, loop)
    assert report["verdict"] in LOOPS[loop], report
