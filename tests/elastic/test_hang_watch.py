"""What a worker says of itself while no step is made."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from malletrain.elastic.launch.hang_watch import HangWatch, place_of
from tests.waiting import wait_until

SCRIPT = """
def loads(go):
    go.wait(60)

def trains(watch, go):
    watch.start()
    loads(go)
"""


def test_a_rank_that_does_not_come_names_its_line_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    names: dict[str, object] = {}
    exec(compile(SCRIPT, str(path), "exec"), names)
    go, watch = threading.Event(), HangWatch(lambda: "rank1 (node7)", lambda: 3, hang_s=0.1, look_s=0.02)
    with caplog.at_level(logging.WARNING, "malletrain.elastic"):
        thread = threading.Thread(target=names["trains"], args=(watch, go))  # type: ignore[arg-type]
        thread.start()
        wait_until(lambda: bool(caplog.messages), 60, "a warning")
        watch.stop()
        go.set()
        thread.join()
    said = "rank1 (node7) has made no step for 0 s: it is at train.py:3 in loads: `go.wait(60)`; whoever else"
    assert [each.partition(" trains")[0] for each in caplog.messages] == [said]


def test_steps_are_no_hang(caplog: pytest.LogCaptureFixture) -> None:
    rounds = iter(range(1_000_000))
    watch = HangWatch(lambda: "rank0", lambda: next(rounds), hang_s=0.05, look_s=0.01)
    with caplog.at_level(logging.WARNING, "malletrain.elastic"):
        watch.start()
        threading.Event().wait(0.3)
        watch.stop()
    assert caplog.messages == []


def test_a_thread_outside_any_script_has_no_place() -> None:
    assert place_of(None) == ""
