"""The state machine of workers and worlds: from the facts of `reports` to the next generation of each job.

After a fault every member is asked to check in. A member that does not answer is lost: at once when its connection
dropped, else at a deadline. An urgent generation of the remaining members follows. Newcomers are never part of an
urgent generation, so that a repair never waits for a worker that holds no state.
"""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.domain.event import Event, GenerationPublished, Payload, WorkerJoined, WorkerLeft, WorkerLost
from malletrain.learn.scale_up_profiling import next_measurement_size
from malletrain.loop.membership.next_world import WorkerCandidate, next_world
from malletrain.loop.membership.state import Check, JobMembership, MembershipSettings, Phase, Worker
from malletrain.loop.ports import Clock
from malletrain.wire.messages import Plan, Seat

#: Superseded plans that are kept, since members may have agreed on one of them: far more than can be under way.
PLANS_KEPT = 16


class Worlds:
    """The workers and worlds of all jobs, and the rules that change them.

    Args:
        settings: time limits.
        clock: time.

    Attributes:
        jobs: by number.
        workers: by name, including lost and departed ones until they are forgotten.
        events: events since the caller last took them.
        due_at: when `tick` must be called next (`Clock.elapsed`) if nothing else is called before.
    """

    def __init__(self, settings: MembershipSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._started_at = clock.elapsed()
        self.jobs: dict[int, JobMembership] = {}
        self.workers: dict[str, Worker] = {}
        self.events: list[Event] = []
        self.due_at: float | None = None

    def tick(self) -> None:
        """Applies every time limit that has passed."""
        now = self._clock.elapsed()
        for worker in list(self.workers.values()):
            if not worker.phase.lives:
                continue
            if worker.lost_at is not None and now >= worker.lost_at:
                self.lose(worker, worker.lost_how, silent=True)
            elif worker.answered_at is not None and now >= worker.answered_at + self.settings.reconnect_s:
                self.lose(worker, "it does not poll any more", silent=True)
            elif now >= worker.last_seen + self.settings.silence_s:
                self.lose(worker, f"silent for {now - worker.last_seen:.0f} s", silent=True)
            elif self._warms_up(worker) and now >= worker.joined_at + self.settings.warm_up_s:
                worker.end = f"not warm after {self.settings.warm_up_s:.0f} s"
                self.lose(worker, worker.end)
        self.due_at = None
        for job_id in list(self.jobs):
            self.settle(job_id)
        self._forget(now)

    def living(self, job_id: int) -> list[Worker]:
        """The workers of a job that have neither left nor been lost, oldest first."""
        return [each for each in self.workers.values() if each.job == job_id and each.phase.lives]

    def taken(self, job: JobMembership, generation: int) -> None:
        """Makes the outstanding plan of this number the job's world.

        One member that switched suffices: members switch together, after the same step.
        """
        plan = job.published.get(generation)
        if plan is None or not plan.members:
            return  # unknown, old, or without members
        job.world = plan
        if job.pending is plan:
            job.pending = None  # else it was superseded while they agreed on it
        job.published = {number: later for number, later in job.published.items() if number > generation}
        job.arrived, job.arriving_since = set(), self._clock.elapsed()
        for seat in job.world.members:
            if self.workers[seat.worker].phase.lives:
                self.workers[seat.worker].phase = Phase.SERVING

    def trains(self, worker: Worker) -> None:
        """Marks a worker as a serving member of its job's world."""
        if worker.phase in (Phase.JOINING, Phase.WARM):
            worker.phase, worker.warm_at = Phase.SERVING, self._clock.elapsed()

    def bring_back(self, worker: Worker) -> None:
        """Takes a worker back that was lost for its silence alone; it must report warm again."""
        now = self._clock.elapsed()
        worker.phase, worker.warm_at, worker.end, worker.lost_how = Phase.JOINING, None, None, ""
        worker.silent = worker.may_return = worker.dropped = False
        worker.joined_at, worker.last_seen, worker.lost_at, worker.answered_at = now, now, None, None
        self.emit(WorkerJoined(worker.id), worker, "heard again")

    def expect(self, worker: Worker) -> None:
        """Keeps the seat of a worker that has not been heard since the daemon restarted, for `adopt_s`."""
        worker.lost_at = self._clock.elapsed() + self.settings.adopt_s
        worker.lost_how, worker.unheard = "not heard since the daemon restarted", True

    def _warms_up(self, worker: Worker) -> bool:
        """Whether the worker has never been warm. A member of an adopted world may not have reported yet."""
        world = self.jobs[worker.job].world
        return worker.phase is Phase.JOINING and (world is None or not world.has(worker.id))

    def _dissolve(self, job: JobMembership) -> None:
        """Drops a world whose members are all silent.

        If only the network failed they train on, and may bring the world back.
        """
        for name in job.world.workers if job.world else ():
            worker = self.workers[name]
            worker.may_return = worker.phase is Phase.LOST and worker.silent
        job.world = job.pending = None
        job.void_before = job.generation + 1

    def emit(self, payload: Payload, by: Worker, reason: str = "") -> None:
        """Records an event of a worker."""
        self.events.append(Event(self._clock.now(), payload, by.job, by.pilot, by.node or None, reason))

    def look_at(self, moment: float) -> None:
        """Asks for a call of `tick` at that moment or earlier."""
        self.due_at = moment if self.due_at is None else min(self.due_at, moment)

    def ask_to_leave(self, worker: Worker, reason: str) -> None:
        """Asks a worker to leave; a worker that has no part in a world leaves at once."""
        worker.leaving_since, worker.leave_reason = self._clock.elapsed(), reason
        job = self.jobs[worker.job]
        plans = [plan for plan in (job.world, job.pending) if plan is not None]
        if not any(plan.has(worker.id) for plan in plans):
            worker.end = reason
            self.leave(worker, reason)

    def leave(self, worker: Worker, reason: str, left: WorkerLeft | None = None) -> None:
        """Records that a worker left in order."""
        worker.phase = Phase.LEFT
        worker.end = worker.end or reason
        self.emit(left or WorkerLeft(worker.id), worker, reason)

    def lose(self, worker: Worker, how: str, *, silent: bool = False) -> None:
        """Gives a worker up. `silent`: only because it was not heard."""
        worker.phase, worker.lost_how, worker.silent = Phase.LOST, how, silent
        worker.end = worker.end or f"given up: {how}"
        self.emit(WorkerLost(worker.id, how), worker, how)
        job = self.jobs[worker.job]
        if job.over is None and job.world is not None and job.world.has(worker.id):
            self.ask(job, worker.job, f"{worker.id} is lost: {how}", broken=True)

    def ask(self, job: JobMembership, job_id: int, reason: str, *, broken: bool, entered: bool = False) -> None:
        """Asks all members to check in.

        One check runs at a time; a later call may turn it into the check of a broken world.
        """
        if job.check is not None:
            job.check.entered = job.check.entered or entered
            if broken and not job.check.broken:
                job.check.broken, job.check.reason = True, reason
            return
        asked: list[str] = []
        for plan in (job.world, job.pending):
            for seat in plan.members if plan else ():
                if seat.worker not in asked and self.workers[seat.worker].phase.lives:
                    asked.append(seat.worker)
        job.checks += 1
        deadline = self._clock.elapsed() + self.settings.check_in_s
        if any(self.workers[name].unheard for name in asked):
            # Just after a restart of the daemon, members may not have noticed yet that it is back.
            deadline = max(deadline, self._started_at + self.settings.return_s)
        job.check = Check(job.checks, deadline, broken, entered, reason, tuple(asked))
        self.look_at(deadline)

    def settle(self, job_id: int) -> None:
        """Makes every decision about a job that can be made now."""
        job = self.jobs[job_id]
        if job.over is not None:
            return
        self._decide(job_id, job)
        self._release_idle_leavers(job_id, job)

    def _release_idle_leavers(self, job_id: int, job: JobMembership) -> None:
        """Lets newcomers go that were asked to leave while a plan included them, and that no plan includes now.

        The members may have agreed on a withdrawn plan in the same moment, so this waits for `arrive_s`.
        """
        now = self._clock.elapsed()
        current = [plan for plan in (job.world, job.pending) if plan is not None]
        for worker in self.living(job_id):
            if worker.leaving_since is None or worker.phase is Phase.SERVING:
                continue
            if any(plan.has(worker.id) for plan in current):
                continue
            until = worker.leaving_since + self.settings.arrive_s
            if now < until and any(plan.has(worker.id) for plan in job.published.values()):
                self.look_at(until)
                continue
            worker.end = worker.leave_reason
            self.leave(worker, worker.leave_reason)

    def _decide(self, job_id: int, job: JobMembership) -> None:
        for worker in self.living(job_id):
            if worker.lost_at is not None:
                self.look_at(worker.lost_at)
            if worker.answered_at is not None:
                self.look_at(worker.answered_at + self.settings.reconnect_s)
            self.look_at(worker.last_seen + self.settings.silence_s)
            if self._warms_up(worker):
                self.look_at(worker.joined_at + self.settings.warm_up_s)
        if job.check is None and job.pending is not None and not job.pending.urgent:
            # No member of the present world notices that a newcomer froze while it joined.
            if self._clock.elapsed() >= job.ask_again_at:
                job.ask_again_at = self._clock.elapsed() + self.settings.prepare_s
                self.ask(job, job_id, f"generation {job.pending.generation} is not taken", broken=False)
            self.look_at(job.ask_again_at)
        if job.check is not None:
            self._settle_check(job_id, job, job.check)
        if job.check is not None or (job.pending is not None and job.pending.urgent and self.all_live(job.pending)):
            return
        now = self._clock.elapsed()
        if job.pending is None and job.world is not None and not self._all_arrived(job, job.world, now):
            return
        candidates = [WorkerCandidate(each.seat, each.warm_at, each.leaving_since) for each in self.living(job_id)]
        if not candidates:
            self._dissolve(job)
            return
        if job.world is not None and not any(self.workers[name].phase.lives for name in job.world.workers):
            pending = job.pending
            self._dissolve(job)
            job.pending = pending if pending is not None and pending.members else None
        verdict = next_world(
            job.world.workers if job.world else (),
            job.pending.workers if job.pending else None,
            candidates,
            job.terms,
            now,
            self.settings.gather_s,
            self._stop(job, candidates, now),
        )
        if verdict.look_again_at is not None:
            self.look_at(verdict.look_again_at)
        if verdict.seats is not None:
            self.publish(job_id, verdict.seats, verdict.reason)
        elif job.pending is not None and not self.all_live(job.pending):
            job.pending = None  # it cannot be taken any more, and no other is possible yet

    def _stop(self, job: JobMembership, candidates: Sequence[WorkerCandidate], now: float) -> int | None:
        """The measurement size at which the world of an unmeasured job stays for now; None for no limit."""
        if not job.climbs:
            return None
        size = len(job.world.members) if job.world is not None else 0
        if size and size not in job.seen and job.pending is None:
            until = job.arriving_since + self.settings.stop_s
            if now < until:
                self.look_at(until)
                return size
            job.climbs = False  # its steps are too long to be measured so
            return None
        target = sum(each.leaving_since is None for each in candidates)
        stop = next_measurement_size(job.seen, target, job.terms.permits)
        if stop is None and target > size:
            job.climbs = False
        return stop

    def _all_arrived(self, job: JobMembership, world: Plan, now: float) -> bool:
        """Whether the next change may begin.

        A member that has not taken an urgent plan yet must go on seeing it.
        """
        missing = [name for name in world.workers if name not in job.arrived and self.workers[name].phase.lives]
        if missing and not world.urgent:
            if now >= job.arriving_since + self.settings.arrive_s:
                return True
            self.look_at(job.arriving_since + self.settings.arrive_s)
        return not missing

    def all_live(self, plan: Plan) -> bool:
        """Whether every member of a plan lives."""
        return all(self.workers[seat.worker].phase.lives for seat in plan.members)

    def _settle_check(self, job_id: int, job: JobMembership, check: Check) -> None:
        now = self._clock.elapsed()
        silent = []
        for name in check.asked:
            worker = self.workers[name]
            if not worker.phase.lives or name in check.answered:
                continue
            if now >= check.deadline or (check.broken and worker.dropped):
                check.broken = check.broken or check.entered or (job.world is not None and job.world.has(name))
                how = worker.lost_how or f"did not check in within {self.settings.check_in_s:g} s"
                self.lose(worker, how, silent=True)
            else:
                silent.append(name)
        if silent:
            return
        job.check = None
        if not check.broken:
            return  # all have answered: one member is slow
        survivors = [name for name in check.asked if name in check.whole and self.workers[name].phase.lives]
        staying = [name for name in survivors if self.workers[name].leaving_since is None]
        for name in check.asked:
            if name not in check.whole and self.workers[name].phase is Phase.SERVING:
                self.workers[name].phase = Phase.WARM  # the step during which it received the state was not committed
        if not survivors:
            self._dissolve(job)
            return
        seats = tuple(self.workers[name].seat for name in staying or survivors[:1])
        self.publish(job_id, seats, check.reason, urgent=True)

    def publish(self, job_id: int, seats: tuple[Seat, ...], reason: str, urgent: bool = False) -> None:
        """Publishes the next generation of a job; it is outstanding until its members have taken it."""
        job = self.jobs[job_id]
        job.generation += 1
        if urgent:
            job.void_before = job.generation
        store = seats[0].address if seats else ""
        batch = job.terms.batch(len(seats))
        plan = Plan(job.generation, seats, store, reason, urgent, batch, job.void_before)
        job.pending = job.published[plan.generation] = plan
        job.ask_again_at = self._clock.elapsed() + self.settings.prepare_s
        job.published.pop(plan.generation - PLANS_KEPT, None)
        members, cause = tuple(self.workers[seat.worker].pilot for seat in seats), "fault" if urgent else "plan"
        published = GenerationPublished(plan.generation, members, cause, plan.batch)
        self.events.append(Event(self._clock.now(), published, job_id, reason=reason))

    def _forget(self, now: float) -> None:
        """Forgets workers that left long ago. Their names are refused as long as one of them may still call."""
        for name, worker in list(self.workers.items()):
            job = self.jobs[worker.job]
            seated = any(plan is not None and plan.has(name) for plan in (job.world, job.pending))
            if not worker.phase.lives and not seated and now - worker.last_seen > 10 * self.settings.silence_s:
                del self.workers[name]
