"""The journal and its projections as SQLAlchemy tables. The truth of the schema is sql/: a test holds both equal."""

from __future__ import annotations

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

metadata = MetaData()


def _text(name: str, default: str | None = None) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=None if default is None else text(f"'{default}'"))


def _integer(name: str, default: int | None = None) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=None if default is None else text(str(default)))


def _real(name: str, default: int | None = None) -> Column[float]:
    return Column(name, REAL(), nullable=False, server_default=None if default is None else text(str(default)))


def _maybe_real(name: str) -> Column[float]:
    return Column(name, REAL(), nullable=True)


def _maybe_integer(name: str) -> Column[int]:
    return Column(name, Integer, nullable=True)


def _of_job() -> Column[int]:
    return Column("job", Integer, ForeignKey("job.id"), nullable=False)


event = Table(
    "event",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    _real("at"),
    _text("kind"),
    Column("job", Integer),
    Column("pilot", Text),
    Column("node", Text),
    _text("reason", ""),
    _text("data", "{}"),
    CheckConstraint("json_valid(data)", name="event_data_is_json"),
    Index("event_by_job", "job", "seq"),
    Index("event_by_kind", "kind", "at"),
    sqlite_autoincrement=True,
)

job = Table(
    "job",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("name"),
    _text("user"),
    _integer("uid"),
    _text("account"),
    _integer("min_nodes"),
    _integer("max_nodes"),
    _text("sizes", "[]"),
    _real("weight", 1),
    _text("elastic", "live"),
    _maybe_real("total_samples"),
    _real("submitted_at"),
    _text("phase"),
    _text("reason", ""),
    _maybe_real("ended_at"),
    _text("result", "{}"),
    _integer("generation", 0),
    _text("members", "[]"),
    _integer("world_nodes", 0),
    _real("rate", 0),
    _real("samples", 0),
    _real("node_seconds", 0),
    _integer("preemptions", 0),
    _integer("lost_workers", 0),
    _integer("archived", 0),
    _maybe_integer("batch_min"),
    _maybe_integer("batch_max"),
    _maybe_integer("batch"),
    _maybe_real("noise_scale"),
    _integer("trusted", 0),
    _text("check_verdict", ""),
    _text("check_text", ""),
    _text("check_digest", ""),
    _maybe_integer("fixed_nodes"),
    Index("job_by_phase", "phase"),
    Index("job_by_check", "uid", "check_digest", sqlite_where=text("check_digest <> ''")),
)

pilot = Table(
    "pilot",
    metadata,
    Column("id", Text, primary_key=True),
    _of_job(),
    _text("phase"),
    _real("since"),
    _text("node", ""),
    _maybe_real("started_at"),
    _maybe_real("ends_at"),
    _text("reason", ""),
    Index("pilot_by_job", "job", "phase"),
)

stay = Table(
    "stay",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("pilot"),
    _of_job(),
    _text("node"),
    _real("started_at"),
    _maybe_real("ends_at"),
    _maybe_real("ended_at"),
    _text("state", ""),
    _integer("preempted", 0),
    _text("leave_cause", ""),
    _text("reason", ""),
    Index("stay_by_pilot", "pilot", "ended_at"),
    Index("stay_by_node", "node", "started_at"),
    Index("stay_by_job", "job", "started_at"),
    Index("stay_by_end", "ended_at"),
    Index("stay_open", "started_at", sqlite_where=text("ended_at IS NULL")),
)

world = Table(
    "world",
    metadata,
    _of_job(),
    _integer("generation"),
    _real("at"),
    _text("members"),
    _text("reason", ""),
    PrimaryKeyConstraint("job", "generation"),
)

resize = Table(
    "resize",
    metadata,
    _of_job(),
    _integer("generation"),
    _real("at"),
    _integer("nodes_before"),
    _integer("nodes"),
    _real("pause_s"),
    Column("step", Integer),
    _text("reason", ""),
    PrimaryKeyConstraint("job", "generation"),
)

metric = Table(
    "metric",
    metadata,
    _of_job(),
    _text("name"),
    _real("at"),
    _text("value"),
    _maybe_real("samples"),
    PrimaryKeyConstraint("job", "name"),
)

pool = Table(
    "pool",
    metadata,
    Column("seq", Integer, primary_key=True),
    _real("at"),
    _integer("idle"),
    _integer("planned"),
    _integer("harvested"),
    _integer("main"),
    _integer("down"),
    _integer("reserved", 0),
    Index("pool_by_time", "at"),
)

usage = Table(
    "usage",
    metadata,
    _text("day"),
    _of_job(),
    _real("node_seconds", 0),
    _real("samples", 0),
    _integer("stays", 0),
    _integer("preemptions", 0),
    PrimaryKeyConstraint("day", "job"),
)

ledger_image = Table(
    "ledger_image",
    metadata,
    Column("seq", Integer, primary_key=True),
    _text("fold"),
    _text("sha256"),
    Column("state", LargeBinary, nullable=False),
)

#: Projections in an order in which they can be emptied: those that point at others first.
PROJECTIONS = (usage, pool, metric, resize, world, stay, pilot, job)
