"""Loops as a stranger brings them: right ones are equal, wrong ones are different or an invariant's error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from malletrain.cli.scripts import check
from tests.script_check.train_strangers import RIGHT, WRONG, names

ROOT = Path(__file__).parents[2]

VERDICTS = dict.fromkeys(names(RIGHT), ("equal",)) | dict.fromkeys(names(WRONG), ("different", "wrong"))


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.parametrize("loop", VERDICTS)
def test_a_strangers_loop_has_its_verdict(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = CliRunner().invoke(check, ["--json", str(Path(__file__).with_name("train_strangers.py")), loop])
    assert json.loads(result.output)["verdict"] in VERDICTS[loop], result.output
