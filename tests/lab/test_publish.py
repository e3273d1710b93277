"""A file that is read while it is written is the former one or the new one, with the former's mode and owner."""

import os
import stat
import threading
from pathlib import Path

import pytest

from scripts.lab.layout import publish


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_reader_beside_the_writer_sees_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    texts = {letter * 60_000 for letter in "ab"}  # longer than one write(2) of a text file
    publish(path, "a" * 60_000)
    ended = threading.Event()

    def write() -> None:
        for _ in range(100):
            for text in sorted(texts):
                publish(path, text)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        read = {path.read_text() for _ in iter(ended.is_set, True)}
    finally:
        writer.join()
    assert read <= texts
    assert [p.name for p in tmp_path.iterdir()] == ["slurm.conf"]


def test_mode_and_owner_stay(tmp_path: Path) -> None:
    path = tmp_path / "slurmdbd.conf"
    publish(path, "one", 0o600)
    assert mode(path) == 0o600
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    owner = path.stat().st_uid, path.stat().st_gid
    publish(path, "two")
    assert path.read_text() == "two"
    assert mode(path) == 0o600
    assert (path.stat().st_uid, path.stat().st_gid) == owner


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_is_open_to_all_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        publish(tmp_path / "gres.conf", "")
    finally:
        os.umask(former)
    assert mode(tmp_path / "gres.conf") == 0o644


def test_a_text_that_cannot_be_written_leaves_the_former(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    publish(path, "whole")
    with pytest.raises(UnicodeEncodeError):
        publish(path, "half \udcff")
    assert path.read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["slurm.conf"]
