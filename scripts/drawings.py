"""The drawings of the documents, as SVG for light and dark pages.

    python -m scripts.drawings [--folder DIR]     writes architecture.svg, hole.svg, ... (docs/pictures)

Times are those of the daemon's defaults and the medians of docs/explanation/elastic.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from malletrain.config import Config

FOLDER = Path(__file__).resolve().parents[1] / "docs/pictures"

#: Okabe and Ito's palette for bars; ink follows the page.
_STYLE = """\
text { fill: #1f2328; font: 13px sans-serif } .note { fill: #59636e; font-size: 12px } .in { fill: #fff }
.main { fill: #555f69 } .train { fill: #0072b2 } .ready { fill: #b35c00 } .plan { fill: #00795a }
.pause { fill: #9b4f80 }
.line, .box { stroke: #59636e; fill: none } .mark { stroke: #59636e; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9aa5b1 } .in { fill: #fff }
  .line, .box, .mark { stroke: #9aa5b1 } .main { fill: #6b7783 }
}"""

_LEFT, _WIDTH, _LANE = 130.0, 860.0, 34.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time in a lane: begin and end, its kind (a class of the style) and what stands in it."""

    begin: float
    end: float
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, with what happens then."""

    at: float
    text: str


def timeline(
    about: str, end: float, unit: str, lanes: Sequence[tuple[str, Sequence[Bar]]], marks: Sequence[Mark]
) -> str:
    """Lanes over time from 0 to `end`, and below them the marks, one a line."""
    below = 16 + _LANE * len(lanes)
    height = below + 18 * len(marks) + 24
    scale = (_WIDTH - _LEFT - 20) / end

    def parts() -> Iterator[str]:
        for number, mark in enumerate(marks, 1):
            x = _LEFT + mark.at * scale
            yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{below:.0f}"/>'
            yield f'<text class="note" x="{x:.1f}" y="{below + 12:.0f}" text-anchor="middle">{number}</text>'
            words = f"{number}. At {mark.at:g} {unit}: {mark.text}"
            yield f'<text class="note" x="{_LEFT}" y="{below + 16 + 18 * number:.0f}">{escape(words)}</text>'
        for number, (name, bars) in enumerate(lanes):
            y = 12 + _LANE * number
            yield f'<text x="{_LEFT - 10}" y="{y + 18:.1f}" text-anchor="end">{escape(name)}</text>'
            for bar in bars:
                x, width = _LEFT + bar.begin * scale, (bar.end - bar.begin) * scale
                yield f'<rect class="{bar.kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="26" rx="3"/>'
                if 7 * len(bar.text) < width:
                    yield f'<text class="in" x="{x + 6:.1f}" y="{y + 18:.1f}">{escape(bar.text)}</text>'

    return _svg(about, height, parts())


def _svg(about: str, height: float, parts: Iterator[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(about, quote=True)}">\n<style>\n{_STYLE}\n</style>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def hole() -> str:
    tick = Config().loop.tick_s / 60
    opens, starts, ends = 2.0, 2.0 + tick, 14.0
    return timeline(
        "One hole: a main job ends, and a pilot trains until just before the next main job",
        20.0,
        "min",
        [
            ("node", [Bar(0, opens, "main", "main job"), Bar(ends, 20, "main", "next main job")]),
            ("Slurm's plan", [Bar(opens, 8, "plan", "wanted at 18 min"),
                              Bar(8.05, ends, "plan", "wanted at 14 min")]),
            ("pilot's limit", [Bar(starts, 8, "pause", "ends at 17.5 min"),
                               Bar(8.05, ends - 0.5, "pause", "cut to 13.5 min")]),
            ("pilot", [Bar(starts, 3, "ready"),
                       Bar(3, ends - 0.55, "train", "trains with the job's other nodes")]),
        ],
        [
            Mark(opens, "a hole opens; the next poll pins, limits and releases a task"),
            Mark(3, "the worker is warm, and joins between two steps"),
            Mark(8, "another job ends early: the plan moves forward, and the limit is cut"),
            Mark(ends - 0.5, "the worker has left in order; the others train on"),
        ],
    )  # fmt: skip


def resize() -> str:
    old, new = "generation 1 trains", "generation 2 trains"
    return timeline(
        "One resize: two workers train on until the third is ready, and all switch between two steps",
        11.0,
        "s",
        [
            ("worker A", [Bar(0, 8.6, "train", old), Bar(8.74, 11, "train", new)]),
            ("worker B", [Bar(0, 8.6, "train", old), Bar(8.74, 11, "train", new)]),
            ("new group", [Bar(7.4, 8.6, "plan", "connects")]),
            ("worker C", [Bar(0.6, 7.2, "ready", "imports, builds its model, warms up"),
                          Bar(8.74, 11, "train", new)]),
        ],
        [
            Mark(0.6, "Slurm starts the pilot"),
            Mark(7.2, "C is warm; the daemon publishes generation 2"),
            Mark(8.6, "all are ready, as the control vector says: C gets the state, a pause of .14 s"),
        ],
    )  # fmt: skip


def recovery() -> str:
    first = Bar(0, 0.2, "train", "step 8")
    again = [Bar(0.2, 0.33, "pause", "regroups"), Bar(0.33, 0.47, "train", "step 8 again")]
    survivor = [first, *again, Bar(0.475, 0.6, "train", "step 9")]
    return timeline(
        "A world's recovery: one of three workers dies, and the others repeat the step with the same batch",
        0.6,
        "s",
        [
            ("worker A", survivor),
            ("worker B", survivor),
            ("worker C", [first]),
        ],
        [
            Mark(0.2, "C is killed: backward() of A and B stops, and nothing of the step is committed"),
            Mark(0.33, "the daemon has named the survivors; they compare states and hand on sums"),
            Mark(0.47, "the same batch, now over two workers, is committed"),
        ],
    )  # fmt: skip


def architecture() -> str:
    def box(x: float, y: float, width: float, *lines: str, height: float = 48) -> Iterator[str]:
        yield f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
        for number, line in enumerate(lines):
            kind = ' class="note"' if number else ""
            place = f'x="{x + width / 2}" y="{y + 20 + 18 * number}" text-anchor="middle"'
            yield f"<text{kind} {place}>{escape(line)}</text>"

    def arrow(x1: float, y1: float, x2: float, y2: float, text: str = "", shift: float = 6) -> Iterator[str]:
        yield f'<line class="line" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#a)"/>'
        if text:
            yield f'<text class="note" x="{(x1 + x2) / 2 + shift}" y="{(y1 + y2) / 2 + 4}">{escape(text)}</text>'

    def parts() -> Iterator[str]:
        yield '<marker id="a" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        yield '<path class="line" d="M0,0 L8,4 L0,8"/></marker>'
        yield from box(20, 12, 230, "rigid jobs, unchanged", "sbatch")
        yield from box(330, 12, 200, "Slurm", "decides who runs")
        yield from box(610, 12, 230, "malleable jobs", "mtbatch --nodes=1-16 train.sh")
        yield from arrow(250, 36, 330, 36)
        yield from arrow(610, 36, 530, 36, "", 0)
        yield '<text class="note" x="570" y="28" text-anchor="middle">held array</text>'
        yield from arrow(390, 60, 390, 128, "nodes, queue, plans", -118)
        yield from arrow(470, 128, 470, 60, "pin, limit, release")
        yield from box(130, 128, 600, "malletraind", "poll → holes → yield first → sizes (MILP) → placement → act")
        for number, (node, what) in enumerate(
            [("node 3", "trains"), ("node 5", "trains"), ("node 8", "trains"), ("node 9", "warms up, then joins")]
        ):
            x = 60 + number * 190
            yield from box(x, 232, 170, f"pilot on {node}", what)
            yield from arrow(x + 85, 176, x + 85, 232, "next world" if number == 3 else "")
        yield '<path class="line" d="M145,280 v14 h380 v-14 M335,280 v14"/>'
        words = "one world, which sums gradients in every step"
        yield f'<text class="note" x="335" y="312" text-anchor="middle">{words}</text>'

    return _svg("Slurm, the daemon, and pilots whose workers train as one world", 324, parts())


def main(argv: Sequence[str] | None = None) -> None:
    """Write the drawings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (architecture, hole, resize, recovery):
        (folder / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
