"""The report: one HTML file that needs no network, and the data of every plot as CSV beside it."""

from __future__ import annotations

import csv
import html
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from malletrain.replay.report import frames
from malletrain.replay.report.facts import facts
from malletrain.replay.report.intervals import MIN_DAYS
from malletrain.replay.report.summary import best, headline, limits, table
from malletrain.replay.run import Replay
from malletrain.replay.sensitivity import Setting

#: Colour-blind safe (Okabe and Ito, 2008).
MAIN, IDLE, TRAIN, DOWN = "#d9d9d9", "#e69f00", "#009e73", "#555555"
STALL, ACTIVATE = "#cc79a7", "#56b4e9"
_LINES = ("#009e73", "#0072b2", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00")


def write_report(answer: Replay, folder: Path, settings: Sequence[Setting] = ()) -> Path:
    """Writes `folder`/index.html and its CSV files; returns the page's path. `settings`: what came out with other
    assumptions, where that was asked for.

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
        "pilots": frames.pilots(answer, name),
    }
    for title, data in tables.items():
        _write_csv(folder / f"{title}.csv", list(data.columns), data.rows())
    _write_csv(folder / "policies.csv", *_policies(answer))
    _write_csv(folder / "facts.csv", ["what", "value"], list(facts(answer)))
    shares = frames.shares(answer)
    _write_csv(folder / "intervals.csv", list(shares.columns), shares.rows())
    changed = frames.sensitivities(settings)
    if settings:
        _write_csv(folder / "sensitivity.csv", list(changed.columns), changed.rows())
    node_map = frames.node_map(answer, name)
    _write_csv(
        folder / "nodes.csv",
        ["node", *(f"{t:.0f}" for t in node_map.time.tolist())],
        [(node, *row) for node, row in zip(node_map.nodes, node_map.state.tolist(), strict=True)],
    )
    figures = {
        "timeline": _timeline(answer, tables["timeline"]),
        "spending": _spending(tables["spending"]),
        "holes": _holes(answer, tables["holes"]),
        "nodes": _node_map(node_map),
        "jct": _jct(answer),
    }
    page = Template(files("malletrain.replay.report").joinpath("report.html").read_text(encoding="utf-8")).substitute(
        headline=html.escape(headline(answer)),
        policies=_html_table(table(answer.scores)),
        intervals=_intervals(shares),
        warnings=_warnings(answer),
        trace=_trace(answer),
        best=html.escape(name),
        method=_method(answer),
        main_delay=_main_delay(answer),
        sensitivity=_sensitivity(answer, settings),
        plot_sensitivity=_html(_settings(settings), "sensitivity") if settings else "",
        plotly=get_plotlyjs(),
        **{f"plot_{key}": _html(figure, key) for key, figure in figures.items()},
    )
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _policies(answer: Replay) -> tuple[list[str], list[list[Any]]]:
    rows: list[list[Any]] = []
    header: list[str] = []
    for name, score in answer.scores.items():
        data = {k: v for k, v in score.as_json().items() if k not in ("solve_s", "wall_s", "main_delay")}
        if score.main_delay is not None:
            delay = {k: v for k, v in score.main_delay.as_json().items() if k != "assumed"}
            data |= {f"main_delay_{k}": v for k, v in delay.items()}
        header = ["policy", *data]
        rows.append([name, *data.values()])
    return header, rows


# -- figures ---------------------------------------------------------------------------------------------------------


def _times(seconds: Any) -> list[datetime]:
    return [datetime.fromtimestamp(t, UTC).replace(tzinfo=None) for t in seconds.tolist()]


def _base(**layout: Any) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white", margin={"l": 48, "r": 8, "t": 34, "b": 40}, height=400, font={"size": 13},
        legend={"orientation": "h", "y": -0.18, "yanchor": "top", "x": 0}, **layout,
    )  # fmt: skip
    return figure


def _timeline(answer: Replay, data: frames.ColumnTable) -> go.Figure:
    when = _times(data.columns["time"])
    figure = _base(yaxis_title="nodes", hovermode="x unified")
    figure.add_scatter(
        x=when, y=data.columns["idle"].round(1), name="idle, pilots or not", fill="tozeroy",
        line={"color": IDLE, "width": 0}, fillcolor="rgba(230,159,0,.45)",
    )  # fmt: skip
    for i, name in enumerate(answer.scores):
        color = _LINES[i % len(_LINES)]
        shown = True if i == 0 else "legendonly"
        figure.add_scatter(
            x=when, y=data.columns[f"held_{name}"].round(1), name=f"held ({name})", visible=shown,
            line={"color": color, "width": 1.2},
        )  # fmt: skip
        figure.add_scatter(
            x=when, y=data.columns[f"speedup_{name}"].round(1), name=f"worth in nodes ({name})", visible=shown,
            line={"color": color, "width": 1.2, "dash": "dot"},
        )  # fmt: skip
    return figure


def _spending(data: frames.ColumnTable) -> go.Figure:
    figure = _base(barmode="stack", xaxis_title="node-hours")
    names = data.columns["policy"].tolist()
    for key, color in (("productive", TRAIN), ("stalled", STALL), ("activating", ACTIVATE), ("unused", IDLE)):
        figure.add_bar(y=names, x=data.columns[key].round(2), name=key, orientation="h", marker_color=color)
    figure.update_layout(height=200 + 44 * len(names), legend_y=-0.5 / len(names) - 0.2)
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    return figure


def _holes(answer: Replay, data: frames.ColumnTable) -> go.Figure:
    figure = _base(barmode="group", yaxis_title="node-hours", xaxis_title="length of the hole")
    x = data.columns["length"].tolist()
    figure.add_bar(
        x=x, y=data.columns["node_hours"].round(2), name="idle", marker_color=IDLE,
        customdata=data.columns["holes"], hovertemplate="%{y:,.0f} node-hours in %{customdata:,} holes",
    )  # fmt: skip
    for i, name in enumerate(answer.scores):
        figure.add_bar(
            x=x, y=data.columns[f"used_{name}"].round(2), name=f"held ({name})", marker_color=_LINES[i % len(_LINES)]
        )
    figure.update_layout(legend_y=-0.4)
    return figure


def _node_map(data: frames.NodeMap) -> go.Figure:
    figure = _base()
    steps = [MAIN, IDLE, TRAIN, DOWN]
    scale = [[edge / 4, color] for i, color in enumerate(steps) for edge in (i, i + 1)]
    figure.add_heatmap(
        x=_times(data.time), y=data.nodes, z=data.state, zmin=-0.5, zmax=3.5, colorscale=scale,
        colorbar={"tickvals": [0, 1, 2, 3], "ticktext": ["main", "idle", "train", "down"], "thickness": 10},
        hovertemplate="%{y} at %{x}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(height=520)
    figure.update_yaxes(type="category", nticks=12, automargin=True)
    return figure


def _settings(settings: Sequence[Setting]) -> go.Figure:
    figure = _base(xaxis_title="dedicated nodes that would have trained as much")
    for i, what in enumerate(dict.fromkeys(s.what for s in settings)):
        mine = [s for s in settings if s.what == what]
        figure.add_bar(
            y=[[s.what for s in mine], [s.value for s in mine]],
            x=[round(s.score.equivalent_nodes, 3) for s in mine], name=what, orientation="h", showlegend=False,
            marker_color=_LINES[i % len(_LINES)],
            marker_line={"color": "#1a1a1a", "width": [2 if s.asked else 0 for s in mine]},
        )  # fmt: skip
    figure.update_layout(height=160 + 26 * len(settings))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _jct(answer: Replay) -> go.Figure | None:
    figure = _base(xaxis_title="hours from submission to end", yaxis_title="share of jobs done")
    some = False
    for i, (name, result) in enumerate(answer.results.items()):
        hours = np.sort((result.finished - result.submitted)[np.isfinite(result.finished)]) / 3600
        if len(hours):
            some = True
            share = np.arange(1, len(hours) + 1) / len(answer.jobs)
            figure.add_scatter(
                x=hours.round(4), y=share.round(4), name=name, line={"shape": "hv", "color": _LINES[i % len(_LINES)]}
            )
    return figure if some else None


def _html(figure: go.Figure | None, key: str) -> str:
    if figure is None:
        return "<p>No job came to its end: the jobs are endless, or the window too short.</p>"
    text: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"plot-{key}",
        config={"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]},
    )  # fmt: skip
    return text


# -- words -----------------------------------------------------------------------------------------------------------


def _html_table(rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _intervals(shares: frames.ColumnTable) -> str:
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
    words = f"<p>By drawing the window's {rows[0]['days']} days anew; differences pair the same days.</p>"
    return _html_table(said) + words


def _warnings(answer: Replay) -> str:
    warnings = answer.warnings
    if not warnings:
        return ""
    return '<ul class="warnings">' + "".join(f"<li>{html.escape(text)}</li>" for text in warnings) + "</ul>"


def _trace(answer: Replay) -> str:
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
    ]
    body = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in rows[1:])
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def _sensitivity(answer: Replay, settings: Sequence[Setting]) -> str:
    """What came out where one assumption is another, and the rest as asked for."""
    if not settings:
        return "<p>Not asked for: <code>--sensitivity</code> replays a dozen times more.</p>"
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
    return f'<div class="scroll">{_html_table(rows)}</div><p>{html.escape(words)} {link}</p>'


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
    return f'<div class="scroll">{_html_table(rows)}</div><p>{html.escape(words)}</p>'


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
