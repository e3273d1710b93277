"""What a calibration gives to replay."""

from __future__ import annotations

from scripts.play.predicted import idle_spans, node_changes


def test_the_holes_of_a_play_are_what_its_main_jobs_left() -> None:
    busy = [("n0", 10.0, 30.0), ("n0", 20.0, 40.0), ("n0", 95.0, 300.0), ("n1", -5.0, 5.0)]
    assert idle_spans(busy, ["n0", "n1", "n2"], 0.0, 100.0) == {
        "n0": [(0.0, 10.0), (40.0, 95.0)], "n1": [(5.0, 100.0)], "n2": [(0.0, 100.0)],
    }  # fmt: skip


def test_jobs_that_follow_each_other_within_slurms_second_leave_no_hole() -> None:
    holes = idle_spans([("n0", 0.0, 30.0), ("n0", 30.0, 60.0), ("n1", 0.0, 90.0)], ["n0", "n1"], 0.0, 90.0)
    assert node_changes(holes, 0.0).splitlines()[1:] == [
        "0.00,n0,busy", "0.00,n1,busy", "60.00,n0,idle", "90.00,n0,busy",
    ]  # fmt: skip
