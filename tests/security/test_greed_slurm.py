"""Payloads that do not give their node back, on a real Slurm."""

from __future__ import annotations

import time

import pytest

from malletrain.domain.decision import LeavePilot
from malletrain.loop.memory import MemoryWorkers
from scripts.lab import Change, Lab
from tests.slurm import harvesting
from tests.slurm.harvesting import Harvesting

pytestmark = pytest.mark.slurm

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
        harvest.workers = harvest.loop._workers = Deaf(harvest.clock)  # type: ignore[arg-type]
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
