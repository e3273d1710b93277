"""Signals that ask a worker to end before it trains."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from malletrain.elastic.errors import Released
from malletrain.elastic.resize.lifecycle import WorkerLifecycle


def lifecycle() -> WorkerLifecycle:
    anything: Any = SimpleNamespace(link=None, released="", committer=None)
    return WorkerLifecycle(anything, anything, anything, anything, anything, in_pilot=True)


def test_a_second_signal_does_not_break_what_ends_for_the_first() -> None:
    """Slurm signals each process, and a launcher passes its own on: two come within a moment. One that raised
    while Python left a lock ended the script by "release unlocked lock", as its own failure."""
    before = signal.signal(signal.SIGTERM, lifecycle().terminated)
    try:
        with pytest.raises(Released) as ended:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.__context__ is None


def test_a_signal_is_heard_again_where_the_first_was_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, clock = lifecycle(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for _ in range(2):
        with pytest.raises(Released):
            ends.terminated(signal.SIGTERM, None)
        ends.terminated(signal.SIGTERM, None)
        clock[0] += 60.0
