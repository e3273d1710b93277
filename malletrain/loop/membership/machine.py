"""The state machine of one job: from what is known of its workers to its next generation.

After a fault every member is asked to check in. A member that does not answer is lost: at once when its connection
dropped, else at a deadline. An urgent generation of the remaining members follows. Newcomers are never part of an
urgent generation, so that a repair never waits for a worker that holds no state.
"""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.domain import event as kinds
from malletrain.domain.event import Event, Payload
from malletrain.domain.job import ScriptVerdict, size_kept
from malletrain.learn.scale_up_profiling import next_measurement_size
from malletrain.loop.membership import fencing
from malletrain.loop.membership.next_world import (
    GENERATION_BLOCK,
    GENERATION_GAP,
    JobTerms,
    LastWorlds,
    WorkerCandidate,
    next_world,
    why_it_ends,
)
from malletrain.loop.membership.state import Check, JobMembership, MembershipSettings, Phase, Worker
from malletrain.loop.ports import Clock
from malletrain.wire.messages import Plan, Seat

#: Superseded plans that are kept, since members may have agreed on one of them: far more than can be under way.
PLANS_KEPT = 16

#: Generations that one call of `JobMachine.settle` publishes at most, and some.
SETTLED_AT_ONCE = 8

#: Seconds between two tries to reserve numbers in a journal that cannot be written.
RESERVE_POLL_S = 1.0

#: Seconds between two looks at whether nodes have been given back.
UNHEARD_POLL_S = 1.0

#: Seconds from the second failure to make a group to the next try, doubled at each failure up to a limit.
FIRST_BUILD_DELAY_S, MAX_BUILD_DELAY_S = 0.1, 5.0

#: A worker is a newcomer for so long (seconds) after it has joined; so many that fail alike in a row end all joining.
NEW_S, MAX_ALIKE = 60.0, 3
#: What differs between failures that are alike: numbers, and addresses of objects.
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(slots=True)
class Shared:
    """What the machines of all jobs have in common, and what they hand out."""

    settings: MembershipSettings
    clock: Clock
    up_since: float  #: when the daemon started (`Clock.elapsed`)
    make_secret: Callable[[], str]  #: an unpredictable text for each generation; without, workers do not connect
    #: The pilots of a job that may hold a node, and whether a worker has been warm there, by the journal
    #: (`malletrain.loop.membership.admission.holding`).
    holding: Callable[[int], Mapping[str, bool]]
    #: Called with a job and a number before a world gets one that the journal does not have as reserved: writes a
    #: `GenerationsReserved`; False if that cannot be written now: then the members of the present world train on.
    reserve: Callable[[int, int], bool]
    events: list[Event] = field(default_factory=list)  #: in order, since the caller last took them
    #: A heap of (`JobMachine.due_at`, job); entries that the machine's own `due_at` contradicts are stale.
    due: list[tuple[float, int]] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)  #: jobs that something has happened to since


