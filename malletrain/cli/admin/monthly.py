"""The month's report for a director: node-hours by account and user. Pure; standard library only."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.wire.rows import UsageRow


@dataclass(frozen=True, slots=True)
class MonthRow:
    """One user of an account, or (`user` empty) an account, or (both empty) all."""

    account: str
    user: str
    node_hours: float = 0.0
    samples: float = 0.0
    pilots: int = 0
    preempted: int = 0
    days: int = 0  #: on which something was used


def of_month(rows: Sequence[UsageRow], month: str) -> list[MonthRow]:
    """The sums of `month` (`2026-11`): each account with its users below it, the largest first; all of them last."""
    mine = [row for row in rows if row.day.startswith(f"{month}-")]
    accounts = [
        _sum([row for row in mine if row.account == name], name, "") for name in {row.account for row in mine}
    ]
    found = []
    for account in sorted(accounts, key=lambda each: (-each.node_hours, each.account)):
        own = [row for row in mine if row.account == account.account]
        users = [
            _sum([row for row in own if row.user == name], account.account, name) for name in {r.user for r in own}
        ]
        found += [account, *sorted(users, key=lambda each: (-each.node_hours, each.user))]
    return [*found, _sum(mine, "", "")]


def _sum(rows: Sequence[UsageRow], account: str, user: str) -> MonthRow:
    return MonthRow(
        account,
        user,
        sum(row.node_seconds for row in rows) / 3600.0,
        sum(row.samples for row in rows),
        sum(row.stays for row in rows),
        sum(row.preemptions for row in rows),
        len({row.day for row in rows}),
    )


def columns(row: MonthRow) -> dict[str, str | float | int]:
    """A row's cells by column."""
    return {
        "account": row.account or "all",
        "user": row.user or "all",
        "node_hours": round(row.node_hours, 2),
        "samples": round(row.samples),
        "pilots": row.pilots,
        "preempted": row.preempted,
        "days": row.days,
    }


def as_csv(rows: Sequence[MonthRow]) -> str:
    """A table for spreadsheets: a line for each user of an account, sums left out."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(columns(rows[-1])), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        if row.user:
            writer.writerow({key: _tame(value) for key, value in columns(row).items()})
    return out.getvalue()


def _tame(value: str | float | int) -> str | float | int:
    """No cell begins a formula in a spreadsheet, whatever an account is called."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
