"""Who is in each job's world: from what workers say and the loop wants, to generations.

Runs on events, not on the daemon's tick, so that a fault is mended in a fraction of a second. No I/O and no thread of
its own: the caller holds one lock around every call, writes what `reports()` returns to the journal *before* it lets
a worker see a directive, and calls `tick()` when `due()` says so.

Life of a worker: hello (JOINING) -> warm (WARM) -> in a published generation -> switched (SERVING) -> left or lost.

After a fault all members are asked to check in; those that do not, at once when their connection dropped or else by a
deadline, are lost, and an urgent generation of the rest follows. Newcomers are never in an urgent one: mending never
waits for someone who holds no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from malletrain.domain.decision import LeavePilot
from malletrain.domain.errors import Refused
from malletrain.domain.event import Event, EventKind, JsonValue
from malletrain.loop.generation import Candidate, JobTerms, Seat, WorldPlan, next_world
from malletrain.loop.ports import Clock
from malletrain.loop.roster import Check, Directive, JobState, MembershipSettings, Phase, Worker

__all__ = ["GENERATION_GAP", "Directive", "Membership", "MembershipSettings"]

#: After a restart numbers go on this far beyond the last known: none is ever given twice.
GENERATION_GAP = 1000

#: Superseded plans that members may yet turn out to have agreed on: by far more than can be under way.
PLANS_KEPT = 16


class Membership:
    """The state of every job's world. Implements `malletrain.loop.ports.Workers`.

    Args:
        settings: deadlines.
        clock: time.
        admit: the job's terms when `(job, pilot, uid)` may be a worker; raises `Refused` when not.
        generations: the last generation of each job in the journal.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        clock: Clock,
        admit: Callable[[int, str, int], JobTerms],
        generations: Mapping[int, int] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._admit = admit
        self._known = {job: number + GENERATION_GAP for job, number in (generations or {}).items()}
        self._started_at = clock.elapsed()
        self._jobs: dict[int, JobState] = {}
        self._workers: dict[str, Worker] = {}
        self._batches: dict[int, tuple[tuple[int, int], ...]] = {}  #: by job
        self._events: list[Event] = []
        self._due: float | None = None

    # --- The loop's side ------------------------------------------------------------------------------------------

    def leave(self, action: LeavePilot) -> None:
        """Ask the worker of a pilot to leave; `WORKER_LEFT` follows, at once when it has no part in a world."""
        for worker in self._living(action.job_id):
            if worker.pilot == action.pilot and worker.leaving_since is None:
                self._ask_to_leave(worker, action.reason)
        self._settle(action.job_id)

    def end_job(self, job_id: int, reason: str) -> None:
        """Tell every worker of the job to stop."""
        job = self._jobs.setdefault(job_id, JobState(JobTerms(), self._known.get(job_id, 0)))
        job.over, job.pending, job.check = reason, None, None
        for worker in self._living(job_id):
            worker.end = reason

    def top_up(self, job_id: int, tasks: int) -> bool:
        """Ask the oldest worker of the job to submit so many held tasks more; False when there is none to ask."""
        for worker in self._living(job_id):
            if worker.leaving_since is None:
                worker.top_up = tasks
                return True
        return False

    def choose_batches(self, job_id: int, batches: tuple[tuple[int, int], ...]) -> None:
        """Samples of a step by nodes, for the generations to come: a batch changes with the world, and only then."""
        self._batches[job_id] = batches
        if job_id in self._jobs:
            self._jobs[job_id].terms = replace(self._jobs[job_id].terms, batches=batches)

    def reports(self) -> Sequence[Event]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    # --- The workers' side ----------------------------------------------------------------------------------------

    def hello(self, job: int, pilot: str, restart: int, node: str, uid: int) -> Worker:
        """A process in a pilot presents itself; saying it again (with a new token to be had) changes nothing.

        Raises:
            Refused: unknown job or pilot, another's job, a job that is over, or a worker that was given up.
        """
        terms = self._admit(job, pilot, uid)
        if job in self._batches:
            terms = replace(terms, batches=self._batches[job])
        state = self._jobs.setdefault(job, JobState(terms, self._known.get(job, 0)))
        state.terms = terms
        if state.over is not None:
            raise Refused(f"job {job} is over ({state.over}): end this process")
        now = self._clock.elapsed()
        name = f"{pilot}.{restart}"
        worker = self._workers.get(name)
        if worker is not None:
            if worker.may_return:
                self._return(worker)
            if not worker.phase.lives:
                raise Refused(f"worker {name} was given up ({worker.lost_how or 'it left'}): end this process")
            worker.node, worker.uid = node, uid
            self.heard(name)
            return worker
        for old in self._living(job):
            if old.pilot == pilot:
                self._lose(old, "its pilot was started again")
        worker = Worker(name, job, pilot, node, uid, joined_at=now, last_seen=now)
        self._workers[name] = worker
        self._emit(EventKind.WORKER_JOINED, worker, "hello", worker=name)
        self._settle(job)
        return worker

    def adopt(self, worker: str, generation: int, seats: Sequence[Seat], step: int, address: str, seen: int) -> None:
        """A worker that trains already tells its world to a daemon that has forgotten it; training is not disturbed.

        Members not heard yet keep their seats for `adopt_s`. `seen`: the highest generation it has heard of.
        """
        this = self._workers[worker]
        job = self._jobs[this.job]
        job.generation = max(job.generation, generation, seen)
        job.step = max(job.step, step)
        this.address = this.address or address
        if job.world is None or job.world.generation < generation:
            job.world = WorldPlan(generation, tuple(seats), "", "adopted from its members")
            job.arrived = set(job.world.workers)
            if job.pending is None or job.pending.generation <= generation:
                job.pending = None
            job.generation += GENERATION_GAP
        now = self._clock.elapsed()
        for seat in job.world.seats:
            if seat.worker not in self._workers:
                self._workers[seat.worker] = Worker(seat.worker, this.job, seat.pilot, "", this.uid, now, now)
                self._expect(self._workers[seat.worker])
            member = self._workers[seat.worker]
            if member.may_return:
                self._return(member)
                self._expect(member)
            if member.phase in (Phase.JOINING, Phase.WARM):
                member.phase, member.warm_at = Phase.SERVING, now
                member.address = seat.address
        self._settle(this.job)

    def polled(self, worker: str) -> None:
        """The worker has a poll open."""
        self._workers[worker].answered_at = None
        self.heard(worker)

    def answered(self, worker: str) -> None:
        """Its poll was answered: another must follow within `reconnect_s`, or its process is no more."""
        this = self._workers[worker]
        this.answered_at = self._clock.elapsed()
        self._look_at(this.answered_at + self._settings.reconnect_s)

    def heard(self, worker: str) -> None:
        """The worker polls or reports: it is there."""
        this = self._workers[worker]
        this.last_seen = self._clock.elapsed()
        this.lost_at, this.lost_how, this.dropped, this.unheard = None, "", False, False

    def disconnected(self, worker: str) -> None:
        """The worker's connection dropped while it polled: it is given `reconnect_s`, nothing after a fault."""
        this = self._workers[worker]
        if this.phase.lives and this.lost_at is None:
            this.lost_at = self._clock.elapsed() + self._settings.reconnect_s
            this.lost_how, this.dropped = "its connection dropped", True
        self._settle(this.job)

    def warm(self, worker: str, address: str, stages: Mapping[str, float]) -> None:
        """It can join: it has imported, built its model and run it once."""
        this = self._workers[worker]
        if this.phase is not Phase.JOINING:
            return
        this.phase, this.address, this.warm_at = Phase.WARM, address, self._clock.elapsed()
        self._emit(EventKind.WORKER_WARM, this, "", worker=worker, stages=dict(stages))
        self._settle(this.job)

    def checked_in(self, worker: str, answers: int, step: int, whole: bool) -> None:
        """It answers a check."""
        this = self._workers[worker]
        job = self._jobs[this.job]
        if job.check is not None and job.check.number == answers and worker in job.check.asked:
            job.check.answered.add(worker)
            if whole:
                job.check.whole[worker] = step
        self._settle(this.job)

    def fault(self, worker: str, generation: int, step: int, how: str, detail: str) -> None:
        """It says that a world does not work: `closed` and `build` break it, `stalled` asks who is still there."""
        this = self._workers[worker]
        job = self._jobs[this.job]
        job.step = max(job.step, step)
        latest = job.pending or job.world
        if latest is None or generation < (job.world.generation if job.world else 0) or job.over:
            return
        if latest.urgent and generation < latest.generation:
            return  # mended already
        if how == "build" and not latest.urgent and job.pending is not None:
            # Nobody trains in it yet: vote it off by another of the same members.
            if generation == job.pending.generation:
                self._publish(this.job, job.pending.seats, f"another try, {worker} could not build: {detail}"[:400])
            return
        # A member that speaks of a plan newer than its world waits in it already. What a newcomer meets there is its
        # own trouble, unless nobody trains at all.
        trains = job.world is None or job.world.has(worker)
        entered = trains and job.world is not None and generation > job.world.generation
        plan = job.published.get(generation)
        in_vain = entered and plan is not None and not self._all_live(plan)
        broken = trains and (how != "stalled" or in_vain)
        self._ask(job, this.job, f"{worker}: {how} {detail}".strip()[:400], broken=broken, entered=entered)
        self._settle(this.job)

    def switched(self, worker: str, generation: int, step: int, nodes: int, pause_s: float, grew: bool) -> None:
        """It trains in a new generation."""
        this = self._workers[worker]
        job = self._jobs[this.job]
        job.step = max(job.step, step)
        self._taken(job, generation)
        plan = job.world
        if plan is None or plan.generation != generation:
            return
        job.arrived.add(worker)
        if plan.seats[0].worker == worker:
            self._emit(
                EventKind.SWITCHED,
                this,
                plan.reason,
                generation=generation,
                nodes=nodes,
                pause_s=pause_s,
                step=step,
                grew=grew,
            )
        self._settle(this.job)

    def leaving(self, worker: str, why: str) -> None:
        """It was told to end by someone else, and leaves as soon as it may."""
        this = self._workers[worker]
        if this.leaving_since is None and this.phase.lives:
            self._ask_to_leave(this, why)
        self._settle(this.job)

    def left(self, worker: str, generation: int, step: int, saved: str | None) -> None:
        """It is out of its world: by `generation`, which it has no part in, or by itself (0)."""
        this = self._workers[worker]
        job = self._jobs[this.job]
        job.step = max(job.step, step)
        if this.phase.lives:
            self._leave(this, this.leave_reason or "left by itself", step=step, saved=saved)
            obeyed = job.published.get(generation)
            expected = obeyed is not None and not obeyed.has(worker)
            if obeyed is not None and not obeyed.urgent:
                # (That one is out of an urgent plan says nothing of whether the others have heard of it.)
                self._taken(job, generation)
            if not expected and job.world is not None and job.world.has(worker):
                self._ask(job, this.job, f"{worker} left by itself", broken=True)
        self._settle(this.job)

    def finished(self, worker: str, result: Mapping[str, JsonValue]) -> None:
        """Training is over."""
        this = self._workers[worker]
        if self._jobs[this.job].over is None and this.phase.lives:
            self._emit(EventKind.JOB_COMPLETED, this, "training finished", result=dict(result))
            self.end_job(this.job, "training finished")

    def failed(self, worker: str, step: int, message: str) -> None:
        """Its script raised. Others go on; with no others, or once more before any step was made, the job fails."""
        this = self._workers[worker]
        job = self._jobs[this.job]
        job.step = max(job.step, step)
        again = job.failed_at is not None and job.step <= job.failed_at + 1
        job.failed_at = job.step
        if this.phase.lives:
            self._lose(this, f"its script failed: {message}")
        others = [each for each in self._living(this.job) if each.phase is Phase.SERVING]
        if job.over is None and (again or not others):
            self._emit(EventKind.JOB_FAILED, this, message, step=step)
            self.end_job(this.job, f"the script failed: {message}")
        self._settle(this.job)

    def exited(self, worker: str, status: int) -> None:
        """The process that ran the script says that it is over: `status`, or minus the signal."""
        this = self._workers[worker]
        if not this.phase.lives:
            return
        job = self._jobs[this.job]
        if job.over is not None or this.leaving_since is not None:
            self._leave(this, this.leave_reason or "its job is over")
            if job.over is None and job.world is not None and job.world.has(worker):
                self._ask(job, this.job, f"{worker} ended before it was out of its world", broken=True)
        elif status > 0 and status not in (129, 130, 131, 134, 135, 136, 137, 139, 143):
            self.failed(worker, job.step, f"exit status {status}")
        else:
            self._lose(this, f"its process ended with status {status}")
        self._settle(this.job)

    def samples(self, worker: str, step: int, data: Mapping[str, JsonValue]) -> None:
        """A window of training, which ended with `step`."""
        job = self._jobs[self._workers[worker].job]
        job.step = max(job.step, step)
        self._emit(EventKind.SAMPLES, self._workers[worker], "", **data)

    def metric(self, worker: str, name: str, value: float | None, samples: int) -> None:
        """A figure that the script reports; None is no number."""
        self._emit(EventKind.METRIC, self._workers[worker], "", name=name, value=value, samples=samples)

    def topped_up(self, worker: str) -> None:
        """It has submitted more held tasks."""
        self._workers[worker].top_up = 0

    def directive_for(self, worker: str) -> Directive:
        """What is wanted of the worker now; its `seq` tells whether that is new."""
        this = self._workers[worker]
        job = self._jobs[this.job]
        check = job.check.number if job.check and worker in job.check.asked else None
        if check is not None and job.check and worker in job.check.answered:
            check = None
        wanted = Directive(
            seq=this.directive.seq,
            plan=job.pending or job.world if job.over is None else None,
            check_in=check,
            leave=this.leave_reason or None if this.leaving_since is not None else None,
            end=this.end,
            top_up=this.top_up,
        )
        if wanted != this.directive:
            this.directive = replace(wanted, seq=wanted.seq + 1)
        return this.directive

    def worker(self, name: str) -> Worker | None:
        """One worker; None when nobody of this name has said hello, or it must do so again."""
        worker = self._workers.get(name)
        return None if worker is not None and worker.may_return else worker

    def slept(self, seconds: float) -> None:
        """The daemon itself was not running for so long: silence in that time is nobody's."""
        for worker in self._workers.values():
            worker.last_seen += seconds
            worker.answered_at = None if worker.answered_at is None else worker.answered_at + seconds
            worker.lost_at = None if worker.lost_at is None else worker.lost_at + seconds
        for job in self._jobs.values():
            if job.check is not None:
                job.check.deadline += seconds

    def restarts(self, job_id: int) -> bool:
        """Whether the job takes another size by checkpoint and relaunch."""
        return job_id in self._jobs and self._jobs[job_id].terms.restarts

    def world(self, job_id: int) -> WorldPlan | None:
        """The generation that trains now."""
        job = self._jobs.get(job_id)
        return job.world if job else None

    # --- Time -----------------------------------------------------------------------------------------------------

    def due(self) -> float | None:
        """When `tick` is to be called next (`Clock.elapsed`), unless something happens before."""
        return self._due

    def tick(self) -> None:
        """Let deadlines pass."""
        now = self._clock.elapsed()
        for worker in list(self._workers.values()):
            if not worker.phase.lives:
                continue
            if worker.lost_at is not None and now >= worker.lost_at:
                self._lose(worker, worker.lost_how, silent=True)
            elif worker.answered_at is not None and now >= worker.answered_at + self._settings.reconnect_s:
                self._lose(worker, "it does not poll any more", silent=True)
            elif now >= worker.last_seen + self._settings.silence_s:
                self._lose(worker, f"silent for {now - worker.last_seen:.0f} s", silent=True)
            elif worker.phase is Phase.JOINING and now >= worker.joined_at + self._settings.warm_up_s:
                worker.end = f"not warm after {self._settings.warm_up_s:.0f} s"
                self._lose(worker, worker.end)
        self._due = None
        for job_id in list(self._jobs):
            self._settle(job_id)
        self._forget(now)

    # --- Inside ---------------------------------------------------------------------------------------------------

    def _living(self, job_id: int) -> list[Worker]:
        """Oldest first."""
        return [each for each in self._workers.values() if each.job == job_id and each.phase.lives]

    def _taken(self, job: JobState, generation: int) -> None:
        """One of them acts on the outstanding plan: so do all, for they agreed."""
        plan = job.published.get(generation)
        if plan is None or not plan.seats:
            return  # unknown, old, or one that stands until the last of them has left
        job.world = plan
        if job.pending is plan:
            job.pending = None  # else it was superseded in the moment when they agreed on it
        job.published = {number: later for number, later in job.published.items() if number > generation}
        job.arrived, job.arriving_since = set(), self._clock.elapsed()
        for seat in job.world.seats:
            if self._workers[seat.worker].phase.lives:
                self._workers[seat.worker].phase = Phase.SERVING

    def _return(self, worker: Worker) -> None:
        """It was silent, that is all: it is there again, and must say where it stands."""
        now = self._clock.elapsed()
        worker.phase, worker.warm_at, worker.end, worker.lost_how = Phase.JOINING, None, None, ""
        worker.silent = worker.may_return = worker.dropped = False
        worker.joined_at, worker.last_seen, worker.lost_at, worker.answered_at = now, now, None, None
        self._emit(EventKind.WORKER_JOINED, worker, "heard again", worker=worker.id)

    def _expect(self, worker: Worker) -> None:
        """Known from others: it keeps its seat for a while."""
        worker.lost_at = self._clock.elapsed() + self._settings.adopt_s
        worker.lost_how, worker.unheard = "not heard since the daemon restarted", True

    def _dissolve(self, job: JobState) -> None:
        """Nobody of the world is heard any more. If it is the network, they train on and bring it back."""
        for name in job.world.workers if job.world else ():
            worker = self._workers[name]
            worker.may_return = worker.phase is Phase.LOST and worker.silent
        job.world = job.pending = None

    def _emit(self, kind: EventKind, by: Worker, reason: str, **data: JsonValue) -> None:
        self._events.append(Event(self._clock.now(), kind, by.job, by.pilot, by.node or None, reason, data))

    def _look_at(self, moment: float) -> None:
        self._due = moment if self._due is None else min(self._due, moment)

    def _ask_to_leave(self, worker: Worker, reason: str) -> None:
        worker.leaving_since, worker.leave_reason = self._clock.elapsed(), reason
        job = self._jobs[worker.job]
        plans = [plan for plan in (job.world, job.pending) if plan is not None]
        if not any(plan.has(worker.id) for plan in plans):
            worker.end = reason
            self._leave(worker, reason)

    def _leave(self, worker: Worker, reason: str, **data: JsonValue) -> None:
        worker.phase = Phase.LEFT
        worker.end = worker.end or reason
        self._emit(EventKind.WORKER_LEFT, worker, reason, worker=worker.id, **data)

    def _lose(self, worker: Worker, how: str, *, silent: bool = False) -> None:
        worker.phase, worker.lost_how, worker.silent = Phase.LOST, how, silent
        worker.end = worker.end or f"given up: {how}"
        self._emit(EventKind.WORKER_LOST, worker, how, worker=worker.id, how=how)
        job = self._jobs[worker.job]
        if job.over is None and job.world is not None and job.world.has(worker.id):
            self._ask(job, worker.job, f"{worker.id} is lost: {how}", broken=True)

    def _ask(self, job: JobState, job_id: int, reason: str, *, broken: bool, entered: bool = False) -> None:
        """Ask members to check in; one check at a time, which may turn out to be of a broken world."""
        if job.check is not None:
            job.check.entered = job.check.entered or entered
            if broken and not job.check.broken:
                job.check.broken, job.check.reason = True, reason
            return
        asked: list[str] = []
        for plan in (job.world, job.pending):
            for seat in plan.seats if plan else ():
                if seat.worker not in asked and self._workers[seat.worker].phase.lives:
                    asked.append(seat.worker)
        job.checks += 1
        deadline = self._clock.elapsed() + self._settings.check_in_s
        if any(self._workers[name].unheard for name in asked):
            # Just after a restart of the daemon, members may not have noticed yet that it is back.
            deadline = max(deadline, self._started_at + self._settings.return_s)
        job.check = Check(job.checks, deadline, broken, entered, reason, tuple(asked))
        self._look_at(deadline)

    def _settle(self, job_id: int) -> None:
        """Whatever may be decided by now, is."""
        job = self._jobs[job_id]
        if job.over is not None:
            return
        self._decide(job_id, job)
        self._release_idle_leavers(job_id, job)

    def _release_idle_leavers(self, job_id: int, job: JobState) -> None:
        """A newcomer that was asked to leave while a plan had it, and has no part in any by now, may go.

        A withdrawn plan may have been agreed on in the same moment: then somebody says so soon.
        """
        now = self._clock.elapsed()
        current = [plan for plan in (job.world, job.pending) if plan is not None]
        for worker in self._living(job_id):
            if worker.leaving_since is None or worker.phase is Phase.SERVING:
                continue
            if any(plan.has(worker.id) for plan in current):
                continue
            until = worker.leaving_since + self._settings.arrive_s
            if now < until and any(plan.has(worker.id) for plan in job.published.values()):
                self._look_at(until)
                continue
            worker.end = worker.leave_reason
            self._leave(worker, worker.leave_reason)

    def _decide(self, job_id: int, job: JobState) -> None:
        for worker in self._living(job_id):
            if worker.lost_at is not None:
                self._look_at(worker.lost_at)
            if worker.answered_at is not None:
                self._look_at(worker.answered_at + self._settings.reconnect_s)
            self._look_at(worker.last_seen + self._settings.silence_s)
            if worker.phase is Phase.JOINING:
                self._look_at(worker.joined_at + self._settings.warm_up_s)
        if job.check is None and job.pending is not None and not job.pending.urgent:
            # A newcomer that froze while it joined is missed by nobody who trains.
            if self._clock.elapsed() >= job.ask_again_at:
                job.ask_again_at = self._clock.elapsed() + self._settings.prepare_s
                self._ask(job, job_id, f"generation {job.pending.generation} is not taken", broken=False)
            self._look_at(job.ask_again_at)
        if job.check is not None:
            self._settle_check(job_id, job, job.check)
        if job.check is not None or (job.pending is not None and job.pending.urgent and self._all_live(job.pending)):
            return
        now = self._clock.elapsed()
        if job.pending is None and job.world is not None and not self._all_arrived(job, job.world, now):
            return
        candidates = [Candidate(each.seat, each.warm_at, each.leaving_since) for each in self._living(job_id)]
        if not candidates:
            self._dissolve(job)
            return
        if job.world is not None and not any(self._workers[name].phase.lives for name in job.world.workers):
            pending = job.pending
            self._dissolve(job)
            job.pending = pending if pending is not None and pending.seats else None
        verdict = next_world(
            job.world.workers if job.world else (),
            job.pending.workers if job.pending else None,
            candidates,
            job.terms,
            now,
            self._settings.gather_s,
        )
        if verdict.look_again_at is not None:
            self._look_at(verdict.look_again_at)
        if verdict.seats is not None:
            self._publish(job_id, verdict.seats, verdict.reason)
        elif job.pending is not None and not self._all_live(job.pending):
            job.pending = None  # it cannot be taken any more, and no other is possible yet

    def _all_arrived(self, job: JobState, world: WorldPlan, now: float) -> bool:
        """Whether the next change may come. A member that has not taken an urgent plan must go on seeing it."""
        missing = [name for name in world.workers if name not in job.arrived and self._workers[name].phase.lives]
        if missing and not world.urgent:
            if now >= job.arriving_since + self._settings.arrive_s:
                return True
            self._look_at(job.arriving_since + self._settings.arrive_s)
        return not missing

    def _all_live(self, plan: WorldPlan) -> bool:
        return all(self._workers[seat.worker].phase.lives for seat in plan.seats)

    def _settle_check(self, job_id: int, job: JobState, check: Check) -> None:
        now = self._clock.elapsed()
        silent = []
        for name in check.asked:
            worker = self._workers[name]
            if not worker.phase.lives or name in check.answered:
                continue
            if now >= check.deadline or (check.broken and worker.dropped):
                check.broken = check.broken or check.entered or (job.world is not None and job.world.has(name))
                how = worker.lost_how or f"did not check in within {self._settings.check_in_s:g} s"
                self._lose(worker, how, silent=True)
            else:
                silent.append(name)
        if silent:
            return
        job.check = None
        if not check.broken:
            return  # all are there: someone is slow, that is all
        survivors = [name for name in check.asked if name in check.whole and self._workers[name].phase.lives]
        staying = [name for name in survivors if self._workers[name].leaving_since is None]
        if not survivors:
            self._dissolve(job)
            for name in check.asked:
                if self._workers[name].phase is Phase.SERVING:
                    self._workers[name].phase = Phase.WARM
            return
        seats = tuple(self._workers[name].seat for name in staying or survivors[:1])
        self._publish(job_id, seats, check.reason, urgent=True)

    def _publish(self, job_id: int, seats: tuple[Seat, ...], reason: str, urgent: bool = False) -> None:
        job = self._jobs[job_id]
        job.generation += 1
        store = seats[0].address if seats else ""
        plan = WorldPlan(job.generation, seats, store, reason, urgent, job.terms.batch(len(seats)))
        job.pending = job.published[plan.generation] = plan
        job.ask_again_at = self._clock.elapsed() + self._settings.prepare_s
        job.published.pop(plan.generation - PLANS_KEPT, None)
        self._events.append(
            Event(
                self._clock.now(),
                EventKind.GENERATION,
                job_id,
                reason=reason,
                data={
                    "generation": plan.generation,
                    "members": [seat.pilot for seat in seats],
                    "switched_by": "fault" if urgent else "plan",
                    **({"batch": plan.batch} if plan.batch else {}),
                },
            )
        )

    def _forget(self, now: float) -> None:
        """Drop workers that are long gone; their names stay refused only while someone could still use them."""
        for name, worker in list(self._workers.items()):
            job = self._jobs[worker.job]
            seated = any(plan is not None and plan.has(name) for plan in (job.world, job.pending))
            if not worker.phase.lives and not seated and now - worker.last_seen > 10 * self._settings.silence_s:
                del self._workers[name]
