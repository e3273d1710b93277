"""The report: one HTML file that needs neither network nor script, and the data of every drawing as CSV beside it."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from malletrain.replay.report import director, drawings, frames
from malletrain.replay.report.director import WEEKDAYS, Origin, SitePrices
from malletrain.replay.report.facts import ReportFigures, facts, read_figures, side_by_side
from malletrain.replay.report.intervals import MIN_DAYS
from malletrain.replay.report.summary import (
    best,
    headline,
    limits,
    promise_basis,
    promise_table,
    sampled,
    table,
    waterfall_table,
)
from malletrain.replay.run import Replay

#: Rows of pilots.csv.gz that are made at a time: a year of a large machine has tens of millions.
_PILOTS_AT_ONCE = 100_000


def write_report(
    answer: Replay,
    folder: Path,
    prices: SitePrices = SitePrices(),  # noqa: B008 - frozen
    origin: Origin = Origin(),  # noqa: B008 - frozen
    other: ReportFigures | None = None,
) -> Path:
    """Writes `folder`/index.html and its CSV files; returns the page's path. `other`: the report that this one is put
    beside.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, _ = best(answer)
    tables = {
        "timeline": frames.timeline(answer),
        "holes": frames.holes(answer),
        "jobs": frames.jobs(answer),
        "months": director.months(answer, prices, origin.zone),
        "intervals": frames.shares(answer),
        "policies": frames.policies(answer.scores),
    }
    for title, data in tables.items():
        _write_csv(folder / f"{title}.csv", list(data.columns), data.rows())
    with gzip.open(folder / "pilots.csv.gz", "wt", compresslevel=6, newline="", encoding="utf-8") as file:
        _write_rows(
            file, ["node", "start", "seconds", "job", "ended_by"], frames.pilots(answer, name, _PILOTS_AT_ONCE)
        )
    key = list(director.key_figures(answer, prices))
    said = [*facts(answer), *(("key figure: " + what, value) for what, value in key)]
    _write_csv(folder / "facts.csv", ["what", "value"], [*said, *_origin(answer, origin)])
    compared = list(side_by_side(other, read_figures(folder))) if other is not None else []
    if compared:
        _write_csv(folder / "comparison.csv", ["what", *compared[0][1:]], compared[1:])
    _write_csv(folder / "waterfall.csv", ["policy", "part", "node_seconds"], frames.waterfalls(answer))
    week, node_map = director.hours_of_week(answer, origin.zone), frames.node_map(answer, name)
    _write_csv(
        folder / "week.csv", ["weekday", *(f"{hour:02d}" for hour in range(24))],
        [(day, *row) for day, row in zip(WEEKDAYS, week.tolist(), strict=True)],
    )  # fmt: skip
    _write_csv(
        folder / "nodes.csv",
        ["node", *(f"{t:.0f}" for t in node_map.time.tolist())],
        [(node, *row) for node, row in zip(node_map.nodes, node_map.state.tolist(), strict=True)],
    )
    page = {
        "trainings": director.trainings(answer),
        "key": key,
        "comparison": compared,
        "zone": origin.zone,
        "week": list(zip(WEEKDAYS, drawings.shaded(week), strict=True)),
        "nodes_drawn": len(node_map.nodes),
        "node_map": drawings.picture(node_map.state),
        "ticks": _ticks(answer, origin.zone),
        "log": _log(answer, origin),
        **_words(answer),
        **_tables(answer, tables),
    }
    page |= _drawings(answer, tables, page["ticks"])
    path = folder / "index.html"
    path.write_text(_template().render(page), encoding="utf-8")
    return path


def _template() -> Any:
    loader = PackageLoader("malletrain.replay", "report")
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html")
    colours = (drawings.MAIN, drawings.IDLE, drawings.TRAIN, drawings.DOWN)
    template.globals.update(
        width=drawings.WIDTH,
        styles=drawings.STYLES,
        node_colours=list(zip(colours, ("main jobs", "idle", "training", "down"), strict=True)),
        least_days=MIN_DAYS,
    )
    return template


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        _write_rows(file, header, rows)


