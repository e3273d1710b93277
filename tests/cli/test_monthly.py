"""The month's report: sums, and CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io

from malletrain.cli.admin.monthly import as_csv, of_month
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


def test_a_months_sums() -> None:
    found = of_month(ROWS, "2026-11")
    assert [(row.account, row.user, row.node_hours, row.pilots, row.preempted, row.days) for row in found] == [
        ("=cmd|x", "", 5.0, 6, 0, 1), ("=cmd|x", "bob", 5.0, 6, 0, 1),
        ("bio", "", 3.0, 9, 1, 2), ("bio", "ann", 3.0, 9, 1, 2),
        ("", "", 8.0, 15, 1, 2),
    ]  # fmt: skip
    assert of_month(ROWS, "2026-09")[-1].node_hours == 0.0


def test_the_csv_adds_up_and_runs_nothing() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(of_month(ROWS, "2026-11")))))
    assert [(row["account"], row["user"]) for row in rows] == [("'=cmd|x", "bob"), ("bio", "ann")]
    assert sum(float(row["node_hours"]) for row in rows) == 8.0
    assert as_csv(of_month((), "2026-11")).count("\n") == 1


def test_the_command(desk: Desk, api: House) -> None:
    assert desk.malletrain("report", "--month", "2026-11", "--csv").out.startswith("account,user,node_hours")
    assert "'--month': '2026-13' does not match" in desk.malletrain("report", "--month", "2026-13").err
    assert "is of a --month" in desk.malletrain("report", "--csv").err
