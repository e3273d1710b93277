"""Workers as the daemon and their peers see them: processes in pilots that follow the protocol.

A step of training takes one step of the simulation and is committed by all members of a world at once. Reports are
sent in order, at least once, and one may arrive again later; directives are what the daemon says, or said shortly
before.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from malletrain.domain.errors import Refused
from malletrain.domain.job import Elastic
from malletrain.loop.membership.admission import Claim
from malletrain.wire.messages import (
    CheckedIn,
    Directive,
    Fault,
    Finished,
    Left,
    Message,
    Plan,
    Samples,
    Seat,
    Switched,
    ToppedUp,
    Warm,
)
from scripts.simulation.daemon import SimulatedDaemon
from scripts.simulation.faults import FaultRates
from scripts.simulation.launchers import Launchers
from scripts.simulation.process import JobProgress, Process

#: Seconds without a step until a member says that a peer is late.
STALL_S = 2.5
#: Seconds until a member has noticed that a peer's connection broke.
CLOSED_S = 0.25
#: Seconds that members of a broken world look for the daemon before they vote (`malletrain.elastic.resize.quorum`).
QUORUM_AFTER_S = 4.0
QUORUM_GENERATION_GAP = 500
#: A worker reports a window of training so often, in steps.
STEPS_A_WINDOW = 20
#: A worker that has left waits for the daemon to take its node back; after so long (seconds) its script ends.
WAITS_TO_BE_RECYCLED_S = 60.0
#: As in `malletrain.elastic.resize.lifecycle` and `reconfigure`.
LEAVE_GRACE_S, ENDING_PATIENCE_S = 2.0, 5.0


@dataclass(frozen=True, slots=True)
class _Parted:
    """Two nodes cannot reach each other: `refused` if both notice at once, else what they send is lost."""

    until: float
    refused: bool


@dataclass(frozen=True, slots=True)
class _Echo:
    """A report that arrives once more: when, at which daemon, whose and what."""

    at: float
    daemon: int
    worker: str
    said: tuple[Message, ...]


class Workers:
    """All processes, and what they do in one step of the simulation.

    Args:
        rng: draws delays.
        rates: of delays and doubled reports.
        step_s: length of a step of the simulation.
        end: called with a process that ends by itself, and its exit status.
        top_up: called with a job and a number of tasks: submits them; returns the array's id.
    """

    def __init__(
        self,
        rng: random.Random,
        rates: FaultRates,
        step_s: float,
        end: Callable[[Process, int], None],
        top_up: Callable[[int, int], int],
    ) -> None:
        self.rng, self.rates, self.step_s = rng, rates, step_s
        self._end, self._top_up = end, top_up
        self.by_name: dict[str, Process] = {}
        self.progress: dict[int, JobProgress] = {}
        self.parted: dict[tuple[str, str], _Parted] = {}  #: by two nodes, in the order of their names
        self.now = 0.0
        self._launchers = Launchers(self, end)
        self._departures = Departures(self.progress, lambda worker: self._leave(worker, 0))
        self._echoes: list[_Echo] = []

    def living(self) -> list[Process]:
        """In the order of their names."""
        return [each for _, each in sorted(self.by_name.items()) if each.alive]

    def runs(self, process: Process) -> bool:
        """Whether it lives and is not frozen."""
        return process.alive and self.now >= process.frozen_until

    def part(self, here: Sequence[str], there: Sequence[str], until: float, *, refused: bool) -> None:
        """No node of the one side reaches one of the other until then."""
        for one, other in itertools.product(here, there):
            self.parted[min(one, other), max(one, other)] = _Parted(until, refused)

    def _between(self, one: Process, other: Process) -> _Parted | None:
        found = self.parted.get((min(one.node, other.node), max(one.node, other.node)))
        return found if found is not None and self.now < found.until else None

    def all_reach(self, members: Sequence[Process]) -> bool:
        """Whether each reaches each."""
        return not self.parted or not any(self._between(*pair) for pair in itertools.combinations(members, 2))

    def _is_refused(self, me: Process, members: Sequence[Process]) -> bool:
        """Whether a peer's connection is broken, as `me` sees it."""
        return any((found := self._between(me, each)) is not None and found.refused for each in members)

    def step(self, now: float, daemon: SimulatedDaemon | None) -> None:
        """One step of every process. Raises `DaemonKilled` where the daemon dies of a call."""
        self.now = now
        for process in self.living():
            if self.runs(process) and now >= process.hello_at:
                self._act(process)
        if daemon is not None:
            if self._echoes:
                self._deliver_echoes(daemon)
            for process in self.living():
                if self.runs(process) and now >= max(process.hello_at, process.cut_until):
                    self._talk(process, daemon)

    def _deliver_echoes(self, daemon: SimulatedDaemon) -> None:
        due = [each for each in self._echoes if each.at <= self.now]
        self._echoes = [each for each in self._echoes if each.at > self.now]
        for each in due:
            if each.daemon == daemon.number and daemon.knows(each.worker):  # another daemon refuses the token
                daemon.report(each.worker, each.said)

    # -- the daemon --------------------------------------------------------------------------------------------

    def _talk(self, me: Process, daemon: SimulatedDaemon) -> None:
        if me.left_at is not None and not me.outbox and me.daemon == daemon.number:
            return  # its link is closed
        if me.daemon != daemon.number or not daemon.knows(me.name):
            claim = Claim(me.job, me.pilot, me.restart, me.node, me.uid)
            try:
                daemon.hello(claim, me.standing())
            except Refused:
                if me.elastic is Elastic.LIVE:
                    self._end(me, 143)
                elif me.left_at is None:
                    self._launchers.leave(me, 0, saves=False)
                    me.terminated = True
                return
            if me.standing() is None:
                if me.has_greeted and me.warm and me.left_at is None:
                    me.outbox.appendleft(Warm(me.address))
                me.entering = None  # it takes no plan that it was shown before
            me.daemon, me.has_greeted, me.told, me.coming = daemon.number, True, None, None
        me.away_s = 0.0
        if self.rng.random() < self.rates.delay:
            return
        if me.outbox:
            said = list(me.outbox)
            daemon.report(me.name, said)
            if self.rng.random() < self.rates.doubled:
                daemon.report(me.name, said)  # its answer was lost, and it is sent again
            if self.rates.echo and self.rng.random() < self.rates.echo:
                late_s = self.rng.choice([1.0, 5.0, 20.0, 60.0])
                self._echoes.append(_Echo(self.now + late_s, daemon.number, me.name, tuple(said)))
            me.outbox.clear()
        if me.coming is not None:
            arrives, directive = me.coming
            if self.now >= arrives:
                me.coming = None
                self._hear(me, directive)
        elif daemon.knows(me.name):
            directive = daemon.poll(me.name)
            if self.rates.late_answer and self.rng.random() < self.rates.late_answer:
                me.coming = self.now + self.rng.choice([0.5, 2.0, 8.0, 20.0]), directive
                daemon.answered(me.name)
            else:
                self._hear(me, directive)

    def _hear(self, me: Process, directive: Directive) -> None:
        me.told = directive
        if directive.plan is not None:
            me.seen = max(me.seen, directive.plan.generation)
            self.progress[me.job].publish(directive.plan)

    # -- the protocol ------------------------------------------------------------------------------------------

    def _act(self, me: Process) -> None:
        if me.left_at is not None:
            if (me.ends and not me.outbox) or self.now > me.left_at + WAITS_TO_BE_RECYCLED_S:
                self._end(me, 0 if me.ends else 143)
            return
        if me.elastic is not Elastic.LIVE:
            self._launchers.act(me)
            return
        if not me.warm and self.now >= me.warm_at and me.has_greeted:
            me.warm = True
            me.outbox.append(Warm(me.address))
        told = me.told
        plan = told.plan if told is not None else None
        if told is not None:
            if told.end is not None:
                self._end(me, 143)
                return
            self.answer(me, whole=me.at is not None)
        if self._departures.is_gone(me, self.now):
            return
        if me.entering is not None:
            self._enter(me, me.entering, plan)
        elif plan is not None and me.warm and plan.generation > me.tried:
            self._consider(me, plan)
        if me.alive and me.left_at is None and me.entering is None and me.at is not None:
            self._train(me, me.at)

    def answer(self, me: Process, *, whole: bool) -> None:
        """Answers a check, and submits more tasks where asked. `whole`: its script runs."""
        told = me.told
        if told is None:
            return
        if told.check_in is not None and not any(isinstance(each, CheckedIn) for each in me.outbox):
            generation = me.at.generation if me.at is not None else 0
            me.outbox.append(CheckedIn(told.check_in, generation, me.step, whole))
        if told.top_up > me.asked_for:
            me.outbox.append(ToppedUp(self._top_up(me.job, told.top_up), told.top_up))
        me.asked_for = told.top_up

    def _consider(self, me: Process, plan: Plan) -> None:
        if me.at is None or plan.voids(me.at.generation):
            me.tried = plan.generation
            if me.at is not None and me.broken_at is None:
                me.broken_at = self.now
            if plan.has(me.name):
                me.entering, me.ready, me.waits_s = plan, None, 0.0
            elif me.at is not None:
                if not any(map(me.at.has, plan.workers)):
                    self.progress[me.job].keep(me.step)  # who else is left, nobody knows
                self._leave(me, plan.generation)
        elif not plan.has(me.name) or all(self._sees(name, plan) for name in plan.workers):
            members = [self.by_name[name] for name in plan.workers] if plan.has(me.name) else []
            if self.all_reach(members):
                me.ready = plan
            elif me.failed != plan.generation and self._is_refused(me, members):
                me.failed = plan.generation
                me.outbox.append(Fault(plan.generation, me.step, "build", "a peer"))

    def _sees(self, name: str, plan: Plan) -> bool:
        other = self.by_name.get(name)
        if other is None or not self.runs(other) or not other.warm or other.told is None or other.told.plan is None:
            return False
        return other.told.plan.generation == plan.generation

    def _leave(self, me: Process, generation: int) -> None:
        self.goes(me)
        me.outbox.append(Left(generation, me.step))
        self._out(me)

    def goes(self, me: Process) -> None:
        """The law: nobody who holds the newest state leaves before it is saved."""
        if me.holds_state and me.left_at is None:
            others = (each for each in self.living() if each is not me and each.job == me.job and each.holds_state)
            self.progress[me.job].goes(me.name, me.step, max((each.step for each in others), default=0))

    def _out(self, me: Process) -> None:
        me.at = me.entering = me.ready = None
        me.left_at, me.holds_state = self.now, False

    def _enter(self, me: Process, mine: Plan, plan: Plan | None) -> None:
        if plan is not None and plan.generation > mine.generation and (plan.voids(mine.generation) or me.at is None):
            me.entering, me.tried = None, mine.generation
            self._consider(me, plan)
            return
        seats = self.seats(mine)
        reach = seats is not None and self.all_reach(seats)
        if (
            seats is not None
            and reach
            and all(
                self.runs(each) and each.entering is not None and each.entering.generation == mine.generation
                for each in seats
            )
        ):
            self._begin(mine, seats)
            return
        broken = "build" if seats is not None and self._is_refused(me, seats) else "stalled"
        self._wait(me, mine, broken if seats is not None else "closed")

    def seats(self, plan: Plan) -> list[Process] | None:
        """The members' processes; None where one is gone."""
        found = [self.by_name.get(name) for name in plan.workers]
        living = [each for each in found if each is not None and each.alive and each.left_at is None]
        return living if len(living) == len(found) else None

    def _begin(self, plan: Plan, seats: list[Process]) -> None:
        """All have made the group: the state goes from those that hold it to those that do not."""
        job = self.progress[seats[0].job]
        donors = [each for each in seats if each.holds_state]
        step = max((each.step for each in donors), default=job.saved)
        for each in self.living():
            hears = self.runs(each) and self.now >= each.cut_until and each.coming is None
            if each.job == seats[0].job and each.holds_state and each not in seats and hears and each.step > step:
                job.violations.append(f"generation {plan.generation} begins at {step}, {each.name} holds {each.step}")
        job.committed = step  # whoever had done more is dead, or was given up
        grew = len(donors) < len(seats)
        for each in seats:
            each.at, each.entering, each.ready = plan, None, None
            each.tried, each.waits_s = max(each.tried, plan.generation), 0.0
            each.step, each.holds_state, each.seen = step, True, max(each.seen, plan.generation)
            each.broken_at = None
            each.outbox.append(Switched(plan.generation, step, len(seats), 0.1 if donors else 0.0, grew))
        self._departures.met(seats)

    def _train(self, me: Process, world: Plan) -> None:
        peers = self.seats(world)
        together = peers is not None and all(
            self.runs(each)
            and each.at is not None
            and each.at.generation == world.generation
            and each.entering is None
            for each in peers
        )
        if not together or peers is None or not self.all_reach(peers):
            self._wait(me, world, "closed" if peers is None or self._is_refused(me, peers) else "stalled")
            return
        me.waits_s = me.away_s = 0.0
        if me is not peers[0]:
            return  # the step is the whole world's: its first member does it for all
        job = self.progress[me.job]
        if me.step >= job.total:
            self._finish(peers)
            return
        job.commit(world, me.step)
        for each in peers:
            each.step += 1
            each.broken_at = None
        if me.step % STEPS_A_WINDOW == 0:
            window = STEPS_A_WINDOW
            me.outbox.append(Samples(me.step, len(peers), window, window * self.step_s, window, me.step))
        if not self._departures.committed(peers):
            self._switch_if_all_are_ready(me, world, peers)
            self._departures.between_steps(peers, self.now)

    def _switch_if_all_are_ready(self, me: Process, world: Plan, peers: list[Process]) -> None:
        next_plan = me.ready
        if next_plan is None or next_plan.generation <= world.generation:
            return
        if any(each.ready is None or each.ready.generation != next_plan.generation for each in peers):
            return
        for each in peers:
            each.tried, each.ready = next_plan.generation, None
            if next_plan.has(each.name):
                each.entering, each.waits_s = next_plan, 0.0
                continue
            if each is peers[0] and not any(map(world.has, next_plan.workers)):
                self.progress[me.job].keep(each.step)  # the last to leave saves
            self._leave(each, next_plan.generation)

    def _finish(self, peers: list[Process]) -> None:
        peers[0].outbox.append(Finished({}))
        for each in peers:
            each.finished_in = each.at
            self._out(each)
            each.ends = True

    def _wait(self, me: Process, world: Plan, how: str) -> None:
        me.waits_s += self.step_s
        me.away_s += self.step_s
        if me.waits_s >= (STALL_S if how == "stalled" else CLOSED_S):
            me.waits_s = 0.0
            me.broken_at = self.now if me.broken_at is None else me.broken_at
            if not any(isinstance(each, Fault) and each.generation == world.generation for each in me.outbox):
                me.outbox.append(Fault(world.generation, me.step, how, "a peer"))
            if me.away_s > QUORUM_AFTER_S:
                self._vote(me)

    def _vote(self, me: Process) -> None:
        """Members of a broken world that do not hear the daemon: a strict majority goes on without it."""
        world = me.at
        if world is None or len(world.members) < 2:
            return
        voters = [
            each
            for name in world.workers
            if (each := self.by_name.get(name)) is not None
            and self.runs(each)
            and self._between(me, each) is None
            and each.at is not None
            and each.at.generation == world.generation
            and each.holds_state
            and each.away_s > CLOSED_S
            and (each.entering.generation if each.entering else 0) == (me.entering.generation if me.entering else 0)
        ]
        if 2 * len(voters) <= len(world.members):
            return
        number = max(max(each.seen, each.tried) for each in voters) + QUORUM_GENERATION_GAP
        seats = tuple(Seat(each.name, each.address) for each in voters)
        plan = Plan(number, seats, seats[0].address, "a quorum", urgent=True, void_before=number)
        for each in voters:
            each.entering, each.ready, each.tried, each.seen = plan, None, number, number
            each.waits_s = each.away_s = 0.0
            each.daemon = 0  # it says hello with its new standing

    # -- what happens to them ----------------------------------------------------------------------------------

    def spawn(self, process: Process) -> None:
        """A pilot's script starts."""
        self.by_name[process.name] = process

    def dead(self, process: Process) -> None:
        """Its process is gone, and what it held with it."""
        process.alive, process.holds_state, process.script_at = False, False, None
        process.at = process.entering = process.ready = None


