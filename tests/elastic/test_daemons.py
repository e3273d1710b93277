"""Two daemons that both believe to be the one, and one that was restarted from a database of long ago."""

from __future__ import annotations

import contextlib
import socket
import threading
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
    assert_every_sample_once,
    diary,
    slow,
    wait_lines,
)
from tests.waiting import wait_until


class Relay:
    """One address, behind which the daemon changes: connections go to `port`, those that are open are cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def point_at(self, port: int) -> None:
        with self._lock:
            self._target, old, self._open = port, self._open, []
        for each in old:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.point_at(0)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                try:
                    far = socket.create_connection(("127.0.0.1", self._target), 5)
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.mark.nightly
def test_two_daemons_take_turns_and_nobody_trains_twice(tmp_path: Path, static: Static) -> None:
    """The second one has an empty database and does not know of the first. Workers are led to it, made larger by it,
    and led back to the first, which still believes in the world before."""
    options = slow(tmp_path)
    with running(tmp_path) as (first, pod), another() as second, contextlib.closing(Relay(first.port)) as relay:
        for task in (0, 1):
            pod.spawn(relay.url, task, [SCRIPT, *options])
        first.wait_world([0, 1])
        relay.point_at(second.port)
        second.wait_world([0, 1], 90)
        assert not second.seen(EventKind.GENERATION), "it takes the world as it finds it"
        pod.spawn(relay.url, 2, [SCRIPT, *options])
        second.wait_world([0, 1, 2])
        relay.point_at(first.port)
        first.wait_world([0, 1, 2], 90)
        wait_lines(tmp_path, 12, 90, "steps of three under the first again")
        (tmp_path / "go").touch()
        assert [pod.wait(task) for task in (0, 1, 2)] == [0, 0, 0]
        wait_until(lambda: bool(first.seen(EventKind.JOB_COMPLETED)), 90, "the job is completed")
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS), 1e-12)


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
            (tmp_path / "go").touch()
            assert [pod.wait(task) for task in (0, 1, 2)] == [0, 0, 0]
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
