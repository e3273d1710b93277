"""What a replay did by day adds up to what it did in all, and samples of all days say it exactly."""

from __future__ import annotations

import pytest

from malletrain.replay.options import Options
from malletrain.replay.run import replay
from malletrain.replay.sampling import days
from malletrain.replay.sampling.days import drawn_days
from malletrain.replay.sampling.estimated import known_of
from scripts.bench.sampled_days import FIGURES, by_day, coverage
from tests.replay.small import job
from tests.replay.test_daemon_rules import SHIPPED, TICK_S, busy_machine
from tests.replay.test_parts import AUTO

HOURS = 4


def test_days_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days, "DAY_S", 3600.0)
    machine, jobs = busy_machine(1, seconds=HOURS * 3600), [job(1, most=8), job(2, most=8)]
    answer = replay(machine, jobs, [AUTO], Options.of_daemon(SHIPPED, TICK_S), processes=1)
    result, totals = answer.results["auto"], answer.results["auto"].totals
    all_days = drawn_days(machine, HOURS, 0, TICK_S)
    whole = by_day(result, all_days)
    assert all(len(figure) == len(all_days) == HOURS for figure in whole.values())
    assert whole["trained"].sum() == pytest.approx(totals.speedup)
    assert whole["held"].sum() == pytest.approx(totals.occupied)
    assert whole["starts"].sum() == totals.activations
    known = known_of(machine, answer.jobs, all_days)
    found = coverage(machine, known, whole, HOURS, 2, TICK_S)
    assert list(found) == list(FIGURES)
    for half, error, _ in found.values():
        assert half == 0.0 and error == pytest.approx(0.0, abs=1e-12)
