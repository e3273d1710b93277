"""Thousands of random changes against the real membership: workers that follow the protocol, in simulated time.

Whatever happened, once it stops happening all that live train together in time (a newcomer that froze
before it was warm is given up after two minutes); and nothing is kept of
those that are gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.event import EventKind
from malletrain.loop.membership.admission import Admission, Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import JobMembership, MembershipSettings
from malletrain.wire.messages import CheckedIn, Exited, Fault, Leaving, Left, Plan, Switched, Warm
from tests.loop.stage import HandClock
from tests.world import data_of

TICK_S = 0.1
STALL_S = 2.5
SEATS = 8


@dataclass
class Process:
    """One worker's process, as far as the daemon can see it."""

    name: str
    task: int
    warm_at: float
    alive: bool = True
    frozen: bool = False
    warm: bool = False
    at: Plan | None = None
    entering: Plan | None = None
    tried: int = 0
    ready: int = 0
    waits: float = 0.0

    @property
    def runs(self) -> bool:
        return self.alive and not self.frozen


@dataclass
class Theatre:
    seed: int
    clock: HandClock = field(default_factory=HandClock)
    processes: dict[str, Process] = field(default_factory=dict)
    steps: int = 0
    changes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.members = Membership(MembershipSettings(), self.clock, lambda claim: Admission(JobTerms()))
        self.restarts = dict.fromkeys(range(SEATS), 0)
        self.lost: set[str] = set()

    # --- what happens to processes ------------------------------------------------------------------------------

    def living(self) -> list[Process]:
        return [each for each in self.processes.values() if each.alive]

    def spawn(self, task: int) -> None:
        self.restarts[task] += 1
        name = self.members.hello(Claim(1, f"9_{task}", self.restarts[task], f"n{task}", 1000)).id
        self.processes[name] = Process(name, task, self.clock.at + self.random.random())

    def end(self, process: Process, status: int) -> None:
        """Its launcher tells, unless the node is gone with it."""
        process.alive = False
        if self.random.random() < 0.6:
            self.members.report(process.name, Exited(status))
        elif self.random.random() < 0.6:
            self.members.disconnected(process.name)

    def change(self) -> None:
        self.changes += 1
        living = [each for each in self.living() if not each.frozen]
        free = [task for task in range(SEATS) if all(each.task != task for each in self.living())]
        kind = self.random.choice(
            ["spawn"] * 4 * bool(free) + ["leave", "term", "kill", "freeze"] * (len(living) > 1)
        )
        if kind == "spawn":
            self.spawn(self.random.choice(free))
            return
        victim = self.random.choice(living)
        if kind == "leave":
            action = LeavePilot(1, f"9_{victim.task}", "n", LeaveCause.SHRINK, 0.0, "wanted")
            self.members.leave(action)
        elif kind == "term":
            self.members.report(victim.name, Leaving("SIGTERM"))
        elif kind == "kill":
            self.end(victim, -9)
        else:
            victim.frozen = True

    # --- what processes do --------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.clock.at += TICK_S
        for process in self.living():
            if process.runs:
                self.act(process)
        for event in self.members.reports():
            if event.kind is EventKind.WORKER_LOST:
                self.lost.add(str(data_of(event)["worker"]))
        for process in self.living():
            if process.frozen and process.name in self.lost:
                self.end(process, -9)  # its pilot is ended
        due = self.members.due()
        if due is not None and due <= self.clock.at:
            self.members.tick()

    def act(self, me: Process) -> None:
        self.members.heard(me.name)
        if not me.warm and self.clock.at >= me.warm_at:
            me.warm = True
            self.members.report(me.name, Warm(f"h{me.task}:1", {}))
        told = self.members.directive_for(me.name)
        if told.end is not None:
            me.alive = False
            self.members.report(me.name, Exited(143))
            return
        if told.check_in is not None:
            self.members.report(me.name, CheckedIn(told.check_in, 0, self.steps, me.at is not None))
        plan = told.plan
        if me.entering is not None:
            self.enter(me, me.entering, plan)
        elif plan is not None and me.warm and plan.generation > me.tried:
            self.consider(me, plan)
        if me.alive and me.entering is None and me.at is not None:
            self.train(me, me.at)

    def consider(self, me: Process, plan: Plan) -> None:
        if me.at is None or plan.urgent:
            me.tried = plan.generation
            if plan.has(me.name):
                me.entering, me.waits = plan, 0.0
            elif me.at is not None:
                self.depart(me, plan)
        elif not plan.has(me.name) or all(self.sees(name, plan) for name in plan.workers):
            me.ready = plan.generation  # its group has passed a barrier, or it needs none

    def sees(self, name: str, plan: Plan) -> bool:
        process = self.processes[name]
        return process.runs and process.warm and self.members.directive_for(name).plan == plan

    def depart(self, me: Process, plan: Plan) -> None:
        me.alive = False
        self.members.report(me.name, Left(plan.generation, self.steps, None))

    def enter(self, me: Process, mine: Plan, plan: Plan | None) -> None:
        newer = plan is not None and plan.generation > mine.generation
        if newer and plan is not None and (plan.urgent or me.at is None):
            me.entering, me.tried = None, mine.generation
            self.consider(me, plan)
            return
        seats = [self.processes[name] for name in mine.workers]
        if all(each.runs and each.entering is mine for each in seats):
            for each in seats:
                each.at, each.entering, each.tried, each.ready, each.waits = mine, None, mine.generation, 0, 0.0
            for each in seats:
                self.members.report(each.name, Switched(mine.generation, self.steps, len(seats), 0.1, True))
            return
        self.wait(me, mine, "closed" if any(not each.alive for each in seats) else "stalled")

    def train(self, me: Process, world: Plan) -> None:
        peers = [self.processes[name] for name in world.workers]
        if all(each.runs and each.at is world and each.entering is None for each in peers):
            me.waits = 0.0
            self.steps += 1
            if me.ready > world.generation and all(each.ready == me.ready for each in peers):
                plan = self.members.directive_for(me.name).plan
                agreed = self.agreed(me.ready) or plan
                for each in peers:
                    if agreed is not None and agreed.generation == me.ready:
                        each.tried = agreed.generation
                        if agreed.has(each.name):
                            each.entering, each.waits = agreed, 0.0
                        else:
                            self.depart(each, agreed)
            return
        self.wait(me, world, "closed" if any(not each.alive for each in peers) else "stalled")

    @property
    def job(self) -> JobMembership:
        job = self.members.job(1)
        assert job is not None
        return job

    def agreed(self, generation: int) -> Plan | None:
        return self.job.published.get(generation)

    def wait(self, me: Process, world: Plan, how: str) -> None:
        me.waits += TICK_S
        if me.waits >= (0.3 if how == "closed" else STALL_S):
            me.waits = 0.0
            self.members.report(me.name, Fault(world.generation, self.steps, how, "a peer"))

    # --- the play -----------------------------------------------------------------------------------------------

    def settled(self) -> bool:
        """All that live, and were not asked to go, train in one world."""
        plan = self.members.world(1)
        # A newcomer that froze and was asked to go in that moment hears nothing; its pilot is ended by Slurm.
        living = [each for each in self.living() if each.runs or not self._is_out(each)]
        together = all(each.runs and each.at is plan and each.entering is None for each in living)
        return bool(living) and together and plan is not None and len(plan.members) == len(living)

    def _is_out(self, process: Process) -> bool:
        worker = self.members.worker(process.name)
        return worker is not None and not worker.phase.lives

    def play(self, changes: int) -> None:
        for _ in range(changes):
            self.change()
            for _ in range(self.random.choice([0, 1, 3, 10, 40])):
                self.tick()
        if not any(each.runs for each in self.living()):
            self.spawn(next(t for t in range(SEATS) if all(each.task != t for each in self.living())))
        for _ in range(1500):
            if self.settled():
                return
            self.tick()
            if not self.living():
                self.spawn(0)
        state = "\n".join(f"{each}\n  {self.members.worker(each.name)}" for each in self.living())
        raise AssertionError(f"seed {self.seed}: not together in time: {self.job}\n{state}")


def soak(seed: int, rounds: int) -> Theatre:
    theatre = Theatre(seed)
    theatre.spawn(0)
    for _ in range(rounds):
        theatre.play(theatre.random.randint(1, 8))
        made = theatre.steps
        for _ in range(5):
            theatre.tick()
        assert theatre.steps > made, "they train"
    return theatre


def assert_nothing_is_kept(theatre: Theatre) -> None:
    for _ in range(2 * 12_000 // 60):  # long after the last change
        theatre.clock.at += 5.0
        for process in theatre.living():
            theatre.members.heard(process.name)
        theatre.members.tick()
    job = theatre.job
    assert len(job.workers) <= 3 * SEATS
    assert len(job.published) <= 20
    assert job.check is None


@pytest.mark.parametrize("seed", range(4))
def test_some_hundred_changes(seed: int) -> None:
    assert_nothing_is_kept(soak(seed, 25))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 110))
def test_thousands_of_changes(seed: int) -> None:
    theatre = soak(seed, 300)
    assert theatre.changes > 1000
    assert_nothing_is_kept(theatre)
