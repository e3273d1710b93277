"""The how-to's study and its commands, run as they stand there (without a cluster: `run` with --local alone)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import optuna

from malletrain.study import report
from tests.study.tiny import ROOT, environment

HOWTO = ROOT / "docs/how-to/study.md"


def test_the_how_tos_study_and_commands_run(tmp_path: Path) -> None:
    text = HOWTO.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    (tmp_path / "study.py").write_text(code[1])
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (malletrain study .*)$", text, re.M)]
    verbs = [words[2] for words in commands]
    assert {"run", "status", "trials", "report"} <= set(verbs)
    for words in commands:
        if words[2] == "run" and "--local" not in words:
            continue
        done = subprocess.run(
            [sys.executable, "-c", "import malletrain.cli.main as m; m.main()", *words[1:]],
            capture_output=True, text=True, timeout=600, check=False, env=environment(), cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
    page = (tmp_path / "study.html").read_text()
    for part in ("Optimisation history", "Parallel coordinates", "Importance", "over time"):
        assert part in page


def test_a_report_of_several_directions_plots_each_value() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    for _ in range(4):
        trial = study.ask()
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        study.tell(trial, (x, x * y))
    page = report.page(study)
    for part in ("Pareto front", "Optimisation history, value 1", "Parallel coordinates, value 2", "value 2"):
        assert part in page
    assert "Not yet" not in page
