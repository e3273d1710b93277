"""The workers and worlds of all jobs.

Membership is driven by reports rather than by the daemon's tick, so that a fault is repaired within a fraction of a
second. It does no I/O and starts no thread. The caller holds one lock around every call, writes what `reports()`
returns to the journal *before* a worker sees a directive, and calls `tick()` when `due()` says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from malletrain.domain.decision import LeavePilot
from malletrain.domain.errors import Refused
from malletrain.domain.event import Event, WorkerJoined
from malletrain.domain.job import ScriptCheck
from malletrain.loop.membership import reports
from malletrain.loop.membership.admission import Admission, Claim, NotItsPilot
from malletrain.loop.membership.machine import JobMachine, Shared
from malletrain.loop.membership.next_world import JobTerms, LastWorlds
from malletrain.loop.membership.standing import members_of, take_standing
from malletrain.loop.membership.state import JobMembership, MembershipSettings, Phase, Worker
from malletrain.loop.ports import Clock
from malletrain.wire.messages import Directive, Message, Plan, Standing

#: Scripts of one job that are checked at most: it has one, which may be changed while the job runs.
MAX_CHECKS = 4

#: Seconds between two sweeps for workers and jobs that ended long ago.
SWEEP_INTERVAL_S = 60.0


class Membership:
    """The workers and worlds of all jobs. Implements `malletrain.loop.ports.Workers`.

    `admit` is `admission.admit`; `last` are the last worlds of each job in the journal, whose numbers are not given
    again; `refused` is called with job and reason when a hello, or a seat that it names, is refused; the others are
    as in `machine.Shared`.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        clock: Clock,
        admit: Callable[[Claim], Admission],
        last: Mapping[int, LastWorlds] | None = None,
        refused: Callable[[int, str], None] = lambda job, why: None,
        make_secret: Callable[[], str] = lambda: "",
        holding: Callable[[int], Mapping[str, bool]] = lambda job: {},
        reserve: Callable[[int, int], bool] = lambda job, until: True,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._admit = admit
        self._refused = refused
        self._last = last or {}
        self._batches: dict[int, tuple[tuple[int, int], ...]] = {}  #: by job
        self._climbers: frozenset[int] = frozenset()
        self._machines: dict[int, JobMachine] = {}
        self._job_of: dict[str, int] = {}  #: by worker
        self._shared = Shared(settings, clock, clock.elapsed(), make_secret, holding, reserve)
        self._sweep_at = self._shared.up_since + SWEEP_INTERVAL_S

    # --- The loop's side ------------------------------------------------------------------------------------------

    def leave(self, action: LeavePilot) -> None:
        """Asks the worker of a pilot to leave; a `WorkerLeft` event follows, at once when it has no part in a world.
        One that has not said hello yet is asked when it does."""
        machine = self._machines.get(action.job_id)
        if machine is None:
            return
        for worker in machine.living():
            if worker.pilot == action.pilot and worker.leaving_since is None:
                machine.ask_to_leave(worker, action.reason)
        machine.settle()

    def pilots_ended(self, job_id: int, pilots: Collection[str]) -> None:
        """Gives up the workers of these pilots, which Slurm has ended: a node that fails breaks no connection."""
        machine = self._machines.get(job_id)
        if machine is None:
            return
        for worker in machine.living():
            if worker.pilot in pilots:
                machine.lose(worker, "its task has ended, by Slurm")
        machine.settle()

    def end_job(self, job_id: int, reason: str) -> None:
        """Directs every worker of the job to stop."""
        machine = self._machines[job_id] = self._machine(job_id, JobTerms())
        machine.end(reason)

    def top_up(self, job_id: int, tasks: int) -> bool:
        """Asks the oldest worker of the job to submit more held tasks; False when the job has no worker."""
        machine = self._machines.get(job_id)
        for worker in machine.living() if machine else ():
            if worker.leaving_since is None:
                worker.top_up = tasks
                self._shared.settled.add(job_id)
                return True
        return False

    def choose_batches(self, job_id: int, batches: tuple[tuple[int, int], ...]) -> None:
        """Sets the samples of a step by nodes. A batch changes with the next generation only."""
        self._batches[job_id] = batches
        if job_id in self._machines:
            machine = self._machines[job_id]
            machine.terms = replace(machine.terms, batches=batches)

    def climb(self, jobs: frozenset[int]) -> None:
        """Sets the jobs of unknown scalability: a new world of theirs grows in stages and is measured at each."""
        self._climbers = jobs

    @property
    def pending(self) -> Sequence[Event]:
        """The events that the next `reports` gives."""
        return self._shared.events

    def reports(self) -> Sequence[Event]:
        """The events since the last call, in order."""
        events, self._shared.events = self._shared.events, []
        return events

    def job(self, job_id: int) -> JobMembership | None:
        """The job's state, to be read only; None before its first worker's hello."""
        return self._machines.get(job_id)

    def world(self, job_id: int) -> Plan | None:
        """The generation that trains now."""
        job = self.job(job_id)
        return job.world if job else None

    # --- The workers' side ----------------------------------------------------------------------------------------

    def hello(self, claim: Claim, standing: Standing | None = None) -> Worker:
        """A process in a pilot presents itself; saying it again (with a new token to be had) changes nothing.

        `standing`: the world that it trains in already, for a daemon that may have forgotten it; training is not
        disturbed. Its list of members counts until the job has a world here; later one is taken only under a number
        that members give to a world that they have repaired themselves, or of before the daemon started. Members not
        heard yet keep their seats for `adopt_s`; what is known of others never changes by it.

        Raises:
            ContradictsRecord: the standing is not one that the journal allows.
            Refused: unknown job or pilot, another's job or pilot, a job that is over, or a worker that was given up.
        """
        try:
            return self._hello(claim, standing)
        except Refused as error:
            self._refused(claim.job, f"{claim.worker} of uid {claim.uid}: {error}")
            raise

    def _hello(self, claim: Claim, standing: Standing | None) -> Worker:
        admission = self._admit(claim)
        terms = admission.terms
        if claim.job in self._batches:
            terms = replace(terms, batches=self._batches[claim.job])
        machine = self._machine(claim.job, terms)
        if machine.over is not None:
            raise Refused(f"job {claim.job} is over ({machine.over}): end this process")
        worker = self._known(claim, machine)
        brought = members_of(claim, machine, standing, self._admit_seat, self._refused) if standing else None
        # Nothing is refused from here on.
        self._machines[claim.job] = machine
        machine.terms = terms
        if claim.job in self._climbers and machine.world is None and machine.pending is None and not terms.restarts:
            machine.climbs = not machine.seen
        if worker is None:
            worker = self._enter(machine, claim)
        else:
            if worker.may_return:
                machine.bring_back(worker)
            worker.node = claim.node
            machine.alive(worker)
        if standing is not None:
            take_standing(machine, worker, standing, brought)
        if admission.leave and worker.leaving_since is None:
            machine.ask_to_leave(worker, admission.leave)
        machine.settle()
        self._job_of.update(dict.fromkeys(machine.workers, claim.job))
        return worker

    def _machine(self, job_id: int, terms: JobTerms) -> JobMachine:
        known = self._machines.get(job_id)
        return known or JobMachine(self._shared, job_id, terms, self._last.get(job_id, LastWorlds()))

    def _known(self, claim: Claim, job: JobMembership) -> Worker | None:
        """The worker, if it has said hello before. Refused: the claim contradicts what is on record."""
        if self._job_of.get(claim.worker, claim.job) != claim.job:
            raise Refused(f"worker {claim.worker} is not job {claim.job}'s: end this process")
        worker = job.workers.get(claim.worker)
        if worker is None:
            for machine in self._machines.values():
                for other in machine.workers.values():
                    if other.pilot == claim.pilot and (other.job != claim.job or other.restart > claim.restart):
                        why = (
                            "is another job's" if other.job != claim.job else f"has had a later run, {other.restart}"
                        )
                        raise Refused(f"pilot {claim.pilot} {why}: end this process")
            return None
        if worker.uid != claim.uid:
            raise Refused(f"worker {claim.worker} is not job {claim.job}'s: end this process")
        if worker.node and worker.node != claim.node:
            raise Refused(f"worker {claim.worker} is on node {worker.node}, not on {claim.node}: end this process")
        if not worker.phase.lives and not worker.may_return:
            raise Refused(f"worker {claim.worker} was given up ({worker.lost_how or 'it left'}): end this process")
        return worker

    def _enter(self, machine: JobMachine, claim: Claim) -> Worker:
        for old in machine.living():
            if old.pilot == claim.pilot:
                machine.lose(old, "its pilot was started again")
        now = self._clock.elapsed()
        worker = Worker(claim.worker, claim.job, claim.pilot, claim.restart, claim.node, claim.uid, now, now)
        machine.workers[worker.id] = worker
        machine.emit(WorkerJoined(worker.id), worker, "hello")
        return worker

    def _admit_seat(self, claim: Claim) -> Admission:
        """The admission of a member that another names; raises as `admit`."""
        if self._job_of.get(claim.worker, claim.job) != claim.job:
            raise NotItsPilot(f"worker {claim.worker} is none of job {claim.job}'s: end this process")
        return self._admit(claim)

    def report(self, name: str, message: Message) -> None:
        """Applies a report of a worker that `worker` knows."""
        reports.apply(*self._find(name), message)

    def may_check(self, name: str, digest: str) -> bool:
        """Whether the script with this digest is to be checked beside the worker: beside one worker of the job at a
        time, once, and not where its owner answers for it. `CheckDone` is taken from that worker alone."""
        machine, worker = self._find(name)
        done = (machine.checked | {machine.terms.checked}) - {""}
        # (One that keeps its size does so to its end: its world may run the script as it was.)
        settled = machine.terms.trusted or machine.terms.restarts or machine.terms.fixed
        if settled or digest in done or len(done) >= MAX_CHECKS:
            return False
        other = machine.workers.get(machine.checker[0])
        if not worker.phase.lives or (other is not None and other.phase.lives and other is not worker):
            return False
        machine.checker = (name, digest)
        return True

    def note_check(self, name: str, check: ScriptCheck) -> None:
        """Records what a check has found of the script that this worker runs, in another job of its owner."""
        machine, worker = self._find(name)
        machine.note_check(worker, check.digest, check.verdict, check.text)
        machine.settle()

    def alive(self, name: str) -> None:
        """Records a report of the worker's, which may have been on its way while its connection dropped."""
        self._find(name)[1].last_seen = self._clock.elapsed()

    def polled(self, name: str) -> None:
        """Records that the worker has a poll open."""
        machine, worker = self._find(name)
        worker.answered_at = None
        machine.alive(worker)

    def answered(self, name: str) -> None:
        """Records that its poll was answered. It is lost unless it polls again within `reconnect_s`."""
        machine, worker = self._find(name)
        worker.answered_at = self._clock.elapsed()
        machine.look_at(worker.answered_at + self.settings.reconnect_s)

    def disconnected(self, name: str) -> None:
        """Records that the connection dropped while the worker polled: it is lost unless it returns within
        `reconnect_s`; during a check of a broken world it is lost at once."""
        machine, worker = self._find(name)
        if worker.phase.lives and worker.lost_at is None:
            worker.lost_at = self._clock.elapsed() + self.settings.reconnect_s
            worker.lost_how, worker.dropped = "its connection dropped", True
        machine.settle()

    def hung_up(self, name: str) -> None:
        """Records that the connection of its last poll ended. A poll that is open now is on another one."""
        if self._find(name)[1].answered_at is not None:
            self.disconnected(name)

    def directive_for(self, name: str) -> Directive:
        """The worker's present directive; a new `seq` means that it changed."""
        machine, worker = self._find(name)
        asked = machine.check is not None and name in machine.check.asked and name not in machine.check.answered
        plan = machine.pending or machine.world if machine.over is None else None
        wanted = Directive(
            seq=worker.directive.seq,
            plan=plan.as_sent_to(name) if plan is not None else None,
            check_in=machine.check.number if machine.check is not None and asked else None,
            leave=worker.leave_reason or None if worker.leaving_since is not None else None,
            end=worker.end,
            top_up=worker.top_up,
            hold=plan is not None and machine.holds_scripts(plan),
            given_up=machine.relaunches and worker.phase is Phase.LOST,
            losses=machine.losses if machine.relaunches else 0,
            fixed=machine.terms.fixed and not machine.relaunches,
        )
        if wanted != worker.directive:
            worker.directive = replace(wanted, seq=wanted.seq + 1)
        return worker.directive

    def worker(self, name: str) -> Worker | None:
        """The worker of that name; None when it has not said hello, or must say it again."""
        if name not in self._job_of:
            return None
        worker = self._find(name)[1]
        return None if worker.may_return else worker

    def mode(self, job_id: int) -> str:
        """How the job takes another size, as `wire.messages.Welcome.mode` has it."""
        machine = self._machines.get(job_id)
        if machine is None or not machine.terms.restarts:
            return "live"
        return "tasks" if machine.terms.items else "restart"

    def _find(self, name: str) -> tuple[JobMachine, Worker]:
        machine = self._machines[self._job_of[name]]
        return machine, machine.workers[name]

    # --- Time -----------------------------------------------------------------------------------------------------

    def due(self) -> float | None:
        """When `tick` must be called next (`Clock.elapsed`) if nothing else is called before."""
        due = self._shared.due
        while due and self.due_of(due[0][1]) != due[0][0]:
            heapq.heappop(due)  # it was asked for an earlier moment since, or its job is forgotten
        if due:
            return due[0][0]
        return self._sweep_at if self._machines else None

    def due_of(self, job_id: int) -> float | None:
        """When `tick` has something to do for this job, as far as is known now."""
        machine = self._machines.get(job_id)
        return machine.due_at if machine is not None else None

    def settled(self) -> Collection[int]:
        """The jobs, since the last call, whose workers' directives may have changed."""
        settled, self._shared.settled = self._shared.settled, set()
        return settled

    def tick(self) -> None:
        """Applies every time limit that has passed, and forgets what ended long ago."""
        now = self._clock.elapsed()
        for machine in [each for each in self._machines.values() if each.due_at is not None and each.due_at <= now]:
            machine.tick()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_INTERVAL_S
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        for job_id, machine in list(self._machines.items()):
            machine.tick()
            for name in machine.forget():
                self._job_of.pop(name, None)
            long_ago = now - 10 * self.settings.silence_s
            if machine.over is not None and not machine.workers and machine.over_since < long_ago:
                del self._machines[job_id]
                self._batches.pop(job_id, None)

    def slept(self, seconds: float) -> None:
        """Moves all time limits by the time in which the daemon itself did not run."""
        for machine in self._machines.values():
            for worker in machine.workers.values():
                worker.last_seen += seconds
                worker.answered_at = None if worker.answered_at is None else worker.answered_at + seconds
                worker.lost_at = None if worker.lost_at is None else worker.lost_at + seconds
            if machine.check is not None:
                machine.check.deadline += seconds
