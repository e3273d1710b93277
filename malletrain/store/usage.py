"""What was used, by day, user and account: stays that are over, and those that last still, up to now."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from malletrain.domain.errors import InvalidInput
from malletrain.store import schema as t
from malletrain.store.folding import days
from malletrain.wire.rows import UsageRow

#: Rows of one answer at most.
MAX_ROWS = 50_000


@dataclass(slots=True)
class _Sum:
    node_seconds: float = 0.0
    samples: float = 0.0
    stays: int = 0
    preemptions: int = 0
    jobs: set[int] = field(default_factory=set)


def usage_rows(
    connection: Connection, at: float, since: str = "", until: str = "", uid: int | None = None
) -> tuple[UsageRow, ...]:
    """Rows by day, user, account, from day `since` to day `until` (UTC, `2026-11-20`, both included, empty: open).

    Each has its share of the day, except where `uid` selects one user.

    Raises:
        InvalidInput: these are more than `MAX_ROWS`.
    """
    sums: dict[tuple[str, str, str], _Sum] = {}

    def within(day: str) -> bool:
        return since <= day and (not until or day <= until)

    closed = select(t.usage, t.job.c.user, t.job.c.account).join(t.job, t.job.c.id == t.usage.c.job)
    lasting = (
        select(t.stay.c.job, t.stay.c.started_at, t.job.c.user, t.job.c.account)
        .join(t.job, t.job.c.id == t.stay.c.job)
        .where(t.stay.c.ended_at.is_(None))
    )
    closed = closed.where(t.usage.c.day >= since)
    if until:
        closed = closed.where(t.usage.c.day <= until)
    if uid is not None:
        closed, lasting = closed.where(t.job.c.uid == uid), lasting.where(t.job.c.uid == uid)
    for row in connection.execute(closed):
        total = sums.setdefault((row.day, row.user, row.account), _Sum())
        total.node_seconds += row.node_seconds
        total.samples += row.samples
        total.stays += row.stays
        total.preemptions += row.preemptions
        total.jobs.add(row.job)
    for row in connection.execute(lasting):
        for index, (day, seconds) in enumerate(days(row.started_at, at)):
            if within(day):
                total = sums.setdefault((day, row.user, row.account), _Sum())
                total.node_seconds += seconds
                total.stays += index == 0
                total.jobs.add(row.job)
    if len(sums) > MAX_ROWS:
        why = f"{len(sums)} rows of days, users and accounts: at most {MAX_ROWS} in one answer; ask for fewer days"
        raise InvalidInput("since, until", why)
    whole: dict[str, float] = {}
    for (day, _, _), each in sums.items():
        whole[day] = whole.get(day, 0.0) + each.node_seconds
    return tuple(
        UsageRow(
            day, user, account, s.node_seconds, s.samples, len(s.jobs), s.stays, s.preemptions,
            share=s.node_seconds / whole[day] if uid is None and whole[day] > 0 else None,
        )
        for (day, user, account), s in sorted(sums.items())
    )  # fmt: skip
