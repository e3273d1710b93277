"""Pilots that Slurm does not start: diagnosed, recycled, and not tried blindly again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.domain.decision import Outcome, RecyclePilot, StartPilot
from malletrain.domain.slurm_reasons import diagnose
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot
from malletrain.loop.ledger import Ledger
from tests.messages import says
from tests.world import RULES, World, data_of, job, main_job


class Stubborn(World):
    """Slurm does not start what is released onto `on`, and gives `reason`; `unfit`: it holds the task besides."""

    def __init__(self, on: set[str], reason: str, unfit: bool = False) -> None:
        super().__init__(nodes=2, rules=replace(RULES, start_patience_s=30.0))
        start, recycle, snapshot = self.cluster.start, self.cluster.recycle, self.cluster.snapshot
        self.waiting: set[str] = set()

        def stubborn_start(actions: list[StartPilot]) -> list[Outcome]:
            stuck = [a for a in actions if a.node in on]
            self.waiting |= {a.pilot for a in stuck}
            return [Outcome(True) if a in stuck else start([a])[0] for a in actions]

        def stubborn_recycle(actions: list[RecyclePilot]) -> list[Outcome]:
            self.waiting -= {a.pilot for a in actions}
            return list(recycle(actions))

        def stubborn_snapshot() -> Snapshot:
            seen = snapshot()

            def shown(row: SlurmJob) -> SlurmJob:
                stuck = replace(row, reason=reason, state=SlurmState.PENDING, priority=0 if unfit else 1)
                return stuck if row.id in self.waiting else row

            return replace(seen, jobs=tuple(map(shown, seen.jobs)))

        self.cluster.start = stubborn_start  # type: ignore[method-assign,assignment]
        self.cluster.recycle = stubborn_recycle  # type: ignore[method-assign,assignment]
        self.cluster.snapshot = stubborn_snapshot  # type: ignore[method-assign]

    def starts_on(self, name: str) -> int:
        return sum(
            e.kind == "intent" and data_of(e)["type"] == "start" and e.node == name for e in self.journal.events
        )


def test_a_node_on_which_a_pilot_did_not_start_rests_and_the_other_is_used() -> None:
    world = Stubborn({"n0"}, "Resources")
    world.submit(job(1))
    for _ in range(12):
        world.tick()
    assert world.starts_on("n0") == 1
    assert set(world.running()) == {"n1"}
    (recycled,) = [e for e in world.journal.events if data_of(e).get("unstarted") and e.kind == "intent"]
    assert says(recycled.reason, "tier", "(Slurm says: Resources)")
    assert world.loop.last_decision is not None
    refused = {r.subject: r.reason for r in world.loop.last_decision.refusals}
    assert says(refused["job 1"], "n0: released on n0", "tried again")
    assert "n0" not in refused
    for _ in range(30):
        world.tick()
    assert world.starts_on("n0") == 2, "after five minutes once more, then after ten"


def test_a_limit_of_the_owner_is_not_the_nodes_fault() -> None:
    world = Stubborn({"n0", "n1"}, "QOSMaxJobsPerUserLimit")
    world.submit(job(1))
    for _ in range(12):
        world.tick()
    assert (world.starts_on("n0"), world.starts_on("n1")) == (1, 1)
    assert world.loop.last_decision is not None
    refused = {r.subject: r.reason for r in world.loop.last_decision.refusals}
    assert "Slurm says: QOSMaxJobsPerUserLimit" in refused["job 1"]


def test_a_ledger_folded_anew_rests_the_same() -> None:
    world = Stubborn({"n0"}, "Resources")
    world.submit(job(1))
    for _ in range(12):
        world.tick()
    again = Ledger()
    again.apply(world.journal.read())
    now = world.clock.now()
    assert again.unstarted.resting_on(now) == world.loop.ledger.unstarted.resting_on(now) != {}


def test_a_node_rests_for_one_job_and_for_everybody_once_it_fails_two() -> None:
    world = Stubborn({"n0"}, "Resources")
    world.submit(job(1, most=1))
    for _ in range(6):
        world.tick()
    now = world.clock.now()
    assert world.loop.ledger.unstarted.resting_on(now).keys() == {1}
    assert world.loop.ledger.unstarted.resting(now) == {}
    world.submit(job(2, most=1))
    for _ in range(6):
        world.tick()
    assert world.starts_on("n0") == 2
    assert "n0" in world.loop.ledger.unstarted.resting(world.clock.now())


def test_a_task_that_its_node_cannot_fit_goes_back_at_once_and_its_job_alone_avoids_the_node() -> None:
    world = Stubborn({"n0"}, "BadConstraints", unfit=True)
    world.submit(job(1, most=1))
    world.tick()
    world.tick()
    world.tick()
    assert set(world.running()) == {"n1"}, "without waiting for start_patience_s"
    world.submit(job(2, most=1))
    world.tick()
    world.tick()
    assert world.starts_on("n0") == 2, "the other job tries it: nothing is wrong with the node"
    assert world.loop.ledger.unstarted.resting(world.clock.now()) == {}


@pytest.mark.parametrize("reason", ["", "None", "Priority", "Resources", "ReqNodeNotAvail, UnavailableNodes:n1"])
def test_what_is_no_limit_is_the_nodes(reason: str) -> None:
    assert not diagnose(main_job(1, reason=reason)).of_job


def test_an_unknown_reason_is_told_as_it_is() -> None:
    assert diagnose(main_job(1, reason="SomethingNew")).words == "Slurm says: SomethingNew"
