"""A study at one moment, in plain values: what `malletrain study top` draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from malletrain.study import report, trial_records


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """One trial. `job` is its malleable job's number, None without one; `figure` its values, or what it reported
    last."""

    number: int
    state: str
    job: int | None
    figure: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """`counts` of trials by how they ended; `best` first three of them; `trials`: those that run, then those that
    ended, the last first."""

    name: str
    counts: Mapping[str, int]
    node_hours: float
    best: tuple[TrialProgress, ...]
    trials: tuple[TrialProgress, ...]


def now(study: optuna.Study) -> StudyProgress:
    """The study as its storage has it."""
    trials = study.get_trials(deepcopy=False)
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    ended = [trial for trial in reversed(trials) if trial.state.is_finished()]
    return StudyProgress(
        name=study.study_name,
        counts=report.counts(study),
        node_hours=sum(report.node_hours(trial) for trial in trials),
        best=tuple(_trial(trial) for trial in report.best_trials(study)[:3]),
        trials=tuple(_trial(trial) for trial in [*running, *ended]),
    )


def _trial(trial: FrozenTrial) -> TrialProgress:
    keys = trial.user_attrs.get(trial_records.JOBS, ())
    job = int(keys[-1]) if keys and str(keys[-1]).isdecimal() else None
    figure = ", ".join(f"{value:.6g}" for value in trial.values or ())
    if not figure and trial.intermediate_values:
        step = max(trial.intermediate_values)
        figure = f"{trial.intermediate_values[step]:.4g} at step {step}"
    return TrialProgress(trial.number, report.ending_of(trial), job, figure, dict(trial.params))
