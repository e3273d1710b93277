"""Real processes, real sockets: join, grow, shrink, lose, finish; and the result of a static run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from malletrain.domain.event import EventKind
from tests.elastic.coordinator import JOB, another, last_generation, running
from tests.elastic.digits import (
    DIGITS,
    EPOCHS,
    SCRIPT,
    Static,
    assert_equal,
    assert_every_sample_once,
    diary,
    slow,
    wait_lines,
)
from tests.waiting import wait_until


def test_grows_shrinks_and_finishes_like_a_static_run(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0,), [SCRIPT, *options])
        for task in (1, 2, 3):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
        daemon.wait_world([0, 1, 2, 3])
        daemon.leave(0)
        daemon.leave(2)
        daemon.wait_world([1, 3])
        assert pod.wait(0) == 143
        assert pod.wait(2) == 143
        pod.finish(1, 3)
        wait_until(lambda: bool(daemon.seen(EventKind.JOB_COMPLETED)), 60, "the job is completed")
        result = daemon.told(EventKind.JOB_COMPLETED)[0]["result"]
        assert result["samples"] == int(EPOCHS) * DIGITS
        assert [event.pilot for event in daemon.seen(EventKind.WORKER_LEFT)][:2] == ["100_0", "100_2"] or len(
            daemon.seen(EventKind.WORKER_LEFT)
        ) >= 2
        assert not daemon.seen(EventKind.WORKER_LOST)
        assert daemon.events[0].job == JOB
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_survives_the_loss_of_a_worker(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(4), [SCRIPT, *options])
        pod.kill_after_a_step(1)
        daemon.wait_world([0, 2, 3], 90)
        pod.kill_after_a_step(0)
        daemon.wait_world([2, 3], 90)
        pod.finish(2, 3)
        lost = {event.pilot for event in daemon.seen(EventKind.WORKER_LOST)}
        assert lost == {"100_0", "100_1"}
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_resumes_after_all_nodes_are_gone(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *options])
        wait_lines(tmp_path, 20, 90, "some steps")
        daemon.leave(0)
        daemon.leave(1)
        assert pod.wait(0) == pod.wait(1) == 143
        (saved,) = [each["saved"] for each in daemon.told(EventKind.WORKER_LEFT) if each.get("saved")]
        assert Path(saved).stat().st_mode & 0o777 == 0o700
        before = max(line["step"] for line in diary(tmp_path))
        pod.spawn(daemon.url, 1, [SCRIPT, *options], restart=1)
        daemon.wait_world([1])
        pod.finish(1)
        after = [line["step"] for line in diary(tmp_path) if line["step"] > before]
        assert min(after) == before + 1
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)
    assert not (tmp_path / "checkpoints").exists(), "a finished job leaves no checkpoint behind"


def test_leaves_in_order_on_sigterm_and_saves_when_all_must(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path, real=True) as (daemon, pod):
        pod.begin(daemon, (0, 1, 2), [SCRIPT, *options])
        pod.kill(0, signal.SIGTERM)
        assert pod.wait(0) == 143
        daemon.wait_world([1, 2])
        assert not daemon.seen(EventKind.WORKER_LOST)
        for task in (1, 2):
            pod.kill(task, signal.SIGTERM)
        assert pod.wait(1) == pod.wait(2) == 143
        assert not daemon.seen(EventKind.WORKER_LOST)
        pod.spawn(daemon.url, 0, [SCRIPT, *options], restart=1)
        daemon.wait_world([0])
        pod.finish(0)
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_trains_on_through_a_restart_of_the_daemon(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1, 2), [SCRIPT, *options])
        generations = last_generation(daemon)
        daemon.stop()
        wait_lines(tmp_path, 20, 90, "steps without a daemon")
        with another(generations, daemon.port) as again:
            again.wait_world([0, 1, 2], 90)
            assert not again.seen(EventKind.GENERATION), "a restart of the daemon disturbs no worker"
            pod.spawn(again.url, 3, [SCRIPT, *options])
            again.wait_world([0, 1, 2, 3])
            assert min(data["generation"] for data in again.told(EventKind.GENERATION)) > generations[JOB]
            pod.kill(2)
            again.wait_world([0, 1, 3], 90)
            pod.finish(0, 1, 3)
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


@pytest.mark.parametrize(
    "how",
    [
        ("--shards", "5", "--batch", "60"),
        pytest.param(("--clip",), marks=pytest.mark.nightly),
        pytest.param(("--optimizer", "adamw"), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_other_ways_to_train_are_like_a_static_run_too(tmp_path: Path, static: Static, how: tuple[str, ...]) -> None:
    """BatchNorm and dropout by virtual shards; accumulation with clipping; AdamW."""
    options = [*slow(tmp_path), *how]
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, (0, 1), [SCRIPT, *options])
        for task in (2, 3):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
        daemon.wait_world([0, 1, 2, 3])
        wait_lines(tmp_path, 8, 90, "some steps")
        pod.kill_between_steps(1)  # in the midst of a commit, others may miss the round, and leave too
        daemon.leave(2)
        daemon.wait_world([0, 3], 90)
        pod.finish(0, 3)
    # Adam divides by roots of second moments: near zero they make much of rounding.
    tolerance = 1e-8 if "adamw" in how else 1e-12
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS, *how), tolerance)
