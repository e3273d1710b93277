"""`malletrain study top`: a study live, trial by trial, with the nodes that each has now."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.cli.render import Line, Span
from malletrain.cli.top import clip
from malletrain.domain.errors import MalletrainError
from malletrain.study.progress import StudyProgress, TrialProgress
from malletrain.wire.daemon import connect
from malletrain.wire.errors import WireError
from malletrain.wire.rows import JobRow

_COLORS = {"completed": "green", "pruned": "cyan", "running": "yellow", "waiting": "yellow"}


def picture(study: StudyProgress, jobs: Mapping[int, JobRow], *, width: int, height: int) -> list[Line]:
    """The whole screen: totals, the best, and trials as far as there is room."""
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in study.counts.items()) or "no trials yet"
    lines: list[Line] = [
        (Span(f"study {study.name}", bold=True), Span(f": {counts}; {study.node_hours:.2f} node-hours"))
    ]
    lines += [(Span(f"best: trial {t.number}, {t.figure}  {_params(t)}"),) for t in study.best]
    lines += [
        (),
        (Span(f"{'trial':>6}  {'state':<14}{'job':>6}{'nodes':>6}  {'last figure':<22} parameters", bold=True),),
    ]
    lines += [_line(trial, jobs) for trial in study.trials[: max(1, height - len(lines) - 1)]]
    return [clip(line, width) for line in lines]


def _line(trial: TrialProgress, jobs: Mapping[int, JobRow]) -> Line:
    row = jobs.get(trial.job) if trial.job is not None else None
    waits = trial.state == "running" and row is not None and not row.members
    words = "waits" if waits else trial.state.replace("_", " ")
    job, nodes = trial.job or "", row.members if row is not None else ""
    return (
        Span(f"{trial.number:>6}  "),
        Span(f"{words:<14}", color=_COLORS.get(trial.state, "red")),
        Span(f"{job:>6}{nodes:>6}  {trial.figure:<22} {_params(trial)}"),
    )


def jobs() -> Mapping[int, JobRow]:
    """Jobs that are not over; none where there is no daemon: a study may run without."""
    try:
        return {row.id: row for row in connect().jobs(over=False, mine=True)}
    except (MalletrainError, WireError):
        return {}


def _params(trial: TrialProgress) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in trial.params.items()
    )
