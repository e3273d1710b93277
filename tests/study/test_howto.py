"""The how-to's study and its commands, run as they stand there (without a cluster: `run` with --local alone)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import optuna

from malletrain.study import trial_records
from tests.study.tiny import ROOT, run

HOWTO = ROOT / "docs/how-to/study.md"


def test_the_how_tos_study_and_commands_run(tmp_path: Path) -> None:
    text = HOWTO.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    (tmp_path / "study.py").write_text(code[1])
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (malletrain study .*)$", text, re.M)]
    verbs = [words[2] for words in commands]
    assert {"run", "status", "trials"} <= set(verbs)
    for words in commands:
        if words[2] == "run" and "--local" not in words:
            continue
        done = run(words[1:], tmp_path)
        assert done.returncode == 0, (words, done.stderr)


def test_the_best_are_one_trial_or_the_front_of_several_directions() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    assert trial_records.best_trials(study) == []
    for x, y in ((1.0, 1.0), (2.0, 2.0), (1.0, 2.0)):
        study.add_trial(optuna.trial.create_trial(values=[x, y]))
    assert [trial.number for trial in trial_records.best_trials(study)] == [0, 1]
    assert trial_records.counts(study) == {"completed": 3}
