"""The journal on disk: durable, one writer, private, and clear about what is wrong."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import (
    BreakerSwitched,
    Event,
    JobCompleted,
    JsonValue,
    MetricReported,
    PoolCounted,
    UnknownFact,
)
from malletrain.loop.ledger import Ledger
from malletrain.store.database import file_system_of
from malletrain.store.errors import JournalInUse, StoreError
from malletrain.store.journal import SqliteJournal
from tests.messages import naming
from tests.store.folded_anew import fold_anew
from tests.world import data_of, event_of

#: Appends pairs of events until it is killed, and says on stdout what the journal has acknowledged.
_WRITER = """
import sys
from contextlib import closing
from pathlib import Path
from malletrain.domain.event import Event, PoolCounted
from malletrain.store.journal import SqliteJournal
journal = SqliteJournal(Path(sys.argv[1]))
while True:
    written = journal.append([Event(1.0, PoolCounted(idle=1)), Event(2.0, PoolCounted())])
    print(written[-1].seq, flush=True)
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for wanted in (7, 40, 150):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert writer.stdout is not None
        acknowledged = 0
        start = None
        for line in writer.stdout:
            acknowledged = int(line)
            start = acknowledged if start is None else start
            if acknowledged >= start + wanted:
                break
        writer.kill()
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.stdout.close()
        writer.wait(10)
        with SqliteJournal(path) as journal:
            numbers = [event.seq for event in journal.read()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= acknowledged
        assert len(numbers) % 2 == 0, "a transaction was torn"


def test_only_one_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with SqliteJournal(path):
        second = subprocess.run(
            [sys.executable, "-c", _WRITER, str(path)], capture_output=True, text=True, timeout=60, cwd=Path.cwd()
        )
        assert second.returncode != 0
        assert f"JournalInUse: {path}: another malletraind (pid {os.getpid()})" in second.stderr.replace(
            "malletrain.store.errors.", ""
        )
    with SqliteJournal(path) as free_again:
        assert free_again.last == 0


def test_a_second_writer_in_one_process_is_refused_too(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j.db"), pytest.raises(JournalInUse, match=naming(os.getpid())):
        SqliteJournal(tmp_path / "j.db")


def test_threads_take_turns(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j.db") as journal:

        def write() -> None:
            for _ in range(10):
                journal.append([event_of(1.0, "pool"), event_of(1.0, "pool")])

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [e.seq for e in journal.read()] == list(range(1, 81))
        assert journal.last == 80


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_files_have_the_asked_rights_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0)
    try:
        with SqliteJournal(tmp_path / "j.db", mode=mode) as journal:
            journal.append([event_of(1.0, "pool")])
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"j.db": mode, "j.db-wal": mode, "j.db-shm": mode, "j.db.lock": mode}


def test_a_bad_event_writes_nothing(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j.db") as journal:
        good = event_of(1.0, "pool")
        for bad in (
            event_of(-1.0, "pool"),
            event_of(float("nan"), "pool"),
            event_of(1e12, "pool"),
            Event(1.0, PoolCounted(idle=object())),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidInput, match="event pool"):
                journal.append([good, bad])
        assert list(journal.read()) == []
        assert [e.seq for e in journal.append([good])] == [1]


def test_a_diverged_loss_is_kept_as_text(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j.db") as journal:
        worst: list[JsonValue] = [float("-inf"), {"best": float("inf")}]
        completed = JobCompleted({"loss": float("nan"), "worst": worst})
        journal.append([Event(1.0, MetricReported("loss", float("nan")), 1), Event(1.0, completed, 1)])
        metric, result = journal.read()
        assert data_of(metric) == {"name": "loss", "value": "nan", "samples": None}
        assert isinstance(metric.payload, MetricReported)
        assert metric.payload.value is not None and math.isnan(metric.payload.value)
        assert data_of(result) == {"result": {"loss": "nan", "worst": ["-inf", {"best": "inf"}]}}


def test_listeners_hear_of_each_append(tmp_path: Path) -> None:
    heard: list[int] = []
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.on_append(heard.append)
        journal.append([event_of(1.0, "pool")] * 3)
        journal.append([])
        journal.append([event_of(1.0, "pool")])
    assert heard == [3, 4]


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j.db")
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match=naming(tmp_path / "j.db")):
        journal.append([event_of(1.0, "pool")])


def test_a_reader_does_not_stop_the_writer(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.append([event_of(float(i), "pool") for i in range(5000)])
        reading = journal.read()
        next(reading)
        journal.append([event_of(1.0, "pool")])
        assert sum(1 for _ in reading) == 5000


def test_someone_else_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.store.database.BUSY_TIMEOUT_S", 0.1)
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.append([event_of(1.0, "pool")])
        admin = sqlite3.connect(tmp_path / "j.db", isolation_level=None)
        admin.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=naming(tmp_path / "j.db", "database is locked")):
            journal.append([event_of(1.0, "pool")])
        admin.execute("ROLLBACK")
        admin.close()
        assert [e.seq for e in journal.append([event_of(1.0, "pool")])] == [2]


def test_a_missing_folder_and_a_damaged_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=naming(tmp_path / "nowhere", "0750")):
        SqliteJournal(tmp_path / "nowhere" / "j.db")
    (tmp_path / "j.db").write_bytes(b"this is no database, it is a text of some length" * 100)
    with pytest.raises(StoreError, match=naming(tmp_path / "j.db", "backup")):
        SqliteJournal(tmp_path / "j.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "target.db")
    with pytest.raises(StoreError, match=r"link\.db"):
        SqliteJournal(tmp_path / "link.db")
    assert not (tmp_path / "target.db").exists()


def test_network_file_systems_are_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    home = tmp_path / "home dir"
    home.mkdir()
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"36 22 0:31 / {str(home).replace(' ', chr(92) + '040')} rw shared:9 - nfs4 server:/home rw\n"
        "broken line\n"
    )
    assert file_system_of(home / "x", str(mounts)) == "nfs4"
    assert file_system_of(tmp_path, str(mounts)) == "ext4"
    assert file_system_of(tmp_path, str(tmp_path / "missing")) == ""


def _with_row(path: Path, kind: str, data: str) -> None:
    """A journal with one row as another release may have written it."""
    with SqliteJournal(path) as journal:
        journal.append([Event(1.0, PoolCounted(idle=1))])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE event SET kind = ?, data = ?", (kind, data))


def test_a_kind_of_a_newer_release_is_kept_and_folded_into_nothing(tmp_path: Path) -> None:
    _with_row(tmp_path / "j.db", "job_suspended", '{"by":"ann"}')
    with SqliteJournal(tmp_path / "j.db") as journal:
        [event] = journal.read()
        assert event.payload == UnknownFact("job_suspended", {"by": "ann"})
        Ledger().apply([event])
        assert fold_anew(journal) == 1


def test_a_field_of_a_newer_release_is_passed_over(tmp_path: Path) -> None:
    _with_row(tmp_path / "j.db", "breaker", '{"open":true,"sign":"slow exits"}')
    with SqliteJournal(tmp_path / "j.db") as journal:
        assert [event.payload for event in journal.read()] == [BreakerSwitched(open=True)]


@pytest.mark.parametrize(
    ("kind", "data", "fault"),
    [
        ("breaker", "{}", "open: missing"),
        ("breaker", '{"open":1}', "open: .*true"),
        ("samples", '{"nodes":"many"}', "nodes: .*'many'"),
        ("intent", '{"type":"promote"}', "type: 'promote'"),
        ("intent", '{"type":"leave","job_id":1,"pilot":"7_0","node":"n0"}', "cause: missing"),
    ],
)
def test_a_malformed_row_is_refused_by_number_kind_and_field(
    tmp_path: Path, kind: str, data: str, fault: str
) -> None:
    _with_row(tmp_path / "j.db", kind, data)
    with (
        SqliteJournal(tmp_path / "j.db") as journal,
        pytest.raises(StoreError, match=f"event 1 .*'{kind}'.* {fault}"),
    ):
        list(journal.read())
