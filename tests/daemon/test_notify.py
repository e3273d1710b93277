"""systemd's side of the notify socket, for real: a datagram socket that receives."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.daemon.process.systemd import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(5)
        yield line


@pytest.fixture
def notifier(tmp_path: Path, systemd: socket.socket) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": str(tmp_path / "notify")})


def test_says_ready_with_a_status(notifier: Notifier, systemd: socket.socket) -> None:
    assert notifier.ready("serving http://h:1")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=serving http://h:1"


def test_says_watchdog_and_stopping(notifier: Notifier, systemd: socket.socket) -> None:
    assert notifier.watchdog()
    assert systemd.recv(4096) == b"WATCHDOG=1"
    assert notifier.stopping()
    assert systemd.recv(4096) == b"STOPPING=1"


def test_a_reload_is_told_with_the_monotonic_clock(notifier: Notifier, systemd: socket.socket) -> None:
    assert notifier.reloading(12.5)
    assert systemd.recv(4096) == b"RELOADING=1\nMONOTONIC_USEC=12500000"


def test_a_status_cannot_bring_in_another_field(notifier: Notifier, systemd: socket.socket) -> None:
    assert notifier.ready("tick\nSTOPPING=1")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=tick STOPPING=1"


def test_reaches_an_abstract_socket() -> None:
    name = f"malletrain-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(f"\0{name}")
        line.settimeout(5)
        assert Notifier.from_environment({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert line.recv(4096) == b"READY=1"


def test_outside_systemd_nothing_is_sent() -> None:
    assert not Notifier.from_environment({}).ready()
    assert not Notifier.from_environment({"NOTIFY_SOCKET": "vsock:2:1234"}).ready()


def test_a_socket_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    assert not Notifier(str(tmp_path / "gone")).watchdog()


def test_a_full_socket_holds_the_service_up_for_a_second_at_most(notifier: Notifier, systemd: socket.socket) -> None:
    begun = time.monotonic()
    sent = 0
    while notifier.watchdog():
        sent += 1
        assert sent < 100_000
    assert sent > 0
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "120000000"}, 120.0),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": str(os.getpid())}, 120.0),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_the_one_that_systemd_asks_for(environ: dict[str, str], seconds: float | None) -> None:
    assert Notifier.from_environment(environ).watchdog_s == seconds
