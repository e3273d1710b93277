"""Drawings of the report as SVG within the page: they need no script, and print.

No meaning is by colour alone: bars have a pattern each, lines a dash each, and numbers stand at bars and in cells.
Each drawing has a name for those who do not see it; its figures stand in a table or a CSV file as well.
"""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Colour-blind safe (Okabe and Ito, 2008), of unlike lightness.
MAIN, IDLE, TRAIN, DOWN = "#e6e6e6", "#e69f00", "#00684c", "#1a1a1a"
_SERIES = (IDLE, TRAIN, "#0072b2", "#d55e00", "#cc79a7", "#56b4e9")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "10 4")
_PATTERNS = (
    "", "M0 8L8 0", "M0 0L8 8", "M0 4H8", "M4 0V8", "M0 8L8 0M0 0L8 8",
)  # fmt: skip

WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 8, 34


@dataclass(frozen=True, slots=True)
class Series:
    """One name and its values."""

    name: str
    values: Sequence[float]


def number(value: float) -> str:
    """A number of three digits or so, for an axis or a label."""
    if value == 0 or not math.isfinite(value):
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def lines(key: str, name: str, ticks: Sequence[tuple[float, str]], series: Sequence[Series]) -> str:
    """Values over equal steps: the first series an area, the others lines, which break where a value is nan. `ticks`:
    share of the width, label."""
    known = (value for each in series for value in each.values if not math.isnan(value))
    height, top = 260, _ceiling(max(known, default=0.0))
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    parts = [_y_axis(top, plot_w, plot_h)]
    for share, label in ticks:
        x = _LEFT + share * plot_w
        parts.append(f'<text x="{x:.0f}" y="{height - 14}" text-anchor="middle">{html.escape(label)}</text>')
    for i, each in enumerate(series):
        step = plot_w / max(1, len(each.values) - 1)
        points = [
            f"{_LEFT + at * step:.1f},{_TOP + plot_h * (1 - value / top):.1f}" for at, value in enumerate(each.values)
        ]
        if i == 0 and points:
            floor = f"{_TOP + plot_h}"
            parts.append(
                f'<polygon points="{_LEFT},{floor} {" ".join(points)} {_LEFT + plot_w},{floor}" fill="{IDLE}" '
                'fill-opacity=".45"/>'
            )
        else:
            dash = f' stroke-dasharray="{_DASHES[i % 6]}"' if _DASHES[i % 6] else ""
            parts += [
                f'<polyline points="{" ".join(points[a:b])}" fill="none" stroke="{_SERIES[i % 6]}" '
                f'stroke-width="1.6"{dash}/>'
                for a, b in _known(each.values)
            ]
    legend = "".join(_line_key(i, each.name) for i, each in enumerate(series))
    return _svg(key, name, height, parts) + f'<p class="legend">{legend}</p>'


def _known(values: Sequence[float]) -> list[tuple[int, int]]:
    """First and one past the last of each run of values that are not nan."""
    edge = np.diff(np.concatenate([[False], ~np.isnan(np.asarray(values, float)), [False]]).astype(np.int8))
    return list(zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True))


