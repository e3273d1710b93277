"""The report: one HTML file that needs neither network nor script, and the data of every drawing as CSV beside it."""

from __future__ import annotations

import csv
import gzip
import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from malletrain.replay.report import director, drawings, frames, parquet_tables
from malletrain.replay.report.director import WEEKDAYS, Origin, SitePrices
from malletrain.replay.report.facts import facts
from malletrain.replay.report.intervals import MIN_DAYS
from malletrain.replay.report.side_by_side import ReportFigures, read_figures, side_by_side
from malletrain.replay.report.summary import (
    best,
    calibrated,
    headline,
    limits,
    promise_basis,
    promise_table,
    sampled,
    table,
    waterfall_table,
)
from malletrain.replay.run import Replay
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sensitivity import Setting

#: Rows of pilots.csv.gz that are made at a time: a year of a large machine has tens of millions.
_PILOTS_AT_ONCE = 100_000


def write_report(
    answer: Replay,
    folder: Path,
    settings: Sequence[Setting] = (),
    prices: SitePrices = SitePrices(),  # noqa: B008 - frozen
    origin: Origin = Origin(),  # noqa: B008 - frozen
    left_out: str = "",
    other: ReportFigures | None = None,
    *,
    as_parquet: bool = False,
) -> Path:
    """Writes `folder`/index.html and its CSV files; returns the page's path. `settings`: what came out with other
    assumptions; none, and `left_out` says why. `other`: the report that this one is put beside. `as_parquet`: the
    analyst's tables are written as Parquet beside the CSV files, that of all pilots in the place of its CSV file
    (call `parquet_tables.require_pyarrow` before).

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, _ = best(answer)
    tables = {
        "timeline": frames.timeline(answer),
        "spending": frames.spending(answer),
        "holes": frames.holes(answer),
        "jobs": frames.jobs(answer),
        "users": frames.users(answer),
        "months": director.months(answer, prices, origin.zone),
    }
    for title, data in tables.items():
        _write_csv(folder / f"{title}.csv", list(data.columns), data.rows())
    pilots = _write_pilots(folder, answer, name, as_parquet)
    _write_csv(folder / "policies.csv", *_policies(answer))
    key = list(director.key_figures(answer, prices))
    said = [*facts(answer), *(("key figure: " + what, value) for what, value in key)]
    _write_csv(folder / "facts.csv", ["what", "value"], [*said, *_origin(answer, origin)])
    compared = list(side_by_side(other, read_figures(folder))) if other is not None else []
    if compared:
        _write_csv(folder / "comparison.csv", ["what", *compared[0][1:]], compared[1:])
    shares = frames.shares(answer)
    _write_csv(folder / "intervals.csv", list(shares.columns), shares.rows())
    _write_csv(folder / "waterfall.csv", ["policy", "part", "node_seconds"], frames.waterfalls(answer))
    days = frames.sampled_days(answer)
    if days.columns:
        _write_csv(folder / "sample.csv", list(days.columns), days.rows())
    changed = frames.sensitivities(settings)
    if settings:
        _write_csv(folder / "sensitivity.csv", list(changed.columns), changed.rows())
        tables["sensitivity"] = changed
    if as_parquet:
        for title, data in (tables | {"intervals": shares, "policies": frames.policies(answer.scores)}).items():
            parquet_tables.write_table(folder / f"{title}.parquet", data)
    week = director.hours_of_week(answer, origin.zone)
    _write_csv(
        folder / "week.csv", ["weekday", *(f"{hour:02d}" for hour in range(24))],
        [(day, *row) for day, row in zip(WEEKDAYS, week.tolist(), strict=True)],
    )  # fmt: skip
    node_map = frames.node_map(answer, name)
    _write_csv(
        folder / "nodes.csv",
        ["node", *(f"{t:.0f}" for t in node_map.time.tolist())],
        [(node, *row) for node, row in zip(node_map.nodes, node_map.state.tolist(), strict=True)],
    )
    ticks = _ticks(answer, origin.zone)
    page = Template(files("malletrain.replay.report").joinpath("report.html").read_text(encoding="utf-8")).substitute(
        headline=html.escape(headline(answer)),
        worth=html.escape(director.worth(answer, prices)),
        sampled=_sampled(answer),
        calibrated=_calibrated(answer),
        trainings=html.escape(director.trainings(answer)),
        key=_key(key),
        comparison=_comparison(compared),
        policies=_html_table(table(answer.scores), "Policies side by side"),
        intervals=_intervals(answer, shares),
        warnings=_warnings(answer),
        trace=_trace(answer, origin),
        best=html.escape(name),
        method=_method(answer),
        main_delay=_main_delay(answer) + _promise(answer),
        sensitivity=_sensitivity(answer, settings, left_out),
        zone=html.escape(str(origin.zone)),
        week=drawings.grid("Mean idle nodes", WEEKDAYS, [f"{hour:02d}" for hour in range(24)], week),
        months=_html_table(_rows(tables["months"]), "By month"),
        plot_timeline=_timeline(answer, tables["timeline"], ticks),
        plot_spending=_spending(tables["spending"]),
        plot_holes=_holes(answer, tables["holes"]),
        holes=_html_table(_rows(tables["holes"]), "Holes by length, node-hours"),
        spending=_html_table(_rows(tables["spending"]), "Node-hours by use"),
        waterfall=_waterfall(answer.scores[name]),
        plot_nodes=drawings.node_map(
            f"What {len(node_map.nodes)} nodes did over time: main jobs, idle, training, down; the data is nodes.csv"
            + _only_in_days(answer),
            node_map.state, ticks,
        ),
        plot_jct=_jct(answer),
        users=_users(tables["users"]),
        pilots=pilots,
        only=html.escape(_only_in_days(answer)),
    )  # fmt: skip
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _write_pilots(folder: Path, answer: Replay, name: str, as_parquet: bool) -> str:
    """Writes every pilot of that policy; returns the file's name."""
    if as_parquet:
        parquet_tables.write_pilots(folder / "pilots.parquet", answer, name)
        return "pilots.parquet"
    with gzip.open(folder / "pilots.csv.gz", "wt", compresslevel=6, newline="", encoding="utf-8") as file:
        _write_rows(
            file, ["node", "start", "seconds", "job", "ended_by"], frames.pilots(answer, name, _PILOTS_AT_ONCE)
        )
    return "pilots.csv.gz"


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        _write_rows(file, header, rows)


