"""What a worker says of itself while no step is made."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from malletrain import elastic
from malletrain.elastic import WELCOME_FD
from malletrain.elastic.launch.hang_watch import HangWatch, place_of
from malletrain.elastic.launch.own_check import BackgroundCheck
from malletrain.wire.messages import Message, Stuck
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

SCRIPT = """
def loads(go):
    go.wait(60)

def trains(watch, go):
    watch.start()
    loads(go)
"""

HANGS_BEFORE = """
import time
from malletrain.elastic.launch import hang_watch
hang_watch.watch_for_session(0.05, 0.02)

def prepares(end):
    while time.monotonic() < end:
        time.sleep(0.1)
prepares(time.monotonic() + 2.0)
hang_watch.session_made()
time.sleep(1.0)
"""


@contextmanager
def stands(folder: Path, watch: HangWatch) -> Iterator[None]:
    """A thread that `watch` watches stays in one line of a script."""
    path = folder / "train.py"
    path.write_text(SCRIPT)
    names: dict[str, Any] = {}
    exec(compile(SCRIPT, str(path), "exec"), names)
    go = threading.Event()
    thread = threading.Thread(target=names["trains"], args=(watch, go))
    thread.start()
    try:
        yield
    finally:
        watch.stop()
        go.set()
        thread.join()


def test_a_rank_that_does_not_come_names_its_line_once_and_at_the_next_step_after_twice_the_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = [3]
    watch = HangWatch(lambda: "rank1 (node7)", lambda: rounds[0], hang_s=0.1, look_s=0.02)
    with caplog.at_level(logging.WARNING, "malletrain.elastic"), stands(tmp_path, watch):
        wait_until(lambda: bool(caplog.messages), 60, "a warning")
        threading.Event().wait(0.3)
        said = r"rank1 \(node7\) .* 0 s: .* train.py:3 in loads: `go.wait\(60\)`"
        assert [bool(re.match(said, each)) for each in caplog.messages] == [True]
        rounds[0] += 1
        wait_until(lambda: len(caplog.messages) == 2, 60, "the next one")
    assert place_of(None) == ("", False), "a thread that has ended"
    first, second = (each.created for each in caplog.records)
    assert second - first >= 0.2 + 0.3


def test_where_a_script_hangs_before_its_session_is_said_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as a pilot starts it: its launcher hears of it."""
    path = tmp_path / "train.py"
    path.write_text(HANGS_BEFORE)
    heard: list[Message] = []
    connection: Any = SimpleNamespace(report=heard.extend)
    beside = BackgroundCheck(connection)
    beside.start()
    environ = os.environ | beside.variables | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(path)], env=environ, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(heard) == 2, 60, "what it says")
        _, said = process.communicate(timeout=60)
    assert heard == [Stuck("train.py:8 in prepares: `time.sleep(0.1)`"), Stuck("")]
    assert re.search(r"without a session .* 0 s: .*train.py:8", said)
    beside.stop()


def test_a_pilots_process_is_watched_from_its_first_import_of_elastic_on() -> None:
    names = "import malletrain.elastic, threading; print([each.name for each in threading.enumerate()])"
    for environ, watched in (({WELCOME_FD: "-1"}, True), ({}, False)):
        said = subprocess.check_output([sys.executable, "-c", names], env=os.environ | environ, text=True)
        assert ("malletrain-hang" in said) is watched


def test_each_step_and_each_evaluation_of_a_session_counts() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.randn(12, 4))
    s = elastic.Session(model, optimizer, rows, batch_size=4)
    counted = [s._runtime.rounds_so_far()]
    for _ in s.epochs(1):
        for (row,) in s.batches():
            optimizer.zero_grad()
            model(row).sum().backward()
            optimizer.step()
            counted.append(s._runtime.rounds_so_far())
        s.evaluate(lambda batch: {"loss": model(batch[0]).sum()}, rows)
        counted.append(s._runtime.rounds_so_far())
    assert len(set(counted)) == 5
    s.finish()
    assert s._runtime.rounds_so_far() is None
