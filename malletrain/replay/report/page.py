"""The report: one HTML file that needs neither network nor script, and the data of every drawing as CSV beside it."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, tzinfo
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from malletrain.replay.report import frames, summary
from malletrain.replay.report.intervals import MIN_DAYS, intervals
from malletrain.replay.run import Replay

#: What a node does in the map, by its number there: of unlike lightness.
NODE_COLOURS = {"main jobs": "#e6e6e6", "idle": "#e69f00", "training": "#00684c", "down": "#1a1a1a"}


@dataclass(frozen=True, slots=True)
class Origin:
    """How the report came about. `mix`: the training jobs as asked for; `zone`: of calendars."""

    command: str = ""
    version: str = ""
    seed: int = 0
    mix: str = ""
    zone: tzinfo = UTC


def write_report(answer: Replay, folder: Path, origin: Origin = Origin()) -> Path:
    """Writes `folder`/index.html and its CSV files; returns the page's path.
    Raises OSError: the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    name, score = summary.best(answer)
    tables = {
        "timeline": frames.timeline(answer),
        "holes": frames.holes(answer),
        "jobs": frames.jobs(answer),
        "months": frames.months(answer, origin.zone),
    }
    for title, data in tables.items():
        _write_csv(folder / f"{title}.csv", list(data), frames.rows_of(data))
    head = ["node", "start", "seconds", "job", "ended_by"]
    _write_csv(folder / "pilots.csv.gz", head, frames.pilots(answer, name, 100_000))  # rows at a time
    key, made = list(summary.key_figures(answer)), _origin(answer, origin)
    sure = intervals(answer)
    found = answer.as_json() | {
        "intervals": [asdict(each) for each in sure],
        "assumed": _assumed(answer),
        "key_figures": dict(key),
        "made": dict(made),
    }
    (folder / "answer.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    week = frames.hours_of_week(answer, origin.zone)
    drawn_nodes, begins, did = frames.node_map(answer, name)
    by_day = list(zip(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"), week.tolist(), strict=True))
    head = ["weekday", *(f"{hour:02d}" for hour in range(24))]
    _write_csv(folder / "week.csv", head, ((day, *row) for day, row in by_day))
    by_node = zip(drawn_nodes, did.tolist(), strict=True)
    head = ["node", *(f"{t:.0f}" for t in begins.tolist())]
    _write_csv(folder / "nodes.csv", head, ((node, *row) for node, row in by_node))
    times, holes, drawn = tables["timeline"], tables["holes"], list(answer.scores)[:3]
    page = _template().render(
        answer=answer,
        best=name,
        least_days=MIN_DAYS,
        node_colours=NODE_COLOURS,
        headline=summary.headline(answer),
        key=key,
        trainings=summary.trainings(answer),
        sampled=summary.sampled(answer),
        limits=summary.limits(answer),
        costs=_costs(answer),
        zone=origin.zone,
        week=by_day,
        week_top=float(np.nanmax(week, initial=0.0)) or 1.0,
        hole_lengths=holes["length"].tolist(),
        hole_table=_as_text(tables["holes"]),
        holes=[
            ("idle", holes["node_hours"].tolist()),
            *((f"held ({p})", holes[f"used_{p}"].tolist()) for p in drawn),
        ],
        timeline=[
            ("idle, pilots or not", times["idle"].tolist()),
            *((f"held ({p})", times[f"held_{p}"].tolist()) for p in drawn),
        ],
        ticks=_ticks(answer, origin.zone),
        months=_as_text(tables["months"]),
        policies=summary.table(answer.scores),
        intervals=sure,
        waterfall=summary.waterfall_table(score),
        nodes_drawn=len(drawn_nodes),
        node_map=_picture(did),
        delays=[(p, each.main_delay) for p, each in answer.scores.items() if each.main_delay is not None],
        log=[*_log(answer), *made],
    )
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("malletrain.replay", "report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["digits"] = _digits
    environment.globals["ceiling"] = _ceiling
    return environment.get_template("report.html")


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Packed where the name ends so."""
    with (
        gzip.open(path, "wb", 6) if path.suffix == ".gz" else path.open("wb") as raw,
        TextIOWrapper(raw, "utf-8", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _digits(value: float) -> str:
    """A number of three digits or so, for an axis or a label."""
    if value == 0 or not math.isfinite(value):
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def _ceiling(series: Sequence[tuple[str, Sequence[float]]]) -> float:
    """A round number at or above all values, for the end of an axis."""
    top = max((value for _, values in series for value in values if not math.isnan(value)), default=0.0)
    if not top > 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(top))
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= top * (1 - 1e-9))


def _picture(state: NDArray[np.int8]) -> str:
    """A PNG of one point a cell, as a data URL, in `NODE_COLOURS`."""
    height, width = state.shape
    raw = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in state)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": b"".join(bytes.fromhex(colour[1:]) for colour in NODE_COLOURS.values()),
        b"IDAT": zlib.compress(raw, 9),
        b"IEND": b"",
    }
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _ticks(answer: Replay, zone: tzinfo) -> list[tuple[float, str]]:
    """Six moments of the window, as a share of it and in words."""
    trace = answer.trace
    form = "%Y-%m-%d" if trace.seconds >= 7 * 86_400 else "%m-%d %H:%M"
    shares = [each / 6 for each in range(6)]
    return [(s, datetime.fromtimestamp(trace.start + s * trace.seconds, zone).strftime(form)) for s in shares]


def _as_text(data: frames.ColumnTable) -> list[list[str]]:
    """A table's columns: their names, then rows with numbers of few digits."""
    cells = [
        [each if isinstance(each, str) else f"{each:,.0f}" if abs(each) >= 100 else f"{each:,.1f}" for each in row]
        for row in frames.rows_of(data)
    ]
    return [[name.replace("_", " ") for name in data], *cells]


def _assumed(answer: Replay) -> dict[str, object]:
    """The daemon's rules, the costs and the horizons that were replayed."""
    options = answer.options
    rules = options.rules
    limits = {
        "max_pilots": rules.max_pilots,
        "max_nodes": rules.max_nodes,
        "keep_idle": rules.keep_idle,
        "pilot_minutes": rules.max_pilot_s / 60,
    }
    return {
        "daemon": options.daemon,
        **(limits if options.daemon else {}),
        "tick_s": options.tick_s,
        "horizon_s": {choice.name: choice.horizon_s for choice in answer.choices},
        "activate_grow_shrink_s": _costs(answer),
    }


def _costs(answer: Replay) -> list[tuple[float, float, float]]:
    """What starting, growing and shrinking cost (seconds), each combination once."""
    return sorted({(e.costs.activate_s, e.costs.grow_s, e.costs.shrink_s) for e in answer.jobs})


def _origin(answer: Replay, origin: Origin) -> list[tuple[str, str]]:
    """Where the report comes from: command, version, seed, mix, units."""
    named = answer.trace.names_are_real or answer.trace.account.kind == "node events"
    units = (
        "nodes, by the names that the log gives"
        if named
        else "nodes as counted from the log, which says on how many processors a job ran and not on which nodes "
        "(replay.procs_per_node, --nodes)"
    )
    rows = [("training jobs", origin.mix), ("command", origin.command), ("version", origin.version)]
    return [("counted in", units), ("seed", str(origin.seed)), *((what, value) for what, value in rows if value)]


def _log(answer: Replay) -> list[tuple[str, str]]:
    trace, account = answer.trace, answer.trace.account
    begin, end = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (trace.start, trace.end))
    first = account.first_skipped
    left_out = "; ".join(
        f"{n:,} {reason} (first: line {first.get(reason, 0):,})" for reason, n in account.skipped.items()
    )
    file = Path(account.source).name
    return [
        ("log", f"{file} ({account.kind}), {account.lines:,} lines, {account.records:,} records"),
        ("left out", left_out or "nothing"),
        ("window", f"{begin} to {end} UTC"),
        ("nodes", f"{len(trace.nodes):,}; {len(trace.node):,} changes in {len(trace.time):,} steps"),
        ("training jobs", f"{len(answer.jobs):,}"),
    ]
