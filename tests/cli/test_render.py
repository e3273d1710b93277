"""What people see, compared with recorded pictures; `UPDATE_GOLDEN=1 pytest tests/cli` records them anew."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli import render
from malletrain.cli.top import _clip
from malletrain.wire.job_columns import count
from malletrain.wire.rows import JobRow, NodeRow, PoolRow, StatusRow
from tests.cli import pictures

GOLDEN = Path(__file__).parent / "golden"

PICTURES: dict[str, Sequence[render.Line]] = {
    "status": render.status(pictures.STATUS, width=120, zone=UTC),
    "status-all-narrow": render.status(pictures.STATUS, width=8, zone=UTC, over=True),
    "status-empty": render.status(StatusRow(pictures.AT, PoolRow()), width=80, zone=UTC),
    "status-fallback-stale": render.status(
        replace(
            pictures.STATUS,
            jobs=(),
            taken_at=pictures.AT - 100,
            decision=replace(pictures.STATUS.decision, status="fallback"),
        ),
        width=80,
        zone=UTC,
    ),
    "job": render.job(pictures.DIGITS, now=pictures.AT, zone=UTC),
    "job-over": render.job(pictures.OVER, now=pictures.AT, zone=UTC),
    "events": [render.event(row, UTC) for row in pictures.EVENTS],
    "usage": render.table(render.USAGE_COLUMNS, pictures.USAGE),
}


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("kind", ["txt", "ansi"])
def test_a_picture_is_the_recorded_one(name: str, kind: str) -> None:
    lines = PICTURES[name]
    # Escape codes are kept in a readable form.
    seen = (render.plain(lines) if kind == "txt" else render.colored(lines).replace("\x1b", "␛")) + "\n"
    file = GOLDEN / f"{name}.{kind}"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(seen)
    assert seen == file.read_text()


def test_the_strip_has_one_block_a_node_in_order() -> None:
    assert render.plain(render.strip(pictures.NODES, width=120)[:1]) == "####ab.:rx~x"


def test_colours_say_nothing_that_letters_do_not() -> None:
    blocks = {render.block(node) for node in pictures.NODES}
    assert len({block.text for block in blocks}) == len(blocks)


def test_two_neighbouring_jobs_look_different() -> None:
    for job in range(1, 200):
        assert render.job_block(job) != render.job_block(job + 1)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (1, "1"),
        (0.5, "0.50"),
        (999, "999"),
        (999.6, "1.00k"),
        (12345, "12.3k"),
        (1e6, "1.00M"),
        (3e15, "3000T"),
    ],
)
def test_counts_in_three_digits(number: float, said: str) -> None:
    assert count(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "0s"), (0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (185, "3m05s"), (3600, "1h00m"), (7800, "2h10m"),
     (86400, "1d00h"), (97200, "1d03h")],
)  # fmt: skip
def test_durations_in_two_units(seconds: float, said: str) -> None:
    assert render.duration(seconds) == said


@given(st.lists(st.tuples(st.text("ab", max_size=9), st.text("cd…", max_size=30)), max_size=5), st.integers(1, 40))
def test_columns_are_aligned_and_no_line_is_wider_than_asked(rows: list[tuple[str, str]], width: int) -> None:
    columns: list[render.Column[tuple[str, str]]] = [
        render.Column(each, itemgetter(at)) for at, each in enumerate("AB")
    ]
    lines = render.table(columns, rows, width=width)
    first = max([1, *(len(a) for a, _ in rows)])
    texts = ["".join(span.text for span in line) for line in lines]
    for text, (a, b) in zip(texts[1:], rows, strict=True):
        assert text[:first] == a.ljust(first)[: len(text)] or not text
        assert len(text) <= max(width, first + 3)
        assert b.startswith(text[first + 2 :].rstrip("…")) or "…" in b


@given(st.integers(0, 60))
def test_a_clipped_line_is_a_prefix(width: int) -> None:
    line = render.event(pictures.EVENTS[1], UTC)
    assert render.plain([_clip(line, width)]) == render.plain([line])[:width].rstrip()


@given(
    st.lists(
        st.builds(NodeRow, st.text(max_size=3), st.sampled_from(["idle", "pilot", "odd"]), st.none() | st.integers())
    ),
    st.lists(st.builds(
        JobRow, st.integers(1, 99), st.text(), st.text(max_size=5), st.just(1), st.just(""), st.text(max_size=5),
        st.just(1), st.just(2), st.just(0.0), reason=st.text(), rate=st.floats(0, 1e12), samples=st.floats(0, 1e18),
        total_samples=st.none() | st.floats(0, 1e18),
    ), max_size=3),
    st.integers(1, 200),
)  # fmt: skip
def test_whatever_the_daemon_says_there_is_a_picture(nodes: list[NodeRow], jobs: list[JobRow], width: int) -> None:
    picture = StatusRow(0.0, PoolRow(), tuple(nodes), tuple(jobs), taken_at=0.0)
    text = render.plain(render.status(picture, width=width, zone=UTC))
    assert text.startswith("1970-01-01 00:00:00")
    assert all(line.isprintable() for line in text.split("\n"))
