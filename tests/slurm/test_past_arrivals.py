"""Main jobs by accounting."""

from __future__ import annotations

from malletrain.slurm.past_arrivals import parse_arrivals


def test_main_jobs_are_read_and_pilots_and_odd_rows_left_out() -> None:
    rows = (
        "12|batch|1700000000|4\n13_2|batch|1700000009|1\n14_1|harvest|1700000009|1\nx\n15|batch|Unknown|1\n16|b|?|1\n"
    )
    assert parse_arrivals(rows, "harvest") == [("12", 1_700_000_000.0, 4), ("13_2", 1_700_000_009.0, 1)]
