"""Costs from a journal are those that its jobs had."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.domain.event import Event
from malletrain.domain.job import ResizeCosts
from malletrain.replay.loop_engine import replay_through_loop
from malletrain.replay.scoring.journal_score import measured_costs
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.sizing.registry import policy
from malletrain.store.journal import SqliteJournal
from tests.messages import says
from tests.replay.small import job, trace
from tests.replay.test_command import EVENTS, malletrain
from tests.world import event_of

OTHERWISE = ResizeCosts(1.0, 2.0, 3.0)


def test_of_the_daemons_loop_over_a_trace() -> None:
    machine = trace([(0.0, 0, IDLE), (300.0, 1, IDLE), (900.0, 1, BUSY), (1500.0, 1, IDLE)], 2, 3600.0)
    journal = replay_through_loop(machine, [job(costs=ResizeCosts(20.0, 5.0, 7.0))], policy("exact"))
    costs, shown = measured_costs(list(journal), OTHERWISE)
    assert (costs.grow_s, costs.shrink_s) == pytest.approx((5.0, 7.0))
    assert costs.activate_s == pytest.approx(20.0, abs=0.5)
    assert says(shown, f"3 activations ({costs.activate_s:.3g} s)", 2, "grow (5 s)", 1, "shrink (7 s)")


def test_of_nothing_what_was_assumed_holds() -> None:
    costs, shown = measured_costs([], OTHERWISE)
    assert costs == OTHERWISE
    assert says(shown, "0 activations (1 s)", 0, "grow (2 s)", 0, "shrink (3 s)")


def test_medians_and_pauses_that_are_told_twice_or_are_no_numbers() -> None:
    def switched(generation: int, seconds: float) -> Event:
        return event_of(1.0, "switched", 1, data={"generation": generation, "pause_s": seconds, "grew": True})

    events = [
        switched(1, 1.0),
        switched(1, 4.0),
        switched(2, 6.0),
        switched(3, 9.0),
        switched(4, float("nan")),
        switched(5, 0.0),
    ]
    costs, shown = measured_costs(events, OTHERWISE)
    assert costs.grow_s == 6.0
    assert says(shown, 3, "grow (6 s)", 0, "shrink")


def test_the_command_takes_and_tells_them(tmp_path: Path) -> None:
    log, store = tmp_path / "events.csv", tmp_path / "journal.db"
    log.write_text("\n".join(EVENTS))
    with SqliteJournal(store) as journal:
        journal.append([
            event_of(10.0, "intent", 1, "5_1", "n1", data={"type": "start"}),
            event_of(22.5, "worker_warm", 1, "5_1", data={"worker": "w"}),
        ])  # fmt: skip
    done = malletrain("replay", str(log), "--mix", "imagenet:2", f"costs_from={store}")
    assert done.returncode == 0, done.stderr
    assert "1 activations (12.5 s)" in done.stderr
    done = malletrain("replay", str(log), f"costs_from={tmp_path / 'none.db'}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
