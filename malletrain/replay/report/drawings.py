"""Where the marks of the report's drawings stand; `report.html` draws them, as SVG that needs no script and prints.

No meaning is by colour alone: bars have a pattern each, lines a dash each, and numbers stand at bars and in cells.
Each drawing has a name for those who do not see it; its figures stand in a table or a CSV file as well.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

#: Colour-blind safe (Okabe and Ito, 2008), of unlike lightness.
MAIN, IDLE, TRAIN, DOWN = "#e6e6e6", "#e69f00", "#00684c", "#1a1a1a"
#: Of each series: colour, dash of its line, pattern of its bar.
STYLES = (
    (IDLE, "", ""), (TRAIN, "6 3", "M0 8L8 0"), ("#0072b2", "2 3", "M0 0L8 8"), ("#d55e00", "8 3 2 3", "M0 4H8"),
    ("#cc79a7", "1 4", "M4 0V8"), ("#56b4e9", "10 4", "M0 8L8 0M0 0L8 8"),
)  # fmt: skip

WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 8, 34


@dataclass(frozen=True, slots=True)
class Series:
    """One name and its values."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Text:
    """Words at a point; `anchor` as in SVG."""

    x: float
    y: float
    words: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in the style of a series."""

    x: float
    y: float
    width: float
    height: float
    series: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line through `points` ("x,y x,y ...") in the style of a series; that of series 0 is an area."""

    points: str
    series: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line of the axes."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(slots=True)
class Drawing:
    """What is drawn, under a name for those who do not see it. `legend`: names of series, by number; their keys are
    bars where there are bars."""

    key: str
    name: str
    height: float
    texts: list[Text] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    legend: list[tuple[int, str]] = field(default_factory=list)


def number(value: float) -> str:
    """A number of three digits or so, for an axis or a label."""
    if value == 0 or not math.isfinite(value):
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def lines(key: str, name: str, ticks: Sequence[tuple[float, str]], series: Sequence[Series]) -> Drawing:
    """Values over equal steps: the first series an area, the others lines, which break where a value is nan. `ticks`:
    share of the width, label."""
    known = (value for each in series for value in each.values if not math.isnan(value))
    top = _ceiling(max(known, default=0.0))
    drawing, plot_w, plot_h = _plot(key, name, 260, top)
    drawing.texts += [Text(_LEFT + share * plot_w, 246, label, "middle") for share, label in ticks]
    for i, each in enumerate(series):
        step = plot_w / max(1, len(each.values) - 1)
        points = [
            f"{_LEFT + at * step:.1f},{_TOP + plot_h * (1 - value / top):.1f}" for at, value in enumerate(each.values)
        ]
        if i == 0 and points:
            floor = _TOP + plot_h
            points = [f"{_LEFT},{floor}", *points, f"{_LEFT + plot_w},{floor}"]
            drawing.lines.append(Line(" ".join(points), 0))
        else:
            drawing.lines += [Line(" ".join(points[a:b]), i) for a, b in _known(each.values)]
    drawing.legend = [(i, each.name) for i, each in enumerate(series)]
    return drawing


def _known(values: Sequence[float]) -> list[tuple[int, int]]:
    """First and one past the last of each run of values that are not nan."""
    edge = np.diff(np.concatenate([[False], ~np.isnan(np.asarray(values, float)), [False]]).astype(np.int8))
    return list(zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True))


def bars(key: str, name: str, labels: Sequence[str], series: Sequence[Series]) -> Drawing:
    """Horizontal bars with their numbers, beside each other for each label."""
    top = _ceiling(max((value for each in series for value in each.values), default=0.0))
    left, thick, y = 120, 16, 4
    drawing = Drawing(key, name, len(labels) * (len(series) * thick + 6) + 6)
    for at, label in enumerate(labels):
        drawing.texts.append(Text(left - 6, y + len(series) * thick / 2 + 4, label, "end"))
        for i, each in enumerate(series):
            width = max(0.0, each.values[at]) / top * (WIDTH - left - 70)
            drawing.bars.append(Bar(left, y + i * thick, width, thick - 3, i))
            drawing.texts.append(Text(left + width + 4, y + i * thick + thick - 5, number(each.values[at])))
        y += len(series) * thick + 6
    drawing.legend = [(i, each.name) for i, each in enumerate(series)]
    return drawing


@dataclass(frozen=True, slots=True)
class ShadedCell:
    """A cell of a heat map: its number, and a shade for it (lightness in %, and whether the ink is white)."""

    words: str
    lightness: int
    white: bool


def shaded(values: NDArray[np.float64]) -> Iterator[list[ShadedCell]]:
    """The rows of a heat map that is a table."""
    top = float(np.nanmax(values)) if values.size and np.isfinite(values).any() else 0.0
    for row in values.tolist():
        shares = [value / top if top > 0 and math.isfinite(value) else 0.0 for value in row]
        yield [
            ShadedCell(number(value) if math.isfinite(value) else "-", round(96 - 76 * share), share > 0.55)
            for value, share in zip(row, shares, strict=True)
        ]


def picture(state: NDArray[np.int8]) -> str:
    """A PNG of one point a cell, as a data URL: 0 main jobs, 1 idle, 2 training, 3 down."""
    colours = b"".join(bytes.fromhex(colour[1:]) for colour in (MAIN, IDLE, TRAIN, DOWN))
    height, width = state.shape
    raw = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in state)
    png = b"\x89PNG\r\n\x1a\n" + b"".join([
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", colours), _chunk(b"IDAT", zlib.compress(raw, 9)), _chunk(b"IEND", b""),
    ])  # fmt: skip
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _plot(key: str, name: str, height: float, top: float) -> tuple[Drawing, float, float]:
    """A drawing with a y axis from 0 to `top`, and how wide and high its plot is."""
    plot_w, plot_h = WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    drawing = Drawing(key, name, height)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + plot_h * (1 - share)
        drawing.rules.append(Rule(_LEFT, y, _LEFT + plot_w, y))
        drawing.texts.append(Text(_LEFT - 6, y + 4, number(share * top), "end"))
    return drawing, plot_w, plot_h


def _ceiling(value: float) -> float:
    """A round number at or above `value`, for the end of an axis."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= value * (1 - 1e-9))
