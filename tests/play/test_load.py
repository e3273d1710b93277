"""Main queues to play."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.domain.errors import InvalidInput
from scripts.play.load import day, from_log


def test_the_day_fits_its_cluster() -> None:
    jobs = day(stretch=2.0)
    assert len(jobs) > 10
    assert all(1 <= job.nodes <= 8 and job.run_s <= 2 * job.limit_s for job in jobs)
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)


def test_a_log_is_scaled_to_a_small_cluster_and_a_short_time(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    rows = [f"{n} {n * 600} 10 {1200 + n} 64 -1 -1 64 3600 -1 1 1 1 1 1 1 -1 -1" for n in range(1, 200)]
    log.write_text("; MaxNodes: 256\n; MaxProcs: 256\n" + "\n".join(rows) + "\n")
    jobs, factor = from_log(log, 8, 120.0)
    assert factor == 12 * 3600 / 120
    assert jobs
    assert all(0 <= job.submit_s <= 120 and 1 <= job.nodes <= 8 and 1 <= job.run_s <= 120 for job in jobs)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("this is no log\n")
    with pytest.raises(InvalidInput):
        from_log(other, 8, 120.0)


def test_prolog_and_epilog_fill_the_machine_too_and_windows_with_few_jobs_come_last(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    short, long = [(n * 60, 90) for n in range(20)], [(3600, 1800), (7300, 60)]  # 20, 1 and 1 jobs an hour
    rows = [f"{n} {at} 10 {run} 64 -1 -1 64 3600 -1 1 1 1 1 1 1 -1 -1" for n, (at, run) in enumerate(short + long, 1)]
    log.write_text("; MaxNodes: 64\n; MaxProcs: 64\n" + "\n".join(rows) + "\n")
    assert len(from_log(log, 16, 360.0, 3600.0, fill=0.5)[0]) == 20
    assert len(from_log(log, 16, 360.0, 3600.0, fill=0.5, around_s=20.0)[0]) == 1, "20 s a job are 1.6 machines"
    assert len(from_log(log, 16, 360.0, 3600.0, fill=0.5, around_s=20.0, least_jobs=10)[0]) == 20
