"""The waterfall of idle node-time: its parts add up to all of it, and each goes where its cause is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.cli import replayed_site
from malletrain.replay import run
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.result import Totals
from malletrain.replay.sizer import parse_policy
from malletrain.replay.traces.trace import BUSY, IDLE
from tests.replay import small

RULES = replayed_site.replayed_rules(replayed_site.site_of(None).config)
DAEMON = Options.of_daemon(RULES, 10.0)


def waterfall(trace: ClusterTrace, options: Options, *, most: int = 64) -> tuple[dict[str, float], float]:
    """The parts, and the idle node-seconds."""
    answer = run.replay(
        trace, [small.job(most=most, costs=small.FREE)], [parse_policy("auto", None)], options, None, 1
    )
    score = answer.scores["auto"]
    assert score.waterfall is not None
    return score.waterfall, score.idle_node_seconds


@given(
    small.traces(), st.booleans(), st.integers(0, 3), st.integers(1, 6), st.integers(1, 6),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_the_parts_add_up_to_the_idle_time(trace: ClusterTrace, ideal: bool, keep: int, cap: int, most: int) -> None:
    options = Options() if ideal else small.with_rules(DAEMON, keep_idle=keep, max_pilots=cap)
    parts, idle = waterfall(trace, options, most=most)
    assert sum(parts.values()) == pytest.approx(idle, rel=1e-9, abs=1e-6)
    assert min(parts.values()) >= -1e-6


def test_each_part_goes_where_its_cause_is() -> None:
    trace = small.trace([(5.0, n, IDLE) for n in range(6)], 6, 1005.0)
    options = small.with_rules(DAEMON, keep_idle=1, max_pilots=3, max_nodes=1)
    parts, idle = waterfall(trace, options)
    assert idle == 6000.0
    assert parts["new_holes"] == pytest.approx(25.0), "5 nodes until the look 5 s later; the sixth is the reserve"
    assert parts["reserve"] == 1000.0
    assert parts["cap"] == pytest.approx(2 * 995.0)
    assert parts["productive"] == pytest.approx(3 * 995.0)


def test_nodes_that_no_job_is_sized_for_and_pilots_that_end_cold() -> None:
    trace = small.trace([(0.0, 0, IDLE), (0.0, 1, IDLE), (12.0, 0, BUSY)], 2, 100.0)
    job = small.job(most=1, costs=replace(small.FREE, activate_s=20.0))
    options = small.with_rules(DAEMON, keep_idle=0)
    answer = run.replay(trace, [job], [parse_policy("auto", None)], options, None, 1)
    parts = answer.scores["auto"].waterfall
    assert parts is not None
    assert parts["no_job"] > 0
    spent = ("lost_activation", "activation", "productive", "no_job", "new_holes", "between_pilots")
    assert sum(parts[name] for name in spent) == pytest.approx(112.0)


@given(st.integers(0, 50), st.dictionaries(st.sampled_from(["reserve", "cap", "new_holes"]), st.integers(0, 60)))
def test_no_node_counts_twice(unheld: int, counts: dict[str, int]) -> None:
    totals = Totals(0)
    totals.add_unheld(2.0, unheld, **counts)
    assert sum(totals.unheld.values()) == 2.0 * unheld
