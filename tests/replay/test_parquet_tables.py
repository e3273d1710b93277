"""The report's tables as Parquet: the same figures as the CSV files, with types; a clear error without pyarrow."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import ResizeCosts
from malletrain.replay import parse_policy, replay
from malletrain.replay.report import parquet_tables
from malletrain.replay.report.page import write_report
from malletrain.replay.run import Replay
from malletrain.replay.traces.trace import BUSY, IDLE
from tests.replay.small import START, job, trace

COSTS = ResizeCosts(5.0, 0.3, 0.1)


@pytest.fixture(scope="module")
def answer() -> Replay:
    rows = [(100.25 * (n + 1) + 3000.0 * turn, n, IDLE) for n in range(3) for turn in range(2)]
    rows += [(1500.0 + 3000.0 * turn, n, BUSY) for n in range(3) for turn in range(2)]
    jobs = [job(1, costs=COSTS, most=2), job(2, costs=COSTS, samples=5000.0), job(3, costs=COSTS, at=7000.0)]
    choices = [parse_policy(name, None) for name in ("auto", "equal")]
    return replay(trace(rows, 3, 7200.0), jobs, choices, processes=1)


def test_parquet_holds_what_the_csv_files_hold(answer: Replay, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    page = write_report(answer, tmp_path, as_parquet=True).read_text(encoding="utf-8")
    made = {path.stem for path in tmp_path.glob("*.parquet")}
    assert made == {"timeline", "holes", "jobs", "users", "months", "intervals", "policies", "pilots"}
    for name in sorted(made - {"pilots", "policies"}):
        rows = parquet.read_table(tmp_path / f"{name}.parquet").to_pylist()
        with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
            said = list(csv.DictReader(file))
        assert [list(row) for row in rows] == [list(row) for row in said]
        for row, words in zip(rows, said, strict=True):
            for key, value in row.items():
                assert words[key] == ("nan" if value is None else str(value)), (name, key)
    assert 'href="pilots.parquet"' in page
    assert not (tmp_path / "pilots.csv.gz").exists()


def test_each_pilot_is_a_row_in_row_groups_with_names_and_times(
    answer: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr(parquet_tables, "PILOTS_PER_ROW_GROUP", 2)
    parquet_tables.write_pilots(tmp_path / "pilots.parquet", answer, "auto")
    log = answer.results["auto"].log
    file = parquet.ParquetFile(tmp_path / "pilots.parquet")
    assert file.num_row_groups == -(-len(log.pilots.rows().node) // 2) > 1
    rows = file.read().to_pylist()
    assert {row["node"] for row in rows} == {"n000", "n001", "n002"}
    assert {row["job"] for row in rows} <= {"job-1", "job-2", "job-3"}
    assert {row["ended_by"] for row in rows} <= {"preempted", "job_over", "shrink", "window"}
    assert min(row["start"] for row in rows) == datetime.fromtimestamp(START + 100.25, UTC)
    assert sum(row["seconds"] for row in rows) == pytest.approx(answer.scores["auto"].occupied_node_seconds)


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_tables, "find_spec", lambda name: None)
    with pytest.raises(
        InvalidInput, match=r"pip install '\./malletrain-\S+\.whl\[parquet\]', or replay\.tables = .csv"
    ):
        parquet_tables.require_pyarrow("replay.tables")
