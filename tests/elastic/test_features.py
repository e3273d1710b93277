"""What a session offers beyond plain steps, in real processes: paces, checkpoints, hand-over, errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain.domain.event import EventKind
from malletrain.learn.stragglers import MIN_WINDOWS
from malletrain.loop.trackers.straggler_history import StragglerHistory
from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT, Static, assert_equal, assert_every_sample_once, diary, slow
from tests.waiting import wait_until
from tests.world import data_of, event_of


def test_when_all_are_killed_at_once_the_last_checkpoint_is_taken_up(tmp_path: Path, static: Static) -> None:
    """There is no time to save: what is lost is what was done since the last one beside training."""
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *slow(tmp_path), "--checkpoint-s", "0.5"])
        wait_until(lambda: len(list((tmp_path / "checkpoints").glob("step-*"))) == 2, 60, "two checkpoints")
        for task in (0, 1):
            pod.kill(task)
        made = max(line["step"] for line in diary(tmp_path))
        pod.spawn(daemon.url, 2, [SCRIPT, *slow(tmp_path)])
        daemon.wait_world([2])
        pod.finish(2)
    first = min(line["step"] for line in diary(tmp_path) if line["task"] == "2")
    assert 1 < first <= made + 1
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_a_slow_worker_is_noticed_and_the_result_is_the_same(tmp_path: Path, static: Static) -> None:
    epochs = "5"
    given = ["--epochs", epochs, "--batch", "60"]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            slow = {"SLOW_BY": "0.003" if task == 1 else "0.0005"}
            pod.spawn(daemon.url, task, [SCRIPT, *given, "--wait-for", "3"], 0, **slow)
        assert [pod.wait(task, 120) for task in range(3)] == [0, 0, 0]
        window = [event for event in daemon.seen(EventKind.SAMPLES) if data_of(event)["rates"]][-1]
        rates: Any = data_of(window)["rates"]
        assert rates["100_1.0"] < 0.6 * rates["100_0.0"]
        paces = StragglerHistory()
        for _ in range(MIN_WINDOWS):
            paces.apply(event_of(window.at, window.kind, window.job, data={**data_of(window), "steady": True}))
        assert [straggler.pilot for straggler in paces.slow()[7]] == ["100_1"], "the daemon would replace it"
        assert daemon.told(EventKind.SAMPLES)[-1]["memory_bytes"] > 1e8
        assert set(daemon.told(EventKind.SAMPLES)[-1]["parts"]) == {"data", "compute", "sync"}
    lines = [line for line in diary(tmp_path) if "step" in line]
    assert_every_sample_once(lines, int(epochs))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", epochs, "--batch", "60"), 1e-12)


@pytest.mark.parametrize("how", ["leave", "kill"])
def test_the_next_oldest_becomes_the_main_worker(tmp_path: Path, how: str) -> None:
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path)])
            daemon.wait_world(list(range(task + 1)))
        if how == "leave":
            daemon.leave(0)
        else:
            pod.kill(0, signal.SIGKILL)
        daemon.wait_world([1, 2])
        pod.finish(1, 2)
    assert (tmp_path / "mains").read_text().splitlines() == ["0.0", "1.0"], "once each, and on no other worker"
