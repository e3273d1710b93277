"""Starts that Slurm refuses: said in the journal and of the job, tried again ever more seldom, and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from malletrain.domain.decision import Outcome, StartPilot
from malletrain.domain.event import Event
from malletrain.loop.ledger import Ledger
from malletrain.loop.trackers.start_backoff import REFUSED
from tests.messages import says
from tests.world import World, data_of, job

SAID = "scontrol update: Invalid user id"


class Refusing(World):
    """Slurm refuses the starts of the jobs in `of`."""

    def __init__(self, *of: int) -> None:
        super().__init__(nodes=4)
        self.of = set(of)
        self.asked: list[tuple[float, int]] = []
        start = self.cluster.start

        def refuse(actions: Sequence[StartPilot]) -> list[Outcome]:
            self.asked += [(self.clock.now(), action.job_id) for action in actions]
            return [
                Outcome(False, SAID, refused=True) if action.job_id in self.of else start([action])[0]
                for action in actions
            ]

        self.cluster.start = refuse  # type: ignore[method-assign]

    def refusals(self) -> list[Event]:
        return [event for event in self.journal.events if event.kind == "starts_refused"]

    def rounds(self, number: int) -> list[float]:
        return sorted({at for at, asked in self.asked if asked == number})


def test_a_refusal_is_the_jobs_reason_and_one_event_a_round() -> None:
    world = Refusing(1)
    world.submit(job(1))
    world.tick()
    (event,) = world.refusals()
    assert (event.job, event.reason, data_of(event)) == (1, SAID, {"refused": True})
    assert len(world.asked) == 4, "the four tasks of one round are one refusal"
    assert world.loop.views[1].reason.endswith(f": {SAID}")


def test_it_is_tried_again_ever_more_seldom_and_the_wait_is_explained() -> None:
    world = Refusing(1)
    world.submit(job(1))
    for _ in range(200):
        world.tick()
    rounds = world.rounds(1)
    waits = [later - sooner for sooner, later in pairwise(rounds)]
    assert waits[:4] == sorted(waits[:4])
    assert waits[0] < waits[3] < max(waits) == REFUSED[1]
    assert len(rounds) < 15
    assert world.loop.last_decision is not None
    (refusal,) = [r for r in world.loop.last_decision.refusals if r.subject == "job 1"]
    assert says(refusal.reason, SAID, "tried again")


def test_other_jobs_start_meanwhile() -> None:
    world = Refusing(1)
    world.submit(job(1, most=2))
    world.submit(job(2, most=2))
    world.tick()
    assert len(world.loop.views[2].active) == 2
    assert world.loop.views[2].reason == ""


def test_an_accepted_start_ends_it_and_a_restart_remembers() -> None:
    world = Refusing(1)
    world.submit(job(1))
    world.tick()
    world.tick()
    folded = Ledger()
    folded.apply(world.journal.events)
    assert folded.unstarted.is_refused(1)
    assert folded.unstarted.resting(world.clock.now()) == world.loop.ledger.unstarted.resting(world.clock.now())
    world.of.clear()
    world.tick(60.0)
    assert [data_of(event)["refused"] for event in world.refusals()][-1] is False
    assert world.loop.views[1].reason == ""
    assert not world.loop.ledger.unstarted.is_refused(1)
    world.tick()
    assert len(world.running()) == 4