def _write_rows(file: Any, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


# -- drawings --------------------------------------------------------------------------------------------------------


def _ticks(answer: Replay, zone: tzinfo) -> list[tuple[float, str]]:
    """Six moments of the window, as a share of it and in words."""
    trace = answer.trace
    form = "%Y-%m-%d" if trace.seconds >= 7 * 86_400 else "%m-%d %H:%M"
    shares = [each / 6 for each in range(6)]
    return [(s, datetime.fromtimestamp(trace.start + s * trace.seconds, zone).strftime(form)) for s in shares]


def _drawings(
    answer: Replay, tables: Mapping[str, frames.ColumnTable], ticks: Sequence[tuple[float, str]]
) -> dict[str, drawings.Drawing]:
    times, holes = tables["timeline"].columns, tables["holes"].columns
    names = list(answer.scores)[:3]
    idle = drawings.Series("idle, pilots or not", times["idle"].tolist())
    held = [drawings.Series(f"held ({name})", times[f"held_{name}"].tolist()) for name in names]
    long = drawings.Series("idle", holes["node_hours"].tolist())
    used = [drawings.Series(f"held ({name})", holes[f"used_{name}"].tolist()) for name in names]
    return {
        "plot_timeline": drawings.lines(
            "timeline", "Idle nodes over time, and of these held by pilots; the data is timeline.csv", ticks,
            [idle, *held],
        ),
        "plot_holes": drawings.bars(
            "holes", "Idle node-hours by length of the hole, and of these held by pilots", holes["length"].tolist(),
            [long, *used],
        ),
    }  # fmt: skip


# -- words -----------------------------------------------------------------------------------------------------------


def _words(answer: Replay) -> dict[str, Any]:
    """The page's sentences."""
    name, _ = best(answer)
    return {
        "headline": headline(answer),
        "sampled": sampled(answer),
        "warnings": answer.warnings,
        "method": _method(answer),
        "best": name,
        "only": "" if answer.sampled is None else "; pilots only of the days that were replayed",
        "promise_basis": promise_basis(answer.promise) if answer.promise else "",
    }


def _tables(answer: Replay, tables: Mapping[str, frames.ColumnTable]) -> dict[str, Any]:
    """The page's tables: a head, and rows of text; empty where there is nothing to show."""
    _, score = best(answer)
    delays = [(name, each.main_delay) for name, each in answer.scores.items() if each.main_delay is not None]
    rows = _dicts(tables["intervals"])
    how = f"By drawing the window's {rows[0]['days']} days anew" if rows else ""
    if rows and answer.sampled is not None:
        how = f"Where a replay of all days would be, by the {rows[0]['days']} that were replayed"
    return {
        "policies": table(answer.scores),
        "waterfall": waterfall_table(score),
        "holes": _rows(tables["holes"]),
        "months": _rows(tables["months"]),
        "intervals": _intervals(rows),
        "drawn": how,
        "promise": promise_table(answer.promise) if answer.promise else [],
        "assumed": delays[0][1].assumed if delays else None,
        "main_delay": [
            ["policy", "main starts", "met a pilot", "mean delay s", "pay a cycle", "worst s"],
            *(
                [name, f"{delay.starts:,}", f"{delay.starts_on_pilots:,}", f"{delay.mean_s:.2f}",
                 f"{delay.cycle_share:.1%}", f"{delay.worst_s:.1f}"]
                for name, delay in delays
            ),
        ] if delays else [],
    }  # fmt: skip


def _dicts(data: frames.ColumnTable) -> list[dict[str, Any]]:
    return [dict(zip(data.columns, row, strict=True)) for row in data.rows()]


def _rows(data: frames.ColumnTable) -> list[list[str]]:
    """A table's columns as text: their names, then rows with numbers of few digits."""
    cells = [
        [each if isinstance(each, str) else f"{each:,.0f}" if abs(each) >= 100 else f"{each:,.1f}" for each in row]
        for row in data.rows()
    ]
    return [[name.replace("_", " ") for name in data.columns], *cells]


def _intervals(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Shares with their intervals, and what each policy has more than the first, in hundredths of the ideal."""
    if not rows:
        return []
    said = [["policy", "of ideal", "95 % interval", f"more than {rows[0]['policy']}", "95 % interval"]]
    for row in rows:
        own = f"{row['low']:.2%} to {row['high']:.2%}"
        paired = f"{row['difference_low']:+.2%} to {row['difference_high']:+.2%}"
        more = [f"{row['difference']:+.2%}", paired] if row is not rows[0] else ["", ""]
        said.append([row["policy"], f"{row['share']:.2%}", own, *more])
    return said


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


def _log(answer: Replay, origin: Origin) -> list[tuple[str, str]]:
    said, account = answer.trace_json(), answer.trace.account
    moments = [
        datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (answer.trace.start, answer.trace.end)
    ]
    first = account.first_skipped
    left_out = "; ".join(
        f"{n:,} {reason} (first: line {first.get(reason, 0):,})" for reason, n in account.skipped.items()
    )
    file = Path(account.source).name
    return [
        ("log", f"{file} ({account.kind}), {account.lines:,} lines, {account.records:,} records"),
        ("left out", left_out or "nothing"),
        ("window", f"{moments[0]} to {moments[1]} UTC"),
        ("nodes", f"{said['nodes']:,}; {said['changes']:,} changes in {said['steps']:,} steps"),
        ("training jobs", f"{len(answer.jobs):,}"),
        *_origin(answer, origin),
    ]


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
    return f"{said} {when} a policy sizes all jobs anew (horizon {horizons}). {limits(answer)}"
