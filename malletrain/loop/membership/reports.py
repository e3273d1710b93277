"""What workers report and what the loop asks of them, applied to the state of membership.

It is driven by events rather than by the daemon's tick, so that a fault is repaired within a fraction of a second. It
does no I/O and starts no thread. The caller holds one lock around every call, writes what `reports()` returns to the
journal *before* a worker sees a directive, and calls `tick()` when `due()` says so.

A worker's life: hello (JOINING), warm (WARM), member of a published generation, switched (SERVING), left or lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from malletrain.domain.decision import LeavePilot
from malletrain.domain.errors import ContradictsRecord, Refused
from malletrain.domain.event import (
    Event,
    GenerationSwitched,
    JobCompleted,
    JobFailed,
    JsonValue,
    MetricReported,
    SamplesReported,
    WorkerJoined,
    WorkerLeft,
    WorkerWarm,
)
from malletrain.loop.membership.admission import Admission, Claim, NotItsPilot
from malletrain.loop.membership.machine import Worlds
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import JobMembership, MembershipSettings, Phase, Worker
from malletrain.loop.ports import Clock
from malletrain.wire.messages import Directive, Plan, Seat, Standing

__all__ = ["GENERATION_GAP", "Directive", "Membership", "MembershipSettings"]

#: After a restart, generation numbers continue this far beyond the last one on record, so that none is reused.
GENERATION_GAP = 1000

#: Members that mend their world without the daemon go on so far beyond the highest number that they have heard of
#: (`malletrain.elastic.resize.quorum.QUORUM_GENERATION_GAP`).
QUORUM_GENERATION_GAP = 500

#: No world has a number so far beyond the journal's: room for a journal that was restored from long ago, and for a
#: world that was mended without the daemon a thousand times.
MAX_GENERATIONS_AHEAD = 1_000_000

#: A seat in the world that a worker brings, and why its pilot is to leave, if it is.
_Brought = tuple[tuple[Seat, str], ...]


class Membership:
    """The state of every job's world. Implements `malletrain.loop.ports.Workers`.

    Args:
        settings: deadlines.
        clock: time.
        admit: lets in a process that may be a worker (`malletrain.loop.membership.admission.admit`); raises `Refused`
            when it may not.
        generations: the last generation of each job in the journal.
        refused: called with job and reason when a hello, or a seat that it names, is refused.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        clock: Clock,
        admit: Callable[[Claim], Admission],
        generations: Mapping[int, int] | None = None,
        refused: Callable[[int, str], None] = lambda job, why: None,
    ) -> None:
        self._clock = clock
        self._admit = admit
        self._refused = refused
        self._journalled = dict(generations or {})
        self._batches: dict[int, tuple[tuple[int, int], ...]] = {}  #: by job
        self._climbers: frozenset[int] = frozenset()
        self._worlds = Worlds(settings, clock)

    # --- The loop's side ------------------------------------------------------------------------------------------

    def leave(self, action: LeavePilot) -> None:
        """Asks the worker of a pilot to leave; a `WorkerLeft` event follows, at once when it has no part in a world.

        A worker that has not said hello yet is asked when it does: the journal has its pilot as leaving.
        """
        for worker in self._worlds.living(action.job_id):
            if worker.pilot == action.pilot and worker.leaving_since is None:
                self._worlds.ask_to_leave(worker, action.reason)
        if action.job_id in self._worlds.jobs:
            self._worlds.settle(action.job_id)

    def end_job(self, job_id: int, reason: str) -> None:
        """Directs every worker of the job to stop."""
        job = self._worlds.jobs.setdefault(job_id, self._new_job(job_id, JobTerms()))
        job.over, job.pending, job.check = reason, None, None
        for worker in self._worlds.living(job_id):
            worker.end = reason

    def top_up(self, job_id: int, tasks: int) -> bool:
        """Asks the oldest worker of the job to submit more held tasks; False when the job has no worker."""
        for worker in self._worlds.living(job_id):
            if worker.leaving_since is None:
                worker.top_up = tasks
                return True
        return False

    def choose_batches(self, job_id: int, batches: tuple[tuple[int, int], ...]) -> None:
        """Sets the samples of a step by nodes. A batch changes with the next generation only."""
        self._batches[job_id] = batches
        if job_id in self._worlds.jobs:
            self._worlds.jobs[job_id].terms = replace(self._worlds.jobs[job_id].terms, batches=batches)

    def climb(self, jobs: frozenset[int]) -> None:
        """Sets the jobs of unknown scalability: a new world of theirs grows in stages and is measured at each."""
        self._climbers = jobs

    def reports(self) -> Sequence[Event]:
        """The events since the last call, in order."""
        events, self._worlds.events = self._worlds.events, []
        return events

    # --- The workers' side ----------------------------------------------------------------------------------------

    def hello(self, claim: Claim, standing: Standing | None = None) -> Worker:
        """A process in a pilot presents itself; saying it again (with a new token to be had) changes nothing.

        Args:
            claim: who it says that it is.
            standing: the world that it trains in already, for a daemon that may have forgotten it; training is not
                disturbed. Its list of members counts until the job has a world here: later one is taken only under a
                number that the members give to a world that they have mended without the daemon, or that was
                published before the daemon started. Members not heard yet keep their seats for `adopt_s`; what is
                known of others never changes by it.

        Raises:
            Conflict: the standing is not one that the journal allows.
            Refused: unknown job or pilot, another's job or pilot, a job that is over, or a worker that was given up.
                Nothing has changed.
        """
        try:
            return self._hello(claim, standing)
        except Refused as error:
            self._refused(claim.job, f"{claim.worker} of uid {claim.uid}: {error}")
            raise

    def _hello(self, claim: Claim, standing: Standing | None) -> Worker:
        admission = self._admit(claim)
        job, name = claim.job, claim.worker
        terms = admission.terms
        if job in self._batches:
            terms = replace(terms, batches=self._batches[job])
        state = self._worlds.jobs.get(job) or self._new_job(job, terms)
        if state.over is not None:
            raise Refused(f"job {job} is over ({state.over}): end this process")
        worker = self._worlds.workers.get(name)
        self._check_known(claim, worker)
        world = self._world_of(claim, state, standing) if standing is not None else None
        # Nothing is refused from here on.
        self._worlds.jobs[job] = state
        state.terms = terms
        if job in self._climbers and state.world is None and state.pending is None and not terms.restarts:
            state.climbs = not state.seen
        now = self._clock.elapsed()
        if worker is None:
            for old in self._worlds.living(job):
                if old.pilot == claim.pilot:
                    self._worlds.lose(old, "its pilot was started again")
            worker = Worker(
                name, job, claim.pilot, claim.restart, claim.node, claim.uid, joined_at=now, last_seen=now
            )
            self._worlds.workers[name] = worker
            self._worlds.emit(WorkerJoined(name), worker, "hello")
        else:
            if worker.may_return:
                self._worlds.bring_back(worker)
            worker.node = claim.node
            self.heard(name)
        if standing is not None:
            self._stand(worker, state, standing, world)
        if admission.leave and worker.leaving_since is None:
            self._worlds.ask_to_leave(worker, admission.leave)
        self._worlds.settle(job)
        return worker

    def _check_known(self, claim: Claim, worker: Worker | None) -> None:
        """Refuses a claim that contradicts what is on record of the worker or of later runs of its pilot."""
        if worker is None:
            for other in self._worlds.workers.values():
                if other.pilot == claim.pilot and (other.job != claim.job or other.restart > claim.restart):
                    why = "is another job's" if other.job != claim.job else f"has had a later run, {other.restart}"
                    raise Refused(f"pilot {claim.pilot} {why}: end this process")
            return
        if worker.job != claim.job or worker.uid != claim.uid:
            raise Refused(f"worker {claim.worker} is not job {claim.job}'s: end this process")
        if worker.node and worker.node != claim.node:
            raise Refused(f"worker {claim.worker} is on node {worker.node}, not on {claim.node}: end this process")
        if not worker.phase.lives and not worker.may_return:
            raise Refused(f"worker {claim.worker} was given up ({worker.lost_how or 'it left'}): end this process")

    def _world_of(self, claim: Claim, job: JobMembership, said: Standing) -> _Brought | None:
        """The seats of the world that the standing brings; None when the job keeps the one that it has.

        Raises:
            Conflict, Refused: see `hello`.
        """
        names = [seat.worker for seat in said.members]
        if claim.worker not in names:
            raise Refused(f"worker {claim.worker} tells of a world that is not its own: end this process")
        if len(set(names)) < len(names):
            raise Refused("a worker has two seats in the world that is told of, or is named twice: end this process")
        absent: list[str] = []
        seats: _Brought = ()
        for seat in said.members:
            try:
                seats += ((seat, self._admission_of(claim, seat).leave),)
            except NotItsPilot:
                raise
            except Refused as error:
                absent.append(f"no seat for {seat.worker[:80]}, which {claim.worker} names: {error}")
        most = max(job.generation, job.journalled) + MAX_GENERATIONS_AHEAD
        if not 1 <= said.generation <= most or not 0 <= said.seen <= most:
            number = said.seen if 1 <= said.generation <= most else said.generation
            raise ContradictsRecord(
                f"generation {number} cannot have been published for job {claim.job}: end this process"
            )
        if job.world is not None:
            if said.generation <= job.world.generation or said.generation in job.published:
                return None
            if job.journalled < said.generation < job.world.generation + QUORUM_GENERATION_GAP:
                raise ContradictsRecord(
                    f"generation {said.generation} was never published for job {claim.job}, which is in generation "
                    f"{job.world.generation}: end this process"
                )
        for why in absent:
            self._refused(claim.job, why)
        return seats

    def _admission_of(self, claim: Claim, seat: Seat) -> Admission:
        """The admission of a member that a worker names.

        Raises:
            NotItsPilot: it is another job's.
            Refused: it cannot be a member, by what the journal and Slurm have of its pilot.
        """
        known = self._worlds.workers.get(seat.worker)
        if known is not None and known.job != claim.job:
            raise NotItsPilot(f"worker {seat.worker} is none of job {claim.job}'s: end this process")
        number = seat.worker.rpartition(".")[2]
        restart = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
        other = Claim(claim.job, seat.pilot, restart, "", claim.uid)
        if restart < 0 or other.worker != seat.worker:
            raise Refused("that is no worker's name")
        return self._admit(other)

    def _stand(self, this: Worker, job: JobMembership, said: Standing, seats: _Brought | None) -> None:
        """Adopts the world that a member brings (`seats`, None to keep the present one) and its own position."""
        job.step = max(job.step, said.step)
        own = said.address or next(seat.address for seat in said.members if seat.worker == this.id) or this.address
        if seats is not None:
            this.address = own
            self._adopt(this, job, said, seats)
        elif (plan := job.published.get(said.generation)) is not None and plan.has(this.id):
            self._worlds.taken(job, said.generation)
            job.arrived.add(this.id)
        if job.world is None or job.world.generation != said.generation or not job.world.has(this.id):
            return
        this.address = own
        self._worlds.trains(this)

    def _adopt(self, this: Worker, job: JobMembership, said: Standing, seats: _Brought) -> None:
        now = self._clock.elapsed()
        for seat, _ in seats:
            member = self._worlds.workers.get(seat.worker)
            if member is None:
                restart = int(seat.worker.rpartition(".")[2])
                member = Worker(seat.worker, this.job, seat.pilot, restart, "", this.uid, now, now)
                self._worlds.workers[seat.worker] = member
                member.address = seat.address
            elif member.may_return:  # its silence alone was held against it
                self._worlds.bring_back(member)
            elif member is not this:
                member.address = member.address or seat.address
                continue
            if member is not this:
                self._worlds.expect(member)
                self._worlds.trains(member)
        members = tuple(replace(seat, address=self._worlds.workers[seat.worker].address) for seat, _ in seats)
        job.generation = max(job.generation, said.generation, said.seen) + GENERATION_GAP
        job.world = Plan(said.generation, members, "", "adopted from its members")
        job.arrived, job.void_before = set(job.world.workers), said.generation
        if job.pending is not None and job.pending.generation <= said.generation:
            job.pending = None
        for seat, leave in seats:
            member = self._worlds.workers[seat.worker]
            if leave and member.leaving_since is None:
                self._worlds.ask_to_leave(member, leave)
        gone = [seat.worker for seat in said.members if not job.world.has(seat.worker)]
        gone += [name for name in job.world.workers if not self._worlds.workers[name].phase.lives]
        if gone:
            reason = f"{', '.join(gone)[:300]} cannot be there any more"
            self._worlds.ask(job, this.job, reason, broken=True)

    def _new_job(self, job: int, terms: JobTerms) -> JobMembership:
        last = self._journalled.get(job, 0)
        return JobMembership(terms, last + GENERATION_GAP if job in self._journalled else 0, last)

    def polled(self, worker: str) -> None:
        """Records that the worker has a poll open."""
        self._worlds.workers[worker].answered_at = None
        self.heard(worker)

    def answered(self, worker: str) -> None:
        """Records that its poll was answered. It is lost unless it polls again within `reconnect_s`."""
        this = self._worlds.workers[worker]
        this.answered_at = self._clock.elapsed()
        self._worlds.look_at(this.answered_at + self._worlds.settings.reconnect_s)

    def heard(self, worker: str) -> None:
        """Records a sign of life."""
        this = self._worlds.workers[worker]
        this.last_seen = self._clock.elapsed()
        this.lost_at, this.lost_how, this.dropped, this.unheard = None, "", False, False

    def disconnected(self, worker: str) -> None:
        """Records that the connection dropped while the worker polled.

        It is lost unless it returns within `reconnect_s`; during a check of a broken world it is lost at once.
        """
        this = self._worlds.workers[worker]
        if this.phase.lives and this.lost_at is None:
            this.lost_at = self._clock.elapsed() + self._worlds.settings.reconnect_s
            this.lost_how, this.dropped = "its connection dropped", True
        self._worlds.settle(this.job)

    def warm(self, worker: str, address: str, stages: Mapping[str, float]) -> None:
        """Records that the worker is ready to join: it has imported, built its model and run it once."""
        this = self._worlds.workers[worker]
        if this.phase is not Phase.JOINING:
            return
        this.phase, this.address, this.warm_at = Phase.WARM, address, self._clock.elapsed()
        self._worlds.emit(WorkerWarm(worker, dict(stages)), this)
        self._worlds.settle(this.job)

    def checked_in(self, worker: str, answers: int, step: int, whole: bool) -> None:
        """Records the answer to a check."""
        this = self._worlds.workers[worker]
        job = self._worlds.jobs[this.job]
        if this.phase is Phase.JOINING and job.world is not None and job.world.has(worker):
            self._worlds.trains(this)
        if job.check is not None and job.check.number == answers and worker in job.check.asked:
            job.check.answered.add(worker)
            if whole:
                job.check.whole[worker] = step
        self._worlds.settle(this.job)

    def fault(self, worker: str, generation: int, step: int, how: str, detail: str) -> None:
        """Records that a world does not work.

        `closed` and `build` break the world; `stalled` starts a check of who is still there.
        """
        this = self._worlds.workers[worker]
        job = self._worlds.jobs[this.job]
        job.step = max(job.step, step)
        latest = job.pending or job.world
        if latest is None or generation < (job.world.generation if job.world else 0) or job.over:
            return
        if latest.urgent and generation < latest.generation:
            return  # mended already
        if how == "build" and not latest.urgent and job.pending is not None:
            # No member trains in it yet: replace it by another plan of the same members.
            if generation == job.pending.generation:
                self._worlds.publish(
                    this.job, job.pending.members, f"another try, {worker} could not build: {detail}"[:400]
                )
            return
        # A member that speaks of a plan newer than its world waits in it already. What a newcomer meets there is its
        # own trouble, unless no world trains at all.
        trains = job.world is None or job.world.has(worker)
        entered = trains and job.world is not None and generation > job.world.generation
        plan = job.published.get(generation)
        in_vain = entered and plan is not None and not self._worlds.all_live(plan)
        broken = trains and (how != "stalled" or in_vain)
        self._worlds.ask(job, this.job, f"{worker}: {how} {detail}".strip()[:400], broken=broken, entered=entered)
        self._worlds.settle(this.job)

    def switched(
        self, worker: str, generation: int, step: int, nodes: int, pause_s: float, grew: bool, state_bytes: int = 0
    ) -> None:
        """Records that the worker trains in a new generation."""
        this = self._worlds.workers[worker]
        job = self._worlds.jobs[this.job]
        job.step = max(job.step, step)
        self._worlds.taken(job, generation)
        plan = job.world
        if plan is None or plan.generation != generation:
            return
        job.arrived.add(worker)
        if this.phase is Phase.JOINING and plan.has(worker):
            self._worlds.trains(this)
        if plan.members[0].worker == worker:
            told = GenerationSwitched(generation, nodes, pause_s, step, grew, max(0, state_bytes))
            self._worlds.emit(told, this, plan.reason)
        self._worlds.settle(this.job)

    def leaving(self, worker: str, why: str) -> None:
        """Records that someone else told the worker to end; it leaves at the next boundary."""
        this = self._worlds.workers[worker]
        if this.leaving_since is None and this.phase.lives:
            self._worlds.ask_to_leave(this, why)
        self._worlds.settle(this.job)

    def left(self, worker: str, generation: int, step: int, saved: str | None) -> None:
        """Records that the worker left its world, by `generation` that excludes it or by itself (0)."""
        this = self._worlds.workers[worker]
        job = self._worlds.jobs[this.job]
        job.step = max(job.step, step)
        if this.phase.lives:
            self._worlds.leave(this, this.leave_reason or "left by itself", WorkerLeft(worker, step, saved))
            obeyed = job.published.get(generation)
            expected = obeyed is not None and not obeyed.has(worker)
            if obeyed is not None and not obeyed.urgent:
                # (That one worker left by an urgent plan does not mean that the others have received it.)
                self._worlds.taken(job, generation)
            if not expected and job.world is not None and job.world.has(worker):
                self._worlds.ask(job, this.job, f"{worker} left by itself", broken=True)
        self._worlds.settle(this.job)

    def finished(self, worker: str, result: Mapping[str, JsonValue]) -> None:
        """Ends the job: training is over."""
        this = self._worlds.workers[worker]
        if self._worlds.jobs[this.job].over is None and this.phase.lives:
            self._worlds.emit(JobCompleted(dict(result)), this, "training finished")
            self.end_job(this.job, "training finished")

    def failed(self, worker: str, step: int, message: str) -> None:
        """Records that the script raised.

        The other members go on. Without other members, or when the same step fails again, the job fails.
        """
        this = self._worlds.workers[worker]
        job = self._worlds.jobs[this.job]
        job.step = max(job.step, step)
        again = job.failed_at is not None and job.step <= job.failed_at + 1
        job.failed_at = job.step
        if this.phase.lives:
            self._worlds.lose(this, f"its script failed: {message}")
        others = [each for each in self._worlds.living(this.job) if each.phase is Phase.SERVING]
        if job.over is None and (again or not others):
            self._worlds.emit(JobFailed(step), this, message)
            self.end_job(this.job, f"the script failed: {message}")
        self._worlds.settle(this.job)

    def exited(self, worker: str, status: int) -> None:
        """Records the end of the script's process: its exit status, or minus the signal."""
        this = self._worlds.workers[worker]
        if not this.phase.lives:
            return
        job = self._worlds.jobs[this.job]
        if job.over is not None or this.leaving_since is not None:
            self._worlds.leave(this, this.leave_reason or "its job is over")
            if job.over is None and job.world is not None and job.world.has(worker):
                self._worlds.ask(job, this.job, f"{worker} ended before it was out of its world", broken=True)
        elif status > 0 and status not in (129, 130, 131, 134, 135, 136, 137, 139, 143):
            self.failed(worker, job.step, f"exit status {status}")
        else:
            self._worlds.lose(this, f"its process ended with status {status}")
        self._worlds.settle(this.job)

    def samples(self, worker: str, window: SamplesReported) -> None:
        """Records a window of training."""
        job = self._worlds.jobs[self._worlds.workers[worker].job]
        job.step = max(job.step, window.step or 0)
        self._worlds.emit(window, self._worlds.workers[worker])
        if job.climbs and job.world is not None and window.steady:
            nodes, samples, seconds = window.nodes, window.samples, window.seconds
            if nodes == len(job.world.members) and samples > 0 and seconds > 0 and math.isfinite(samples / seconds):
                job.seen[nodes] = samples / seconds
                self._worlds.settle(self._worlds.workers[worker].job)

    def metric(self, worker: str, name: str, value: float | None, samples: int) -> None:
        """Records a figure that the script reported; None where it was not finite."""
        self._worlds.emit(MetricReported(name, value, samples), self._worlds.workers[worker])

    def topped_up(self, worker: str) -> None:
        """Records that the worker submitted more held tasks."""
        self._worlds.workers[worker].top_up = 0

    def directive_for(self, worker: str) -> Directive:
        """The worker's present directive; a new `seq` means that it changed."""
        this = self._worlds.workers[worker]
        job = self._worlds.jobs[this.job]
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
        """The worker of that name; None when it has not said hello, or must say it again."""
        worker = self._worlds.workers.get(name)
        return None if worker is not None and worker.may_return else worker

    def slept(self, seconds: float) -> None:
        """Moves all time limits by the time in which the daemon itself did not run."""
        for worker in self._worlds.workers.values():
            worker.last_seen += seconds
            worker.answered_at = None if worker.answered_at is None else worker.answered_at + seconds
            worker.lost_at = None if worker.lost_at is None else worker.lost_at + seconds
        for job in self._worlds.jobs.values():
            if job.check is not None:
                job.check.deadline += seconds

    def restarts(self, job_id: int) -> bool:
        """Whether the job resizes by checkpoint and relaunch."""
        return job_id in self._worlds.jobs and self._worlds.jobs[job_id].terms.restarts

    def world(self, job_id: int) -> Plan | None:
        """The generation that trains now."""
        job = self._worlds.jobs.get(job_id)
        return job.world if job else None

    # --- Time -----------------------------------------------------------------------------------------------------

    def due(self) -> float | None:
        """When `tick` must be called next (`Clock.elapsed`) if nothing else is called before."""
        return self._worlds.due_at

    def tick(self) -> None:
        """Applies every time limit that has passed."""
        self._worlds.tick()
