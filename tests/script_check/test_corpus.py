"""The corpus of habits under `malletrain check`: wrong ones are not called equal, right ones are.

The table of all: `python -m scripts.bench.elastic.habits`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from malletrain.cli.scripts import check
from tests.elastic.habit_kinds import VERDICTS

ROOT = Path(__file__).parents[2]
HABITS = str(ROOT / "tests" / "elastic" / "train_habits.py")

#: Tried in every run of the tests. The others, half a minute each, are nightly.
QUICK = frozenset({"average_in_a_class"})


@pytest.mark.alone
@pytest.mark.parametrize(
    "habit", [each if each in QUICK else pytest.param(each, marks=pytest.mark.nightly) for each in VERDICTS]
)
def test_a_habit_has_its_verdict(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go").touch()  # the check itself holds steps back, the script need not
    monkeypatch.setenv("MALLETRAIN_TEST_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = CliRunner().invoke(check, ["--json", HABITS, habit, "--epochs", "30"])
    report = json.loads(result.output)
    assert report["verdict"] in VERDICTS[habit], result.output
