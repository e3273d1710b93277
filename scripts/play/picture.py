"""The picture of a play: who had which node when, and a resized job's loss beside that of the same run on one node.

SVG, without anything to install: any browser shows it, and so does a README.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from malletrain.wire.rows import StatusRow

_WIDTH, _LEFT, _RIGHT, _ROW = 960.0, 60.0, 20.0, 18.0
_CURVE_HEIGHT = 220.0

#: Okabe and Ito's palette; a trial has its number on its bar, too.
_JOB, _TRIALS = "#0072b2", ("#009e73", "#d55e00", "#8a6d00", "#a6527f")
_MAIN, _IDLE = "#555555", "#eeeeee"

#: On a dark page: what is drawn in ink or paper changes, bars of jobs keep their colours.
_DARK = (
    "<style>@media (prefers-color-scheme: dark) { text:not([fill]) { fill: #e6edf3 } "
    "rect[fill='white'] { fill: #0d1117 } "
    f"rect[fill='{_IDLE}'] {{ fill: #30363d }} [stroke='{_MAIN}'] {{ stroke: #b6c0ca }} }}</style>"
)

_EPOCH = re.compile(r"^epoch (\d+): .*'loss': ([0-9.eE+-]+)", re.MULTILINE)

#: (x, loss) points.
Curve = Sequence[tuple[float, float]]


@dataclass(slots=True)
class Strip:
    """Who had which node at each look: a job's number, `main`, or nothing."""

    looks: list[tuple[float, dict[str, str]]] = field(default_factory=list)

    def look(self, at: float, seen: StatusRow) -> None:
        """Take in one status, `at` seconds from the beginning."""
        self.looks.append((at, {node.name: _owner(node.state, node.job) for node in seen.nodes}))

    def bars(self) -> Iterator[tuple[str, str, float, float]]:
        """(node, owner, from, to) for each stretch of time in which a node had one owner; idle ones are left out."""
        begun: dict[str, tuple[str, float]] = {}
        for at, owners in self.looks:
            for node, owner in owners.items():
                had, since = begun.get(node, ("", at))
                if had != owner:
                    if had:
                        yield node, had, since, at
                    begun[node] = (owner, at)
        if self.looks:
            end = self.looks[-1][0]
            yield from ((node, owner, since, end) for node, (owner, since) in begun.items() if owner and end > since)


def _owner(state: str, job: int | None) -> str:
    if job is not None and state == "pilot":
        return str(job)
    return "" if state in ("idle", "planned") else "main"


def printed_curve(text: str, samples_of_epoch: float) -> list[tuple[float, float]]:
    """(samples, loss) from what an example of digits prints."""
    return [(int(epoch) * samples_of_epoch, float(loss)) for epoch, loss in _EPOCH.findall(text)]


def largest_difference(one: Curve, other: Curve) -> float | None:
    """Between the losses of two curves where both have a point; None: they have none in common."""
    there = {round(at): loss for at, loss in other}
    found = [abs(loss - there[round(at)]) for at, loss in one if round(at) in there]
    return max(found) if found else None


def svg(
    strip: Strip, job: tuple[str, str], trials: Mapping[str, str], resized: Curve, static: Curve, title: str
) -> str:
    """The whole picture.

    Args:
        strip: who had which node when.
        job: number and name of the job whose curves are drawn, in (samples, loss).
        trials: what stands on the bars of the other jobs, by number.
        resized: the job's curve.
        static: the same of its run on one node.
        title: of the picture.
    """
    nodes = sorted({node for _, owners in strip.looks for node in owners})
    end = strip.looks[-1][0] if strip.looks else 1.0
    across = (_WIDTH - _LEFT - _RIGHT) / max(end, 1e-9)
    number, name = job
    colour = {trial: _TRIALS[i % len(_TRIALS)] for i, trial in enumerate(trials)} | {number: _JOB}
    label = {**trials, number: name}
    top = 60.0
    bottom = top + _ROW * len(nodes)
    height = bottom + 90 + _CURVE_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        _DARK,
        f'<rect width="{_WIDTH:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    x = _LEFT
    legend = [(_JOB, name), (_TRIALS[0], "trials of a search"), (_MAIN, "main queue"), (_IDLE, "idle")]
    for fill, words in legend:
        lines.append(f'<rect x="{x:.0f}" y="32" width="12" height="12" fill="{fill}"/>')
        lines.append(f'<text x="{x + 17:.0f}" y="42">{escape(words)}</text>')
        x += 40 + 7 * len(words)
    for i, node in enumerate(nodes):
        y = top + i * _ROW
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 13:.0f}" text-anchor="end">{escape(node)}</text>')
        lines.append(
            f'<rect x="{_LEFT}" y="{y:.0f}" width="{end * across:.1f}" height="{_ROW - 2:.0f}" fill="{_IDLE}"/>'
        )
    for node, owner, since, until in strip.bars():
        y, width = top + nodes.index(node) * _ROW, (until - since) * across
        at = _LEFT + since * across
        lines.append(
            f'<rect x="{at:.1f}" y="{y:.0f}" width="{width:.1f}" height="{_ROW - 2:.0f}" '
            f'fill="{colour.get(owner, _MAIN)}"/>'
        )
        if owner in label and width > 6 + 8 * len(label[owner]):
            lines.append(f'<text x="{at + 3:.1f}" y="{y + 12:.0f}" fill="white">{escape(label[owner])}</text>')
    for second in range(0, int(end) + 1, 30):
        at = _LEFT + second * across
        lines.append(f'<text x="{at:.0f}" y="{bottom + 14:.0f}" text-anchor="middle">{second} s</text>')
    lines += _curves(bottom + 50, resized, static, name)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _curves(top: float, resized: Curve, static: Curve, name: str) -> Iterator[str]:
    points = [*resized, *static]
    if not resized or not static or max(at for at, _ in points) <= 0:
        return
    most, highest = max(at for at, _ in points), max(loss for _, loss in points)
    across, up = (_WIDTH - _LEFT - _RIGHT) / most, _CURVE_HEIGHT / highest

    def path(curve: Curve) -> str:
        return " ".join(f"{_LEFT + at * across:.1f},{top + _CURVE_HEIGHT - loss * up:.1f}" for at, loss in curve)

    yield f'<text x="{_LEFT}" y="{top - 8:.0f}">loss of {escape(name)} on the test set, over samples: '
    yield "resized (line), and the same run on one node (dots)</text>"
    floor = top + _CURVE_HEIGHT
    yield f'<path d="M{_LEFT},{top:.0f} V{floor:.0f} H{_WIDTH - _RIGHT}" fill="none" stroke="#999"/>'
    yield f'<text x="{_LEFT - 8}" y="{top + 10:.0f}" text-anchor="end">{highest:.2g}</text>'
    yield f'<text x="{_LEFT - 8}" y="{floor:.0f}" text-anchor="end">0</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{floor + 16:.0f}" text-anchor="end">{most:.0f} samples</text>'
    yield f'<polyline points="{path(resized)}" fill="none" stroke="{_JOB}" stroke-width="2"/>'
    for at, loss in static:
        x, y = _LEFT + at * across, top + _CURVE_HEIGHT - loss * up
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="none" stroke="{_MAIN}"/>'
