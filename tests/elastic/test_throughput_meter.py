"""Windows of undisturbed steps."""

from __future__ import annotations

from malletrain.elastic.link.training_reports import DROPPED_STEPS, MAX_SILENCE_S, MIN_WINDOW_STEPS, Meter
from malletrain.wire.messages import Samples


class Bench:
    def __init__(self) -> None:
        self.at, self.total, self.sent = 0.0, 0, list[Samples]()
        self.meter = Meter(self.sent.append, lambda: self.at)

    def steps(self, count: int, seconds: float = 0.5, nodes: int = 2) -> None:
        for _ in range(count):
            self.at += seconds
            self.total += 10
            self.meter.step(nodes, 10, self.total // 10, self.total, {"step": seconds})


def test_the_first_steps_of_a_world_do_not_count() -> None:
    bench = Bench()
    bench.steps(DROPPED_STEPS, seconds=9.0)
    bench.steps(MIN_WINDOW_STEPS)
    assert bench.sent == [Samples(14, 2, 100, 5.0, 10, 140, True, {"step": 5.0})]


def test_a_window_is_never_short_in_time() -> None:
    bench = Bench()
    bench.steps(DROPPED_STEPS + 299, seconds=0.01)
    assert bench.sent == []
    bench.steps(2, seconds=0.01)
    assert bench.sent[0].seconds >= 3.0


def test_a_switch_cuts_a_window_off_as_progress() -> None:
    bench = Bench()
    bench.steps(DROPPED_STEPS + 3)
    bench.meter.disturbed()
    bench.meter.disturbed()
    assert [(s.steady, s.total, s.nodes) for s in bench.sent] == [(False, 70, 2)], "once"
    bench.steps(DROPPED_STEPS + MIN_WINDOW_STEPS, nodes=4)
    assert [(s.steady, s.nodes, s.samples) for s in bench.sent[1:]] == [(True, 4, 100)]


def test_time_between_epochs_is_in_no_window() -> None:
    bench = Bench()
    bench.steps(DROPPED_STEPS + 3)
    bench.meter.paused()
    bench.at += 200
    bench.steps(1 + MIN_WINDOW_STEPS)
    assert [(s.steady, s.steps, s.seconds) for s in bench.sent] == [(True, 10, 5.0)], "over the pause, without it"


def test_the_end_is_told_even_when_it_fills_no_window() -> None:
    bench = Bench()
    bench.steps(2)
    bench.meter.flush()
    bench.meter.flush()
    assert [(s.steady, s.samples, s.seconds, s.total) for s in bench.sent] == [(False, 20, 1.0, 20)]


def test_long_steps_are_told_of_before_they_make_a_window() -> None:
    """Else a job would look as if it held its nodes for nothing."""
    bench = Bench()
    bench.steps(DROPPED_STEPS + MIN_WINDOW_STEPS, seconds=MAX_SILENCE_S)
    assert [window.steady for window in bench.sent] == [False] * (DROPPED_STEPS + MIN_WINDOW_STEPS - 1) + [True]
    assert [window.total for window in bench.sent] == [10 * (n + 1) for n in range(len(bench.sent))]
    assert (bench.sent[-1].samples, bench.sent[-1].seconds) == (100, 10 * MAX_SILENCE_S)
    assert bench.sent[0].samples == 10
