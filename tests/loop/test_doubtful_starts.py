"""Starts that do not begin, by their job's doing: it rests, longer each time, and takes nothing from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from malletrain.domain.decision import LeaveCause, LeavePilot, Outcome, RecyclePilot, StartPilot
from malletrain.domain.event import ActionIntent, ActionOutcome, DaemonStarted, Event, PilotHeld, PilotStarted
from malletrain.domain.job import Curve
from malletrain.domain.slurm_reasons import diagnose
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot
from malletrain.loop.ledger import Ledger
from malletrain.loop.trackers.start_backoff import StartBackoff
from tests.messages import says
from tests.world import RULES, World, job, main_job, node

#: A job that gains little from more nodes: another's first ones are worth more.
FLAT = Curve(((1, 10.0), (4, 20.0), (8, 22.0)))


class Withheld(World):
    """Slurm starts at most `most` pilots of the jobs in `of`; the others wait with `reason`, held by it or not."""

    def __init__(self, of: set[int], reason: str, *, most: int = 0, held: bool = False, nodes: int = 8) -> None:
        super().__init__(nodes, replace(RULES, start_patience_s=90.0))
        self.of, self.reason, self.most, self.held = of, reason, most, held
        self.waiting: dict[str, int] = {}
        self.asked: list[tuple[float, int]] = []
        start, recycle, snapshot = self.cluster.start, self.cluster.recycle, self.cluster.snapshot

        def begin(action: StartPilot) -> Outcome:
            self.asked.append((self.clock.now(), action.job_id))
            running = sum(task.node != "" for pilot, task in self.cluster.tasks.items() if pilot in self.pilots())
            if action.job_id not in self.of or running < self.most:
                return start([action])[0]
            self.waiting[action.pilot] = action.job_id
            return Outcome(True)

        def take_back(actions: Sequence[RecyclePilot]) -> list[Outcome]:
            for action in actions:
                if not self.held:  # what Slurm holds itself keeps its reason
                    self.waiting.pop(action.pilot, None)
            return list(recycle(actions))

        def shown(row: SlurmJob) -> SlurmJob:
            if row.id not in self.waiting:
                return row
            priority = 0 if self.held else 1
            return replace(row, reason=self.reason, state=SlurmState.PENDING, priority=priority, nodes=())

        def seen() -> Snapshot:
            whole = snapshot()
            return replace(whole, jobs=tuple(map(shown, whole.jobs)))

        self.cluster.start = lambda actions: [begin(action) for action in actions]  # type: ignore[method-assign]
        self.cluster.recycle = take_back  # type: ignore[method-assign]
        self.cluster.snapshot = seen  # type: ignore[method-assign]

    def pilots(self) -> set[str]:
        return {pilot for number in self.of if number in self.loop.views for pilot in self.loop.views[number].pilots}

    def rounds(self, number: int) -> list[float]:
        return sorted({at for at, asked in self.asked if asked == number})

    def moves(self, number: int) -> int:
        """How often a worker of the job was asked to leave for another job."""
        leaves = [e.payload.action for e in self.journal.events if isinstance(e.payload, ActionIntent)]
        return sum(
            isinstance(each, LeavePilot) and each.job_id == number and each.cause is LeaveCause.SHRINK
            for each in leaves
        )

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.tick()
        raise AssertionError("never so")

    def refusal(self, number: int) -> str:
        assert self.loop.last_decision is not None
        return next(r.reason for r in self.loop.last_decision.refusals if r.subject == f"job {number}")


def test_a_throttled_array_takes_nodes_from_others_once_and_then_none() -> None:
    world = Withheld({2}, "JobArrayTaskLimit")
    world.submit(job(1, given_curve=FLAT))
    world.until(lambda: world.nodes_of(1) == 8)
    world.submit(replace(job(2), user="bob"))
    for _ in range(12):
        world.tick()
    moved = world.moves(1)
    assert 0 < moved <= 7, "a start is believed in until it has failed"
    held = []
    for _ in range(720):  # two hours
        world.tick()
        held.append(world.nodes_of(1))
    assert world.moves(1) == moved, "nobody moves for a job whose last start did not begin"
    assert sum(held) / len(held) > 7.9, "one node at a time is tried, and of the idle ones"
    assert "ArrayTaskThrottle" in world.refusal(2)


def test_each_rest_is_longer_and_none_longer_than_an_hour() -> None:
    world = Withheld({1}, "JobArrayTaskLimit")
    world.submit(job(1))
    for _ in range(2000):
        world.tick()
    tries = world.rounds(1)
    waits = [after - before for before, after in pairwise(tries)]
    assert [round(wait / 100) for wait in waits[:4]] == [4, 7, 13, 25], "and 90 s of patience each"
    assert max(waits) <= 3600.0 + 120.0
    assert sum(asked == tries[1] for asked, _ in world.asked) == 1, "one node at a time"


def test_what_did_run_may_run_again_and_one_more_is_tried_after_the_rest() -> None:
    world = Withheld({1}, "JobArrayTaskLimit", most=2)
    world.submit(job(1))
    for _ in range(12):
        world.tick()
    assert world.nodes_of(1) == 2
    first = sorted(world.running())[0]
    world.cluster.end_pilot(world.running()[first], replace(world.cluster.end_of("0_0"), state=SlurmState.FAILED))
    world.tick()
    world.tick()
    assert world.nodes_of(1) == 2, "the limit lets two run"
    world.most = 8
    world.until(lambda: world.nodes_of(1) == 8)


def test_a_job_of_more_nodes_than_began_is_tried_again() -> None:
    world = Withheld({1}, "JobArrayTaskLimit", most=2)
    world.submit(replace(job(1), min_nodes=3))
    for _ in range(12):
        world.tick()
    world.most = 8
    world.until(lambda: world.nodes_of(1) >= 3)


def test_a_new_job_of_such_a_user_is_tried_on_one_idle_node_first() -> None:
    world = Withheld({2, 3}, "JobArrayTaskLimit")
    world.submit(job(1, most=6))
    world.until(lambda: world.nodes_of(1) == 6)
    world.submit(replace(job(2), user="bob"))
    world.until(lambda: len(world.rounds(2)) > 0)
    for _ in range(11):
        world.tick()
    moved = world.moves(1)
    world.submit(replace(job(3), user="bob"))
    world.submit(replace(job(4, most=2), user="carol"))
    for _ in range(12):
        world.tick()
    assert world.moves(1) <= moved + 1, "carol's may take some"
    assert sum(asked == 3 for _, asked in world.asked) <= 2
    assert world.nodes_of(4) == 2


@pytest.mark.parametrize("reason", ["JobArrayTaskLimit", "Licenses", "Dependency", "BeginTime", "SomethingNew"])
def test_what_only_the_owner_can_mend_is_no_nodes_fault(reason: str) -> None:
    world = Withheld({1, 2}, reason)
    for number in (1, 2):
        world.submit(job(number))
    for _ in range(30):
        world.tick()
    assert not [name for name in world.loop.ledger.unstarted.resting(world.clock.now()) if name.startswith("n")]
    assert world.loop.ledger.unstarted.resting_on(world.clock.now()) == {}


def test_a_task_that_its_owner_holds_again_before_it_begins_is_a_start_that_failed() -> None:
    world = Withheld({2}, "JobHeldUser", held=True)
    world.submit(job(1, given_curve=FLAT))
    world.until(lambda: world.nodes_of(1) == 8)
    world.submit(replace(job(2), user="bob"))
    for _ in range(6):
        world.tick()
    moved = world.moves(1)
    for _ in range(180):
        world.tick()
    assert world.moves(1) == moved
    assert len(world.rounds(2)) < 14
    assert says(world.refusal(2), "held")


def bad_events(world: World) -> list[Event]:
    return [e for e in world.journal.events if e.job == 1 and e.kind in ("intent", "pilot_waits")]


def test_a_limit_below_every_node_is_one_refusal_and_no_event_until_it_is_tried_again() -> None:
    world = Withheld({1}, "BadConstraints", held=True, nodes=2)
    world.submit(job(1, most=2))
    for _ in range(4):
        world.tick()
    before, waited = len(world.journal.events), bad_events(world)
    for _ in range(25):
        world.tick()
    assert world.journal.events[before:] == []
    assert not [e for e in waited if e.kind == "pilot_waits"]
    assert says(world.refusal(1), "limit", "partition", "Slurm says: BadConstraints")
    why = world.loop.waiting(1)
    assert "BadConstraints" in why
    assert "begins on" not in why
    for _ in range(400):
        world.tick()
    assert len(world.rounds(1)) <= 8, "longer each time"


@pytest.mark.parametrize("acted", [True, False])
def test_a_start_that_its_daemon_did_not_live_to_make_is_no_doubt(acted: bool) -> None:
    backoff, start = StartBackoff(), StartPilot(1, "9_0", "n1", 300.0, "a hole")
    made = (ActionOutcome(start, True),) if acted else ()
    for payload in (ActionIntent(start), *made, DaemonStarted("1"), PilotHeld()):
        backoff.apply(Event(1000.0, payload, 1, "9_0", "n1"))
    assert list(backoff.doubtful(1001.0)) == [1] * acted


def test_a_ledger_folded_anew_doubts_the_same() -> None:
    world = Withheld({1, 2}, "JobArrayTaskLimit", most=1)
    for number in (1, 2):
        world.submit(job(number))
    for _ in range(60):
        world.tick()
    again = Ledger()
    again.apply(world.journal.read())
    now = world.clock.now()
    assert again.unstarted.doubtful(now) == world.loop.ledger.unstarted.doubtful(now) != {}
    again.unstarted.apply(Event(now, PilotStarted(), 1, "9_9", "n7"))
    again.unstarted.apply(Event(now, PilotStarted(), 1, "9_8", "n6"))
    assert 1 not in again.unstarted.doubtful(now), "more run than did when it failed"


def test_a_node_is_blamed_for_what_it_lacks_alone() -> None:
    row = main_job(1, reason="BadConstraints", priority=0, gres="gres:gpu:2")
    assert says(diagnose(row, node("n1")).words, "lacks", "gpu:2")
    assert "lacks" not in diagnose(row).words
    assert diagnose(main_job(1, reason="MaxMemPerLimit")).of_job
    assert "MaxMemPerCPU" in diagnose(main_job(1, reason="MaxMemPerLimit")).words
