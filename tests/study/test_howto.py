"""The how-to's study and its commands, run as they stand there (without a cluster: `run` with --local alone)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import optuna

from malletrain.cli import study_top
from malletrain.cli.render import plain
from malletrain.study import progress, report, trial_records
from malletrain.wire.rows import JobRow
from tests.study.tiny import ROOT, environment

HOWTO = ROOT / "docs/how-to/study.md"


def test_the_how_tos_study_and_commands_run(tmp_path: Path) -> None:
    text = HOWTO.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    (tmp_path / "study.py").write_text(code[1])
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (malletrain study .*)$", text, re.M)]
    verbs = [words[2] for words in commands]
    assert {"run", "status", "best", "trials", "top", "report"} <= set(verbs)
    for words in commands:
        if words[2] == "run" and "--local" not in words:
            continue
        extra = ["--once"] if words[2] == "top" else []
        done = subprocess.run(
            [sys.executable, "-c", "import malletrain.cli.main as m; m.main()", *words[1:], *extra],
            capture_output=True, text=True, timeout=600, check=False, env=environment(), cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
    page = (tmp_path / "study.html").read_text()
    for part in ("Optimisation history", "Parallel coordinates", "Importance", "Node-hours by trial", "over time"):
        assert part in page


def test_top_shows_running_trials_with_their_nodes_and_the_last_ended() -> None:
    study = optuna.create_study(direction="maximize")
    done = study.ask()
    done.suggest_float("x", 0, 1)
    study.tell(done, 0.5)
    running, waiting = study.ask(), study.ask()
    running.set_user_attr(trial_records.JOBS, ["7"])
    running.report(0.25, 3)
    waiting.set_user_attr(trial_records.JOBS, ["8"])
    rows = {
        7: JobRow(7, "t", "ada", 1, "", "running", 1, 4, 0.0, members=3),
        8: JobRow(8, "t", "ada", 1, "", "queued", 1, 4, 0.0),
    }
    text = plain(study_top.picture(progress.now(study), rows, width=200, height=40)).splitlines()
    assert "2 running, 1 completed" in text[0]
    assert text[1].startswith("best: trial 0, 0.5")
    shown = [line.split() for line in text[4:]]
    assert shown[0][:4] == ["1", "running", "7", "3"] and "0.25 at step 3" in text[4]
    assert shown[1][:4] == ["2", "waits", "8", "0"]
    assert shown[2][:2] == ["0", "completed"]
    assert len(study_top.picture(progress.now(study), rows, width=200, height=6)) == 5


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
