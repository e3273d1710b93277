"""The loop: observe, decide, record the intent, apply, record the outcome.

Live and replay run this same code; they differ in the ports they bring. Three entries, one lock:
`tick` looks at everything, `watch` at the main queue alone, `react` at what workers said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar, cast

from malletrain.decide.decision import decide, yield_now
from malletrain.decide.draft import DecisionCache, Situation, pilots_of
from malletrain.decide.leaving import SET_BACK_S
from malletrain.decide.multi_node_pilots import co_allocated
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import YieldPlan
from malletrain.domain import event as kinds
from malletrain.domain.decision import (
    Action,
    CancelTasks,
    CutLimit,
    Decision,
    LeavePilot,
    Outcome,
    RecyclePilot,
    StartPilot,
    Stray,
    TopUp,
)
from malletrain.domain.errors import ClusterUnavailable, JournalUnavailable
from malletrain.domain.event import Event, Payload
from malletrain.domain.job import JobPhase, JobView, MalleableJob, PilotPhase
from malletrain.domain.snapshot import FREE_STATES, NodeState, Snapshot
from malletrain.learn.profiling import scale_up_jobs
from malletrain.learn.samples import plausible
from malletrain.loop.ledger import Ledger
from malletrain.loop.pilot_changes import after_loss, observe
from malletrain.loop.ports import Clock, Cluster, Journal, Workers
from malletrain.loop.trackers.hole_history import PlannedStarts, hole_events
from malletrain.loop.waiting_reason import settle, termination, why_silent, why_without_nodes
from malletrain.sizing.deadlines import admission_refusal
from malletrain.sizing.objective import Objective
from malletrain.sizing.policy import Policy

T = TypeVar("T")

#: Strays and their nodes that one event names.
MAX_NAMED_STRAYS = 20


class Loop:
    """One daemon's running state.

    The caller holds one lock, for as long as Slurm takes, around `tick_on`, `watch_on` and `react`. `record` and
    `take_reports` may come from any thread: `guard` is held just while events are written and folded, so that a
    fault is mended while Slurm keeps a tick waiting. `views`, `last_snapshot` and `last_decision` are immutable, and
    replaced whole: what people are shown.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Workers,
        journal: Journal,
        clock: Clock,
        policy: Policy,
        rules: Rules,
        *,
        act: bool = True,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """`act` False: decisions are made and shown, nothing is recorded or touched (`--dry-run`, `--observe`)."""
        self.ledger = Ledger()
        self.rules = rules
        self.policy = policy
        self.paused = ""
        self.crowded = ""
        self.last_snapshot: Snapshot | None = None
        self._plans = PlannedStarts()
        self.last_decision: Decision | None = None
        self.views: Mapping[int, JobView] = {}
        #: For each job that is profiled: what would be measured next, or why nothing.
        self.advice: Mapping[int, str] = {}
        self._guard = guard or nullcontext()
        self._unhandled: list[Event] = []
        self._cluster = cluster
        self._workers = workers
        self._journal = journal
        self._clock = clock
        self._act_for_real = act
        self._memo = DecisionCache()
        self._yielded = YieldPlan()
        self.unavailable = False
        self._last_look: float | None = None
        self._ahead_s = clock.now() - clock.elapsed()
        self._set_at = 0.0  # when the clock was set last
        self._pool: kinds.PoolCounted | None = None
        self._sizes: Mapping[int, int] = {}
        self._strays: frozenset[str] = frozenset()  # recorded already

    def refusal(self, job: MalleableJob) -> str:
        """Why a new job cannot be taken as its owner wants it, or ''."""
        if job.deadline is None:
            return ""
        without_main = self._pool.without_main if self._pool is not None else 0
        nodes = max(0, min(without_main - self.rules.keep_idle, self.rules.max_pilots))
        views = [view for view in self.views.values() if not view.phase.is_over]
        wanted = JobView(job, JobPhase.ANNOUNCED, curve=job.given_curve and plausible(job.given_curve))
        return admission_refusal(wanted, views, nodes, self._clock.now(), self.policy)

    def waiting(self, job_id: int) -> str:
        """Why a job that could train has no node, or trains nothing on those that it has; "" where it trains, is held
        or over."""
        view, decision, snapshot = self.views.get(job_id), self.last_decision, self.last_snapshot
        if view is None or decision is None or snapshot is None:
            return ""
        if view.world is not None:
            return why_silent(view, self._clock.now())
        return why_without_nodes(view, decision, snapshot)

    def restore(self, folded: Ledger | None = None) -> int:
        """Fold the journal's events, those after the last of the ledger that has been `folded` from it; how many."""
        count = 0
        if folded is not None:
            self.ledger = folded
        for event in self._journal.read(self.ledger.last_seq):
            self.ledger.apply((event,))
            count += 1
        self.views = self.ledger.views()
        return count

    def record(self, events: Iterable[Event]) -> None:
        """Write events, if there are any, then fold them. What people ask for (cancel, hold) comes this way too."""
        if found := tuple(events):
            with self._guard:
                self.ledger.apply(self._journal.append(found))
                self.views = self.ledger.views()

    def reserve_generations(self, job_id: int, until: int) -> bool:
        """Reserve the numbers of a job's next worlds in the journal; False if that cannot be written now."""
        why = f"worlds up to {until} are this daemon's to publish"
        try:
            self.record([Event(self._clock.now(), kinds.GenerationsReserved(until), job_id, reason=why)])
        except JournalUnavailable:
            return False
        return True

    def take_reports(self) -> int:
        """Record what workers reported; returns how many events. What follows from them is left to `react`."""
        if not self._act_for_real:
            return 0
        with self._guard:
            reports = tuple(self._workers.reports())
            self.record(reports)
            self._unhandled += reports
        return len(reports)

    # -- the three entries -------------------------------------------------------------------------------------

    def tick(self) -> Decision | None:
        """One whole round. None when Slurm gave no usable answer: then nothing is done.

        The order matters: workers' reports first, so that a worker that has left is not asked again.
        """
        self.react()
        snapshot = self.ask_snapshot()
        return None if snapshot is None else self.tick_on(snapshot)

    def ask_snapshot(self) -> Snapshot | None:
        """The whole look alone; it needs no lock."""
        return self._ask(self._cluster.snapshot)

    def ask_look(self) -> Snapshot | None:
        """The light look alone, where there is anything to yield; it needs no lock."""
        last = self.last_snapshot
        if last is None or not self._act_for_real or not any(v.active for v in self.views.values()):
            return None
        return self._ask(lambda: self._cluster.look(last))

    def tick_on(self, snapshot: Snapshot) -> Decision | None:
        """The round after the look: for callers that query Slurm outside the lock."""
        self.last_snapshot = snapshot = self._plans.over(snapshot, self._clock.now(), self.rules)
        if self._act_for_real:
            self._take_in_arrays()
            part, features = self.rules.harvest_partition, self.rules.class_features
            seen = self._ask(
                lambda: observe(snapshot, self.views, self._cluster.end_of, self._clock.now(), part, features)
            )
            if seen is None:
                return None
            self.record([*seen, *hole_events(snapshot, self.ledger.holes.open(), self._last_look, self.rules)])
            self._last_look = snapshot.taken_at
            self._pass_on_ends(seen)
            pilots = sum(len(view.staying) for view in self.views.values())
            now = self._clock.now()
            ails = self.ledger.harm_signals.look(snapshot, pilots, now)
            self.record([*ails, *self.ledger.main_jobs.look(snapshot, part, now)])
            if nodes := self.ledger.main_jobs.to_ask(now):
                ended = self._ask(lambda: self._cluster.ended_main_jobs(nodes))
                self.record(self.ledger.main_jobs.ended(ended or (), now))
            self.record(self.ledger.behind.look(snapshot, self.ledger.promise.delayed(), part, now))
            self._end_the_hopeless()
        situation = self._situation(snapshot)
        decided = decide(situation, self.policy, self._promised(snapshot), self._memo)
        self._yielded = decided.yielded
        self.last_decision = decided.decision
        self.advice = decided.advice
        if self._act_for_real:
            self._record_changes(snapshot, decided.decision)
            with self._guard:  # people ask for figures meanwhile; the next daemon knows them without accounting, too
                arrived = [Event(self._clock.now(), each) for each in iter(self.ledger.promise.take_arrived, None)]
            self.record(arrived)
            self.record(Event(self._clock.now(), probe, job, reason=why) for job, probe, why in decided.probes)
            for job, batches in decided.decision.batches.items():
                self._workers.choose_batches(job, batches)
            self._record_yields(snapshot, decided.yielded.delayed)
            self._take_back(decided.decision.strays)
            self._workers.climb(scale_up_jobs(situation.views, situation.known, self.rules.probing))
            self._apply(decided.decision.actions)
        return decided.decision

    def watch(self) -> None:
        """A light look at the main queue: yield before Slurm's next cycle preempts."""
        snapshot = self.ask_look()
        if snapshot is not None:
            self.watch_on(snapshot)

    def watch_on(self, snapshot: Snapshot) -> bool:
        """Yielding after the light look; whether any pilot was asked to give way."""
        self.last_snapshot = snapshot = self._plans.over(snapshot, self._clock.now(), self.rules)
        actions, self._yielded = yield_now(
            self._situation(snapshot), self._rules_now(self.ledger.exits.usual_s()), self._memo
        )
        self._record_yields(snapshot, self._yielded.delayed)
        self._apply(actions)
        return bool(actions)

    def react(self) -> None:
        """Take in what workers reported; a worker that has left frees its node at once, not at the next tick."""
        self.take_reports()
        with self._guard:
            reports, self._unhandled = self._unhandled, []
        over = {e.job for e in reports if isinstance(e.payload, kinds.JobCompleted | kinds.JobFailed)}
        views = self.views
        actions: dict[str, Action] = {}
        for event in reports:
            view = views.get(event.job or 0)
            if not isinstance(event.payload, kinds.WorkerLeft | kinds.WorkerLost) or event.job in over:
                continue
            pilot = None if view is None else view.pilots.get(event.pilot or "")
            fenced = isinstance(event.payload, kinds.WorkerLost) and event.payload.fenced
            phases = (PilotPhase.RUNNING, PilotPhase.LEAVING, *((PilotPhase.RELEASED,) if fenced else ()))
            if view is None or pilot is None or pilot.phase not in phases:
                continue
            left = fenced or isinstance(event.payload, kinds.WorkerLeft)
            asked = pilot.reason if pilot.phase is PilotPhase.LEAVING else ""
            reason = asked or event.reason or "its worker has left"
            if co_allocated(pilot.id, view):
                deadline = self._clock.now() + self.rules.leave_patience_s
                for action in after_loss(pilot, view, left=left, reason=reason, deadline=deadline):
                    actions |= dict.fromkeys(pilots_of(action), action)
            elif left:
                actions[pilot.id] = RecyclePilot(view.job.id, pilot.id, pilot.node, reason)
        self._apply(actions.values())

    # -- parts -------------------------------------------------------------------------------------------------

    def _rules_now(self, exits_s: float | None) -> Rules:
        """The site's rules, with the margin that its epilogs have been seen to need."""
        return replace(self.rules.with_exits(exits_s), free_s=self.ledger.exits.free_s())

    def _promised(self, snapshot: Snapshot) -> Rules:
        """These rules, with the reserve and the number of pilots that keep the site's promise now."""
        now, tracker = self._clock.now(), self.ledger.promise
        tasks = {pilot.task for view in self.views.values() for pilot in view.staying}
        exits_s = self.ledger.exits.usual_s()
        with self._guard:  # people ask for its figures meanwhile
            tracker.look(snapshot, len(tasks), exits_s, now, self.rules)
            return tracker.rules(self._rules_now(exits_s), snapshot, now)

    def _situation(self, snapshot: Snapshot) -> Situation:
        now = self._clock.now()
        with self._guard:  # samples may come in meanwhile
            known = self.ledger.known()
            used = self.ledger.used(now) if self.rules.objective is Objective.FAIR else {}
            spent = self.ledger.spent(self.rules.budgets, now)
        return Situation(
            snapshot=snapshot,
            views=self.views,
            now=now,
            over_since=self.ledger.over_since(),
            yielded=self._yielded,
            paused=self.paused,
            crowded=self.crowded,
            drained=self.ledger.drained(now),
            used=used,
            spent=spent,
            resting=self.ledger.unstarted.resting(now),
            slow=self.ledger.paces.slow(),
            avoided=self.ledger.paces.avoided(now),
            resting_on=self.ledger.unstarted.resting_on(now),
            doubtful=self.ledger.unstarted.doubtful(now),
            set_aside=self.ledger.conduct.set_aside(self.views, now, self.rules),
            up_since=max(self.ledger.up_since, self._clock_set_at(now)),
            known=known,
            open_holes=self.ledger.holes.open() if self.rules.max_nodes > 1 else {},
        )

    def _clock_set_at(self, now: float) -> float:
        """When the clock was set by so much that it tells no time from before (Unix seconds); 0: never."""
        ahead_s = now - self._clock.elapsed()
        if abs(ahead_s - self._ahead_s) > SET_BACK_S:
            self._set_at = now
        self._ahead_s = ahead_s
        return self._set_at

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Ask Slurm; no answer is recorded once, and None."""
        try:
            answer = question()
        except ClusterUnavailable as error:
            if not self.unavailable and self._act_for_real:
                self.record([Event(self._clock.now(), kinds.SlurmUnavailable(), reason=str(error))])
            self.unavailable = True
            return None
        self.unavailable = False
        return answer

    def _pass_on_ends(self, seen: Iterable[Event]) -> None:
        """Tells membership which pilots hold no node any more."""
        ended: dict[int, list[str]] = {}
        for event in seen:
            if isinstance(event.payload, kinds.PilotEnded | kinds.PilotHeld) and event.job and event.pilot:
                ended.setdefault(event.job, []).append(event.pilot)
        for job, pilots in ended.items():
            self._workers.pilots_ended(job, pilots)

    def _take_in_arrays(self) -> None:
        """Inspect arrays that owners announced; sound tasks become pilots."""
        views = self.views
        for job_id, arrays in self.ledger.unseen_arrays().items():
            for array_id in arrays:
                job = views[job_id].job
                report = self._ask(partial(self._cluster.inspect, array_id, job))
                if report is None:
                    return
                now = self._clock.now()
                faults = "; ".join(report.faults)
                if report.tasks:
                    self.record([Event(now, kinds.TasksAdded(array_id, report.tasks), job_id, reason=faults)])
                else:
                    reason = f"array {array_id} cannot be used: {faults or 'it holds no waiting task'}"
                    refused = kinds.ArrayRefused(array_id, report.faults, report.gone)
                    self.record([Event(now, refused, job_id, reason=reason)])

    def _end_the_hopeless(self) -> None:
        """Record the end of jobs that cannot go on, which the decision then clears away; and which of those that wait
        for others may begin."""
        now = self._clock.now()
        with self._guard:  # samples may come in meanwhile
            spent = self.ledger.spent((), now).by_job
        ends = [
            (job_id, termination(view, self.rules, spent.get(job_id, 0.0))) for job_id, view in self.views.items()
        ]
        self.record([Event(now, end[0], job_id, reason=end[1]) for job_id, end in ends if end is not None])
        self.record([Event(now, fact, job_id, reason=reason) for job_id, fact, reason in settle(self.views)])

    def _apply(self, actions: Iterable[Action]) -> None:
        """In order: intents, acts, outcomes; neighbours of one kind together, since Slurm takes many in one command.
        A Slurm that stops answering ends the round; without a journal nothing is started, and nodes are given back.
        """
        for _, neighbours in groupby(actions, key=type):
            batch = list(neighbours)
            now = self._clock.now()
            try:
                self.record(_event(now, kinds.ActionIntent(a), a, a.reason) for a in batch)
            except JournalUnavailable:
                continue
            outcomes, answered = self._act(batch)
            now = self._clock.now()
            done = [
                _event(now, kinds.ActionOutcome(a, o.done, o.detail, o.restarts, o.preempted), a, o.detail)
                for a, o in zip(batch, outcomes, strict=True)
            ]
            aside = [
                _event(now, kinds.PilotSetAside(), a, o.detail)
                for a, o in zip(batch, outcomes, strict=True)
                if o.unfit
            ]
            self.record([*done, *aside, *self._refused_starts(batch, outcomes, now)])
            if not answered:
                return

    def _refused_starts(self, batch: Sequence[Action], outcomes: Sequence[Outcome], now: float) -> list[Event]:
        """Jobs all of whose starts Slurm refused, in its words, and those that it refuses no more."""
        starts = [(a.job_id, o) for a, o in zip(batch, outcomes, strict=True) if isinstance(a, StartPilot)]
        accepted = {job for job, outcome in starts if outcome.done}
        refused = {
            job: outcome.detail for job, outcome in reversed(starts) if outcome.refused and job not in accepted
        }
        mended = [job for job in sorted(accepted) if self.ledger.unstarted.is_refused(job)]
        return [
            *(Event(now, kinds.StartsRefused(True), job, reason=why) for job, why in sorted(refused.items())),
            *(Event(now, kinds.StartsRefused(False), job) for job in mended),
        ]

    def _act(self, batch: Sequence[Action]) -> tuple[Sequence[Outcome], bool]:
        """The outcomes of actions of one kind, and whether Slurm answered to the end."""
        outcomes: list[Outcome] = []
        try:
            match batch[0]:
                case StartPilot():
                    return self._cluster.start(cast(Sequence[StartPilot], batch)), True
                case RecyclePilot():
                    return self._cluster.recycle(cast(Sequence[RecyclePilot], batch)), True
            for action in cast(Sequence[CutLimit | CancelTasks | LeavePilot | TopUp], batch):
                outcomes.append(self._act_on(action))  # noqa: PERF401 - those before an error count
        except ClusterUnavailable as error:
            left = len(batch) - len(outcomes)
            return [*outcomes, *[Outcome(False, str(error))] * left], False
        return outcomes, True

    def _act_on(self, action: CutLimit | CancelTasks | LeavePilot | TopUp) -> Outcome:
        match action:
            case CutLimit():
                return self._cluster.cut(action)
            case CancelTasks():
                self._workers.end_job(action.job_id, action.reason)
                return self._cluster.cancel(action)
            case LeavePilot():
                self._workers.leave(action)
                return Outcome(True, "asked")
            case TopUp():
                asked = self._workers.top_up(action.job_id, action.tasks)
                return Outcome(asked, "asked" if asked else "no worker is there to ask")

    def _take_back(self, strays: Sequence[Stray]) -> None:
        """End jobs of the harvest partition that are no pilots; each is recorded once, by user."""
        known, self._strays = self._strays, frozenset(stray.job for stray in strays)
        mine = [stray for stray in strays if not stray.left]
        fresh = [stray for stray in mine if stray.job not in known]
        with suppress(JournalUnavailable):  # nodes are given back without a record, too
            self.record(_strays_events(self._clock.now(), fresh))
        try:
            outcomes = self._cluster.take_back(mine) if mine else ()
        except ClusterUnavailable as error:
            outcomes = [Outcome(False, str(error))] * len(mine)
        failed = {stray.job: o.detail for stray, o in zip(mine, outcomes, strict=True) if not o.done}
        if lost := [stray for stray in fresh if stray.job in failed]:
            self.record(_strays_events(self._clock.now(), lost, failed[lost[0].job]))

    def _record_changes(self, snapshot: Snapshot, decision: Decision) -> None:
        """POOL and DECIDED, when they differ from the last ones: the history that reports are made of."""
        now = self._clock.now()
        events: list[Event] = []
        pool = pool_counts(snapshot, self.rules, decision.strays)
        if pool != self._pool:
            self._pool = pool
            events.append(Event(now, pool))
        if dict(decision.sizes) != dict(self._sizes):
            self._sizes = dict(decision.sizes)
            decided = kinds.SizesDecided(
                self._sizes,
                decision.status,
                decision.objective,
                decision.nodes,
                dict(decision.held),
                decision.horizon_s,
            )
            events.append(Event(now, decided, reason=decision.reason))
        self.record(events)

    def _record_yields(self, snapshot: Snapshot, main_jobs: Mapping[str, bool]) -> None:
        """Whose the main jobs are that wait for pilots to leave: after their end, Slurm no longer tells."""
        self.ledger.behind.waits(snapshot, main_jobs)
        self.record(self.ledger.main_jobs.yields(main_jobs, snapshot, self._clock.now()))


def _event(at: float, payload: Payload, action: Action, reason: str) -> Event:
    pilot, node = (None, None) if isinstance(action, CancelTasks | TopUp) else (action.pilot, action.node)
    return Event(at, payload, action.job_id, pilot, node, reason)


def _strays_events(at: float, strays: Sequence[Stray], failure: str = "") -> list[Event]:
    """One for each user."""
    events = []
    for user in sorted({stray.user for stray in strays}):
        own = [stray for stray in strays if stray.user == user]
        jobs = tuple(stray.job for stray in own)[:MAX_NAMED_STRAYS]
        nodes = tuple(dict.fromkeys(node for stray in own for node in stray.nodes))[:MAX_NAMED_STRAYS]
        many = f" and {len(own) - 3} more" if len(own) > 3 else ""
        what = f"job {', '.join(jobs[:3])}{many} of {user} in the harvest partition: no pilot"
        reason = f"{what}, and not to be ended: {failure}" if failure else f"{what}, so it is ended"
        events.append(Event(at, kinds.StraysTakenBack(user, len(own), jobs, nodes, bool(failure)), reason=reason))
    return events


def pool_counts(snapshot: Snapshot, rules: Rules, strays: Sequence[Stray] = ()) -> kinds.PoolCounted:
    """The nodes of a snapshot by use."""
    counts: Counter[str] = Counter()
    stray = {node for each in strays for node in each.nodes}
    away = {NodeState.RESERVED: "reserved", NodeState.MAINT: "reserved", NodeState.POWERED_DOWN: "powered_down"}
    for node in snapshot.nodes:
        holders = snapshot.holders.get(node.name, ())
        if node.name in stray:
            counts["stray"] += 1
        elif any(job.partition == rules.harvest_partition for job in holders):
            counts["harvested"] += 1
        elif holders or node.state in (NodeState.ALLOCATED, NodeState.MIXED, NodeState.COMPLETING):
            counts["main"] += 1
        elif node.state in FREE_STATES:
            counts["planned" if node.state is NodeState.PLANNED else "idle"] += 1
        else:
            counts[away.get(node.state, "down")] += 1
    return kinds.PoolCounted(**counts)