def steps(key: str, name: str, x_title: str, curves: Sequence[tuple[str, NDArray[np.float64]]]) -> str:
    """Share of jobs done (of `1/len` each) over their hours, a curve a name."""
    far = _ceiling(max((float(hours[-1]) for _, hours in curves if len(hours)), default=0.0))
    height = 220
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    parts = [_y_axis(1.0, plot_w, plot_h)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = _LEFT + share * plot_w
        parts.append(f'<text x="{at:.0f}" y="{height - 18}" text-anchor="middle">{number(share * far)}</text>')
    parts.append(
        f'<text x="{_LEFT + plot_w / 2}" y="{height - 3}" text-anchor="middle">{html.escape(x_title)}</text>'
    )
    for i, (_, hours) in enumerate(curves):
        kept = np.unique(np.linspace(0, len(hours) - 1, min(len(hours), 400)).astype(int)).tolist()
        path = f"M{_LEFT} {_TOP + plot_h}" + "".join(
            f"H{_LEFT + float(hours[k]) / far * plot_w:.1f}V{_TOP + plot_h * (1 - (k + 1) / len(hours)):.1f}"
            for k in kept
        )
        dash = f' stroke-dasharray="{_DASHES[(i + 1) % 6]}"' if _DASHES[(i + 1) % 6] else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{_SERIES[(i + 1) % 6]}" stroke-width="1.6"{dash}/>')
    legend = "".join(_line_key(i + 1, title) for i, (title, _) in enumerate(curves))
    return _svg(key, name, height, parts) + f'<p class="legend">{legend}</p>'


def bars(key: str, name: str, labels: Sequence[str], series: Sequence[Series], *, stacked: bool = False) -> str:
    """Horizontal bars with their numbers, beside each other for each label, or one after the other in one bar."""
    totals = [[each.values[i] for each in series] for i in range(len(labels))]
    top = _ceiling(max((sum(row) if stacked else max(row) for row in totals), default=0.0))
    left, thick = 120, 16
    rows = 1 if stacked else len(series)
    plot_w = WIDTH - left - 70
    parts, y = [], 4
    for label, row in zip(labels, totals, strict=True):
        middle = y + rows * thick / 2 + 4
        parts.append(f'<text x="{left - 6}" y="{middle:.0f}" text-anchor="end">{html.escape(label)}</text>')
        x = float(left)
        for i, value in enumerate(row):
            width = max(0.0, value) / top * plot_w
            at = y if stacked else y + i * thick
            parts.append(_bar(x if stacked else left, at, width, thick - 2, i, key))
            if not stacked:
                parts.append(f'<text x="{left + width + 4:.1f}" y="{at + thick - 5}">{number(value)}</text>')
            x += width
        if stacked:
            parts.append(f'<text x="{x + 4:.1f}" y="{y + thick - 5}">{number(sum(row))}</text>')
        y += rows * thick + 6
    legend = "".join(_bar_key(i, each.name, key) for i, each in enumerate(series))
    return _svg(key, name, y + 2, parts, patterns=len(series)) + f'<p class="legend">{legend}</p>'


def tornado(key: str, name: str, asked: float, rows: Sequence[tuple[str, str, float, str, float]]) -> str:
    """How far `asked` moves: for each assumption (what, its lowest's value, the lowest, its highest's value, the
    highest), widest first. The axis begins near the lowest, not at 0."""
    low, high = min([asked, *(row[2] for row in rows)]), max([asked, *(row[4] for row in rows)])
    room = (high - low) or max(1.0, abs(asked))
    low, high = low - 0.3 * room, high + 0.3 * room
    left, thick = 150, 24
    plot_w = WIDTH - left - _RIGHT

    def at(value: float) -> float:
        return left + (value - low) / (high - low) * plot_w

    parts, y = [], 20
    for what, worst, least, best, most in sorted(rows, key=lambda row: row[2] - row[4]):
        parts.append(f'<text x="{left - 6}" y="{y + 15}" text-anchor="end">{html.escape(what)}</text>')
        parts.append(_bar(at(least), y, max(1.0, at(most) - at(least)), thick - 6, 1, key))
        parts.append(
            f'<text x="{at(least) - 4:.1f}" y="{y + 13}" text-anchor="end">'
            f"{html.escape(worst)}: {number(least)}</text>"
        )
        parts.append(f'<text x="{at(most) + 4:.1f}" y="{y + 13}">{html.escape(best)}: {number(most)}</text>')
        y += thick
    parts.append(
        f'<line x1="{at(asked):.1f}" x2="{at(asked):.1f}" y1="16" y2="{y}" stroke="#1a1a1a" stroke-width="2"/>'
    )
    parts.append(f'<text x="{at(asked):.1f}" y="12" text-anchor="middle">as replayed: {number(asked)}</text>')
    return _svg(key, name, y + 4, parts, patterns=2)


def grid(caption: str, rows: Sequence[str], columns: Sequence[str], values: NDArray[np.float64]) -> str:
    """A heat map that is a table: each cell has its number, and a shade for it."""
    top = float(np.nanmax(values)) if values.size and np.isfinite(values).any() else 0.0
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = []
    for title, row in zip(rows, values.tolist(), strict=True):
        cells = []
        for value in row:
            share = value / top if top > 0 and math.isfinite(value) else 0.0
            ink = "#fff" if share > 0.55 else "#1a1a1a"
            shade = f"background:hsl(163 100% {96 - 76 * share:.0f}%);color:{ink}"
            cells.append(f'<td style="{shade}">{number(value) if math.isfinite(value) else "-"}</td>')
        body.append(f'<tr><th scope="row">{html.escape(title)}</th>{"".join(cells)}</tr>')
    return (
        f'<table class="grid"><caption>{html.escape(caption)}</caption><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def node_map(name: str, state: NDArray[np.int8], ticks: Sequence[tuple[float, str]]) -> str:
    """Nodes down, time across, as a picture of one point a cell: 0 main jobs, 1 idle, 2 training, 3 down."""
    colours = b"".join(bytes.fromhex(colour[1:]) for colour in (MAIN, IDLE, TRAIN, DOWN))
    height, width = state.shape
    raw = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in state)
    png = b"\x89PNG\r\n\x1a\n" + b"".join([
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", colours), _chunk(b"IDAT", zlib.compress(raw, 9)), _chunk(b"IEND", b""),
    ])  # fmt: skip
    text = base64.b64encode(png).decode("ascii")
    under = "".join(f'<span style="left:{share:.1%}">{html.escape(label)}</span>' for share, label in ticks)
    names = zip((MAIN, IDLE, TRAIN, DOWN), ("main jobs", "idle", "training", "down"), strict=True)
    legend = "".join(f'<span><i style="background:{colour}"></i>{title}</span>' for colour, title in names)
    return (
        f'<img class="nodes" id="plot-nodes" alt="{html.escape(name)}" src="data:image/png;base64,{text}">'
        f'<div class="under" aria-hidden="true">{under}</div><p class="legend">{legend}(from light to dark)</p>'
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _svg(key: str, name: str, height: float, parts: Sequence[str], patterns: int = 0) -> str:
    marks = "".join(
        f'<pattern id="{key}-{i}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{_SERIES[i % 6]}"/>'
        f'<path d="{_PATTERNS[i % 6]}" stroke="#fff" stroke-width="1.4"/></pattern>'
        for i in range(patterns)
    )
    inside = f"<defs>{marks}</defs>" if marks else ""
    return (
        f'<svg id="plot-{key}" role="img" aria-label="{html.escape(name)}" viewBox="0 0 {WIDTH} {height:.0f}">'
        f"{inside}{''.join(parts)}</svg>"
    )


def _bar(x: float, y: float, width: float, thick: float, series: int, key: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{thick:.1f}" fill="url(#{key}-{series})" stroke="#1a1a1a" stroke-width=".6"/>'  # noqa: E501


def _bar_key(series: int, name: str, key: str) -> str:
    square = f'<svg width="22" height="12" aria-hidden="true">{_bar(0.5, 0.5, 21, 11, series, key)}</svg>'
    return f"<span>{square}{html.escape(name)}</span>"


def _line_key(series: int, name: str) -> str:
    if series == 0:
        mark = f'<rect width="22" height="12" fill="{IDLE}" fill-opacity=".45"/>'
    else:
        mark = (
            f'<path d="M0 6H22" stroke="{_SERIES[series % 6]}" stroke-width="2" '
            f'stroke-dasharray="{_DASHES[series % 6]}"/>'
        )
    return f'<span><svg width="22" height="12" aria-hidden="true">{mark}</svg>{html.escape(name)}</span>'


def _y_axis(top: float, plot_w: float, plot_h: float) -> str:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + plot_h * (1 - share)
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + plot_w}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(share * top)}</text>')
    return "".join(parts)


def _ceiling(value: float) -> float:
    """A round number at or above `value`, for the end of an axis."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= value * (1 - 1e-9))
