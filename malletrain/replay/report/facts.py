"""The facts of a report; and two reports side by side, of two configurations, logs or periods, by their CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from malletrain.domain.errors import InvalidInput
from malletrain.replay.report.director import MONTH_DAYS
from malletrain.replay.report.summary import best
from malletrain.replay.run import Replay


def facts(answer: Replay) -> Iterator[tuple[str, object]]:
    """(what, value): of the log, the window, the assumptions, and how long decisions took."""
    account, trace = answer.trace.account, answer.trace
    for key, value in answer.trace_json().items():
        if not isinstance(value, dict | list):
            yield key, value
    for unit, seconds in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)):
        yield unit, trace.seconds / seconds
    if answer.sampled is not None:
        yield "days with idle nodes", len(answer.sampled.sample)
        yield "days replayed", answer.sampled.sample.size
        yield "sample", answer.sampled.sentence()
    _, first = best(answer)
    yield "upper bound, nodes", first.ideal_speedup_node_seconds / (trace.seconds or 1.0)
    options = answer.options
    if options.daemon:
        yield "daemon", options.daemon
        yield "max_pilots", options.rules.max_pilots
        yield "nodes of a pilot", options.rules.max_nodes
        yield "keep_idle", options.rules.keep_idle
        yield "pilot limit, minutes", options.rules.max_pilot_s / 60
    for reason, count in account.skipped.items():
        yield f"skipped: {reason}", count
        yield f"first line skipped: {reason}", account.first_skipped.get(reason, 0)
    for number, sentence in enumerate(answer.warnings, start=1):
        yield f"warning {number}", sentence
    for number, costs in enumerate(sorted({(e.costs.activate_s, e.costs.grow_s, e.costs.shrink_s)
                                           for e in answer.jobs}), start=1):  # fmt: skip
        for name, seconds in zip(("activate_s", "grow_s", "shrink_s"), costs, strict=True):
            yield f"costs {number}: {name}", seconds
    yield "tick_s", answer.options.tick_s
    yield "pilot_limit_s", answer.options.rules.max_pilot_s
    for choice in answer.choices:
        yield f"horizon_s: {choice.name}", choice.horizon_s
    for name, score in answer.scores.items():
        if score.solve_s is not None:
            yield f"ms a decision: {name}", score.solve_s.median * 1e3
    delay = next((score.main_delay for score in answer.scores.values() if score.main_delay is not None), None)
    for name, seconds in asdict(delay.assumed).items() if delay is not None else ():
        yield f"main delay: {name}", seconds


#: Facts of a report that say what it is of; the others are results, or words.
_OF_WHAT = (
    "file", "start", "end", "days", "days replayed", "nodes", "jobs", "training jobs", "seed", "version",
    "daemon", "max_pilots", "nodes of a pilot", "keep_idle", "pilot limit, minutes", "tick_s",
    "costs 1: activate_s", "costs 1: grow_s", "costs 1: shrink_s",
)  # fmt: skip

#: (what, column of policies.csv, factor): sums, given for a mean month.
_MONTHLY = (
    ("idle node-hours a month", "idle_node_seconds", 1 / 3600),
    ("held node-hours a month", "occupied_node_seconds", 1 / 3600),
    ("worth in node-hours of dedicated nodes a month", "speedup_node_seconds", 1 / 3600),
    ("kWh a month, beyond what the nodes draw idle", "energy_kwh", 1.0),
    ("resizes a month", "rescales", 1.0),
    ("pilots that main jobs ended, a month", "preemptions", 1.0),
)

#: (what, column, factor): shares and means, given as they are.
_AS_IT_IS = (
    ("nodes won, as many dedicated ones would train as much", "equivalent_nodes", 1.0),
    ("training of the ideal, %", "share_of_ideal", 100.0),
    ("Jain's index", "jain", 1.0),
    ("mean wait of training jobs, hours", "mean_wait_s", 1 / 3600),
    ("main starts that met a pilot", "main_delay_starts_on_pilots", 1.0),
    ("mean delay of main jobs as modelled, s", "main_delay_mean_s", 1.0),
)


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """What a report's CSV files say: facts by name, and the policy that trained most with its row of policies.csv."""

    name: str
    facts: Mapping[str, str]
    policy: str
    row: Mapping[str, str]


def read_figures(folder: Path) -> ReportFigures:
    """The figures of a report that `malletrain replay --report` wrote.

    Raises:
        InvalidInput: the folder holds none.
    """
    try:
        with (folder / "facts.csv").open(encoding="utf-8", newline="") as file:
            facts = {row["what"]: row["value"] for row in csv.DictReader(file)}
        with (folder / "policies.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        best = max(rows, key=lambda row: float(row["speedup_node_seconds"]))
        float(facts["days"])
    except (OSError, KeyError, ValueError) as error:
        raise InvalidInput("--compare", f"{folder} is no folder of `malletrain replay --report`: {error}") from error
    return ReportFigures(folder.resolve().name, facts, best["policy"], best)


def side_by_side(other: ReportFigures, this: ReportFigures) -> Iterator[list[str]]:
    """Rows (what, the other's, this one's, difference): what the two are of, where it differs; then what came out."""
    yield ["", other.name, this.name, "difference"]
    yield ["policy", other.policy, this.policy, ""]
    for what in _OF_WHAT:
        before, now = other.facts.get(what, ""), this.facts.get(what, "")
        if before != now:
            yield [what, _said(what, before), _said(what, now), ""]
    months = [float(each.facts["days"]) / MONTH_DAYS or 1.0 for each in (other, this)]
    for what, column, factor in _MONTHLY:
        yield from _row(what, other.row.get(column), this.row.get(column), factor / months[0], factor / months[1])
    for what, column, factor in _AS_IT_IS:
        yield from _row(what, other.row.get(column), this.row.get(column), factor, factor)


def _row(what: str, before: str | None, now: str | None, of_before: float, of_now: float) -> Iterator[list[str]]:
    """One row; none where either report lacks the figure."""
    if not before or not now or "nan" in (before, now):
        return
    a, b = float(before) * of_before, float(now) * of_now
    change = f"{b - a:+,.1f}" if abs(b - a) < 100 else f"{b - a:+,.0f}"
    yield [what, _number(a), _number(b), f"{change} ({(b - a) / a:+.1%})" if a else change]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _said(what: str, value: str) -> str:
    if what in ("start", "end") and value:
        return datetime.fromtimestamp(float(value), UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Path(value).name if what == "file" else value
