"""A study as one HTML page that needs no network: Optuna's own plots, and what the trials have used."""

from __future__ import annotations

import html
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna import visualization
from optuna.trial import FrozenTrial, TrialState
from plotly.offline import get_plotlyjs

from malletrain.study import trial_records
from malletrain.study.ports import Ending

_STYLE = (
    "body{font:16px/1.4 system-ui,sans-serif;margin:1.5em auto;max-width:68em;padding:0 1em;color:#222}"
    "h2{margin:1.6em 0 .3em;font-size:1.2em}h3{margin:1.2em 0 .2em;font-size:1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;text-align:left;border-bottom:1px solid #ddd}"
    "td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".wide{overflow-x:auto}.wide>div{min-width:38em}"
    "pre{background:#f6f6f6;padding:.6em;overflow:auto;font-size:.85em}"
)

#: A plot with more traces has no legend: it would take more space than the plot.
MAX_LEGEND_ENTRIES = 12


def ending_of(trial: FrozenTrial) -> str:
    """A trial's end in a word of `Ending`, or Optuna's word for one that has not ended."""
    if trial.state in (TrialState.RUNNING, TrialState.WAITING):
        return trial.state.name.lower()
    if trial.state is TrialState.COMPLETE:
        return Ending.COMPLETED.value
    if trial.state is TrialState.PRUNED:
        return Ending.PRUNED.value
    return str(trial.user_attrs.get(trial_records.ENDING, Ending.INTERRUPTED.value))


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
        "reason": str(ours.get(trial_records.REASON, "")),
        "traceback": str(ours.get(trial_records.TRACEBACK, "")),
        "jobs": list(ours.get(trial_records.JOBS, ())),
        "node_hours": node_hours(trial),
        "repeats": ours.get(trial_records.REPEATS),
        "kept": {name: value for name, value in trial.user_attrs.items() if name not in ours},
    }


def quiet() -> None:
    """Leave the telling of trials to us: Optuna says warnings only."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def page(study: optuna.Study) -> str:
    """The page."""
    trials = study.get_trials(deepcopy=False)
    title = html.escape(study.study_name)
    rows = "".join(
        f"<tr><td>{name.replace('_', ' ')}</td><td class=n>{n}</td></tr>" for name, n in counts(study).items()
    )
    used = sum(node_hours(trial) for trial in trials)
    several = len(study.directions) > 1
    plots: list[tuple[str, Callable[[], go.Figure]]] = [
        ("Pareto front", lambda: _front(study))
        if several
        else ("Reported figures", lambda: visualization.plot_intermediate_values(study))
    ]
    for number in range(len(study.directions)):
        plots += _of_value(study, number, f"value {number + 1}" if several else "value")
    plots += [
        ("Trials over time", lambda: visualization.plot_timeline(study)),
    ]
    return "\n".join(
        [
            f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{title}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script>",
            f"<h1>Study {title}</h1><p>{len(trials)} trials, {used:.2f} node-hours.</p>",
            f"<table><tr><th>ended as</th><th>trials</th></tr>{rows}</table>" if rows else "",
            _best(study),
            *(f"<h2>{name}</h2>{_shown(plot)}" for name, plot in plots),
            _failures(trials),
            "</html>",
        ]
    )


def _shown(plot: Callable[[], go.Figure]) -> str:
    """A plot in the page's style."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Optuna's, on what its plots assume: the page says it in its headings
            figure = plot()
    except (ValueError, RuntimeError, ZeroDivisionError) as error:  # too few trials for this plot
        return f"<p>Not yet: {html.escape(str(error)[:200])}</p>"
    if not figure.data:
        return "<p>Not yet: no trial has anything to show here.</p>"
    figure.update_layout(
        title=None,
        template="plotly_white",
        height=400,
        margin={"l": 60, "r": 50, "t": 36, "b": 80},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
    )
    if len(figure.data) > MAX_LEGEND_ENTRIES:
        figure.update_layout(showlegend=False)
    config = {"displaylogo": False, "responsive": True}
    return f"<div class=wide>{figure.to_html(full_html=False, include_plotlyjs=False, config=config)}</div>"


def _of_value(study: optuna.Study, number: int, name: str) -> list[tuple[str, Callable[[], go.Figure]]]:
    """Optuna's plots of one value."""

    def of(plot: Callable[..., go.Figure]) -> Callable[[], go.Figure]:
        return lambda: plot(study, target=lambda trial: trial.values[number], target_name=name)

    return [
        (f"Optimisation history, {name}", of(visualization.plot_optimization_history)),
        (f"Parallel coordinates, {name}", of(visualization.plot_parallel_coordinate)),
        (f"Importance of parameters, {name}", of(visualization.plot_param_importances)),
    ]


def _front(study: optuna.Study) -> go.Figure:
    names = [f"value {number}" for number in range(1, 1 + len(study.directions))]
    figure = visualization.plot_pareto_front(study, target_names=names)
    return figure.update_traces(marker_showscale=False).update_layout(showlegend=True)


def _best(study: optuna.Study) -> str:
    best = best_trials(study)
    if not best:
        return "<p>No trial has completed yet.</p>"
    lines = "".join(
        f"<tr><td class=n>{t.number}</td><td class=n>{', '.join(f'{v:.6g}' for v in t.values or ())}</td>"
        f"<td>{html.escape(', '.join(f'{k}={_short(v)}' for k, v in t.params.items()))}</td></tr>"
        for t in best
    )
    heads = "<th>trial</th><th>value</th><th>parameters</th>"
    return f"<h2>Best</h2><div class=wide><table><tr>{heads}</tr>{lines}</table></div>"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial, or the Pareto front of several directions; empty before the first that completed."""
    if len(study.directions) > 1:
        return list(study.best_trials)
    try:
        return [study.best_trial]
    except ValueError:
        return []


def _failures(trials: list[FrozenTrial]) -> str:
    shown = "".join(
        f"<h3>Trial {each['trial']}: {each['ended_as'].replace('_', ' ')}</h3><p>{html.escape(each['reason'])}</p>"
        + (f"<pre>{html.escape(each['traceback'])}</pre>" if each["traceback"] else "")
        for each in (row(trial) for trial in trials if trial.state is TrialState.FAIL)
    )
    return f"<h2>Trials without an answer</h2>{shown}" if shown else ""
