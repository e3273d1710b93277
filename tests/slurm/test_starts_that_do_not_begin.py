"""Tasks that Slurm does not start, by its own limits or their owner's: on a real Slurm."""

from __future__ import annotations

import time

import pytest

from scripts.lab import Change, Lab
from tests.slurm.harvesting import Harvesting
from tests.world import data_of

pytestmark = pytest.mark.slurm


def test_a_limit_below_every_node_is_refused_once_with_slurms_reason(any_lab: Lab) -> None:
    with any_lab.changed(Change(settings={"MaxMemPerCPU": "1"})):
        harvest = Harvesting(any_lab, overrides={"include_nodes": frozenset(any_lab.nodes[:2])})
        harvest.submit(most=2)

        def rests() -> bool:
            decision = harvest.tick()
            return "to be tried again in" in harvest.refusals(decision).get("job 1", "") and not harvest.view().active

        any_lab.wait_for(rests, 60, "a job that rests")
        said = len(harvest.events())
        for _ in range(5):
            harvest.tick()
        assert len(harvest.events()) == said, harvest.said()[said:]
        # A look may fall between a release and its refusal, once; it must not go round.
        waits = [event.pilot for event in harvest.events("pilot_waits")]
        assert len(waits) == len(set(waits)), harvest.said()
        assert "(Slurm says: " in harvest.loop.waiting(1)
        assert "begins on" not in harvest.loop.waiting(1)


def test_an_array_throttled_by_its_owner_takes_no_node_from_others_again(any_lab: Lab) -> None:
    harvest = Harvesting(any_lab, overrides={"start_patience_s": 8.0})
    array = harvest.submit(most=8, tasks=8)
    any_lab.run(["scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=1"])

    def rests() -> bool:
        decision = harvest.tick()
        return "ArrayTaskThrottle" in harvest.refusals(decision).get("job 1", "") and len(harvest.running()) == 1

    any_lab.wait_for(rests, 90, "\n".join(harvest.said()))
    assert not harvest.loop.ledger.unstarted.resting_on(time.time()), "no node is blamed"
    harvest.submit(job=2, most=8)
    any_lab.wait_for(lambda: harvest.tick() and len(harvest.running(2)) >= 2, 90, str(harvest.said()[-12:]))
    for _ in range(4):
        harvest.tick()
    assert len(harvest.running(1)) == 1
    assert not [e for e in harvest.events("intent") if data_of(e)["type"] == "leave" and e.job == 2]
