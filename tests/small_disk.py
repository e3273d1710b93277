"""A file system of 2 MB, and how it gets full."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(journal: Path) -> None:
    """Until not one byte more fits, with SQLite's log empty: it would go on in the room that the log has."""
    connection = sqlite3.connect(journal)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with (journal.parent / "ballast").open("ab", buffering=0) as ballast:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while ballast.write(b"x" * size) == size:
                    pass
