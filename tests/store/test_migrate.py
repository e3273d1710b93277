"""The schema: migrations lead to exactly what the code expects, and an old or new database is told apart."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from malletrain.store import schema
from malletrain.store.database import create_file, writer_engine
from malletrain.store.errors import StoreError
from malletrain.store.migrate import migrate, migrations, sql_folder, statements
from tests.messages import naming
from tests.store.folded_anew import PROJECTIONS


def as_sqlite_sees(path: Path) -> dict[str, object]:
    """Tables, columns, keys and indexes as SQLite sees them, without the spelling of their definition."""
    connection = sqlite3.connect(path)
    found: dict[str, object] = {}
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in names:
        if name.startswith(("sqlite_", "schema_")):
            continue
        found[name] = {
            "columns": {
                (column, kind.upper(), bool(notnull), default, key)
                for _, column, kind, notnull, default, key in connection.execute(f"PRAGMA table_info({name})")
            },
            "foreign": {
                (table, source, target)
                for _, _, table, source, target, *_ in connection.execute(f"PRAGMA foreign_key_list({name})")
            },
            "indexes": {
                (
                    index if not index.startswith("sqlite_") else "auto",
                    unique,
                    partial,
                    tuple(c[2] for c in connection.execute(f"PRAGMA index_info({index})")),
                )
                for _, index, unique, _, partial in connection.execute(f"PRAGMA index_list({name})")
            },
        }
    autoincrement = connection.execute(
        "SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%' ORDER BY name"
    ).fetchall()
    checks = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%CHECK (%' ORDER BY name").fetchall()
    connection.close()
    return found | {"autoincrement": autoincrement, "checks": [c for c in checks if not c[0].startswith("schema_")]}


def test_every_table_of_the_migrations_is_one_of_the_code(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    create_file(path, 0o600)
    engine = writer_engine(path)
    migrate(engine)
    engine.dispose()
    bound = {table.name for table in (schema.event, *PROJECTIONS)}
    assert set(as_sqlite_sees(path)) - {"autoincrement", "checks"} == bound


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    create_file(path, 0o600)
    engine = writer_engine(path)
    first = migrate(engine)
    before = as_sqlite_sees(path)
    assert migrate(engine) == first == len(migrations(sql_folder()))
    assert as_sqlite_sees(path) == before
    engine.dispose()


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    create_file(path, 0o600)
    engine = writer_engine(path)
    version = migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO schema_version (version, name) VALUES (?, 'future')", (version + 1,))
    before = as_sqlite_sees(path)
    with pytest.raises(StoreError, match=naming(version + 1, version)):
        migrate(engine)
    assert as_sqlite_sees(path) == before
    engine.dispose()


def test_a_broken_migration_leaves_no_trace(tmp_path: Path) -> None:
    folder = tmp_path / "sql"
    folder.mkdir()
    (folder / "0001_good.sql").write_text("CREATE TABLE good (id INTEGER);\n")
    (folder / "0002_bad.sql").write_text("CREATE TABLE half (id INTEGER);\nCREATE TABLE good (id INTEGER);\n")
    path = tmp_path / "journal.db"
    create_file(path, 0o600)
    engine = writer_engine(path)
    with pytest.raises(Exception, match="already exists"):
        migrate(engine, folder)
    assert set(as_sqlite_sees(path)) == {"good", "autoincrement", "checks"}
    (folder / "0002_bad.sql").write_text("CREATE TABLE better (id INTEGER);\n")
    assert migrate(engine, folder) == 2
    assert {"good", "better"} <= set(as_sqlite_sees(path))
    engine.dispose()


def test_views_follow_the_release_and_leave_an_admins_own_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sql"
    (folder / "views").mkdir(parents=True)
    view = folder / "views" / "answer.sql"
    view.write_text("-- the old one\nCREATE VIEW answer AS SELECT 1 AS n;\n")
    path = tmp_path / "journal.db"
    create_file(path, 0o600)
    engine = writer_engine(path)
    migrate(engine, folder)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT n + 1 AS n FROM answer")
    view.write_text("CREATE VIEW answer AS SELECT 41 AS n;\n")
    migrate(engine, folder)
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT n FROM mine").scalar_one() == 42
        before = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    migrate(engine, folder)
    with engine.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA schema_version").scalar_one() == before, "nothing has changed"
    engine.dispose()


def test_migrations_are_numbered_without_gap_or_repetition() -> None:
    names = sorted(path.name for path in sql_folder().glob("*.sql"))
    assert [name[:5] for name in names] == [f"{number:04d}_" for number in range(1, len(names) + 1)]


def test_statements_are_told_apart_in_triggers_and_comments() -> None:
    script = "-- a; b\nCREATE TABLE x (a); -- tail\nCREATE TRIGGER y AFTER INSERT ON x BEGIN\n  SELECT 1;\nEND;\n"
    first, second = statements(script)
    assert first.startswith("CREATE TABLE x")
    assert second.endswith("END;")
    with pytest.raises(StoreError, match="no end"):
        statements("CREATE TABLE x (a)")
