"""What the pages show beside the strip: series for plots."""

from __future__ import annotations

from malletrain.domain.history import NodeStay, TrainingWindow, WorldChange
from malletrain.web import series
from malletrain.wire.rows import PoolRow


def test_pool_counts_at_equal_times() -> None:
    rows = [PoolRow(900.0, idle=5), PoolRow(1010.0, idle=3), PoolRow(1090.0, idle=1)]
    found = series.pool_series(rows, 1000.0, 1100.0, 5)
    assert found["at"] == [1000, 1025, 1050, 1075, 1100]
    assert found["idle"] == [5, 3, 3, 3, 1]
    assert series.pool_series([], 1000.0, 1100.0, 5) == {}


def test_rates_are_merged_by_their_time() -> None:
    windows = [
        TrainingWindow(1000.0 + at, 2, 10.0 if at % 2 else 30.0, 100.0 if at % 2 else 200.0) for at in range(6)
    ]
    assert series.rate_series(windows, 10) == [(w.at, w.rate, 2) for w in windows]
    assert series.rate_series(windows, 3) == [(1001.0, 175.0, 2), (1003.0, 175.0, 2), (1005.0, 175.0, 2)]
    assert series.rate_series([], 10) == []


def test_a_job_without_pilots_trains_on_none() -> None:
    """Its last world is that of two nodes; after both have left nothing trains."""
    worlds = [WorldChange(1010.0, 1, 0, 1, 0.2), WorldChange(1020.0, 2, 1, 2, 0.3)]
    stays = [NodeStay(3, 1, "n1", 1005.0, 1050.0), NodeStay(3, 1, "n2", 1015.0, 1040.0)]
    found = series.size_series(worlds, stays, 1000.0, 1100.0)
    assert found == [
        (1000.0, 0, 0), (1005.0, 1, 0), (1010.0, 1, 1), (1015.0, 2, 1), (1020.0, 2, 2), (1040.0, 1, 1),
        (1050.0, 0, 0), (1100.0, 0, 0),
    ]  # fmt: skip
