"""The tables that people read, folded anew from the events that the journal still has."""

from __future__ import annotations

from malletrain.store import schema as t
from malletrain.store.journal import SqliteJournal, batch_after
from malletrain.store.projections import project

#: What is folded, tables that point at others first.
PROJECTIONS = tuple(
    table
    for table in reversed(t.metadata.sorted_tables)
    if table is not t.event and not table.name.startswith("schema_")
)

#: Old jobs keep their rows: the journal no longer has their events.
_KEPT = "SELECT id FROM job WHERE archived = 1"


def fold_anew(journal: SqliteJournal) -> int:
    """Empty the tables and fold every event; how many there were."""
    with journal.writing() as connection:
        for table in PROJECTIONS:
            column = {"job": "id", "pool": "-1"}.get(table.name, "job")
            connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {column} NOT IN ({_KEPT})")
        count, after = 0, 0
        while events := batch_after(connection, after):
            project(connection, events)
            count, after = count + len(events), events[-1].seq
        return count
