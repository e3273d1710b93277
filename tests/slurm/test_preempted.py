"""Preempted pilots are counted whatever becomes of their tasks, and a main job's own story is told after its end."""

from __future__ import annotations

import pytest

from malletrain.daemon.views.explain import explain, is_main_job, main_job_of
from malletrain.domain.event import Event, EventKind, MainJobMet, WorkerLeft
from scripts.lab import Lab
from tests.slurm import harvesting
from tests.slurm.harvesting import Harvesting
from tests.world import data_of

pytestmark = pytest.mark.slurm

#: Leaves some seconds after SIGTERM, as a worker in a long step does, and well within GraceTime.
LEISURELY = "exec srun --ntasks=1 bash -c 'trap \"sleep 4; exit 0\" TERM; sleep 600 & wait'"


def preempted(harvest: Harvesting) -> set[str | None]:
    found = harvest.events(EventKind.PILOT_ENDED, EventKind.PILOT_HELD)
    return {event.node for event in found if data_of(event).get("preempted")}


def test_each_preempted_pilot_counts_also_those_that_are_requeued_meanwhile(
    any_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harvesting, "PAYLOAD", LEISURELY)
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab)
    harvest.submit()
    harvest.fill(n)
    harvest.tick()
    # No look foresees it: Slurm preempts five pilots.
    job = lab.submit(
        "sleep 6", "-p", "batch", "-w", ",".join(n[:5]), "--nodes=5", "--exclusive", "--time=5", user="bob"
    )
    pilots = {pilot.node: pilot.id for pilot in harvest.view().active}

    def being_preempted() -> bool:
        rows = lab.run(["squeue", "-h", "-r", "-p", "harvest", "-O", "preempttime:25,nodelist:10"]).stdout
        return sum(not line.startswith("N/A") for line in rows.splitlines()) == 5

    lab.wait_for(being_preempted, 30, "Slurm preempts five pilots")
    # Workers on three of these nodes say that they have left, so that their tasks are requeued in their grace.
    now = harvest.clock.now()
    harvest.workers.report(*(Event(now, WorkerLeft(), 1, pilots[node], node, "SIGTERM") for node in n[:3]))
    harvest.loop.react()
    lab.wait_for_state(job, "RUNNING")
    lab.wait_for(lambda: harvest.tick() and preempted(harvest) == {*n[:5]}, 30, str(harvest.said()[-20:]))
    assert len(harvest.loop.ledger.signs.seen().preempted) == 5, "the breaker counts them"

    met = [event for event in harvest.events(EventKind.MAIN_MET) if event.node]
    lab.wait_for(lambda: harvest.tick() and len(harvest.events(EventKind.MAIN_MET)) >= 5, 20, str(met))
    lab.wait_for_state(job, "COMPLETED", "gone")
    harvest.tick()
    told = explain(
        f"main-job {job}", harvest.loop.views, None, None,
        [event for event in harvest.events() if is_main_job(main_job_of(event), str(job))],
    )  # fmt: skip
    assert told[0].startswith(f"main job {job} of bob, submitted ")
    lines = [line for line in told if "was preempted on" in line]
    assert {word.rstrip(",") for line in lines for word in line.split() if word.rstrip(",") in n} == {*n[:5]}
    assert all("which it has since" in line for line in lines)
    for event in harvest.events(EventKind.MAIN_MET):
        assert isinstance(event.payload, MainJobMet)
        assert event.payload.user == "bob"
        assert event.payload.preempted
