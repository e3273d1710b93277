"""A membership on a stage: time is a number, workers are whoever calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.errors import Refused
from malletrain.domain.event import FACTS, Event
from malletrain.loop.membership.admission import Admission, Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms, LastWorlds
from malletrain.loop.membership.state import MembershipSettings
from malletrain.wire.messages import CheckedIn, Left, Plan, Standing, Switched, Warm


@dataclass
class HandClock:
    at: float = 100.0

    def now(self) -> float:
        return 1_000_000.0 + self.at

    def elapsed(self) -> float:
        return self.at


class Stage:
    """A membership, and workers that do what is asked of them when `obey` is called."""

    def __init__(
        self,
        terms: JobTerms | None = None,
        generations: dict[int, int] | None = None,
        last: Mapping[int, LastWorlds] | None = None,
        reserve: Callable[[int, int], bool] = lambda job, until: True,
    ) -> None:
        self.clock = HandClock()
        self.terms = terms or JobTerms()
        self.holding: dict[str, bool] = {}  # pilots that may hold a node, and whether a worker was warm there
        self.members = Membership(
            MembershipSettings(), self.clock, self.admit,
            last or {job: LastWorlds(number) for job, number in (generations or {}).items()},
            holding=lambda _job: self.holding, reserve=reserve,
        )  # fmt: skip
        self.events: list[Event] = []
        self.leaves: dict[str, str] = {}  # pilot -> why it was asked to leave, by the journal
        self.at: dict[str, int] = {}  # worker -> the generation it trains in

    def admit(self, claim: Claim) -> Admission:
        if claim.uid != 1000:
            raise Refused("not your job")
        return Admission(self.terms, self.leaves.get(claim.pilot, ""))

    def hello(self, task: int, restart: int = 0, standing: Standing | None = None) -> str:
        return self.members.hello(Claim(1, f"9_{task}", restart, f"n{task}", 1000), standing).id

    def adopt(self, task: int, world: Plan, generation: int = 0, seen: int = 0) -> str:
        """A member of the world says hello to a daemon that may have forgotten it."""
        number = generation or world.generation
        return self.hello(task, standing=Standing(number, world.members, 40, f"h{task}:1", seen or number))

    def warm(self, task: int, restart: int = 0) -> str:
        name = self.hello(task, restart)
        self.members.report(name, Warm(f"h{task}:1", {}))
        return name

    def begin(self, size: int) -> list[str]:
        """So many workers that warm up together, and train."""
        workers = [self.hello(task) for task in range(size)]
        for task, worker in enumerate(workers):
            self.members.report(worker, Warm(f"h{task}:1", {}))
        self.obey(*workers)
        return workers

    def plan(self, worker: str) -> Plan | None:
        return self.members.directive_for(worker).plan

    def obey_checks(self, *workers: str) -> None:
        """Check in as told."""
        for name in workers:
            there = self.members.directive_for(name)
            if there.check_in is not None:
                self.members.report(name, CheckedIn(there.check_in, 0, 5, name in self.at))

    def obey(self, *workers: str) -> None:
        """Switch, leave and check in as told."""
        self.obey_checks(*workers)
        for name in workers:
            plan = self.plan(name)
            if plan is None or plan.generation == self.at.get(name):
                continue
            if plan.has(name):
                self.at[name] = plan.generation
                self.members.report(name, Switched(plan.generation, 5, len(plan.members), 0.1, True))
            elif name in self.at:
                del self.at[name]
                self.members.report(name, Left(plan.generation, 5, None))

    def leave(self, task: int) -> None:
        self.members.leave(LeavePilot(1, f"9_{task}", f"n{task}", LeaveCause.SHRINK, 0.0, "wanted"))

    def pass_time(self, seconds: float) -> None:
        self.clock.at += seconds
        self.members.tick()

    def world(self) -> list[str]:
        world = self.members.world(1)
        return list(world.workers) if world else []

    def seen(self, kind: str) -> list[Event]:
        assert kind in FACTS
        self.events.extend(self.members.reports())
        return [event for event in self.events if event.kind == kind]


A, B, C, D = (f"9_{task}.0" for task in range(4))
