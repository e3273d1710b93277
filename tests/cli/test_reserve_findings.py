"""What doctor says of a reserve that holds only a part of the heterogeneous jobs of late."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain import config as configuration
from malletrain.cli.admin.surroundings import harmless_reserve, hetjobs_in, reserve_findings
from malletrain.slurm.command import Commands
from malletrain.slurm.site.site_facts import Level


def commands(folder: Path, *rows: str) -> Commands:
    """An sacct that prints these rows."""
    fake = folder / "sacct"
    fake.write_text("#!/bin/sh\ncat <<E\n" + "".join(f"{row}\n" for row in rows) + "E\n")
    fake.chmod(0o755)
    return Commands({"PATH": f"{folder}:/usr/bin:/bin"}, timeout_s=30.0)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "set pool.keep_idle to 0, or to 3 or more"),
        ("[pool]\nkeep_idle = 3", None),
        ("[pool]\nkeep_idle = 0", None),
        ("[pool]\nkeep_leaves = 1", None),
        ("[promise]\nmain_delay_p95 = 2", None),
    ],
)
def test_heterogeneous_jobs_of_the_last_week(tmp_path: Path, text: str, remedy: str | None) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 3600))
    site = commands(tmp_path, f"8+0|batch|{at}|1", f"8+1|batch|{at}|2", f"9|batch|{at}|7")
    found = reserve_findings(site, configuration.parse(text, "own"))
    assert [each.level for each in found] == ([] if remedy is None else [Level.WARNING])
    assert all(remedy in each.remedy for each in found if remedy is not None)
    assert reserve_findings(commands(tmp_path, f"9|batch|{at}|7"), configuration.parse("", "own")) == ()


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), max_size=6))
def test_no_reserve_holds_a_part_of_a_heterogeneous_job_alone(keep: int, widths: list[tuple[int, int]]) -> None:
    hetjobs = [(least + more, least) for least, more in widths]
    harmless = [n for n in range(keep + 1) if not any(least <= n < width for width, least in hetjobs)]
    nodes, widest = harmless_reserve(keep, hetjobs)
    assert nodes == max(harmless)
    assert bool(widest) == (nodes < keep)


def test_components_of_one_number_are_one_job() -> None:
    arrivals = [("12+0", 1.0, 1), ("12+1", 1.0, 3), ("13", 1.0, 9), ("14_2", 1.0, 1)]
    assert hetjobs_in(arrivals) == [(4, 1)]
