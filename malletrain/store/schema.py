"""The journal and its projections as SQLAlchemy tables: read from what sql/, their one description, makes of an empty
database."""

from dataclasses import fields
from typing import Any

from sqlalchemy import MetaData, Table, create_engine

from malletrain.store.migrate import migrate


def _as_migrated() -> MetaData:
    engine = create_engine("sqlite://")
    migrate(engine)
    found = MetaData()
    found.reflect(engine)
    engine.dispose()
    return found


metadata = _as_migrated()

event, job, pilot, stay, world, resize, metric, pool, usage = (
    metadata.tables[name] for name in ("event", "job", "pilot", "stay", "world", "resize", "metric", "pool", "usage")
)


def stored_fields(record: type[Any], table: Table, made: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The fields of a dataclass that are columns of `table` as they are; those that are `made` of columns are not."""
    return tuple(each.name for each in fields(record) if each.name in table.c and each.name not in made)
