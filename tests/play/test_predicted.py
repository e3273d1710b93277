"""What a calibration gives to replay."""

from __future__ import annotations

from pathlib import Path

from malletrain.replay.traces.read import read_trace
from malletrain.replay.traces.trace import JobRecords
from scripts.play.load import MainJob
from scripts.play.predicted import PREDICTED_BEGIN, idle_spans, node_changes, swf


def test_the_jobs_of_a_play_are_a_log_that_replay_reads(tmp_path: Path) -> None:
    path = tmp_path / "piece.swf"
    path.write_text(swf([MainJob(0, 30.25, 2, 40.5, 61.0), MainJob(1, 0.0, 8, 10.0, 60.0)], 8, 20.0))
    log = read_trace(path)
    assert isinstance(log, JobRecords)
    assert log.node_count == 8
    assert (log.submit - PREDICTED_BEGIN).tolist() == [0.0, 30.25]
    assert (log.end - log.start).tolist() == [30.0, 60.5], "prolog and epilog hold the nodes too"
    assert log.limit.tolist() == [80.0, 140.0], "sbatch takes whole minutes"


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
