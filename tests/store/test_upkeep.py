"""Upkeep: less on the disk, nothing lost, and people see the same as before."""

from __future__ import annotations

import re
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from malletrain.domain.event import Event
from malletrain.domain.job import MalleableJob
from malletrain.loop.ledger import Ledger
from malletrain.store import schema as t
from malletrain.store.database import copy, reader_engine
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.upkeep import DAY_S, Retention, Upkeep
from malletrain.store.views import StoreViews
from tests.messages import naming
from tests.store.folded_anew import PROJECTIONS, fold_anew
from tests.world import announced, data_of, event_of

START = 1_793_491_200.0
HOUR = 3600.0


def announce(number: int) -> Event:
    job = MalleableJob(number, f"net{number}", "ada", 1001, "harvest", 1, 8, START)
    return event_of(START, "job_announced", number, data=announced(job))


def window(after: float, number: int = 1, nodes: int = 2, samples: float = 100.0, **more: Any) -> Event:
    data = {"nodes": nodes, "samples": samples, "seconds": 10.0, "steps": 5, **more}
    return event_of(START + after, "samples", number, data=data)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "journal.db") as opened:
        yield opened


def shown(path: Path) -> dict[str, Any]:
    """Everything that people can read, and every row of the projections."""
    views = StoreViews(path)
    rows: dict[str, Any] = {"jobs": views.jobs(), "usage": views.usage(START + 1000 * DAY_S)}
    views.close()
    engine = reader_engine(path)
    with engine.begin() as connection:
        for table in PROJECTIONS:
            rows[table.name] = [tuple(r) for r in connection.execute(select(table).order_by(*table.primary_key))]
    engine.dispose()
    return rows


def test_windows_are_merged_by_job_size_and_hour(journal: SqliteJournal) -> None:
    journal.append([announce(1), announce(2)])
    journal.append([window(i * 60, parts={"sync": 1}) for i in range(90)])  # an hour and a half
    journal.append([window(30, nodes=4), window(40, 2), window(50, steady=False), window(20 * DAY_S)])
    journal.append([event_of(START + i, "metric", 1, data={"name": "loss", "value": i}) for i in range(50)])
    before = shown(journal.path)
    done = Upkeep(journal, Retention(windows_s=DAY_S)).tend(START + 3 * DAY_S)
    left = list(journal.read())
    sums = [
        (data_of(e)["nodes"], data_of(e)["samples"], data_of(e).get("merged")) for e in left if e.kind == "samples"
    ]
    assert sums == [
        (2, 6000.0, 60),
        (2, 3000.0, 30),
        (4, 100.0, None),
        (2, 100.0, None),
        (2, 100.0, None),
        (2, 100.0, None),
    ]
    assert [data_of(e)["value"] for e in left if e.kind == "metric"] == [49]
    assert done.merged == 88 + 49
    assert shown(journal.path) == before
    assert Upkeep(journal, Retention(windows_s=DAY_S)).tend(START + 3 * DAY_S).merged == 0, (
        "a second round finds nothing"
    )


_stories = st.lists(
    st.one_of(
        st.builds(
            window, st.floats(0, 5 * DAY_S), st.just(1), st.integers(1, 3), st.integers(0, 1000).map(float),
            seconds=st.sampled_from([0.0, 1.0, 10.0]), total=st.integers(0, 5000),
        ),
        st.builds(window, st.floats(0, 5 * DAY_S), st.just(2), st.integers(1, 3), st.just(7.0)),
        st.builds(
            lambda at, value: event_of(START + at, "metric", 1, data={"name": "loss", "value": value}),
            st.floats(0, 5 * DAY_S),
            st.integers(0, 9),
        ),
        st.builds(lambda at: event_of(START + at, "pool", data={"idle": 1}), st.floats(0, 5 * DAY_S)),
        st.builds(lambda at: event_of(START + at, "job_completed", 2), st.floats(0, 5 * DAY_S)),
    ),
    max_size=40,
).map(lambda events: events if len(events) % 3 else sorted(events, key=lambda e: e.at))  # fmt: skip


@given(story=_stories, windows=st.floats(0, 6), jobs=st.floats(0, 6))
@settings(max_examples=25)
def test_upkeep_changes_nothing_that_is_shown(
    tmp_path_factory: pytest.TempPathFactory, story: list[Event], windows: float, jobs: float
) -> None:
    folder = tmp_path_factory.mktemp("tend")
    with SqliteJournal(folder / "j.db") as journal:
        journal.append([announce(1), announce(2), *story])
        before, known = shown(journal.path), Ledger()
        known.apply(journal.read())
        Upkeep(journal, Retention(windows * DAY_S, 1000 * DAY_S, jobs * DAY_S)).tend(START + 6 * DAY_S)
        kept = shown(journal.path)
        archived = {row[0] for row in kept["job"] if row[t.job.c.keys().index("archived")]}
        for name in before:
            if name != "job":
                assert kept[name] == before[name], name
        fold_anew(journal)
        again = shown(journal.path)
        for name in again:
            assert _rounded(again[name]) == _rounded(kept[name]), name
        folded = Ledger()
        folded.apply(journal.read())
        for number, view in known.views().items():
            if number not in archived:
                assert folded.views()[number].samples_done == pytest.approx(view.samples_done)


