"""Harvest against the delay of main jobs for a log: laws of the curve, and that later jobs judge it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.cli.replay import replay as command
from malletrain.decide.rules import MainPromise
from malletrain.domain.errors import InvalidInput
from malletrain.replay.cluster_trace import Window, cluster_trace
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.scoring.promise_curve import PromiseCurve, promise_curve
from malletrain.replay.traces.trace import Account, JobRecords
from tests.replay.small import START, changes, trace

DAY_S = 86_400.0
NODES = 16
REACTION = Reaction(epilog_s=10.0)

Job = tuple[float, int, float]  # submission (seconds after START), nodes, run time


def log_of(jobs: Sequence[Job]) -> JobRecords:
    """Jobs that start when they are submitted."""
    rows = sorted(jobs)
    submit = START + np.array([at for at, _, _ in rows])
    end = submit + np.array([length for _, _, length in rows])
    count = np.array([width for _, width, _ in rows], np.int32)
    return JobRecords(
        Account("test", "SWF", len(rows), len(rows)), submit, submit, end, count, np.zeros(len(rows), np.int32), (),
        np.empty(0, np.int64), np.empty(0, np.int32), NODES, None, float(end.max()), np.full(len(rows), np.nan),
    )  # fmt: skip


def curve_of(jobs: Sequence[Job]) -> PromiseCurve:
    log = log_of(jobs)
    return promise_curve(log, cluster_trace(log, Window(node_count=NODES)), None, MainPromise(p95_s=7.0), REACTION)


@given(
    st.lists(
        st.tuples(st.integers(0, int(3 * DAY_S)).map(float), st.integers(1, 6), st.sampled_from([60.0, 7200.0])),
        min_size=8, max_size=80,
    )
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_a_looser_bound_never_costs_more(jobs: list[Job]) -> None:
    curve = curve_of([(0.0, 1, 60.0), *jobs, (3 * DAY_S, 1, 60.0)])
    assert [p.delay_s for p in curve.points] == sorted({7.0, *(p.delay_s for p in curve.points)})
    held = [p.reserve_nodes for p in curve.points]
    left = [p.harvest_share for p in curve.points]
    assert held == sorted(held, reverse=True)
    assert left == sorted(left)
    assert all(0 <= p.harvest_share <= 1 and 0 <= p.kept_share <= 1 for p in curve.points)
    assert curve.points[-1].kept_share == 1.0, "60 s are longer than the reaction and a cycle"
    assert curve.points[-1].harvest_share == 1.0


def test_one_node_an_hour_asks_for_one_node_and_keeps_it() -> None:
    curve = curve_of([(1800.0 * k, 1, 600.0) for k in range(48 * 12)])
    strict = curve.points[0]
    assert curve.arrivals == 576
    assert 280 <= curve.jobs <= 288, "the later half, less the last, unfinished hour"
    assert (strict.reserve_nodes, strict.kept_share) == (1.0, 1.0)
    assert strict.harvest_share == pytest.approx(1 - 1 / (NODES - 1 / 3), abs=0.002), "1 of nearly all 16"


def test_later_jobs_judge_and_are_not_learnt_from() -> None:
    """Twelve nodes are wanted at once in the last hours alone: no reserve foresees it, they are not spared."""
    steady = [(1800.0 * k, 1, 600.0) for k in range(48 * 12)]
    burst = [(11.9 * DAY_S + 60.0 * k, 12, 30.0) for k in range(10)]
    surprised = curve_of([*steady, *burst]).points[0]
    assert surprised.reserve_nodes == pytest.approx(1.0, abs=0.15)
    assert 0.9 < surprised.kept_share < 0.99


def test_a_log_without_jobs_is_refused() -> None:
    machine = trace([(10.0, 0, 1)], 2, 7200.0)
    with pytest.raises(InvalidInput, match="a log of node events has no main jobs"):
        promise_curve(changes([(0.0, 0, 0)], 1), machine, None, MainPromise(), Reaction())


def test_the_command_says_it_with_the_sites_own_bound(tmp_path: Path) -> None:
    rows = [f"{k + 1} {1800 * k} 0 600 1 -1 -1 1 900 -1 1 1 1 1 1 1 -1 -1" for k in range(300)]
    log, site = tmp_path / "log.swf", tmp_path / "malletrain.toml"
    log.write_text("; MaxNodes: 4\n; MaxProcs: 4\n; UnixStartTime: 1700000000\n" + "\n".join(rows) + "\n")
    site.write_text('[promise]\nmain_delay_p95 = "3s"\n[replay]\npromise = true\nprocesses = 1\n')
    done = CliRunner().invoke(
        command, [str(log), "--mix=endless:1", "--config", str(site),
                  "--json", str(tmp_path / "out.json"), "--report", str(tmp_path / "page")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "out.json").read_text())["promise"]
    assert told["chance"] == 0.9
    assert 3.0 in [point["delay_s"] for point in told["points"]]
    assert "95 % of main jobs later by at most" in done.output
    assert "What a promise to the main queue would cost" in (tmp_path / "page" / "index.html").read_text()
