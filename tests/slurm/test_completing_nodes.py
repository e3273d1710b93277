"""Why pilots do not leave just ahead of a backfill cycle: Slurm gives waiting jobs nodes that still complete."""

from __future__ import annotations

import re
import time

import pytest

from scripts.lab import Lab, LabConfig
from tests.slurm_fixtures import LabFactory

pytestmark = pytest.mark.slurm

CYCLE_S, EPILOG_S = 10.0, 5.0
SCHEDULER = f"sched_interval=60,bf_interval={CYCLE_S:.0f},bf_resolution=60,bf_window=2880,bf_continue"
LEAVES = "SwitchName=a Nodes=n[000-003]\nSwitchName=b Nodes=n[004-007]\nSwitchName=top Switches=a,b\n"


def backfill_cycles(lab: Lab) -> int:
    said = lab.run(["sdiag"]).stdout.partition("Backfilling stats")[2]
    found = re.search(r"Total cycles: (\d+)", said)
    assert found is not None, said
    return int(found[1])


def next_cycle(lab: Lab) -> float:
    before = backfill_cycles(lab)
    lab.wait_for(lambda: backfill_cycles(lab) > before, 60, "a backfill cycle")
    return time.monotonic()


def test_a_job_with_idle_nodes_enough_is_put_off_for_one_that_completes_on_a_fitter_leaf(
    lab_factory: LabFactory,
) -> None:
    settings = (("TopologyPlugin", "topology/tree"), ("SchedulerParameters", SCHEDULER))
    files = (("topology.conf", LEAVES),)
    lab = lab_factory(
        LabConfig(nodes=8, profile="site", prolog_s=0, epilog_s=EPILOG_S, settings=settings, files=files)
    )
    try:
        for names in ("n[005-007]", "n004"):
            goes = lab.submit("sleep 600", "-w", names, "--exclusive", "--time=30")
            lab.wait_for_state(goes, "RUNNING")
        lab.submit("sleep 1", "--nodes=8", "--exclusive", "--time=1", "--nice=1000")  # keeps backfill at work
        script = lab.output / "het.sh"
        script.write_text("#!/bin/sh\nsleep 60\n")
        parts = ["--nodes=1", "--exclusive", "--time=2", ":", "--nodes=2", "--exclusive", "--time=2"]
        began = next_cycle(lab)
        job = lab.run(["sbatch", "--parsable", "--output=/dev/null", *parts, script]).stdout.split(";")[0].strip()
        time.sleep(max(0.0, began + CYCLE_S - EPILOG_S / 2 - time.monotonic()))  # a moment of Slurm's own clock
        lab.run(["scancel", str(goes)])
        next_cycle(lab)
        lab.wait_for(lambda: lab.job(job).get("SchedNodeList", "(null)") != "(null)", 10, "a plan")
        assert lab.job(job)["JobState"] == "PENDING", "n000 to n003 are idle, and it needs three"
        assert lab.job(job)["SchedNodeList"] == "n004"
    finally:
        lab.clear()
