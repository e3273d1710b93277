"""The waterfall of a journal: its parts add up to the idle time, whatever pilots did in it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.event import (
    Event,
    GenerationSwitched,
    HolesEnded,
    HolesOpened,
    PilotEnded,
    PilotStarted,
    WorkerLeft,
    WorkerWarm,
)
from malletrain.replay.scoring.journal_waterfall import PilotSpan, Span, journal_waterfall, waterfall_of


def test_each_part_of_a_hole_counts_where_it_went() -> None:
    events = [
        Event(0.0, HolesOpened(("n1", "n2"))),
        Event(12.0, PilotStarted(started_at=10.0), 1, "9_0", "n1"),
        Event(14.0, WorkerWarm(), 1, "9_0"),
        Event(50.0, GenerationSwitched(generation=2, nodes=1, pause_s=2.0), 1, "9_0", "n1"),
        Event(60.0, WorkerLeft(), 1, "9_0"),
        Event(61.0, PilotEnded(), 1, "9_0", "n1"),
        Event(70.0, PilotStarted(started_at=70.0), 1, "9_1", "n1"),
        Event(75.0, PilotEnded(), 1, "9_1", "n1"),
        Event(90.0, HolesEnded(("n1",), taken=True)),
    ]
    fall = journal_waterfall(events, (0.0, 100.0))
    assert (fall.new_holes, fall.between_pilots, fall.wanted_soon) == (10.0, 10.0, 15.0 + 100.0)
    assert (fall.lost_activation, fall.activation, fall.stalls, fall.productive) == (5.0, 4.0, 2.0, 44.0)
    assert fall.total == 190.0
    kept = journal_waterfall(events, (0.0, 100.0), keep_idle=1)
    assert (kept.reserve, kept.total) == (100.0, 190.0), "n2 is the reserve"


SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50), st.floats(0, 20)), max_size=6)


@given(st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), SPANS), SPANS, st.integers(0, 3))
def test_the_parts_add_up_to_the_idle_time(
    drawn: dict[str, list[tuple[float, float, float]]], pilots: list[tuple[float, float, float]], keep: int
) -> None:
    holes: dict[str, list[Span]] = {}
    for node, spans in drawn.items():
        at = 0.0
        for gap, lasts, _ in spans:
            holes.setdefault(node, []).append((at + gap, at + gap + lasts))
            at += gap + lasts
    found = [PilotSpan("n1", a, a + lasts, a + warm) for a, lasts, warm in pilots]
    window = (20.0, 150.0)
    fall = waterfall_of(holes, found, [], window, keep)
    idle = sum(max(0.0, min(b, 150.0) - max(a, 20.0)) for spans in holes.values() for a, b in spans)
    assert math.isclose(fall.total, idle, abs_tol=1e-6)
    assert min(seconds for _, _, seconds in fall.rows()) >= -1e-9
