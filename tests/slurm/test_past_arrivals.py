"""Main jobs by accounting."""

from __future__ import annotations

import json
import os

import pytest

from malletrain.slurm.command import Commands
from malletrain.slurm.queries import parse_arrivals, past_arrivals
from scripts.lab import LabConfig
from scripts.play.site import Site
from tests.slurm_fixtures import LabFactory


def test_main_jobs_are_read_and_pilots_and_odd_rows_left_out() -> None:
    rows = (
        "12|batch|1700000000|4\n13_2|batch|1700000009|1\n14_1|harvest|1700000009|1\nx\n15|batch|Unknown|1\n16|b|?|1\n"
    )
    assert parse_arrivals(rows, "harvest") == [("12", 1_700_000_000.0, 4), ("13_2", 1_700_000_009.0, 1)]


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="several users need root")
def test_a_restarted_daemon_has_the_heterogeneous_jobs_of_late_from_accounting(lab_factory: LabFactory) -> None:
    lab = lab_factory(LabConfig(nodes=4, users=True, accounting=True))
    script = lab.output / "het.sh"  # --wrap goes with one component only
    script.write_text("#!/bin/sh\nsleep 60\n")
    try:
        parts = ["-p", "batch", "-A", "main", "-N1", ":", "-p", "batch", "-A", "main", "-N2"]
        answer = lab.run(["sbatch", "--parsable", "--output=/dev/null", *parts, script], "alice")
        number = int(answer.stdout.split(";")[0])
        lab.wait_for_state(number, "RUNNING", deadline_s=60)
        lab.run(["scancel", str(number)])
        commands = Commands(lab.env, timeout_s=30.0)

        def found() -> dict[str, int]:
            return {identity: nodes for identity, _, nodes in past_arrivals(commands, "harvest", most_days=7)}

        wanted = {f"{number}+0": 1, f"{number}+1": 2}
        lab.wait_for(lambda: wanted.items() <= found().items(), 60, "both components in sacct")
        with Site(lab, account="harvest", settings={"pool": ["keep_idle = 1"]}) as site:
            site.start()
            logged = [json.loads(line) for line in site.log.read_text().splitlines() if line.startswith("{")]
        assert [line["arrivals"] >= 1 for line in logged if line["event"] == "main jobs by accounting"] == [True]
    finally:
        lab.clear()
