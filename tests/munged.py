"""A private munged for tests: key, socket and log in a folder of its own; import the fixture in a conftest."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from malletrain.wire import munge


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
        deadline = time.monotonic() + 60
        while True:
            try:
                munge.encode(b"", str(socket))
                break
            except munge.MungeUnavailable:
                assert daemon.poll() is None, (folder / "log").read_text(errors="replace")
                assert time.monotonic() < deadline, "munged did not start"
                time.sleep(0.02)  # between two looks
        yield str(socket)
    finally:
        daemon.terminate()
        daemon.wait(60)
