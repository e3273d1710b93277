"""One run of the daemon in the simulation: the parts that `malletrain.daemon.service` joins, without threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import cast

from malletrain.api.rate_limits import ApiLimits, ReportBudget
from malletrain.api.worker_routes import WorkersGate
from malletrain.daemon.journal_keeper import JournalKeeper
from malletrain.daemon.metrics import Metrics
from malletrain.decide.rules import Rules
from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.event import DaemonStarted
from malletrain.domain.event import Event as JournalEvent
from malletrain.loop.membership.admission import Claim, admit, holding
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import last_worlds
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy
from malletrain.store.journal import SqliteJournal
from malletrain.wire.messages import Directive, Message, Standing
from scripts.simulation.ports import DaemonsJournal, DaemonsSlurm, NoMetrics, SimulatedClock

TICK_S = 10.0
WATCH_S = 2.0
_UNBOUNDED = ApiLimits(worker_events_rate=1e9, user_events_rate=1e9, user_journal_bytes_rate=1e12)


class SimulatedDaemon:
    """Restores itself from the journal when made. Every call may raise `DaemonKilled`; it is useless afterwards."""

    def __init__(
        self, number: int, slurm: DaemonsSlurm, journal: DaemonsJournal, clock: SimulatedClock, rules: Rules
    ) -> None:
        self.number = number  #: tells daemons apart: a worker that knows another one says hello again
        self._clock = clock
        secrets = itertools.count()
        self.members = Membership(
            MembershipSettings(),
            clock,
            lambda claim: admit(self.loop.views, claim),
            last_worlds(journal.read()),
            holding=lambda job: holding(self.loop.views, job),
            make_secret=lambda: f"{number}.{next(secrets)}",
            reserve=lambda job, until: self.loop.reserve_generations(job, until),  # noqa: PLW0108 - made below
        )
        self.gate = WorkersGate(
            self.members, threading.RLock(), self._persist, clock, ReportBudget(_UNBOUNDED, clock)
        )
        self._keeper = JournalKeeper(cast(SqliteJournal, journal), cast(Metrics, NoMetrics()), 0.0, clock.elapsed)
        self.loop = Loop(slurm, self.gate, self._keeper, clock, policy("exact"), rules)
        self.loop.restore()
        self._tick_at = self._watch_at = clock.elapsed()
        self.loop.record([JournalEvent(clock.now(), DaemonStarted("simulated"))])

    def _persist(self) -> None:
        self.loop.take_reports()

    def run(self) -> None:
        """Does what is due now: reactions always, looks and ticks in their turn."""
        self.gate.tick()
        self.loop.react()
        if self._clock.elapsed() >= self._tick_at:
            self._tick_at = self._clock.elapsed() + TICK_S
            self._keeper.flush()
            self.loop.paused = self._keeper.why_unsafe()
            self.loop.tick()
        elif self._clock.elapsed() >= self._watch_at:
            self._watch_at = self._clock.elapsed() + WATCH_S
            self.loop.watch()

    # -- what workers ask of it --------------------------------------------------------------------------------

    def hello(self, claim: Claim, standing: Standing | None) -> None:
        """A worker's hello.

        Raises:
            Refused: it is to end.
        """
        self.gate.change(lambda: self.members.hello(claim, standing))

    def knows(self, worker: str) -> bool:
        """Whether the worker's token is good; if not it must say hello again."""
        return self.members.worker(worker) is not None

    def report(self, worker: str, messages: Sequence[Message]) -> None:
        """A worker's report, in one transaction."""

        def take() -> None:
            self.members.alive(worker)
            for message in messages:
                self.members.report(worker, message)

        self.gate.change(take)

    def poll(self, worker: str) -> Directive:
        """What is wanted of the worker now; it goes on polling."""
        self.members.polled(worker)
        return self.gate.look(worker)[0]

    def answered(self, worker: str) -> None:
        """The poll was answered, and the worker polls again once the answer has arrived."""
        self.gate.answered(worker)

    def ask_to_leave(self, job: int, pilot: str, node: str) -> None:
        """The worker of a pilot is to leave, as the loop asks it to when a main job wants its node."""
        deadline = self._clock.now() + 60.0
        self.gate.leave(LeavePilot(job, pilot, node, LeaveCause.YIELD, deadline, "its node is taken"))

    def hung_up(self, worker: str) -> None:
        """The connection of the worker's poll broke."""
        if self.knows(worker):
            self.gate.change(lambda: self.members.disconnected(worker))