class Departures:
    """Live workers that are asked to end (SIGTERM): who leaves when, and who saves what is trained.

    This follows `malletrain.elastic.resize.lifecycle` and `reconfigure`: members say in each round, and as a world
    meets, whether they are to end. Where all are, one that holds the newest state saves it; one leaves by itself only
    while others stay; one that is left without a world saves what it holds.

    Args:
        progress: of each job.
        leave: called with a worker that leaves by itself.
    """

    def __init__(self, progress: dict[int, JobProgress], leave: Callable[[Process], None]) -> None:
        self._progress, self._leave = progress, leave

    def is_gone(self, me: Process, now: float) -> bool:
        """Whether one that is in no world, or whose world is broken, has left by now."""
        if me.ending_at is None or me.entering is me.at is None:
            if me.ending_at is not None:
                self._leave(me)
            return me.left_at is not None
        if me.at is not None and me.broken_at is not None and self._has_waited(me, now):
            self._save_and_leave([me])
        return me.left_at is not None

    def committed(self, peers: Sequence[Process]) -> bool:
        """Whether all members of a world have left, after a step of it: they have said that all are to end."""
        if any(each.ending_at is None for each in peers):
            return False
        self._save_and_leave(peers)
        return True

    def between_steps(self, peers: Sequence[Process], now: float) -> None:
        """Those leave by themselves that have waited for a plan, while others stay."""
        for me in peers:
            stays = me.ending_at is None or now - me.ending_at <= LEAVE_GRACE_S
            if not stays and me.left_at is None and me.entering is None:
                self._leave(me)

    def met(self, seats: Sequence[Process]) -> None:
        """A world is entered: if all of it are to end, they do."""
        if all(each.ending_at is not None for each in seats):
            self._save_and_leave(seats)

    # --- inside -----------------------------------------------------------------------------------------------

    def _has_waited(self, me: Process, now: float) -> bool:
        alone = me.at is not None and len(me.at.members) == 1
        return alone or (me.broken_at is not None and now - me.broken_at > ENDING_PATIENCE_S)

    def _save_and_leave(self, members: Sequence[Process]) -> None:
        self._progress[members[0].job].keep(members[0].step)
        for each in members:
            self._leave(each)
