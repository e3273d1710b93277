"""A private munged, and the API on a real socket."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.wire import munge
from tests.api.house import Caller, House


@pytest.fixture(scope="session")
def munged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a munged with a key of its own."""
    folder = tmp_path_factory.mktemp("munge")
    folder.chmod(0o755)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    socket = folder / "socket"
    daemon = subprocess.Popen(
        [
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}",
            f"--pid-file={folder / 'pid'}", f"--log-file={folder / 'log'}", f"--seed-file={folder / 'seed'}",
            "--num-threads=2",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                munge.encode(b"", str(socket))
                break
            except munge.MungeUnavailable:
                assert daemon.poll() is None, (folder / "log").read_text(errors="replace")
                assert time.monotonic() < deadline, "munged did not start"
        yield str(socket)
    finally:
        daemon.terminate()
        daemon.wait(10)


@pytest.fixture
def new_house(tmp_path: Path, munged: str) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(**settings: Any) -> House:
        folder = tmp_path / f"house{len(houses)}"
        folder.mkdir()
        houses.append(House(folder, munged, **settings))
        return houses[-1]

    yield make
    for each in houses:
        each.close()


@pytest.fixture
def house(new_house: Callable[..., House]) -> House:
    return new_house()


@pytest.fixture
def as_user(house: House) -> Iterator[Callable[[int], Caller]]:
    callers: list[Caller] = []

    def make(uid: int) -> Caller:
        callers.append(Caller(house, house.token(uid)))
        return callers[-1]

    yield make
    for each in callers:
        each.http.close()
