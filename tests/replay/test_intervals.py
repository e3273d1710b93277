"""Intervals of shares: by whole days, paired, and told in the report only where there are days enough."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings

from malletrain.domain.job import ResizeCosts
from malletrain.replay import parse_policy, replay
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.report.intervals import MIN_DAYS, by_day, intervals
from malletrain.replay.report.page import write_report
from malletrain.replay.run import Replay
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.replay.workload import TrainingJob
from tests.replay.small import job, trace, traces, workloads

DAY = 86_400.0
POLICIES = [parse_policy(name, None) for name in ("auto", "equal", "exact")]
COSTS = ResizeCosts(5.0, 60.0, 60.0)


def answered(days: int) -> Replay:
    """Each day other nodes idle, for other times: shares differ by day."""
    rows = [(DAY * d + 3600.0 * n, n, IDLE) for d in range(days) for n in range(4)]
    rows += [(DAY * d + 3600.0 * (n + 1 + d % 3) + 900.0 * d, n, BUSY) for d in range(days) for n in range(4)]
    jobs = [job(1, costs=COSTS, most=3), job(2, costs=COSTS), job(3, costs=COSTS, least=2)]
    return replay(trace(rows, 4, DAY * days), jobs, POLICIES, processes=1)


@settings(max_examples=25)
@given(machine=traces(), jobs=workloads())
def test_the_same_policy_differs_by_nothing_and_shares_lie_in_their_intervals(
    machine: ClusterTrace, jobs: list[TrainingJob]
) -> None:
    answer = replay(machine, jobs, POLICIES, processes=1)
    found = intervals(answer, day_s=600.0)
    assert len(found) in (0, 3)
    for each in found:
        trained, best, _ = by_day(machine.start, machine.end, answer.results[each.policy], 600.0)
        score = answer.scores[each.policy]
        assert trained.sum() == pytest.approx(score.speedup_node_seconds)
        assert best.sum() == pytest.approx(score.ideal_speedup_node_seconds)
        assert each.share == pytest.approx(score.share_of_ideal)
        assert -1e-9 <= each.low <= each.high <= 1 + 1e-9
        assert each.difference_low - 1e-9 <= each.difference_high + 1e-9
        if each.policy in ("auto", "exact"):  # the same sizes by other names
            assert (each.difference, each.difference_low, each.difference_high) == (0.0, 0.0, 0.0)


def test_days_that_are_alike_leave_nothing_open_and_others_do() -> None:
    alike = trace([(DAY * d + at, n, state) for d in range(6) for n in range(2)
                   for at, state in ((100.0 * n, IDLE), (5000.0, BUSY))], 2, 6 * DAY)  # fmt: skip
    for each in intervals(replay(alike, [job(costs=COSTS)], POLICIES, processes=1)):
        assert each.low == pytest.approx(each.share) == pytest.approx(each.high)
    auto, equal, _ = intervals(answered(6))
    assert (auto.days, equal.days) == (6, 6)
    assert auto.low < auto.share < auto.high
    assert equal.difference < 0


@pytest.mark.parametrize("days", [MIN_DAYS - 1, MIN_DAYS])
def test_the_report_tells_them_where_there_are_days_enough(days: int, tmp_path: Path) -> None:
    answer = answered(days)
    page = write_report(answer, tmp_path).read_text(encoding="utf-8")
    part = page.partition('id="intervals">')[2].partition("</div>")[0]
    rows = json.loads((tmp_path / "answer.json").read_text())["intervals"]
    assert len(rows) == (0 if days < MIN_DAYS else 3)
    assert ("too short" in part) == (days < MIN_DAYS)
    known = {round(float(cell), 4) for row in rows for name, cell in row.items() if name not in ("policy", "days")}
    for told in re.findall(r"[+-]?\d+\.\d+%", part):
        assert any(abs(float(told[:-1]) / 100 - each) <= 1e-4 for each in known), told
