"""`malletrain check`, run in a test's own folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from malletrain.cli.scripts import check
from tests.elastic.coordinator import ROOT

Said = Callable[..., Result]
Checked = Callable[..., dict[str, Any]]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """The command, by its arguments."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"MALLETRAIN_TEST_DIR": tmp_path, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": 1}.items():
        monkeypatch.setenv(name, str(value))
    return lambda *arguments: CliRunner().invoke(check, arguments)


@pytest.fixture
def checked(said: Said, tmp_path: Path) -> Checked:
    """The command's report, by its arguments; a script that is given as `text` is written to script.py."""

    def report_of(*arguments: str, text: str = "") -> dict[str, Any]:
        if text:
            (tmp_path / "script.py").write_text(text)
            arguments = (*arguments, "script.py")
        result = said("--json", *arguments)
        report: dict[str, Any] = json.loads(result.output)
        assert result.exit_code == (0 if report["good"] else 1), report
        return report

    return report_of
