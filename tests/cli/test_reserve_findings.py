"""What doctor says of a reserve that holds only a part of the heterogeneous jobs of late."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from malletrain import config as configuration
from malletrain.cli.admin.reserve_findings import reserve_findings
from malletrain.slurm.command import Commands
from malletrain.slurm.site.site_facts import Level


def commands(folder: Path, *rows: str) -> Commands:
    """An sacct that prints these rows."""
    fake = folder / "sacct"
    fake.write_text("#!/bin/sh\ncat <<E\n" + "".join(f"{row}\n" for row in rows) + "E\n")
    fake.chmod(0o755)
    return Commands({"PATH": f"{folder}:/usr/bin:/bin"}, timeout_s=30.0)


@pytest.mark.parametrize(
    ("pool", "level", "said"),
    [
        ("spare_hetjobs = true", Level.OK, "0 nodes stay idle until 2"),
        ("spare_hetjobs = false", Level.WARNING, "would let Slurm start a part of heterogeneous jobs of 3 nodes"),
        ("keep_idle = 3", None, ""),
        ("keep_idle = 0", None, ""),
    ],
)
def test_heterogeneous_jobs_of_the_last_week(tmp_path: Path, pool: str, level: Level | None, said: str) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 3600))
    site = commands(tmp_path, f"8+0|batch|{at}|1", f"8+1|batch|{at}|2", f"9|batch|{at}|7")
    found = reserve_findings(site, configuration.parse(f"[pool]\n{pool}\n", "own"))
    assert [each.level for each in found] == ([] if level is None else [level])
    assert all(said in each.what for each in found)
    assert reserve_findings(commands(tmp_path, f"9|batch|{at}|7"), configuration.parse("", "own")) == ()
