"""A daemon that was restarted from a database of long ago, and one that is away as training ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from malletrain.domain.event import EventKind
from tests.elastic.coordinator import JOB, another, last_generation, running
from tests.elastic.digits import (
    EPOCHS,
    SCRIPT,
    Static,
    assert_equal,
    slow,
)
from tests.waiting import wait_until


@pytest.mark.nightly
def test_a_daemon_with_an_older_database_goes_on_with_higher_numbers(tmp_path: Path, static: Static) -> None:
    options = slow(tmp_path)
    with running(tmp_path) as (daemon, pod):
        for task in (0, 1):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
            daemon.wait_world(range(task + 1))
        last = max(data["generation"] for data in daemon.told(EventKind.GENERATION))
        assert last > 1
        daemon.stop()
        with another({JOB: last - 1}, daemon.port) as again:
            again.wait_world([0, 1], 90)
            pod.spawn(again.url, 2, [SCRIPT, *options])
            again.wait_world([0, 1, 2])
            assert min(data["generation"] for data in again.told(EventKind.GENERATION)) > last
            pod.finish(0, 1, 2)
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


def test_a_worker_that_has_finished_waits_for_the_daemon_to_hear_of_it(tmp_path: Path, static: Static) -> None:
    """Its training was done again: it ended after ten seconds of a daemon's absence, as finished, and unheard."""
    options = ["--epochs", EPOCHS, "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        for task in (0, 1):
            pod.spawn(daemon.url, task, [SCRIPT, *options])
            daemon.wait_world(range(task + 1))
        generations = last_generation(daemon)
        daemon.stop()
        (tmp_path / "go").touch()
        wait_until((tmp_path / "final.pt").exists, 60, "the end of training")
        assert pod.wait(1) == 0, "one that has nothing to report ends"
        with pytest.raises(AssertionError, match="has not ended within 12 s"):
            pod.wait(0, 12)
        with another(generations, daemon.port) as again:
            assert pod.wait(0) == 0
            wait_until(lambda: bool(again.seen(EventKind.JOB_COMPLETED)), 90, "the job is completed")
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)
