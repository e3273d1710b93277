"""A replay in parts comes to what one without a break does, whatever replays it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from malletrain.domain.job import ResizeCosts
from malletrain.replay import parts
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.result import Result
from malletrain.replay.run import Replay, replay
from malletrain.replay.sizer import parse_policy
from tests.replay.small import job
from tests.replay.test_daemon_rules import SHIPPED, TICK_S, busy_machine

AUTO = parse_policy("auto", None)
OPTIONS = Options.of_daemon(replace(SHIPPED, max_nodes=4, max_pilots=9, max_pilot_s=900.0), TICK_S)
JOBS = [job(n + 1, costs=ResizeCosts(), most=16) for n in range(4)]


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parts of an hour, with a run-in of half of one."""
    monkeypatch.setattr(parts, "PART_S", 3600.0)
    monkeypatch.setattr(parts, "RUN_IN_S", 1800.0)
    yield


def replayed(machine: ClusterTrace, processes: int = 1, options: Options = OPTIONS) -> Replay:
    return replay(machine, JOBS, [AUTO], options, processes=processes)


def test_parts_come_to_what_the_whole_does(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = busy_machine(4, seconds=4 * 3600)
    whole = replayed(machine).results["auto"]
    monkeypatch.setattr(parts, "PART_S", 3600.0)
    monkeypatch.setattr(parts, "RUN_IN_S", 1800.0)
    result = replayed(machine).results["auto"]
    one, other = whole.totals, result.totals
    assert other.idle == pytest.approx(one.idle)
    assert other.ideal == pytest.approx(one.ideal)
    assert other.speedup == pytest.approx(one.speedup, rel=0.01)
    assert other.occupied == pytest.approx(one.occupied, rel=0.01)
    assert sum(other.unheld.values()) == pytest.approx(other.idle - other.occupied)
    _adds_up(result, machine)


def _adds_up(result: Result, machine: ClusterTrace) -> None:
    log = result.log
    assert float((log.pilots.rows().end - log.pilots.rows().start).sum()) == pytest.approx(result.totals.occupied)
    assert result.samples.sum() == pytest.approx(10.0 * result.totals.speedup)
    for column in (log.time, log.trained, log.best):
        assert (np.diff(column) >= 0).all()
    assert log.trained[-1] <= result.totals.speedup
    assert machine.start <= log.pilots.rows().start.min() and log.pilots.rows().end.max() <= machine.end


@pytest.mark.usefixtures("hours")
def test_the_answer_does_not_depend_on_how_many_processes_there_are() -> None:
    machine = busy_machine(5, seconds=3 * 3600)
    one, two = (replayed(machine, processes).results["auto"] for processes in (1, 2))
    assert (one.samples == two.samples).all()
    assert (one.log.pilots.rows().start == two.log.pilots.rows().start).all()


def test_what_lasts_longer_than_a_run_in_is_not_divided() -> None:
    machine = busy_machine(8)
    jobs = [replace(each, job=replace(each.job, submitted_at=machine.start)) for each in JOBS]
    assert parts.divisible(machine, jobs, OPTIONS)
    finite = [replace(each, job=replace(each.job, total_samples=1e6)) for each in jobs]
    later = [replace(each, job=replace(each.job, submitted_at=machine.start + 60.0)) for each in jobs]
    assert not parts.divisible(machine, finite, OPTIONS)
    assert not parts.divisible(machine, later, OPTIONS)
