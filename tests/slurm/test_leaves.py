"""Leaf switches and the reserve, on a real Slurm: jobs that ask for one leaf, leaves kept idle, a reserve that is
made free again."""

from __future__ import annotations

import pytest

from scripts.lab import Change, Lab
from tests.slurm.harvesting import Harvesting
from tests.world import data_of

pytestmark = pytest.mark.slurm


def tree(lab: Lab) -> Change:
    """Two leaves of four nodes."""
    n = lab.nodes
    layout = (
        f"SwitchName=a Nodes={','.join(n[:4])}\nSwitchName=b Nodes={','.join(n[4:])}\nSwitchName=top Switches=a,b\n"
    )
    return Change(settings={"TopologyPlugin": "topology/tree"}, files={"topology.conf": layout})


def test_a_job_that_asks_for_one_leaf_is_given_one(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    with lab.changed(tree(lab), restart=True):
        for name in (n[0], n[4]):  # a main job on each leaf
            lab.wait_for_state(lab.submit("sleep 600", "-w", name, "--exclusive", "--time=30", user="bob"), "RUNNING")
        harvest = Harvesting(lab)
        seen = harvest.snapshot()
        assert seen.leaves == {**dict.fromkeys(n[:4], "a"), **dict.fromkeys(n[4:], "b")}
        harvest.submit()
        harvest.fill([*n[1:4], *n[5:]])
        wide = ["--nodes=3", "--exclusive", "--time=5", "--switches=1@10:00"]
        lab.run(["scontrol", "update", "PartitionName=batch", "State=DOWN"])
        job = lab.submit("sleep 600", *wide, user="bob")
        asked = {row.raw_id: row.switches for row in harvest.snapshot().jobs if row.raw_id == job}
        assert asked == {job: 1}
        lab.run(["scontrol", "update", "PartitionName=batch", "State=UP"])
        lab.wait_for(
            lambda: harvest.tick() and lab.job_state(job) == "RUNNING", 90, "it runs, long before its patience"
        )
        on = {seen.leaves[name] for row in harvest.snapshot().jobs if row.raw_id == job for name in row.nodes}
        assert len(on) == 1
        assert lab.job(job)["Restarts"] == "0"


def test_a_leaf_is_kept_and_the_reserve_is_made_free_again(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    with lab.changed(tree(lab), restart=True):
        harvest = Harvesting(lab, overrides={"keep_leaves": 1, "keep_idle": 5})
        harvest.submit()
        lab.wait_for(lambda: harvest.tick() and len(harvest.held()) == 3, 90, "pilots on what is not kept")
        leaves = harvest.snapshot().leaves
        kept = set(n) - harvest.held().keys()
        whole = next(leaf for leaf in "ab" if kept >= {name for name in n if leaves[name] == leaf})
        # A main job takes a node of the kept leaf: the other one is kept now, and one of what is left.
        taken, *_, other = sorted(kept, key=lambda name: leaves[name] != whole)
        lab.wait_for_state(lab.submit("sleep 600", "-w", taken, "--exclusive", "--time=30", user="bob"), "RUNNING")
        others = {name for name in n if leaves[name] == leaves[other]}

        def kept_again() -> bool:
            harvest.tick()
            return len(harvest.held()) == 2 and not others & harvest.held().keys()

        lab.wait_for(kept_again, 90, "the other leaf idle, pilots on the rest but one")
        asked = [e for e in harvest.events("intent") if data_of(e).get("cause") == "reserve"]
        assert len(asked) == 3
        assert all("pool.keep_leaves" in each.reason for each in asked)
