"""The month's report for a director: node-hours by field, account and user, their worth, energy and carbon.

Pure; standard library only.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.cli.admin.science_fields import UNLISTED
from malletrain.wire.rows import UsageRow


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """What the site gives, to turn node-hours into money, energy and carbon; None: not given, and left out.

    `price`: of a node-hour, in `currency`; `node_watts`: what a node draws while it trains; `grams_per_kwh`: carbon
    dioxide of the site's electricity; `fields`: of science, by account.
    """

    price: float | None = None
    currency: str = "EUR"
    node_watts: float | None = None
    grams_per_kwh: float | None = None
    fields: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class MonthRow:
    """One user of an account, or (`user` empty) an account, or (both empty) a field, or (all empty) all."""

    account: str
    user: str
    node_hours: float = 0.0
    samples: float = 0.0
    pilots: int = 0
    preempted: int = 0
    days: int = 0  #: on which something was used
    field: str = ""  #: of science; empty where the site gives none


def of_month(rows: Sequence[UsageRow], month: str, fields: Mapping[str, str] | None = None) -> list[MonthRow]:
    """The sums of `month` (`2026-11`): each account with its users below it, the largest first; all of them last.

    With the field of science of accounts (`fields`) each field's sum comes first, the largest before the others.
    """
    mine = [row for row in rows if row.day.startswith(f"{month}-")]
    of = {row.account: "" if fields is None else fields.get(row.account, UNLISTED) for row in mine}
    users = [
        _sum([row for row in mine if (row.account, row.user) == key], *key, of[key[0]])
        for key in {(row.account, row.user) for row in mine}
    ]
    accounts = [_sum([row for row in mine if row.account == name], name, "", field) for name, field in of.items()]
    by_field = [
        _sum([row for row in mine if of[row.account] == field], "", "", field) for field in set(of.values()) if field
    ]
    found = sorted(by_field, key=lambda each: (-each.node_hours, each.field))
    for account in sorted(accounts, key=lambda each: (-each.node_hours, each.account)):
        found.append(account)
        own = [each for each in users if each.account == account.account]
        found += sorted(own, key=lambda each: (-each.node_hours, each.user))
    return [*found, _sum(mine, "", "")]


def _sum(rows: Sequence[UsageRow], account: str, user: str, field: str = "") -> MonthRow:
    return MonthRow(
        account,
        user,
        sum(row.node_seconds for row in rows) / 3600.0,
        sum(row.samples for row in rows),
        sum(row.stays for row in rows),
        sum(row.preemptions for row in rows),
        len({row.day for row in rows}),
        field,
    )


def columns(row: MonthRow, site: SiteFigures) -> dict[str, str | float | int]:
    """A row's cells by column; figures that the site does not give are left out."""
    cells: dict[str, str | float | int] = {} if site.fields is None else {"field": row.field or "all"}
    cells |= {
        "account": row.account or "all",
        "user": row.user or "all",
        "node_hours": round(row.node_hours, 2),
        "samples": round(row.samples),
        "pilots": row.pilots,
        "preempted": row.preempted,
        "days": row.days,
    }
    if site.price is not None:
        cells[f"worth_{site.currency.lower()}"] = round(row.node_hours * site.price, 2)
    if site.node_watts is not None:
        kwh = row.node_hours * site.node_watts / 1000.0
        cells["kwh"] = round(kwh, 1)
        if site.grams_per_kwh is not None:
            cells["co2_kg"] = round(kwh * site.grams_per_kwh / 1000.0, 1)
    return cells


def as_csv(rows: Sequence[MonthRow], site: SiteFigures) -> str:
    """A table for spreadsheets: a line for each user of an account, sums left out."""
    out = io.StringIO()
    table = [columns(row, site) for row in rows if row.user]
    writer = csv.DictWriter(out, fieldnames=list(columns(rows[-1], site)), lineterminator="\n")
    writer.writeheader()
    for cells in table:
        writer.writerow({key: _tame(value) for key, value in cells.items()})
    return out.getvalue()


def _tame(value: str | float | int) -> str | float | int:
    """No cell begins a formula in a spreadsheet, whatever an account is called."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b }
h1 { font-size: 1.5rem } table { border-collapse: collapse; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ccc; text-align: right }
.words { text-align: left }
tr.field { font-weight: 700 }
tr.account { font-weight: 600; background: #f2f4f7 } tr.all { font-weight: 700; border-top: 2px solid #1b1b1b }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e8e8e8 }
tr.account { background: #24272d } th, td { border-color: #444 } tr.all { border-color: #e8e8e8 } }
@media print { body { margin: 0; max-width: none } }
"""


_WORDS = ' class="words"'


def as_html(rows: Sequence[MonthRow], month: str, site: SiteFigures) -> str:
    """One page that needs nothing else: no script, no request."""
    names = list(columns(rows[-1], site))
    words = names.index("node_hours")
    head = "".join(
        f'<th scope="col"{_WORDS if i < words else ""}>{html.escape(name.replace("_", " "))}</th>'
        for i, name in enumerate(names)
    )
    body = []
    for row in rows:
        kind = "user" if row.user else "account" if row.account else "field" if row.field else "all"
        cells = "".join(
            f"<td{_WORDS if i < words else ''}>{html.escape(_shown(value))}</td>"
            for i, value in enumerate(columns(row, site).values())
        )
        body.append(f'<tr class="{kind}">{cells}</tr>')
    total = columns(rows[-1], site)
    headline = f"{_shown(total['node_hours'])} node-hours of idle nodes were used for training"
    worth = f"worth_{site.currency.lower()}"
    if worth in total:
        headline += f", worth {_shown(total[worth])} {html.escape(site.currency)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>MalleTrain, {html.escape(month)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>MalleTrain, {html.escape(month)}</h1><p>{headline}.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        "<p>Node-hours: the time that pilots held nodes which the main queue did not use, by days in UTC. "
        f"Preempted: pilots that Slurm had to remove for a main job.{_assumed(site)}</p></body></html>\n"
    )


def _assumed(site: SiteFigures) -> str:
    parts = []
    if site.price is not None:
        parts.append(f"a node-hour is worth {site.price:g} {site.currency}")
    if site.node_watts is not None:
        parts.append(f"a node that trains draws {site.node_watts:g} W")
    if site.grams_per_kwh is not None:
        parts.append(f"a kWh is {site.grams_per_kwh:g} g of carbon dioxide")
    return html.escape(f" The site's figures: {'; '.join(parts)}.") if parts else ""


def _shown(value: str | float | int) -> str:
    return value if isinstance(value, str) else f"{value:,}"
