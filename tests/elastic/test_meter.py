"""Windows of training: what they hold, and what they leave out."""

from __future__ import annotations

from malletrain.elastic.meter import DROP_STEPS, Meter
from malletrain.wire.messages import Samples


class Ticker:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def train(meter: Meter, clock: Ticker, steps: int, seconds: float, first: int = 0) -> int:
    for step in range(first, first + steps):
        clock.now += seconds
        meter.step(4, 64, step + 1, 64 * (step + 1), {"compute": seconds})
    return first + steps


def test_the_first_steps_are_dropped_and_windows_are_long_enough() -> None:
    sent: list[Samples] = []
    clock = Ticker()
    meter = Meter(sent.append, clock)
    train(meter, clock, DROP_STEPS + 30, 0.25)
    assert [(w.steps, w.seconds, w.samples) for w in sent] == [(12, 3.0, 768), (12, 3.0, 768)]


def test_a_pause_between_steps_takes_no_time() -> None:
    """An evaluation after each short epoch must not keep a window from ever being long enough."""
    sent: list[Samples] = []
    clock = Ticker()
    meter = Meter(sent.append, clock)
    done = 0
    for _ in range(20):
        done = train(meter, clock, 5, 0.25, done)
        meter.paused()
        clock.now += 100.0
    assert sent
    assert all(w.samples / w.seconds == 256.0 for w in sent)


def test_a_disturbed_window_is_not_sent_and_the_last_one_is() -> None:
    sent: list[Samples] = []
    clock = Ticker()
    meter = Meter(sent.append, clock)
    train(meter, clock, DROP_STEPS + 5, 0.25)
    meter.disturbed()
    meter.flush()
    assert sent == []
    train(meter, clock, DROP_STEPS + 5, 0.25, 100)
    meter.flush()
    assert [(w.steps, w.total) for w in sent] == [(5, 64 * (100 + DROP_STEPS + 5))]
