"""Preempted pilots are counted whatever becomes of their tasks, and a main job's own story is told after its end."""

from __future__ import annotations

import pytest

from malletrain.api.explain import explain, is_main_job, main_job_of
from malletrain.domain.event import Event, MainJobMet, WorkerLeft
from malletrain.loop.trackers import main_jobs
from scripts.lab import Lab
from tests.messages import says
from tests.slurm import harvesting
from tests.slurm.harvesting import Harvesting
from tests.waiting import Gate
from tests.world import data_of

pytestmark = pytest.mark.slurm

#: Leaves some seconds after SIGTERM, as a worker in a long step does, and well within GraceTime.
LEISURELY = "exec srun --ntasks=1 bash -c 'trap \"sleep 4; exit 0\" TERM; sleep 600 & wait'"


def started(lab: Lab) -> list[str]:
    """The pilots' steps that slurmctld knows: before theirs began, SIGTERM ends pilots at once."""
    rows = lab.run(["squeue", "-h", "-s", "-p", "harvest", "-o", "%i"]).stdout.split()
    return [row for row in rows if row.endswith(".0")]


def preempted(harvest: Harvesting) -> set[str | None]:
    found = harvest.events("pilot_ended", "pilot_held")
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
    lab.wait_for(lambda: len(started(lab)) == len(n), 90, "each pilot's step, most with their traps set")
    # No look foresees it: Slurm preempts five pilots.
    gate = Gate(lab.output)
    job = lab.submit(
        gate.closed, "-p", "batch", "-w", ",".join(n[:5]), "--nodes=5", "--exclusive", "--time=5", user="bob"
    )
    pilots = {pilot.node: pilot.id for pilot in harvest.view().active}

    def all_preempted() -> bool:
        """One that ends at once, its trap not yet set, is gone before squeue shows the time of its preemption."""
        rows = lab.run(["squeue", "-h", "-r", "-p", "harvest", "-O", "preempttime:25,nodelist:10"]).stdout
        running = {row.split()[1] for row in rows.splitlines() if row.startswith("N/A") and len(row.split()) > 1}
        return running.isdisjoint(n[:5])

    lab.wait_for(all_preempted, 90, "Slurm preempts five pilots")
    # Workers on three of these nodes say that they have left, so that their tasks are requeued in their grace.
    now = harvest.clock.now()
    harvest.workers.report(*(Event(now, WorkerLeft(), 1, pilots[node], node, "SIGTERM") for node in n[:3]))
    harvest.loop.react()
    lab.wait_for_state(job, "RUNNING")
    lab.wait_for(lambda: harvest.tick() and preempted(harvest) == {*n[:5]}, 90, str(harvest.said()[-20:]))
    assert len(harvest.loop.ledger.harm_signals.seen().preempted) == 1, (
        "they were one main job's: the breaker counts it"
    )

    met = [event for event in harvest.events("main_met") if event.node]
    lab.wait_for(lambda: harvest.tick() and len(harvest.events("main_met")) >= 5, 90, str(met))
    gate.open()
    lab.wait_for_state(job, "COMPLETED")
    harvest.tick()
    told = explain(
        f"main-job {job}", harvest.loop.views, None, None,
        [event for event in harvest.events() if is_main_job(main_job_of(event), str(job))],
    )  # fmt: skip
    assert told[0].startswith(f"main job {job} of bob, submitted ")
    lines = [line for line in told if "was preempted on" in line]
    assert {word.rstrip(",") for line in lines for word in line.split() if word.rstrip(",") in n} == {*n[:5]}
    assert all(says(line, "since") for line in lines)
    for event in harvest.events("main_met"):
        assert isinstance(event.payload, MainJobMet)
        assert event.payload.user == "bob"
        assert event.payload.preempted


def test_a_main_job_that_began_and_ended_between_two_looks_is_told_of(
    any_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_jobs, "ASK_INTERVAL_S", 0.0)
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab)
    harvest.submit()
    harvest.fill(n)
    harvest.tick()
    job = lab.submit("true", "-p", "batch", "-w", n[0], "--nodes=1", "--exclusive", "--time=5", user="bob")
    lab.wait_for_state(job, "COMPLETED")
    seen = harvest.snapshot()
    assert str(job) not in {row.id for row in seen.jobs}, "no look shows it"

    def named() -> list[Event]:
        return [event for event in harvest.events() if is_main_job(main_job_of(event), str(job))]

    lab.wait_for(lambda: harvest.tick() and named(), 90, str(harvest.said()[-12:]))
    (event,) = named()
    assert isinstance(event.payload, MainJobMet)
    assert (event.node, event.payload.user, event.payload.preempted) == (n[0], "bob", True)
    told = explain(f"main-job {job}", {}, None, None, named())
    assert says(told[1], "preempted", f"{n[0]},", "since")
