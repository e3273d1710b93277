"""Payloads that do not give their node back, and jobs that are no pilots, on a real Slurm."""

from __future__ import annotations

import time

import pytest

from malletrain.domain.decision import LeavePilot
from malletrain.loop.memory import MemoryWorkers
from scripts.lab import Change, Lab
from tests.slurm import harvesting
from tests.slurm.harvesting import Harvesting

pytestmark = pytest.mark.slurm

#: A script that is deaf to SIGTERM and begins steps in a loop that are, too.
DEAF_JOB = """trap '' TERM CONT
while :; do srun --ntasks=1 bash -c "trap '' TERM; while :; do sleep 1; done"; done"""

DEAF_STEP = "exec srun --ntasks=1 bash -c 'trap \"\" TERM; while :; do sleep 1; done'"


class Deaf(MemoryWorkers):
    """Workers that do not leave when they are asked to."""

    def leave(self, action: LeavePilot) -> None:
        pass


def test_a_payload_deaf_to_sigterm_does_not_keep_its_node_for_killwait(
    any_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drained, not wanted by a main job: this lab's Slurm would preempt within the patience."""
    lab, nodes = any_lab, any_lab.nodes
    monkeypatch.setattr(harvesting, "PAYLOAD", DEAF_STEP)
    with lab.changed(Change(settings={"KillWait": "100"})):
        harvest = Harvesting(lab, overrides={"leave_patience_s": 2.0, "include_nodes": frozenset(nodes[:2])})
        harvest.workers = harvest.loop._workers = Deaf(harvest.clock)
        harvest.submit()
        harvest.fill(nodes[:2])
        lab.run(["scontrol", "update", f"NodeName={nodes[0]},{nodes[1]}", "State=DRAIN", "Reason=new disk"])
        begun = time.monotonic()

        def drained() -> bool:
            harvest.tick()
            return not harvest.held() and len(harvest.view().held) == 10

        lab.wait_for(drained, 90, "\n".join(harvest.said()))
        assert time.monotonic() - begun < 90, "KillWait is 100 s"
        lab.run(["scontrol", "update", f"NodeName={nodes[0]},{nodes[1]}", "State=RESUME"])


def test_plain_jobs_of_the_partition_hold_the_pool_for_a_look_and_delay_no_main_job(any_lab: Lab) -> None:
    lab, nodes = any_lab, any_lab.nodes
    plain = ("-p", "harvest", "--nodes=1", "--exclusive", "--time=30")
    with lab.changed(Change(settings={"KillWait": "100"})):
        harvest = Harvesting(lab, overrides={"include_nodes": frozenset(nodes)})
        harvest.submit(most=2)
        lab.wait_for(lambda: harvest.tick() and len(harvest.running()) == 2, 90, str(harvest.said()))
        mine = harvest.held()
        for _ in range(4):  # again and again: each time all idle nodes, and as many jobs waiting
            array = lab.submit(DEAF_JOB, *plain, "--array=0-11", user="bob")
            lab.wait_for(lambda: len(harvest.held()) == len(nodes), 60, "bob's jobs hold what is idle")
            lab.wait_for(lambda: harvest.tick() and harvest.held() == mine, 60, "no node but the pilots'")
            assert not lab.run(["squeue", "-h", "-j", str(array), "-t", "PD,R"]).stdout.strip(), "nor do others wait"
        assert len(harvest.events("strays")) == 4
        assert harvest.running() == set(mine), "nobody left for them"
        lab.submit(DEAF_JOB, *plain, "--array=0-11", user="bob")
        lab.wait_for(lambda: len(harvest.held()) == len(nodes), 60)
        main = lab.submit("sleep 60", "-p", "batch", f"--nodes={len(nodes) - 2}", "--exclusive", user="bob")
        begun = time.monotonic()
        lab.wait_for(lambda: harvest.tick() and lab.job(str(main))["JobState"] == "RUNNING", 60)
        assert time.monotonic() - begun < 60, "KillWait is 100 s"