def _rounded(value: Any) -> Any:
    """Sums in another order differ in the last digit."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    if hasattr(value, "to_json"):
        return _rounded(list(value.to_json().items()))
    return value


def test_the_jobs_own_count_stays(journal: SqliteJournal) -> None:
    journal.append([announce(1), *(window(i, pilot, total=100 * i) for i in range(20) for pilot in (1, 1))])
    before = shown(journal.path)
    assert before["jobs"][0].samples == 1900
    assert Upkeep(journal, Retention(windows_s=0)).tend(START + DAY_S).merged == 38
    fold_anew(journal)
    assert shown(journal.path) == before


def test_a_job_that_mixes_ways_of_counting_is_left_alone(journal: SqliteJournal) -> None:
    journal.append([announce(1), window(1), window(2, total=50), window(3), window(4)])
    assert Upkeep(journal, Retention(windows_s=0)).tend(START + DAY_S).merged == 0


def test_old_jobs_events_are_deleted_and_their_rows_stay(journal: SqliteJournal) -> None:
    story = [
        announce(1), window(10), window(20), event_of(START + 30, "job_completed", 1), announce(2), window(40, 2),
    ]  # fmt: skip
    journal.append(story)
    before = shown(journal.path)
    upkeep = Upkeep(journal, Retention(windows_s=1e9, jobs_s=DAY_S))
    assert upkeep.tend(START + 2 * DAY_S).deleted == 4
    assert [e.job for e in journal.read()] == [2, 2]
    after = shown(journal.path)
    assert (after["jobs"], after["usage"]) == (before["jobs"], before["usage"])
    fold_anew(journal)
    assert shown(journal.path) == after
    views = StoreViews(journal.path)
    assert views.next_job_id() == 3, "a number is never given twice"
    views.close()
    assert upkeep.tend(START + 2 * DAY_S).deleted == 0


def test_numbers_go_on_when_all_is_deleted(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.append([event_of(START, "decided")] * 1000)
        assert Upkeep(journal).tend(START + 40 * DAY_S).deleted == 1000
        assert list(journal.read()) == []
    with SqliteJournal(tmp_path / "j.db") as again:
        assert again.last == 1000
        assert [e.seq for e in again.append([event_of(START, "decided")])] == [1001]


def test_room_is_given_back(journal: SqliteJournal) -> None:
    journal.append([event_of(START, "decided", reason="x" * 1000) for _ in range(3000)])
    upkeep = Upkeep(journal)
    upkeep.tend(START)
    full = journal.path.stat().st_size
    freed = upkeep.tend(START + 40 * DAY_S).freed_bytes
    assert freed > 2_000_000
    assert journal.path.stat().st_size == full - freed


def test_a_backup_is_whole_private_and_opens(journal: SqliteJournal, tmp_path: Path) -> None:
    journal.append([announce(1), window(1)])
    target = tmp_path / "backup.db"
    target.write_text("an old one")
    copy(journal.path, target)
    journal.append([window(2)])
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with SqliteJournal(target) as restored:
        assert [e.kind for e in restored.read()] == ["job_announced", "samples"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "no draft is left"
    with pytest.raises(StoreError, match=re.escape(f"{tmp_path}/nowhere/.x.db.")):
        copy(journal.path, tmp_path / "nowhere" / "x.db")


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with SqliteJournal(path) as journal:
        journal.append([announce(1), *(window(i) for i in range(200))])
        Upkeep(journal).check()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA foreign_keys=OFF")
    raw.execute("INSERT INTO metric (job, name, at, value) VALUES (99, 'loss', 0, '1')")
    raw.commit()
    raw.close()
    with SqliteJournal(path) as journal, pytest.raises(StoreError, match=naming(path, "metric", "job")):
        Upkeep(journal).check()


def test_a_new_schema_keeps_a_copy_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from malletrain.store import migrate as module

    real = module.sql_folder()
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.append([announce(1)])
    newer = tmp_path / "sql"
    newer.mkdir()
    for path in real.glob("*.sql"):
        (newer / path.name).write_text(path.read_text(encoding="utf-8"))
    count = len(list(newer.glob("*.sql")))
    (newer / f"{count + 1:04d}_more.sql").write_text("ALTER TABLE job ADD COLUMN colour TEXT;\n")
    monkeypatch.setattr(module, "sql_folder", lambda: newer)
    with SqliteJournal(tmp_path / "j.db") as journal:
        assert len(list(journal.read())) == 1
    monkeypatch.setattr(module, "sql_folder", lambda: real)
    with SqliteJournal(tmp_path / f"j.db.schema{count}") as old:
        assert [e.kind for e in old.read()] == ["job_announced"]
