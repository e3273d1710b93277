"""The month's report: sums, figures of the site, CSV that no spreadsheet runs, and a page that asks for nothing."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli.admin.monthly import SiteFigures, as_csv, as_html, columns, of_month
from malletrain.cli.admin.science_fields import read_fields
from malletrain.domain.errors import InvalidInput
from malletrain.wire.rows import UsageRow
from tests.api.house import House
from tests.cli.conftest import Desk

ROWS = (
    UsageRow("2026-10-31", "ann", "bio", 36_000.0, 5.0, 1, 2, 1),
    UsageRow("2026-11-01", "ann", "bio", 3_600.0, 10.0, 1, 4, 0),
    UsageRow("2026-11-02", "ann", "bio", 7_200.0, 20.0, 1, 5, 1),
    UsageRow("2026-11-02", "bob", "=cmd|x", 18_000.0, 30.0, 2, 6, 0),
    UsageRow("2026-12-01", "bob", "bio", 36_000.0, 5.0, 1, 2, 0),
)
SITE = SiteFigures(price=2.0, node_watts=500.0, grams_per_kwh=300.0)


def test_a_months_sums() -> None:
    found = of_month(ROWS, "2026-11")
    assert [(row.account, row.user, row.node_hours, row.pilots, row.preempted, row.days) for row in found] == [
        ("=cmd|x", "", 5.0, 6, 0, 1), ("=cmd|x", "bob", 5.0, 6, 0, 1),
        ("bio", "", 3.0, 9, 1, 2), ("bio", "ann", 3.0, 9, 1, 2),
        ("", "", 8.0, 15, 1, 2),
    ]  # fmt: skip
    assert of_month(ROWS, "2026-09")[-1].node_hours == 0.0


def test_money_energy_and_carbon_only_where_the_site_gives_figures() -> None:
    total = of_month(ROWS, "2026-11")[-1]
    cells = columns(total, SITE)
    assert (cells["worth_eur"], cells["kwh"], cells["co2_kg"]) == (16.0, 4.0, 1.2)
    assert not columns(total, SiteFigures(grams_per_kwh=300.0)).keys() & {"worth_eur", "kwh", "co2_kg"}


def test_the_csv_adds_up_and_runs_nothing() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(of_month(ROWS, "2026-11"), SITE))))
    assert [(row["account"], row["user"]) for row in rows] == [("'=cmd|x", "bob"), ("bio", "ann")]
    assert sum(float(row["node_hours"]) for row in rows) == 8.0
    assert as_csv(of_month((), "2026-11"), SITE).count("\n") == 1


def test_sums_by_field_of_science_come_first_and_add_up() -> None:
    site = SiteFigures(fields={"bio": "Life sciences"})
    found = of_month(ROWS, "2026-11", site.fields)
    shown = [(row.field, row.account, row.user, row.node_hours) for row in found]
    assert shown[:2] == [("unlisted", "", "", 5.0), ("Life sciences", "", "", 3.0)]
    assert shown[2:] == [
        ("unlisted", "=cmd|x", "", 5.0), ("unlisted", "=cmd|x", "bob", 5.0),
        ("Life sciences", "bio", "", 3.0), ("Life sciences", "bio", "ann", 3.0),
        ("", "", "", 8.0),
    ]  # fmt: skip
    assert as_csv(found, site).splitlines()[0].startswith("field,account,user")
    assert 'tr class="field"><td class="words">unlisted' in as_html(found, "2026-11", site)


def test_a_file_of_fields() -> None:
    text = 'account,field\n bio , Life sciences\n\n"a,b","Physics"\n'
    assert read_fields(text, "f.csv") == {"bio": "Life sciences", "a,b": "Physics"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("bio\n", "f.csv:1: is not an account and its field"),
        ("account,field\nbio,\n", "f.csv:2: is not an account"),
        ("bio,x\nbio,y\n", "f.csv:2: account 'bio' has a field already: 'x'"),
    ],
)
def test_a_line_that_is_none_is_named(text: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(fault)):
        read_fields(text, "f.csv")


@given(st.text())
def test_any_text_is_fields_or_a_line_with_a_fault(text: str) -> None:
    try:
        assert all(read_fields(text, "f.csv").values())
    except InvalidInput as error:
        assert re.match(r"f\.csv:\d+$", error.where)


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.asked += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_asks_for_nothing_and_escapes_names() -> None:
    rows = (UsageRow("2026-11-02", "<script>alert(1)</script>", "a&b", 3_600.0),)
    text = as_html(of_month(rows, "2026-11"), "2026-11", SiteFigures(price=2.0, currency="<b>"))
    seen = Seen()
    seen.feed(text)
    assert (seen.asked, "script" in seen.tags, "b" in seen.tags) == ([], False, False)
    assert "a&amp;b" in text
    assert "1.0 node-hours of idle nodes" in text


def test_the_command(desk: Desk, api: House) -> None:
    assert desk.malletrain("report", "--month", "2026-11", "--csv").out.startswith("account,user,node_hours")
    assert desk.malletrain("report", "--month", "2026-11", "--html", "n.html").status == 0
    assert (desk.work / "n.html").read_text().startswith("<!doctype html>")
    assert "--month: '2026-13' is not a month" in desk.malletrain("report", "--month", "2026-13").err
    assert "need --month" in desk.malletrain("report", "--csv").err
    (desk.work / "fields.csv").write_text("bio,Life sciences\nbio\n")
    assert (
        "fields.csv:2: is not an account"
        in desk.malletrain("report", "--month", "2026-11", "--fields", "fields.csv").err
    )