def _write_rows(file: Any, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


def _policies(answer: Replay) -> tuple[list[str], list[list[Any]]]:
    rows: list[list[Any]] = []
    header: list[str] = []
    for name, score in answer.scores.items():
        data = {k: v for k, v in score.as_json().items() if k not in ("solve_s", "wall_s", "main_delay", "waterfall")}
        if score.main_delay is not None:
            delay = {k: v for k, v in score.main_delay.as_json().items() if k != "assumed"}
            data |= {f"main_delay_{k}": v for k, v in delay.items()}
        header = ["policy", *data]
        rows.append([name, *data.values()])
    return header, rows


# -- drawings --------------------------------------------------------------------------------------------------------


def _ticks(answer: Replay, zone: tzinfo) -> list[tuple[float, str]]:
    """Seven moments of the window, as a share of it and in words."""
    trace = answer.trace
    form = "%Y-%m-%d" if trace.seconds >= 7 * 86_400 else "%m-%d %H:%M"
    shares = [each / 6 for each in range(7)]
    return [(s, datetime.fromtimestamp(trace.start + s * trace.seconds, zone).strftime(form)) for s in shares[:-1]]


def _timeline(answer: Replay, data: frames.ColumnTable, ticks: Sequence[tuple[float, str]]) -> str:
    series = [drawings.Series("idle, pilots or not", data.columns["idle"].tolist())]
    names = list(answer.scores)[:3]
    series += [drawings.Series(f"held ({name})", data.columns[f"held_{name}"].tolist()) for name in names]
    said = "Idle nodes over time, and of these held by pilots; the data is timeline.csv"
    return drawings.lines("timeline", said, ticks, series)


def _spending(data: frames.ColumnTable) -> str:
    names = data.columns["policy"].tolist()
    series = [
        drawings.Series(key, data.columns[key].tolist()) for key in ("productive", "stalled", "activating", "unused")
    ]
    return drawings.bars("spending", "Idle node-hours by use, for each policy", names, series, stacked=True)


def _holes(answer: Replay, data: frames.ColumnTable) -> str:
    series = [drawings.Series("idle", data.columns["node_hours"].tolist())]
    names = list(answer.scores)[:3]
    series += [drawings.Series(f"held ({name})", data.columns[f"used_{name}"].tolist()) for name in names]
    said = "Idle node-hours by length of the hole, and of these held by pilots"
    return drawings.bars("holes", said, data.columns["length"].tolist(), series)


def _tornado(answer: Replay, settings: Sequence[Setting]) -> str:
    rows = []
    for what in dict.fromkeys(each.what for each in settings):
        mine = sorted((s for s in settings if s.what == what), key=lambda each: each.score.equivalent_nodes)
        low, high = mine[0], mine[-1]
        rows.append((what, low.value, low.score.equivalent_nodes, high.value, high.score.equivalent_nodes))
    said = "How far the nodes won move with each assumption; the figures stand in the table below"
    return drawings.tornado("sensitivity", said, answer.scores[answer.choices[0].name].equivalent_nodes, rows)


def _jct(answer: Replay) -> str:
    curves = []
    for name, result in answer.results.items():
        hours = np.sort((result.finished - result.submitted)[np.isfinite(result.finished)]) / 3600
        if len(hours):
            curves.append((name, hours))
    if not curves:
        return ""
    said = "Share of the finished jobs over hours from submission to end, for each policy; the data is jobs.csv"
    drawn = drawings.steps("jct", said, "hours from submission to end", curves)
    return (
        '<section class="analyst"><h2>Job completion times</h2><figure>' + drawn + "</figure>"
        '<p><a class="csv" href="jobs.csv">jobs.csv</a></p></section>'
    )


# -- words -----------------------------------------------------------------------------------------------------------


def _rows(data: frames.ColumnTable) -> list[list[str]]:
    """A table's columns as text: their names, then rows with numbers of few digits."""
    cells = [
        [each if isinstance(each, str) else f"{each:,.0f}" if abs(each) >= 100 else f"{each:,.1f}" for each in row]
        for row in data.rows()
    ]
    return [[name.replace("_", " ") for name in data.columns], *cells]


def _key(figures: Sequence[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{html.escape(what)}</th><td>{html.escape(value)}</td></tr>' for what, value in figures
    )
    return f'<table class="key"><caption>In figures</caption><tbody>{body}</tbody></table>'


def _html_table(rows: list[list[str]], caption: str) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows[1:]
    )
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _calibrated(answer: Replay) -> str:
    """What is to be expected of a real daemon; where nothing was measured, that it is not known."""
    words = calibrated(answer) or (
        "Not calibrated: what a real daemon trains beside a replay has not been measured here (replay.calibration)."
    )
    return f'<p id="calibrated">{html.escape(words)}</p>'


def _sampled(answer: Replay) -> str:
    """Which days were replayed; nothing where all were."""
    if answer.sampled is None:
        return ""
    return f'<p id="sampled">{html.escape(sampled(answer))} <a class="csv" href="sample.csv">sample.csv</a></p>'


def _only_in_days(answer: Replay) -> str:
    return "" if answer.sampled is None else "; pilots only of the days that were replayed"


def _comparison(rows: list[list[str]]) -> str:
    """This report beside another; nothing where none was given."""
    if not rows:
        return ""
    shown = _html_table(rows, "This report beside the other; where the two are of different length, by the month")
    link = '<p><a class="csv" href="comparison.csv">comparison.csv</a></p>'
    return f'<h2>Compared</h2><div class="scroll" id="comparison">{shown}</div>{link}'


def _users(data: frames.ColumnTable) -> str:
    """Who was given how much; nothing where the jobs are one user's."""
    rows = [dict(zip(data.columns, row, strict=True)) for row in data.rows()]
    if len({row["user"] for row in rows}) < 2:
        return ""
    said = [["user", "policy", "jobs", "node-hours", "share"]]
    said += [
        [row["user"], row["policy"], f"{row['jobs']:,}", f"{row['node_hours']:,.1f}", f"{row['share']:.1%}"]
        for row in rows
    ]
    shown = _html_table(said, "Node-hours held, by user")
    link = '<p><a class="csv" href="users.csv">users.csv</a></p>'
    return f'<section class="analyst"><h2>Users</h2><div class="scroll" id="users">{shown}</div>{link}</section>'


def _intervals(answer: Replay, shares: frames.ColumnTable) -> str:
    """Shares with their intervals, and what each policy has more than the first, in hundredths of the ideal."""
    rows = [dict(zip(shares.columns, row, strict=True)) for row in shares.rows()]
    if not rows:
        return f"<p>The window is too short to say how sure these shares are: that takes {MIN_DAYS} days.</p>"
    said = [["policy", "of ideal", "95 % interval", f"more than {rows[0]['policy']}", "95 % interval"]]
    for row in rows:
        own = f"{row['low']:.2%} to {row['high']:.2%}"
        paired = f"{row['difference_low']:+.2%} to {row['difference_high']:+.2%}"
        more = [f"{row['difference']:+.2%}", paired] if row is not rows[0] else ["", ""]
        said.append([row["policy"], f"{row['share']:.2%}", own, *more])
    how = f"By drawing the window's {rows[0]['days']} days anew"
    if answer.sampled is not None:
        how = f"Where a replay of all days would be, by the {rows[0]['days']} that were replayed"
    words = f"<p>{how}; differences pair the same days.</p>"
    return _html_table(said, "Share of the ideal, and how sure it is") + words


def _warnings(answer: Replay) -> str:
    warnings = answer.warnings
    if not warnings:
        return ""
    return '<ul class="warnings">' + "".join(f"<li>{html.escape(text)}</li>" for text in warnings) + "</ul>"


def _origin(answer: Replay, origin: Origin) -> list[tuple[str, str]]:
    """Where the report comes from: command, version, seed, mix, units."""
    named = answer.trace.names_are_real or answer.trace.account.kind == "node events"
    units = (
        "nodes, by the names that the log gives" if named
        else "nodes as counted from the log, which says on how many processors a job ran and not on which nodes "
        "(replay.procs_per_node, --nodes)"
    )  # fmt: skip
    rows = [("training jobs", origin.mix), ("command", origin.command), ("version", origin.version)]
    return [("counted in", units), ("seed", str(origin.seed)), *((what, value) for what, value in rows if value)]


def _trace(answer: Replay, origin: Origin) -> str:
    said = answer.trace_json()
    moments = [
        datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (answer.trace.start, answer.trace.end)
    ]
    skipped = answer.trace.account.skipped
    first = answer.trace.account.first_skipped
    left_out = "; ".join(f"{n:,} {reason} (first: line {first.get(reason, 0):,})" for reason, n in skipped.items())
    rows = [
        ["", ""],
        [
            "log",
            f"{Path(str(said['file'])).name} ({said['kind']}), {said['lines']:,} lines, {said['records']:,} records",
        ],
        ["left out", left_out or "nothing"],
        ["window", f"{moments[0]} to {moments[1]} UTC"],
        ["nodes", f"{said['nodes']:,}; {said['changes']:,} changes in {said['steps']:,} steps"],
        ["training jobs", f"{len(answer.jobs):,}"],
        *(list(each) for each in _origin(answer, origin)),
    ]
    body = "".join(f"<tr><th scope='row'>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in rows[1:])
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def _sensitivity(answer: Replay, settings: Sequence[Setting], left_out: str) -> str:
    """What came out where one assumption is another, and the rest as asked for."""
    if not settings:
        return f"<p>{html.escape(left_out or 'Left out.')}</p>"
    rows = [["assumption", "value", "of ideal", "used", "dedicated nodes"]]
    for each in settings:
        score = each.score
        used = score.occupied_node_seconds / score.idle_node_seconds if score.idle_node_seconds > 0 else 0.0
        rows.append([
            each.what, each.value + (" (as replayed)" if each.asked else ""),
            "" if score.share_of_ideal is None else f"{score.share_of_ideal:.1%}", f"{used:.1%}",
            f"{score.equivalent_nodes:.1f}",
        ])  # fmt: skip
    words = f"Policy {answer.choices[0].name}, one assumption changed at a time."
    link = '<a class="csv" href="sensitivity.csv">sensitivity.csv</a>'
    shown = _html_table(rows, "One assumption changed at a time")
    return (
        f"<figure>{_tornado(answer, settings)}</figure><details><summary>The figures as a table</summary>"
        f'<div id="sensitivity"><div class="scroll">{shown}</div><p>{html.escape(words)} {link}</p></div></details>'
    )


def _waterfall(score: Score) -> str:
    """Where the idle node-hours went."""
    if score.waterfall is None:
        return "<p>Not known of a journal.</p>"
    return f'<div class="scroll">{_html_table(waterfall_table(score), "Where idle node-hours went")}</div>'


def _main_delay(answer: Replay) -> str:
    """What the main queue would have felt, by policy, with what was assumed."""
    rows = [["policy", "main starts", "met a pilot", "mean delay s", "pay a cycle", "worst s"]]
    assumed = None
    for name, score in answer.scores.items():
        delay = score.main_delay
        if delay is not None:
            assumed = delay.assumed
            rows.append([
                name, f"{delay.starts:,}", f"{delay.starts_on_pilots:,}", f"{delay.mean_s:.2f}",
                f"{delay.cycle_share:.1%}", f"{delay.worst_s:.1f}",
            ])  # fmt: skip
    if assumed is None:
        return "<p>Not modelled.</p>"
    words = (
        f"As modelled from {assumed.source}: {assumed.look_s:g} s until the daemon looks, {assumed.exit_s:g} s until "
        f"a worker has left, an epilog of {assumed.epilog_s:g} s, a backfill cycle every {assumed.cycle_s:g} s. "
        "Means are over all main starts; a cycle is paid by starts that backfill makes, of those that met a pilot."
    )
    shown = _html_table(rows, "Main jobs, as modelled")
    return f'<div class="scroll">{shown}</div><p>{html.escape(words)}</p>'


def _promise(answer: Replay) -> str:
    """Harvest against the delay of main jobs, where it was asked for."""
    if answer.promise is None:
        return ""
    shown = _html_table(promise_table(answer.promise), "What a promise to the main queue would cost")
    return f'<div class="scroll">{shown}</div><p>{html.escape(promise_basis(answer.promise))}</p>'


def _method(answer: Replay) -> str:
    costs = sorted({(e.costs.activate_s, e.costs.grow_s, e.costs.shrink_s) for e in answer.jobs})
    said = (
        f"A node that starts pays {costs[0][0]:g} s, a job that grows {costs[0][1]:g} s, one that shrinks "
        f"{costs[0][2]:g} s."
        if len(costs) == 1
        else "Each job pays its own costs, as the workload says."
    )
    options = answer.options
    when = "At every event" if options.tick_s <= 0 else f"Every {options.tick_s:g} s"
    horizons = ", ".join(f"{c.name}: {c.horizon_s:g} s" for c in answer.choices)
    limit = (
        "Pilots have no time limit of their own." if options.pilot_limit_s == float("inf")
        else f"A pilot leaves after {options.pilot_limit_s:g} s and its node is free again."
    )  # fmt: skip
    if options.rules is not None:
        limit = limits(answer)
    return html.escape(f"{said} {when} a policy sizes all jobs anew (horizon {horizons}). {limit}")
