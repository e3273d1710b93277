"""`malletrain study top`: a study live, trial by trial, with the nodes that each has now."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count

import optuna
from optuna.trial import FrozenTrial, TrialState

from malletrain.cli.render import Line, Span
from malletrain.cli.top import clip, screen
from malletrain.domain.errors import MalletrainError
from malletrain.study import book, report
from malletrain.wire.daemon import connect
from malletrain.wire.errors import WireError
from malletrain.wire.rows import JobRow

_COLORS = {"completed": "green", "pruned": "cyan", "running": "yellow", "waiting": "yellow"}


def watch(load: Callable[[], optuna.Study], interval: float, once: bool) -> None:
    """Draw the study again and again until it stands still for good (Ctrl-C), or once."""
    with screen(live=sys.stdout.isatty() and not once) as draw:
        for look in count():
            if look:
                time.sleep(interval)
            size = shutil.get_terminal_size((120, 40))
            lines = picture(load(), _jobs(), height=size.lines)
            draw([clip(line, size.columns) for line in lines])
            if once:
                return


def picture(study: optuna.Study, jobs: Mapping[int, JobRow], *, height: int) -> list[Line]:
    """The whole screen: totals, what runs, and the trials that ended last as far as there is room."""
    trials = study.get_trials(deepcopy=False)
    counted = report.counts(study)
    hours = sum(report.node_hours(trial) for trial in trials)
    told = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counted.items()) or "no trials yet"
    lines: list[Line] = [(Span(f"study {study.study_name}", bold=True), Span(f": {told}; {hours:.2f} node-hours"))]
    best = report.best_trials(study)[:3]
    lines += [(Span(f"best: trial {trial.number}, {_values(trial)}  {_params(trial)}"),) for trial in best]
    lines += [
        (),
        (Span(f"{'trial':>6}  {'state':<14}{'job':>6}{'nodes':>6}  {'last figure':<22} parameters", bold=True),),
    ]
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    ended = [trial for trial in reversed(trials) if trial.state.is_finished()]
    for trial in [*running, *ended][: max(1, height - len(lines) - 1)]:
        state = report.ending_of(trial)
        job, nodes = _job_of(trial, jobs)
        waits = state == "running" and nodes == "0"
        words = "waits" if waits else state.replace("_", " ")
        lines.append((
            Span(f"{trial.number:>6}  "), Span(f"{words:<14}", color=_COLORS.get(state, "red")),
            Span(f"{job:>6}{nodes:>6}  {_values(trial) or _last(trial):<22} {_params(trial)}"),
        ))  # fmt: skip
    return lines


def _jobs() -> Mapping[int, JobRow]:
    """Jobs that are not over; none where there is no daemon: a study may run without."""
    try:
        return {row.id: row for row in connect().jobs(over=False, mine=True)}
    except (MalletrainError, WireError):
        return {}


def _job_of(trial: FrozenTrial, jobs: Mapping[int, JobRow]) -> tuple[str, str]:
    keys = trial.user_attrs.get(book.JOBS, ())
    if not keys:
        return "", ""
    row = jobs.get(int(keys[-1])) if str(keys[-1]).isdecimal() else None
    return str(keys[-1]), str(row.members) if row is not None else ""


def _values(trial: FrozenTrial) -> str:
    return ", ".join(f"{value:.6g}" for value in trial.values or ())


def _last(trial: FrozenTrial) -> str:
    if not trial.intermediate_values:
        return ""
    step = max(trial.intermediate_values)
    return f"{trial.intermediate_values[step]:.4g} at step {step}"


def _params(trial: FrozenTrial) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in trial.params.items()
    )
