"""docs/reference/sql.md names every table and view, and its queries run."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from malletrain.store.journal import SqliteJournal
from malletrain.store.migrate import sql_folder, statements

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "sql.md"


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    with SqliteJournal(tmp_path / "j.db"):
        pass
    return sqlite3.connect(tmp_path / "j.db")


def test_every_table_and_view_is_named(connection: sqlite3.Connection) -> None:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    named = set(re.findall(r"^\| `(\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {name for name in names if not name.startswith("sqlite_")}
    connection.close()


def test_every_example_runs(connection: sqlite3.Connection) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    queries = [block for block in blocks if "SELECT" in block and "$" not in block]
    assert len(queries) == 3
    for query in queries:
        for statement in statements(query):
            connection.execute(statement).fetchall()
    connection.close()


def test_every_view_is_called_as_its_file() -> None:
    """The views of an older release are dropped by name, so name and file go together."""
    for path in (sql_folder() / "views").glob("*.sql"):
        assert re.search(rf"^CREATE VIEW {path.stem} AS$", path.read_text(encoding="utf-8"), re.MULTILINE)
