"""docs/how-to/admin-lifecycle.md: the copy that an upgrade makes, going back, backup and restore."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from malletrain.domain.event import Event, PoolCounted
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from malletrain.store.migrate import migrate, sql_folder
from malletrain.store.views import StoreViews
from tests.messages import naming

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "admin-lifecycle.md").read_text()


def of(path: Path) -> list[object]:
    views = StoreViews(path)
    try:
        return [row.data["idle"] for row in views.events()[0]]
    finally:
        views.close()


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3")
def test_backup_while_the_daemon_writes_and_restore(tmp_path: Path) -> None:
    here, copy = tmp_path / "malletrain.db", tmp_path / "backup.db"
    (backup,) = re.findall(r"^sqlite3 .*$", PAGE, re.MULTILINE)
    backup = backup.replace("/var/lib/malletrain/malletrain.db", str(here)).replace(
        "/backup/malletrain.db", str(copy)
    )
    with SqliteJournal(here) as journal:
        journal.append([Event(1.0, PoolCounted(idle=1))])
        subprocess.run(["bash", "-c", backup], check=True, timeout=60)
        journal.append([Event(2.0, PoolCounted(idle=2))])
    assert of(here) == [1, 2]
    for left in ("-wal", "-shm"):
        Path(f"{here}{left}").unlink(missing_ok=True)
    shutil.copy(copy, here)
    assert of(here) == [1]
    with SqliteJournal(here) as journal:
        journal.append([Event(3.0, PoolCounted(idle=3))])
    assert of(here) == [1, 3]


def test_an_upgrade_keeps_a_copy_to_go_back_to(tmp_path: Path) -> None:
    here, older = tmp_path / "malletrain.db", tmp_path / "sql"
    shutil.copytree(sql_folder(), older)
    newest = max(older.glob("0*.sql"))
    newest.unlink()
    schema = int(newest.name[:4]) - 1
    engine = create_engine(f"sqlite:///{here}")
    migrate(engine, older)
    engine.dispose()
    with SqliteJournal(here):
        pass
    copy = Path(f"{here}.schema{schema}")
    assert copy.exists()
    engine = create_engine(f"sqlite:///{here}")
    with pytest.raises(StoreError, match=naming(schema + 1, schema)):
        migrate(engine, older)
    engine.dispose()
    shutil.copy(copy, here)
    engine = create_engine(f"sqlite:///{here}")
    assert migrate(engine, older) == schema
    engine.dispose()
