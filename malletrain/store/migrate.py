"""Numbered plain-SQL migrations, each applied in one transaction, and reporting views, made anew when they changed.

`NNNN_name.sql` are packed into the wheel as malletrain/store/sql; in a checkout they are sql/ at the root."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine

from malletrain.store.errors import StoreError

_BOOKKEEPING = """CREATE TABLE IF NOT EXISTS schema_version (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""


def sql_folder() -> Path:
    """Where the SQL files are: in the installed package, or at the root of the checkout."""
    here = Path(__file__).resolve()
    packed = here.parent / "sql"
    folder = packed if packed.is_dir() else here.parents[2] / "sql"
    if not folder.is_dir():
        raise StoreError(f"{folder}: the SQL files of this installation are missing: install malletrain again")
    return folder


def migrations(folder: Path) -> list[Path]:
    """The migrations in `folder`, in order: each one step of the schema."""
    return sorted(folder.glob("*.sql"))


def statements(sql: str) -> list[str]:
    """The single statements of a script, comments and triggers included."""
    found, pending = [], ""
    for line in sql.splitlines(keepends=True):
        if not pending and (not line.strip() or line.lstrip().startswith("--")):
            continue
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    if pending.strip():
        raise StoreError(f"an SQL statement has no end: {pending.strip()[:60]!r}")
    return found


def migrate(engine: Engine, folder: Path | None = None, before: Callable[[int], None] | None = None) -> int:
    """Bring the database to the newest schema; returns its version.

    `before` is called with the old version when one that holds data is about to change: time for a copy.
    Raises StoreError: a newer release has written it."""
    folder = folder or sql_folder()
    known = migrations(folder)
    with engine.begin() as connection:
        connection.exec_driver_sql(_BOOKKEEPING)
        version = schema_version(connection)
    if version > len(known):
        raise StoreError(
            f"the journal has schema {version}, this malletrain knows schemas up to {len(known)}: "
            "install the release that wrote it, or restore the backup made before it"
        )
    if before is not None and 0 < version < len(known):
        before(version)
    for migration in known[version:]:
        number, name = int(migration.name[:4]), migration.stem[5:]
        with engine.begin() as connection:
            if schema_version(connection) >= number:
                continue
            for statement in statements(migration.read_text(encoding="utf-8")):
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("INSERT INTO schema_version (version, name) VALUES (?, ?)", (number, name))
    _refresh_views(engine, folder / "views")
    return len(known)


def schema_version(connection: Connection) -> int:
    """The number of the last migration that was applied."""
    return int(connection.exec_driver_sql("SELECT COALESCE(MAX(version), 0) FROM schema_version").scalar_one())


def _refresh_views(engine: Engine, folder: Path) -> None:
    """Views hold no data: they follow the release, without a migration each time; one that a release no longer has is
    dropped by a migration. An admin's own are left alone, and nothing is written where nothing has changed."""
    with engine.begin() as connection:
        known = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
        present = {row.name: row.sql for row in known}
        for path in sorted(folder.glob("*.sql")):
            (view,) = statements(path.read_text(encoding="utf-8"))
            if present.get(path.stem) != view.rstrip(";"):
                connection.exec_driver_sql(f"DROP VIEW IF EXISTS {path.stem}")
                connection.exec_driver_sql(view)
