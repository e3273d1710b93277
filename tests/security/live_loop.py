"""The daemon's own loop, ledger, membership and journal behind the API's routes; Slurm is in memory."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from malletrain.api.rate_limits import ApiLimits, ReportBudget
from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Roles
from malletrain.api.worker_routes import WorkersGate
from malletrain.domain.event import ArrayAttached, Event, JobAnnounced
from malletrain.domain.job import MalleableJob, PilotPhase
from malletrain.loop.membership.admission import admit
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.memory import MemoryCluster
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy as policy_named
from malletrain.slurm.site.site_facts import Harvest
from malletrain.store.journal import SqliteJournal
from tests.api.house import HandClock
from tests.world import RULES, node

USER = 1001

#: Without the penalties for what fuzzed workers do: they would soon have no nodes.
LENIENT = dataclasses.replace(RULES, max_faults=10**9)
UNBOUNDED = ApiLimits(
    address_rate=1e9, token_rate=1e9, login_rate=1e9, user_login_rate=1e9,
    worker_events_rate=1e9, user_events_rate=1e9, user_journal_bytes_rate=1e12,
)  # fmt: skip


def _ignore(*_: Any) -> None:
    return None


class Running:
    """The loop behind the routes. `tick` raises what ends a tick of the daemon."""

    def __init__(self, journal: SqliteJournal) -> None:
        self.journal, self.clock = journal, HandClock()  # the logins' goes on as it does
        clock = self.clock
        self.lock, self.runs = threading.RLock(), 0
        self.cluster = MemoryCluster([node(f"n{i}") for i in range(8)], clock)
        members = Membership(MembershipSettings(), clock, lambda claim: admit(self.loop.views, claim), None, _ignore)
        budget = ReportBudget(UNBOUNDED, clock)
        self.roles = Roles(bans=lambda: self.loop.ledger.bans)
        self.gate = WorkersGate(
            members, self.lock, self._persist, clock, budget, self.roles.sight_of, self.roles.is_banned
        )
        self.loop = Loop(
            self.cluster, self.gate, journal, clock, policy_named("exact"), LENIENT, guard=self.lock
        )  # fmt: skip
        self.announce()

    def _persist(self) -> None:
        self.loop.take_reports()

    def announce(self) -> None:
        now = self.clock.now()
        number = max(self.loop.views, default=0) + 1
        job = MalleableJob(number, "digits", "ada", USER, "harvest", 1, 4, now)
        array = self.cluster.submit_array("ada", 12)
        attached = Event(now, ArrayAttached(array, 12), number)
        self.loop.record([Event(now, JobAnnounced(job), number), attached])
        self.job = number

    def requests(self) -> LoopRequests:
        return LoopRequests(
            self.loop, self.lock, self.clock, Harvest("harvest"),
            lambda count: tuple(self.journal.read(max(0, self.journal.last - count))),
            lambda: max(self.loop.views, default=0) + 1,
        )  # fmt: skip

    def tick(self) -> None:
        self.clock.ahead += 10.0
        self.clock.day_ahead += 10.0
        self.gate.tick()
        self.loop.react()
        assert self.loop.tick() is not None
        if self.loop.views[self.job].phase.is_over:  # a message may end it
            self.announce()
            for _ in range(2):
                assert self.loop.tick() is not None

    def check_restart(self) -> None:
        """A daemon that starts anew folds what was sent."""
        again = Loop(self.cluster, self.gate, self.journal, self.clock, policy_named("exact"), LENIENT)
        assert again.restore() > 10
        for number, view in self.loop.views.items():
            costs = view.costs  # of all jobs together: a view is not made anew for another job's
            assert dataclasses.replace(again.ledger.views()[number], costs=costs) == view

    def pilots(self) -> list[str]:
        view = self.loop.views[self.job]
        return [pilot.id for pilot in view.active if pilot.phase is PilotPhase.RUNNING]
