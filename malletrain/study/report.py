"""A study as one HTML page that needs no network: Optuna's own plots, and what the trials have used."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna import visualization
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from malletrain.study import book
from malletrain.study.endings import Ending

_STYLE = (
    "body{font:16px system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}"
    "pre{background:#f6f6f6;padding:.6em;overflow:auto}"
)


def ending_of(trial: FrozenTrial) -> str:
    """A trial's end in a word of `Ending`, or Optuna's word for one that has not ended."""
    if trial.state in (TrialState.RUNNING, TrialState.WAITING):
        return trial.state.name.lower()
    if trial.state is TrialState.COMPLETE:
        return Ending.COMPLETED.value
    if trial.state is TrialState.PRUNED:
        return Ending.PRUNED.value
    return str(trial.user_attrs.get(book.ENDING, Ending.INTERRUPTED.value))


def counts(study: optuna.Study) -> dict[str, int]:
    """How many trials ended how."""
    return dict(Counter(ending_of(trial) for trial in study.get_trials(deepcopy=False)).most_common())


def node_hours(trial: FrozenTrial) -> float:
    """Node-hours that a trial's trainings have used."""
    return float(trial.user_attrs.get("malletrain:node_seconds", 0.0)) / 3600


def row(trial: FrozenTrial) -> dict[str, Any]:
    """A trial in plain values; `kept` are the attributes that the objective gave it."""
    ours = {name: value for name, value in trial.user_attrs.items() if name.startswith("malletrain:")}
    return {
        "trial": trial.number,
        "ended_as": ending_of(trial),
        "values": list(trial.values or ()),
        "params": dict(trial.params),
        "reason": str(ours.get(book.REASON, "")),
        "traceback": str(ours.get(book.TRACEBACK, "")),
        "jobs": list(ours.get(book.JOBS, ())),
        "node_hours": node_hours(trial),
        "repeats": ours.get(book.REPEATS),
        "kept": {name: value for name, value in trial.user_attrs.items() if name not in ours},
    }


def quiet() -> None:
    """Leave the telling of trials to us: Optuna says warnings only."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def page(study: optuna.Study) -> str:
    """The page."""
    trials = study.get_trials(deepcopy=False)
    title = html.escape(study.study_name)
    rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{n}</td></tr>" for name, n in counts(study).items())
    used = sum(node_hours(trial) for trial in trials)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>",
        f"<h1>Study {title}</h1><p>{len(trials)} trials, {used:.2f} node-hours.</p>",
        f"<table><tr><th>ended as</th><th>trials</th></tr>{rows}</table>",
        _best(study),
    ]
    several = len(study.directions) > 1
    plots: list[tuple[str, Callable[[], go.Figure]]] = [
        ("Pareto front", lambda: visualization.plot_pareto_front(study)),
    ]
    if not several:
        plots = [("Reported figures", lambda: visualization.plot_intermediate_values(study))]
    for number in range(len(study.directions)):
        plots += _of_value(study, number if several else None)
    plots += [
        ("Trials over time", lambda: visualization.plot_timeline(study)),
        ("Node-hours by trial", lambda: _hours_by_trial(trials)),
        ("Node-hours over time", lambda: _hours_over_time(trials)),
    ]
    library: bool = True
    for name, plot in plots:
        try:
            figure = plot().to_html(full_html=False, include_plotlyjs=library)
            library = False
        except (ValueError, RuntimeError, ZeroDivisionError) as error:  # too few trials for this plot
            figure = f"<p>Not yet: {html.escape(str(error))}</p>"
        parts.append(f"<h2>{name}</h2>{figure}")
    parts += [_failures(trials), "</html>"]
    return "\n".join(parts)


def _of_value(study: optuna.Study, number: int | None) -> list[tuple[str, Callable[[], go.Figure]]]:
    """Optuna's plots of one value; `number` is None where there is only one."""

    def target(trial: FrozenTrial) -> float:
        return float(trial.values[number or 0])

    which: dict[str, Any] = {}
    importance: dict[str, Any] = {}
    if number is not None:
        which = {"target": target, "target_name": f"value {number + 1}"}
        # Given a target, Optuna weighs what makes it low.
        sign = -1.0 if study.directions[number] is StudyDirection.MAXIMIZE else 1.0
        importance = which | {"target": lambda trial: sign * target(trial)}
    suffix = "" if number is None else f", value {number + 1}"
    return [
        (f"Optimisation history{suffix}", lambda: visualization.plot_optimization_history(study, **which)),
        (f"Parallel coordinates{suffix}", lambda: visualization.plot_parallel_coordinate(study, **which)),
        (f"Importance of parameters{suffix}", lambda: visualization.plot_param_importances(study, **importance)),
    ]


def _best(study: optuna.Study) -> str:
    best = best_trials(study)
    if not best:
        return "<p>No trial has completed yet.</p>"
    lines = "".join(
        f"<tr><td>{t.number}</td><td>{', '.join(f'{v:.6g}' for v in t.values or ())}</td>"
        f"<td>{html.escape(', '.join(f'{k}={v}' for k, v in t.params.items()))}</td></tr>"
        for t in best
    )
    return f"<h2>Best</h2><table><tr><th>trial</th><th>value</th><th>parameters</th></tr>{lines}</table>"


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial, or the Pareto front of several directions; empty before the first that completed."""
    if len(study.directions) > 1:
        return list(study.best_trials)
    try:
        return [study.best_trial]
    except ValueError:
        return []


def _hours_by_trial(trials: list[FrozenTrial]) -> go.Figure:
    figure = go.Figure()
    for ending in sorted({ending_of(trial) for trial in trials}):
        of_it = [trial for trial in trials if ending_of(trial) == ending]
        figure.add_bar(x=[t.number for t in of_it], y=[node_hours(t) for t in of_it], name=ending)
    return figure.update_layout(xaxis_title="trial", yaxis_title="node-hours")


def _hours_over_time(trials: list[FrozenTrial]) -> go.Figure:
    ended = sorted((t for t in trials if t.datetime_complete is not None), key=lambda t: str(t.datetime_complete))
    total, y = 0.0, []
    for trial in ended:
        total += node_hours(trial)
        y.append(total)
    figure = go.Figure()
    figure.add_scatter(x=[t.datetime_complete for t in ended], y=y, mode="lines+markers", line_shape="hv")
    return figure.update_layout(yaxis_title="node-hours harvested by trials that have ended")


def _failures(trials: list[FrozenTrial]) -> str:
    failed = [trial for trial in trials if trial.state is TrialState.FAIL]
    shown = "".join(
        f"<h3>Trial {t.number}: {ending_of(t)}</h3><p>{html.escape(str(t.user_attrs.get(book.REASON, '')))}</p>"
        + (f"<pre>{html.escape(str(t.user_attrs[book.TRACEBACK]))}</pre>" if book.TRACEBACK in t.user_attrs else "")
        for t in failed
    )
    return f"<h2>Trials without an answer</h2>{shown}" if shown else ""
