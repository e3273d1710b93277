"""The one fold from events to what is known: jobs, pilots, worlds, samples, open intents.

Live and replay use it alike, and after a crash the journal folded anew gives the same state.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise

from malletrain.decide.limits import NodeTimeSpent, work_left_s
from malletrain.decide.rules import AccountBudget, Rules
from malletrain.domain.event import DaemonStarted, Event, JobAnnounced, OperatorRequest, SamplesReported, TasksAdded
from malletrain.domain.job import (
    Curve,
    Elastic,
    JobPhase,
    JobView,
    MalleableJob,
    Pilot,
    PilotPhase,
    ResizeCosts,
    keeps_its_size,
    task_of,
    terms_of,
)
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.batch_choice import batch_curves
from malletrain.learn.class_curves import fits_by_class
from malletrain.learn.curve import fit_curve, shared_evidence
from malletrain.learn.prior_jobs import MAX_PRIOR_JOBS, Evidence, PriorJobs, application
from malletrain.learn.samples import plausible
from malletrain.loop.job_state import JobNotice, JobState, fold, notices_due
from malletrain.loop.trackers.account_usage import (
    MAX_JOBS_PER_ACCOUNT,
    AccountUsage,
    SubmittedJob,
    arriving,
    submitted_work,
)
from malletrain.loop.trackers.costs import INDEPENDENT_ITEMS, RELAUNCH, TELLING_COSTS, Costs, ReleaseLatency
from malletrain.loop.trackers.harm_signals import Conduct, HarmSignals, HarmSignalTracker
from malletrain.loop.trackers.hole_history import HoleTracker
from malletrain.loop.trackers.main_jobs import JobsBehind, MainJobsMet
from malletrain.loop.trackers.main_promise import PromiseTracker
from malletrain.loop.trackers.start_backoff import StartBackoff
from malletrain.loop.trackers.straggler_history import StragglerHistory
from malletrain.sizing.problem import ArrivingWork

#: Applications whose curves are kept after their jobs are over.
APPLICATIONS_KEPT = 1000

#: Former URLs of the daemon that are remembered.
MAX_URLS = 8

#: Jobs that are over and kept in memory, with what they measured.
MAX_OVER_JOBS = 2000

#: What is known of a job and shown of it as it is; the others are made of several things, or copied.
_SHOWN_AS_IT_IS = tuple(
    {each.name for each in fields(JobView)}
    & {each.name for each in fields(JobState)}
    - {"job", "phase", "pilots", "curve", "reason", "batches", "waits", "worlds_at"}
)

#: In these phases a job does not wait for nodes.
_WAITS_NOT = (JobPhase.ANNOUNCED, JobPhase.HELD)


class Ledger:
    """Folds events. Not thread-safe: its owner holds one lock."""

    def __init__(self) -> None:
        self._records: dict[int, JobState] = {}
        self._job_of_task: dict[str, int] = {}
        self._of_application: dict[tuple[str, str], set[int]] = {}
        self._views: dict[int, JobView] = {}  # as last asked for; replaced, never changed
        self._changed: set[int] = set()  # jobs that have changed since
        #: Of jobs that take another size in the same way: the others say nothing of it.
        self.costs = {
            Elastic.LIVE: Costs(ResizeCosts()),
            Elastic.RESTART: Costs(RELAUNCH),
            Elastic.TASKS: Costs(INDEPENDENT_ITEMS),
        }
        self._drained: dict[str, float] = {}
        #: Why each user id is banned.
        self.bans: Mapping[int, str] = {}
        self._earlier: dict[tuple[str, str], deque[Evidence]] = {}
        self.holes = HoleTracker()
        self.usage = AccountUsage()
        self.exits = ReleaseLatency()
        self.unstarted = StartBackoff()
        self.paces = StragglerHistory()
        self._submitted: dict[str, deque[SubmittedJob]] = {}  # of jobs that are over, the newest by account
        self.harm_signals = HarmSignalTracker()
        self.conduct = Conduct()
        self.main_jobs = MainJobsMet()
        self.behind = JobsBehind()
        self.promise = PromiseTracker()
        self._urls: dict[str, float] = {}  # until when callers knew the daemon by them (Unix seconds)
        #: Since when a daemon has been there to hear workers (Unix seconds).
        self.up_since = 0.0
        self.last_seq = 0

    def apply(self, events: Iterable[Event]) -> None:
        """Fold events in the order of the journal."""
        for event in events:
            self.last_seq = max(self.last_seq, event.seq)
            record = None if event.job is None else self._records.get(event.job)
            self.paces.apply(event)
            self.promise.apply(event)
            if isinstance(event.payload, SamplesReported):  # most events: they say no more than this
                if record is not None and fold(record, event):
                    self._changed.add(record.job.id)
                continue
            self.exits.apply(event, "" if record is None else record.job.user)
            self.holes.apply(event)
            self.unstarted.apply(event)
            self.harm_signals.apply(event)
            self.conduct.apply(event)
            self.main_jobs.apply(event)
            if isinstance(event.payload, DaemonStarted):
                self.up_since = event.at
                self._known_as(event.payload.url, event.at)
            if isinstance(event.payload, OperatorRequest):
                self._asked(event.payload, event.reason)
            if record is None:
                if event.job is not None and isinstance(event.payload, JobAnnounced):
                    self._announced(event.job, event.payload.job)
                continue
            if isinstance(event.payload, TasksAdded):
                self._tasks_belong_to(record, event.payload, event.at)
            was_over, phase = record.phase.is_over, record.phase
            before = record.pilots.get(event.pilot or "")
            if fold(record, event):
                self._changed.add(record.job.id)
                record.costs = None
                if phase in _WAITS_NOT and record.phase not in _WAITS_NOT:
                    record.nodes_since = event.at
                if before is None and event.pilot in record.pilots:  # a further node of a task, just started on
                    before = Pilot(event.pilot, record.job.id, PilotPhase.ENDED, event.at)
                if before is not None:
                    self._activity_changed(record, before, record.pilots[before.id], event.free_at)
                if record.phase.is_over and not was_over:
                    self._remember(record)
            if isinstance(event.payload, TELLING_COSTS):
                pilot = record.pilots.get(event.pilot or "")
                started_at = None if pilot is None else pilot.started_at
                self.costs[record.job.elastic].apply(event, application(record.job), started_at)
                record.costs = None
                self._changed.add(record.job.id)

    def _known_as(self, url: str, at: float) -> None:
        if url and self._urls.get(url) != math.inf:
            former = [(each, min(until, at)) for each, until in self._urls.items() if each != url]
            self._urls = {**dict(former[-MAX_URLS:]), url: math.inf}

    def former_urls(self, url: str, since: float) -> tuple[str, ...]:
        """The URLs but `url` that callers have known the daemon by at `since` (Unix seconds) or later: scripts of
        jobs hold the one that they were submitted with."""
        return tuple(sorted(each for each, until in self._urls.items() if each != url and until >= since))

    def _announced(self, number: int, job: MalleableJob) -> None:
        self._records[number] = JobState(job)
        self._of_application.setdefault(application(job), set()).add(number)
        self._changed.add(number)

    def _asked(self, request: OperatorRequest, reason: str) -> None:
        if request.verb == "drain":
            self._drained.update(dict.fromkeys(request.nodes, request.until))
        elif request.uid is not None:  # replaced, not changed: requests of other threads look at it
            others = {uid: why for uid, why in self.bans.items() if uid != request.uid}
            self.bans = {**others, request.uid: reason} if request.verb == "ban" else others

    def _tasks_belong_to(self, record: JobState, added: TasksAdded, at: float) -> None:
        """Slurm has shown waiting tasks of the job. What an earlier job had by their names is no more: Slurm uses
        numbers again after `MaxJobId`, or when it has lost its state."""
        for task in added.tasks:
            name = f"{added.array_id}_{task}"
            earlier = self._records.get(self._job_of_task.get(name, record.job.id))
            self._job_of_task[name] = record.job.id
            if earlier is None or earlier is record:
                continue
            for pilot in [each for each in earlier.pilots if task_of(each) == name]:
                before = earlier.pilots.pop(pilot)
                self._activity_changed(earlier, before, replace(before, phase=PilotPhase.ENDED), at)
            self._changed.add(earlier.job.id)

    def _activity_changed(self, record: JobState, before: Pilot, after: Pilot, at: float) -> None:
        """A pilot takes or gives up its node: the job's wait may end or begin, and its account has used the node."""
        if before.phase is PilotPhase.RELEASED and after.phase is PilotPhase.RUNNING and after.started_at is not None:
            for costs in self.costs.values():
                costs.started(after.started_at - before.since, record.job.user)
        if before.is_active == after.is_active:
            return
        record.active += 1 if after.is_active else -1
        if after.is_active and record.active == 1:
            record.waited_s, record.nodes_since = max(0.0, at - record.nodes_since), at
        elif not after.is_active:
            if record.active == 0:
                record.nodes_since = at
            if before.started_at is not None:
                self.usage.add(record.job.account, record.job.id, before.started_at, at)

    def used(self, now: float) -> Mapping[str, float]:
        """Node-seconds by account, old ones fading, running pilots included."""
        found = dict(self.usage.fading)
        for _, record in sorted(self._records.items()):
            if record.active:
                found[record.job.account] = found.get(record.job.account, 0.0) + record.held_s(now, 0.0)
        return found

    def spent(self, budgets: Sequence[AccountBudget], now: float) -> NodeTimeSpent:
        """What budgets are held against, running pilots included."""
        records = sorted(self._records.items())
        by_budget = {}
        for budget in budgets:
            begin = budget.period.begin(now)
            used = sum(self.usage.of_account(account, begin) for account in sorted(budget.accounts))
            running = [r.held_s(now, begin) for _, r in records if r.active and r.job.account in budget.accounts]
            by_budget[budget.name] = used + sum(running)
        by_job = {
            job_id: self.usage.by_job.get(job_id, 0.0) + record.held_s(now, 0.0)
            for job_id, record in records
            if record.job.budget_node_s is not None
        }
        return NodeTimeSpent(by_budget, by_job, self._arriving(budgets, now))

    def _arriving(self, budgets: Sequence[AccountBudget], now: float) -> dict[str, tuple[ArrivingWork, ...]]:
        """What the accounts of each budget have submitted lately: jobs that are over, and those that are not."""
        wanted = {account for budget in budgets for account in budget.accounts}
        if not wanted:
            return {}
        views = self.views()
        mine = [r for _, r in sorted(self._records.items()) if r.job.account in wanted and not r.phase.is_over]
        live = [
            submitted_work(
                record.job, self._curve(record), record.samples_done, work_left_s(views[record.job.id], 0.0)
            )
            for record in sorted(mine, key=lambda record: record.job.submitted_at)[-MAX_JOBS_PER_ACCOUNT:]
        ]
        over = [job for account in sorted(wanted) for job in self._submitted.get(account, ())]
        return {budget.name: arriving(budget.accounts, [*over, *live], now) for budget in budgets}

    def views(self) -> Mapping[int, JobView]:
        """What is known of every job, by id, in its order; immutable, and built anew only for jobs that changed."""
        changed = self._changed if self._views else self._records.keys()
        if changed:
            views = dict(self._views)
            for job_id in sorted(changed):
                record = self._records.get(job_id)
                if record is None:
                    views.pop(job_id, None)
                else:
                    views[job_id] = self._view(record)
            # Numbers of jobs ascend, so that new ones come last; but for those that another daemon announced.
            ordered = all(a < b for a, b in pairwise(views)) if len(views) != len(self._views) else True
            self._views = views if ordered else dict(sorted(views.items()))
            self._changed.clear()
        return self._views

    def known(self) -> Mapping[int, JobKnowledge]:
        """What was learnt of every job that is not over, for the advisor; nothing of those whose curve was given."""
        found: dict[int, JobKnowledge] = {}
        pools: dict[tuple[str, str], PriorJobs | None] = {}
        worker_speeds = self.paces.speeds_by_class()
        for job_id, record in sorted(self._records.items()):
            if record.phase.is_over or record.believed_curve is not None:
                continue
            self._fitted(record)
            key = application(record.job)
            alone = record.fit is None
            if alone and key not in pools:
                pools[key] = self._pooled(key, job_id)
            found[job_id] = JobKnowledge(
                fit=record.fit,
                prior_jobs=pools[key] if alone else None,
                probe=record.probe,
                probes=tuple(record.probes),
                application=key,
                ignored=self.ignored(job_id),
                since=record.first_sample_at,
                phase_began=record.phase_began,
                by_class=record.by_class,
                worker_speeds=worker_speeds.get(job_id, {}),
            )
        return found

    def ignored(self, job_id: int) -> Mapping[str, int]:
        """How many of a job's samples were not believed, by reason."""
        record = self._records[job_id]
        return dict(record.ignored + Counter(record.fit.ignored if record.fit else {}))

    def over_since(self) -> Mapping[int, float]:
        """When each job that is over ended (Unix seconds)."""
        return {j: r.over_since for j, r in self._records.items() if r.over_since is not None}

    def drains(self, now: float) -> Mapping[str, float]:
        """Until when (Unix seconds) operators keep pilots off each node that is drained at `now`."""
        return {name: until for name, until in self._drained.items() if until > now}

    def drained(self, now: float) -> frozenset[str]:
        """Nodes that operators keep pilots off at `now` (Unix seconds)."""
        return frozenset(self.drains(now))

    def unseen_arrays(self) -> Mapping[int, tuple[int, ...]]:
        """Arrays that owners announced and that have not been inspected yet, by job."""
        return {j: tuple(r.unseen_arrays) for j, r in sorted(self._records.items()) if r.unseen_arrays}

    def signs_of_harm(self, rules: Rules, unsound: str = "") -> HarmSignals:
        """All signs for the breaker, but for what follows from a job's or user's own. `unsound`: what is wrong with
        the harvest partition. Preemptions matter by what the site promises."""
        signs = self.harm_signals.seen(unsound, lambda job, at: self.conduct.excuses(job, at, rules))
        if rules.promise is None or rules.promise.p95_s is None:
            return signs
        bound_s, delays = rules.promise.p95_s, self.promise.delays(-math.inf)
        late = sorted(each.started_at for each in delays if each.preempted and each.delay_s > bound_s)
        return replace(signs, preempted=(), late_main_jobs=tuple(late))

    def notices_due(self, now: float) -> tuple[JobNotice, ...]:
        """Notices due to the owners of jobs."""
        return tuple(notices_due(self._records.values(), now))

    def forget_over(self, before: float) -> None:
        """Drop jobs that ended before `before`, and all but the last `MAX_OVER_JOBS` that ended, unless they have an
        active pilot, or others wait for them: the journal still has them."""
        waited_for = {other for record in self._records.values() if record.waits for _, other in record.job.after}
        ends = sorted(record.over_since for record in self._records.values() if record.over_since is not None)
        if len(ends) > MAX_OVER_JOBS:
            before = max(before, ends[-MAX_OVER_JOBS])
        for job_id, record in list(self._records.items()):
            ended = record.over_since is not None and record.over_since < before
            waits = (PilotPhase.HELD, PilotPhase.ENDED)
            if ended and job_id not in waited_for and all(p.phase in waits for p in record.pilots.values()):
                del self._records[job_id]
                self._changed.add(job_id)
                alike = self._of_application[application(record.job)]
                alike.discard(job_id)
                if not alike:
                    del self._of_application[application(record.job)]
                for name in record.pilots:
                    if self._job_of_task.get(name) == job_id:
                        del self._job_of_task[name]
                self.usage.by_job.pop(job_id, None)
                self.conduct.forget(job_id)
                self.paces.forget(job_id)
                self.unstarted.forget(job_id)
                for costs in self.costs.values():
                    costs.forget(job_id)

    def _view(self, record: JobState) -> JobView:
        phase = record.phase
        if phase is JobPhase.QUEUED and record.world is not None and record.world.members:
            phase = JobPhase.RUNNING
        check = record.check
        if record.costs is None:
            record.costs = self.costs[record.job.elastic].of(record.job.id, application(record.job))
        return JobView(
            **{name: getattr(record, name) for name in _SHOWN_AS_IT_IS},
            job=terms_of(record.job, check),
            phase=phase,
            pilots=dict(record.pilots),
            curve=self._curve(record),
            reason=record.reason or record.unsaved,
            batches=self._batch_curves(record),
            waits=record.waits and phase is JobPhase.HELD,
            worlds_at=tuple(record.worlds_at),
            costs_from=self.costs[record.job.elastic].shown_by(record.job.id, application(record.job)),
            fixed=check.why_fixed() if check and keeps_its_size(record.job, check) else "",
        )

    def _curve(self, record: JobState) -> Curve | None:
        """What is taken for its curve: the one given, or that of the samples."""
        claim = record.believed_curve
        return self._fitted(record) if claim is None else plausible(claim)

    def _fitted(self, record: JobState) -> Curve | None:
        """The curve of the samples so far; fitted anew only when there are others."""
        if record.fitted_at != record.samples_taken:
            pooled = self._pooled(application(record.job), record.job.id)
            record.fit = fit_curve(record.samples, pooled)
            record.by_class = fits_by_class(tuple(record.samples), pooled)
            record.curve = None if record.fit is None else record.fit.curve(record.job.max_nodes)
            record.telling = shared_evidence(record.fit, record.telling)
            record.fitted_at = record.samples_taken
        return record.curve

    def _batch_curves(self, record: JobState) -> tuple[tuple[int, Curve], ...]:
        """By batch, for a job whose batch is free; fitted anew only when there are other samples."""
        if record.job.batch_min is None or record.phase.is_over:
            return ()
        if record.batches_at != record.samples_taken:
            record.batches = batch_curves(record.job, record.samples)
            record.batches_at = record.samples_taken
        return record.batches

    def _pooled(self, key: tuple[str, str], but: int) -> PriorJobs | None:
        """What other jobs of an application have measured, each on two sizes or more; the newest few."""
        jobs = list(self._earlier.get(key, ()))
        for job_id in sorted(self._of_application.get(key, ())):
            record = self._records[job_id]
            if job_id != but and not record.phase.is_over and record.telling:
                jobs.append(record.telling)
        return PriorJobs(tuple(jobs[-MAX_PRIOR_JOBS:])) if jobs else None

    def _remember(self, record: JobState) -> None:
        """A job is over: its application keeps what it has measured, and the job its curve alone."""
        self._fitted(record)
        record.ignored += Counter(record.fit.ignored if record.fit else {})
        record.fit, record.by_class = None, {}
        if work := submitted_work(record.job, self._curve(record), record.samples_done, 0.0):
            self._submitted.setdefault(work.account, deque(maxlen=MAX_JOBS_PER_ACCOUNT)).append(work)
        if record.telling:
            key = application(record.job)
            kept = self._earlier.pop(key, deque(maxlen=MAX_PRIOR_JOBS))
            kept.append(record.telling)
            self._earlier[key] = kept
            if len(self._earlier) > APPLICATIONS_KEPT:
                del self._earlier[next(iter(self._earlier))]