class JobMachine(JobMembership):
    """The rules that change one job's membership. Whoever records a fact calls `settle` afterwards."""

    def __init__(self, shared: Shared, job: int, terms: JobTerms, last: LastWorlds) -> None:
        # Releases that reserved no numbers gave fewer than GENERATION_GAP that the journal does not have.
        generation = max(last.reserved, last.published + GENERATION_GAP if last.published else 0)
        reserved = generation or GENERATION_BLOCK  # by its announcement, if this daemon took that
        super().__init__(job, terms, generation, reserved, last, last.taken)
        self.settings, self.clock, self.up_since = shared.settings, shared.clock, shared.up_since
        self.due_at: float | None = None  #: when `tick` must be called (`Clock.elapsed`) if nothing else is before
        self._shared = shared

    # --- Time -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Applies every time limit that has passed."""
        self.due_at = None
        now = self.clock.elapsed()
        for worker in self.living():
            if worker.lost_at is not None and now >= worker.lost_at:
                self.lose(worker, worker.lost_how, silent=True)
            elif worker.answered_at is not None and now >= worker.answered_at + self.settings.reconnect_s:
                self.lose(worker, "it does not poll any more", silent=True)
            elif now >= worker.last_seen + self.settings.silence_s:
                self.lose(worker, f"silent for {now - worker.last_seen:.0f} s", silent=True)
            elif self._warms_up(worker) and now >= worker.joined_at + self.settings.warm_up_s:
                worker.end = f"not warm after {self.settings.warm_up_s:.0f} s"
                self.lose(worker, worker.end)
                self.newcomer_failed(worker, worker.end)
        self.settle()

    def forget(self) -> list[str]:
        """Forgets workers that left long ago, and names them. They are refused as long as one may still call."""
        forgotten = []
        since = self.clock.elapsed() - 10 * self.settings.silence_s
        for name in [each.id for each in self.workers.values() if not each.phase.lives and each.last_seen < since]:
            planned = self.is_planned(name) or any(plan.has(name) for plan in self.published.values())
            if self.over is not None or not planned:
                del self.workers[name]
                forgotten.append(name)
        return forgotten

    def look_at(self, moment: float) -> None:
        """Asks for a call of `tick` at that moment or earlier."""
        if self.due_at is None or moment < self.due_at:
            self.due_at = moment
            heapq.heappush(self._shared.due, (moment, self.id))

    # --- Workers --------------------------------------------------------------------------------------------------

    def emit(self, payload: Payload, by: Worker, reason: str = "") -> None:
        """Records an event of a worker."""
        self._shared.events.append(Event(self.clock.now(), payload, self.id, by.pilot, by.node or None, reason))

    def holding(self) -> Mapping[str, bool]:
        """The job's pilots that may hold a node, and whether a worker has been warm there, by the journal."""
        return self._shared.holding(self.id)

    def alive(self, worker: Worker) -> None:
        """Records a sign of life."""
        worker.last_seen = self.clock.elapsed()
        worker.lost_at, worker.lost_how, worker.dropped, worker.unheard = None, "", False, False

    def train(self, worker: Worker) -> None:
        """Marks a worker as a serving member of its job's world."""
        if worker.phase in (Phase.JOINING, Phase.WARM):
            worker.phase, worker.warm_at = Phase.SERVING, self.clock.elapsed()

    def bring_back(self, worker: Worker) -> None:
        """Takes a worker back that was lost for its silence alone; it must report warm again."""
        now = self.clock.elapsed()
        worker.phase, worker.warm_at, worker.end, worker.lost_how = Phase.JOINING, None, None, ""
        worker.silent = worker.may_return = worker.dropped = False
        worker.joined_at, worker.last_seen, worker.lost_at, worker.answered_at = now, now, None, None
        self.emit(kinds.WorkerJoined(worker.id), worker, "heard again")

    def expect(self, worker: Worker) -> None:
        """Keeps the seat of a worker that has not been heard since the daemon restarted, for `adopt_s`."""
        worker.lost_at = self.clock.elapsed() + self.settings.adopt_s
        worker.lost_how, worker.unheard = "not heard since the daemon restarted", True

    def ask_to_leave(self, worker: Worker, reason: str) -> None:
        """Asks a worker to leave; a worker that has no part in a world leaves at once."""
        worker.leaving_since, worker.leave_reason = self.clock.elapsed(), reason
        if not self.is_planned(worker.id):
            worker.end = reason
            self.leave(worker, reason)

    def leave(self, worker: Worker, reason: str, left: kinds.WorkerLeft | None = None) -> None:
        """Records that a worker left in order."""
        worker.phase = Phase.LEFT
        worker.end = worker.end or reason
        self.emit(left or kinds.WorkerLeft(worker.id), worker, reason)

    def lose(self, worker: Worker, how: str, *, silent: bool = False) -> None:
        """Gives a worker up. `silent`: only because it was not heard."""
        worker.phase, worker.lost_how, worker.silent = Phase.LOST, how, silent
        worker.end = worker.end or f"given up: {how}"
        self.losses += 1
        self.emit(kinds.WorkerLost(worker.id, how), worker, how)
        if self.over is None and self.trains(worker.id):
            self.ask(f"{worker.id} is lost: {how}", broken=True)

    def is_new(self, worker: Worker) -> bool:
        """Whether the worker has not trained yet, or has only just begun to."""
        if worker.phase is Phase.SERVING:
            return self.clock.elapsed() - (worker.warm_at or 0.0) < NEW_S
        return worker.phase.lives

    def newcomer_failed(self, worker: Worker, how: str) -> None:
        """Takes in that a newcomer is lost by its script's fault. A job whose newcomers fail alike keeps its size."""
        kind = _NUMBER.sub("0", how)
        words, count, at = self.alike
        serving = [each for each in self.living() if each.phase is Phase.SERVING]
        stayed = any((each.warm_at or 0.0) > at and not self.is_new(each) for each in serving)
        in_row = 1 if stayed or words != kind else count + 1
        self.alike = kind, in_row, self.clock.elapsed()
        if serving and in_row == MAX_ALIKE and not self.terms.fixed:
            self.too_alike = f"{in_row} newcomers in a row failed alike: {how}"[:400]

    def _heed_alike_failures(self) -> None:
        """Keeps a job whose newcomers fail alike at the size of its world, once that is whole and no other is
        planned: the last of them may have been a member, and the others go on first."""
        if not self.too_alike or self.world is None or self.pending is not None:
            return
        members = [self.workers[name] for name in self.world.workers]
        if all(each.phase.lives and each.leaving_since is None for each in members):
            text, self.too_alike = self.too_alike, ""
            self.note_check(members[0], "", ScriptVerdict.DIFFERENT, text)  # of this job alone

    def note_check(self, by: Worker, digest: str, verdict: ScriptVerdict, text: str) -> None:
        """Records what was found of the job's script, and keeps the job at its size where that follows."""
        self.checked.add(digest)
        if self.terms.fixed:  # a check that was under way does not set it free: its newcomers failed
            return
        is_coming = self.pending is not None and bool(self.pending.members) and self.all_live(self.pending)
        plan = self.pending if is_coming else self.world
        held, terms = len(plan.members) if plan is not None else 0, self.terms
        nodes = size_kept(held, terms.min_nodes, terms.max_nodes, terms.sizes)
        self.emit(kinds.ScriptChecked(digest, verdict, text, nodes), by, text)
        self.terms = dataclasses.replace(self.terms, checked=digest, undecided=verdict is ScriptVerdict.UNDECIDED)
        if verdict is ScriptVerdict.DIFFERENT and not self.terms.trusted and not self.terms.restarts:
            self.terms = dataclasses.replace(self.terms, min_nodes=nodes, max_nodes=nodes, sizes=(), fixed=True)

    def note_trial(self, by: Worker, text: str) -> None:
        """Records how the gradients of a step in two worlds differ, "" for not; the first time, and for this job."""
        if self.compared or not self.terms.undecided:
            return
        self.compared = True
        if text:
            self.note_check(by, "", ScriptVerdict.DIFFERENT, text)
        else:
            said = "gradients of a step before and after its world grew are equal"
            self.note_check(by, self.terms.checked, ScriptVerdict.UNDECIDED, said)

    def _is_tried(self, seats: tuple[Seat, ...], *, urgent: bool) -> bool:
        """Whether members try a step in both worlds: where a world grows, and no check could decide. No node that a
        main job waits for is held back by it."""
        names = {seat.worker for seat in seats}
        before = set(self.world.workers) if self.world is not None else set[str]()
        open_yet = self.terms.undecided and not (self.compared or self.terms.trusted or self.terms.restarts)
        return open_yet and not urgent and bool(before) and before < names

    def end(self, reason: str) -> None:
        """Directs every worker of the job to stop."""
        self._shared.settled.add(self.id)
        self.over, self.over_since = reason, self.clock.elapsed()
        self.pending = self.check = None
        for worker in self.living():
            worker.end = reason

    # --- Worlds ---------------------------------------------------------------------------------------------------

    def take(self, generation: int) -> None:
        """Makes the outstanding plan of this number the job's world, once one member has switched: all do so
        together, after the same step."""
        plan = self.published.get(generation)
        if plan is None or not plan.members:
            return  # unknown, old, or without members
        self.trained(plan)
        if self.pending is plan:
            self.pending = None  # else it was superseded while they agreed on it
        self.build_tries, self.build_again_at = 0, None
        self.published = {number: later for number, later in self.published.items() if number > generation}
        self.arrived, self.arriving_since = set(), self.clock.elapsed()
        for name in plan.workers:
            if self.workers[name].phase.lives:
                self.train(self.workers[name])

    def ask(self, reason: str, *, broken: bool, entered: bool = False) -> None:
        """Asks all members to check in. One check runs at a time; a later call may make it that of a broken world."""
        if self.check is not None:
            self.check.entered = self.check.entered or entered
            if broken and not self.check.broken:
                self.check.broken, self.check.reason = True, reason
            return
        plans = (plan for plan in (self.world, self.pending) if plan is not None)
        members = dict.fromkeys(name for plan in plans for name in plan.workers)  # each once, in order
        asked = tuple(name for name in members if self.workers[name].phase.lives)
        self.checks += 1
        deadline = self.clock.elapsed() + self.settings.check_in_s
        if any(self.workers[name].unheard for name in asked):
            # Just after a restart of the daemon, members may not have noticed yet that it is back.
            deadline = max(deadline, self.up_since + self.settings.return_s)
        self.check = Check(self.checks, deadline, broken, entered, reason, asked)
        self.look_at(deadline)

    def build_again(self, reason: str) -> None:
        """Publishes the outstanding plan anew because a member could not make its group: at once, and from the second
        failure on after a delay, in which members that are gone are found."""
        if self.pending is None or self.build_again_at is not None:
            return
        self.build_tries += 1
        if self.build_tries == 1 and self._has_numbers():
            self.publish(self.pending.members, reason)
            return
        delay = min(MAX_BUILD_DELAY_S, FIRST_BUILD_DELAY_S * 2 ** min(max(0, self.build_tries - 2), 16))
        self.build_again_at, self.build_reason = self.clock.elapsed() + delay, reason
        self.look_at(self.build_again_at)
        self.ask(f"generation {self.pending.generation} cannot be made", broken=False)

    def publish(self, seats: tuple[Seat, ...], reason: str, urgent: bool = False) -> None:
        """Publishes the next generation of the job; it is outstanding until its members have taken it."""
        self.generation += 1
        if urgent:
            self.void_before = self.generation
        store = seats[0].address if seats else ""
        batch = self.terms.batch(len(seats))
        # A script that is launched again for each world makes its connections itself.
        secret = self._shared.make_secret() if seats and not self.terms.restarts else ""
        tried = self._is_tried(seats, urgent=urgent)
        plan = Plan(self.generation, seats, store, reason, urgent, batch, self.void_before, secret, tried)
        self.pending = self.published[plan.generation] = plan
        self.published_at[plan.generation] = self.clock.elapsed()
        self.published_at.pop(plan.generation - PLANS_KEPT, None)
        self.build_again_at = None
        self.ask_again_at = self.clock.elapsed() + self.settings.prepare_s
        self.published.pop(plan.generation - PLANS_KEPT, None)
        members, cause = tuple(seat.pilot for seat in seats), "fault" if urgent else "plan"
        published = kinds.GenerationPublished(plan.generation, members, cause, plan.batch)
        self._shared.events.append(Event(self.clock.now(), published, self.id, reason=reason))

    def settle(self) -> None:
        """Makes every decision that can be made now."""
        self._shared.settled.add(self.id)
        if self.over is None:
            self._note_time_limits()
            if self._has_numbers():
                self._settle_world()
            else:
                self.look_at(self.clock.elapsed() + RESERVE_POLL_S)
            self._release_idle_leavers()

    def _has_numbers(self) -> bool:
        """Whether the next worlds can have numbers that no later daemon gives again, even if this one dies before it
        has written that they were published (which waits while the journal cannot be written)."""
        left = self.reserved - self.generation
        until = self.generation + GENERATION_BLOCK
        if left < GENERATION_BLOCK // 2 and self._shared.reserve(self.id, until):
            self.reserved = until
        return self.reserved - self.generation >= SETTLED_AT_ONCE

    def _note_time_limits(self) -> None:
        for worker in self.living():
            if worker.lost_at is not None:
                self.look_at(worker.lost_at)
            if worker.answered_at is not None:
                self.look_at(worker.answered_at + self.settings.reconnect_s)
            self.look_at(worker.last_seen + self.settings.silence_s)
            if self._warms_up(worker):
                self.look_at(worker.joined_at + self.settings.warm_up_s)

    def _warms_up(self, worker: Worker) -> bool:
        """Whether the worker has never been warm. A member of an adopted world may not have reported yet."""
        return worker.phase is Phase.JOINING and not self.trains(worker.id)

    def _settle_world(self) -> None:
        self._waits_for_scripts_apart(self.clock.elapsed())  # those of the present plan are held
        if self.check is None and self.pending is not None and not self.pending.urgent:
            # No member of the present world notices that a newcomer froze while it joined.
            if self.clock.elapsed() >= self.ask_again_at:
                self.ask_again_at = self.clock.elapsed() + self.settings.prepare_s
                self.ask(f"generation {self.pending.generation} is not taken", broken=False)
            self.look_at(self.ask_again_at)
        if self.check is not None:
            self._settle_check(self.check)
        if (
            self.pending is not None
            and self.pending.urgent
            and not self.pending.members
            and not self._any_lives(self.world)
        ):
            self._dissolve()  # all have left by it
        is_repaired = self.pending is not None and self.pending.urgent and self.all_live(self.pending)
        if self.check is not None or is_repaired:
            return
        now = self.clock.elapsed()
        if self._waits_for_scripts_apart(now):
            return
        if self.build_again_at is not None and self.pending is not None and self.all_live(self.pending):
            if now < self.build_again_at:
                self.look_at(self.build_again_at)
                return
            self.publish(self.pending.members, self.build_reason)
        if self.pending is None and self.world is not None and not self._all_arrived(self.world, now):
            return
        self._heed_alike_failures()
        candidates = [WorkerCandidate(each.seat, each.warm_at, each.leaving_since) for each in self.living()]
        if not candidates:
            self._dissolve()
            return
        if self.world is not None and not self._any_lives(self.world):
            pending = self.pending
            self._dissolve()
            self.pending = pending if pending is not None and pending.members else None
        if self.world is None and self.pending is not None and not self._any_lives(self.pending):
            self._dissolve()  # its members may have begun to train in it
        # Members of a plan that has been replaced begin in it, too, where all of them are not heard.
        may_begin_unheard = self.world is None and (
            self.pending is None
            or any(plan.members and not self._any_lives(plan) for plan in self.published.values())
        )
        if may_begin_unheard and self._waits_for_silent_workers(now):
            return
        verdict = next_world(
            self.world.workers if self.world else (),
            self.pending.workers if self.pending else None,
            candidates,
            self.terms,
            now,
            self.settings.gather_s,
            self._measurement_size(candidates, now),
        )
        if verdict.look_again_at is not None:
            self.look_at(verdict.look_again_at)
        if verdict.seats is not None:
            self.publish(verdict.seats, verdict.reason)
        elif self.pending is not None and not self.all_live(self.pending):
            self.pending = None  # it cannot be taken any more, and no other is possible yet

    def _settle_check(self, check: Check) -> None:
        now = self.clock.elapsed()
        silent = []
        for name in check.asked:
            worker = self.workers[name]
            if not worker.phase.lives or name in check.answered:
                continue
            if now >= check.deadline or (check.broken and worker.dropped):
                check.broken = check.broken or check.entered or self.trains(name)
                how = worker.lost_how or f"did not check in within {self.settings.check_in_s:g} s"
                self.lose(worker, how, silent=True)
            else:
                silent.append(name)
        if silent:
            self.look_at(check.deadline)
            return
        if check.broken and (self._waits_for_a_majority(check, now) or self._waits_for_scripts_apart(now)):
            return
        self.check = None
        if not check.broken:
            return  # all have answered: one member is slow
        survivors = [name for name in check.asked if name in check.whole and self.workers[name].phase.lives]
        staying = [name for name in survivors if self.workers[name].leaving_since is None]
        for name in check.asked:
            if name not in check.whole and self.workers[name].phase is Phase.SERVING:
                self.workers[name].phase = Phase.WARM  # the step during which it received the state was not committed
        if not survivors:
            self._dissolve()
            return
        members = staying or survivors[:1]
        left_out = set(survivors).difference(members)
        lost = max(map(check.whole.__getitem__, left_out), default=0) > max(map(check.whole.__getitem__, members))
        if not self.terms.restarts and (lost or fencing.could_go_on_apart(self, check, left_out, self.holding())):
            members = survivors  # those that leave follow by the next plan, which all take together
        before = self.world or self.pending
        if self.terms.fixed and before is not None and set(members) != set(before.workers):
            self.publish((), why_it_ends(self.terms, check.reason), urgent=True)
            return
        self.publish(tuple(self.workers[name].seat for name in members), check.reason, urgent=True)

    def _dissolve(self) -> None:
        """Drops a world whose members are all silent; if only the network failed they may bring it back."""
        last = self.world or self.pending
        for name in last.workers if last is not None else ():
            worker = self.workers[name]
            worker.may_return = worker.phase is Phase.LOST and worker.silent
        self.world = self.pending = None
        self.void_before = self.generation + 1

    def _any_lives(self, plan: Plan | None) -> bool:
        return plan is not None and any(self.workers[name].phase.lives for name in plan.workers)

    def _all_arrived(self, world: Plan, now: float) -> bool:
        """Whether the next change may begin: a member that has not taken an urgent plan must go on seeing it."""
        missing = [name for name in world.workers if name not in self.arrived and self.workers[name].phase.lives]
        if missing and not world.urgent and not self.relaunches:
            if now >= self.arriving_since + self.settings.arrive_s:
                return True
            self.look_at(self.arriving_since + self.settings.arrive_s)
        return not missing

    def _measurement_size(self, candidates: Sequence[WorkerCandidate], now: float) -> int | None:
        """The size at which the world of an unmeasured job stays for now; None for no limit."""
        if not self.climbs:
            return None
        size = len(self.world.members) if self.world is not None else 0
        if size and size not in self.seen and self.pending is None:
            until = self.arriving_since + self.settings.stop_s
            if now < until:
                self.look_at(until)
                return size
            self.climbs = False  # its steps are too long to be measured so
            return None
        target = sum(each.leaving_since is None for each in candidates)
        stop = next_measurement_size(self.seen, target, self.terms.permits, self.terms.max_nodes)
        if stop is None and target > size:
            self.climbs = False
        return stop

    def _release_idle_leavers(self) -> None:
        """Lets newcomers go that were asked to leave while a plan included them, and that no plan includes now; after
        `arrive_s`: the members may have agreed on a withdrawn plan in the same moment."""
        now = self.clock.elapsed()
        for worker in self.living():
            if worker.leaving_since is None or worker.phase is Phase.SERVING or self.is_planned(worker.id):
                continue
            until = worker.leaving_since + self.settings.arrive_s
            if now < until and any(plan.has(worker.id) for plan in self.published.values()):
                self.look_at(until)
                continue
            worker.end = worker.leave_reason
            self.leave(worker, worker.leave_reason)

    # --- Workers that may train where they are not heard ---------------------------------------------------------

    def _waits_for_silent_workers(self, now: float) -> bool:
        """Whether no world may begin yet: workers that hold the state may train where they are not heard. After a
        restart of the daemon they have `adopt_s` to say hello, before their nodes are taken back."""
        unheard = fencing.unheard_with_state(self, self._look_at_fences())
        if not unheard:
            self.fenced_at = None
            return False
        if self.fenced_at is None:
            if now < self.up_since + self.settings.adopt_s and None in unheard.values():
                self.look_at(now + UNHEARD_POLL_S)
                return True
            self.fenced_at = now
        self._take_back(unheard, now)
        return now < self.fenced_at + self.settings.fence_s

    def _waits_for_a_majority(self, check: Check, now: float) -> bool:
        """Whether those that have answered must wait, because more than half of their world is silent."""
        if self.terms.restarts or not check.whole:
            return False
        away = fencing.silent_majorities(self, check, self._look_at_fences())
        if not away:
            return False
        check.fenced_at = now if check.fenced_at is None else check.fenced_at
        self._take_back(away, now)
        return now < check.fenced_at + self.settings.fence_s

    def _waits_for_scripts_apart(self, now: float) -> bool:
        """Whether others must wait, because scripts of an earlier world may run on where they are not heard."""
        if not self.relaunches:
            return False
        apart = {each.pilot: each for each in fencing.scripts_apart(self, self._look_at_fences())}
        self.apart_since = {pilot: self.apart_since.get(pilot, now) for pilot in apart}
        if apart:
            self._take_back(apart, now)
        return self._scripts_may_run_apart(now)

    def _scripts_may_run_apart(self, now: float) -> bool:
        return any(now < since + self.settings.fence_s for since in self.apart_since.values())

    def _look_at_fences(self) -> Mapping[str, bool]:
        """Forgets which nodes were taken back that are free now; the job's pilots that may hold one."""
        holding = self.holding()
        self.fenced = fencing.still_held(self, holding)
        return holding

    def _take_back(self, away: Mapping[str, Worker | None], now: float) -> None:
        """Gives these pilots' workers up for good, and their nodes with them, unless that is done; looks again soon.
        The others go on once the nodes are free, and `fence_s` later at the latest: Slurm has killed them by then."""
        self.look_at(now + UNHEARD_POLL_S)
        for pilot, worker in away.items():
            if pilot in self.fenced:
                continue
            self.fenced.add(pilot)
            how = "not heard, and others are to train on without it: its node is taken back"
            name = f"{pilot}.0" if worker is None else worker.id
            if worker is not None:
                worker.may_return, worker.end = False, f"given up: {how}"
            lost = kinds.WorkerLost(name, how, fenced=True)
            self._shared.events.append(Event(self.clock.now(), lost, self.id, pilot, None, how))

    @property
    def relaunches(self) -> bool:
        """Whether launchers are the members, each of which ends and starts its script by itself."""
        return self.terms.restarts and not self.terms.items

    def holds_scripts(self, plan: Plan) -> bool:
        """Whether no script of this plan may start yet, because one of an earlier world may still run: it saves, and
        those of the plan are to load that."""
        return self.relaunches and (
            self._scripts_may_run_apart(self.clock.elapsed())
            or any(
                each.unheard or (each.at is not None and each.at.generation < plan.generation)
                for each in self.living()
            )
        )
