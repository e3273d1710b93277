"""The one fold from events to what is known: jobs, pilots, worlds, samples, open intents.

Live and replay use it alike, and after a crash the journal folded anew gives the same state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from malletrain.decide.advisor import Known
from malletrain.decide.batches import batch_curves
from malletrain.decide.budgets import AccountBudget, Spent
from malletrain.decide.curve import CurveFit, fit, telling
from malletrain.decide.pooled import MOST, Evidence, Pooled, application
from malletrain.decide.samples import nonsense, remember
from malletrain.domain.decision import Action, CancelTasks, CutLimit, LeavePilot, RecyclePilot, StartPilot, TopUp
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import Event, EventKind, JsonValue
from malletrain.domain.job import (
    Curve,
    Elastic,
    JobPhase,
    JobView,
    MalleableJob,
    Pilot,
    PilotPhase,
    Probe,
    Profile,
    ResizeCosts,
    ThroughputSample,
    World,
    pilot_name,
    task_of,
)
from malletrain.domain.snapshot import SlurmState
from malletrain.loop.exits import Exits
from malletrain.loop.hole_history import Holes
from malletrain.loop.paces import Paces
from malletrain.loop.pool_levels import PoolLevels
from malletrain.loop.signs import Signs
from malletrain.loop.spending import Spending
from malletrain.loop.unstarted import Unstarted
from malletrain.loop.usage import Usage

#: Samples kept for each job's curve: windows of seconds, so this is hours of training.
SAMPLES_KEPT = 512
#: Applications whose curves are kept after their jobs are over.
APPLICATIONS_KEPT = 1000

#: In these phases a job does not wait for nodes.
_WAITS_NOT = (JobPhase.ANNOUNCED, JobPhase.HELD)

_ACTIONS: Mapping[str, type[Action]] = {
    "start": StartPilot,
    "leave": LeavePilot,
    "cut": CutLimit,
    "recycle": RecyclePilot,
    "cancel": CancelTasks,
    "top_up": TopUp,
}
_ACTION_NAMES = {kind: name for name, kind in _ACTIONS.items()}


def action_data(action: Action) -> dict[str, JsonValue]:
    """An action as the journal keeps it."""
    data = cast(dict[str, JsonValue], asdict(action))
    if isinstance(action, CancelTasks):
        data["pilots"] = list(action.pilots)
    return {"type": _ACTION_NAMES[type(action)], **data}


def announced(job: MalleableJob) -> dict[str, JsonValue]:
    """A job as JOB_ANNOUNCED keeps it."""
    data = cast(dict[str, JsonValue], asdict(job))
    data["sizes"] = list(job.sizes)
    data["elastic"] = job.elastic.value
    data["profile"] = job.profile.value if job.profile else None
    data["given_curve"] = [list(p) for p in job.given_curve.points] if job.given_curve else None
    return data


def job_from(data: Mapping[str, Any]) -> MalleableJob:
    """The reverse of `announced`.

    Raises:
        InvalidInput: a field is missing or unknown: the journal is of another version.
    """
    try:
        fields = dict(data)
        points = fields.get("given_curve")
        fields["given_curve"] = Curve(tuple((int(n), float(r)) for n, r in points)) if points else None
        fields["sizes"] = tuple(fields.get("sizes") or ())
        fields["elastic"] = Elastic(fields.get("elastic", "live"))
        fields["profile"] = Profile(fields["profile"]) if fields.get("profile") else None
        return MalleableJob(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "journal", f"a job cannot be read ({error}); was it written by another version?"
        ) from error


@dataclass
class _Record:
    """What is known of one job; folded in place."""

    job: MalleableJob
    phase: JobPhase = JobPhase.ANNOUNCED
    reason: str = ""
    over_since: float | None = None
    pilots: dict[str, Pilot] = field(default_factory=dict)
    world: World | None = None
    samples: deque[ThroughputSample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    samples_taken: int = 0
    first_sample_at: float | None = None
    samples_done: float = 0.0
    fit: CurveFit | None = None
    curve: Curve | None = None
    telling: Evidence = ()  #: what jobs of its application learn from it
    fitted_at: int = 0  #: `samples_taken` when `curve` was fitted
    ignored: Counter[str] = field(default_factory=Counter)
    world_sizes: deque[int] = field(default_factory=lambda: deque(maxlen=8))
    probe: Probe | None = None
    probe_windows: Counter[str] = field(default_factory=Counter)  #: by the worker that reported them
    tries: Counter[int] = field(default_factory=Counter)
    activations: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    pauses: dict[bool, deque[float]] = field(
        default_factory=lambda: {True: deque(maxlen=64), False: deque(maxlen=64)}
    )
    paused_for: tuple[object, bool] | None = None  #: the generation of the last pause, and whether it grew
    topped_up_at: float | None = None
    failures: int = 0
    batches: tuple[tuple[int, Curve], ...] = ()
    batches_at: int = 0  #: `samples_taken` when `batches` was fitted
    noise_scale: float | None = None
    active: int = 0  #: pilots that hold a node or are about to
    turned_at: float = 0.0
    waited_s: float = 0.0
    unseen_arrays: dict[int, float] = field(default_factory=dict)
    view: JobView | None = None

    def held_s(self, now: float, since: float) -> float:
        """Node-seconds since `since` of the pilots that still hold their nodes."""
        running = [p.started_at for p in self.pilots.values() if p.started_at is not None and p.is_active]
        return sum(max(0.0, now - max(begun, since)) for begun in running)


class Ledger:
    """Folds events. Not thread-safe: its owner holds one lock."""

    def __init__(self, costs: ResizeCosts | None = None) -> None:
        """`costs` are assumed until a job has measured its own."""
        self._records: dict[int, _Record] = {}
        self._costs = costs or ResizeCosts()
        self._folds: Mapping[EventKind, Callable[[_Record, Event], None]] = {
            EventKind.ARRAY_ATTACHED: _attached,
            EventKind.ARRAY_REFUSED: _array_refused,
            EventKind.TASKS_ADDED: _tasks_added,
            EventKind.JOB_HELD: _phase(JobPhase.HELD),
            EventKind.JOB_RELEASED: _phase(JobPhase.QUEUED),
            EventKind.JOB_CANCELLED: _phase(JobPhase.CANCELLED),
            EventKind.JOB_COMPLETED: _phase(JobPhase.COMPLETED),
            EventKind.JOB_FAILED: _phase(JobPhase.FAILED),
            EventKind.INTENT: _intent,
            EventKind.OUTCOME: _outcome,
            EventKind.PILOT_STARTED: _pilot_started,
            EventKind.PILOT_HELD: _pilot_phase(PilotPhase.HELD),
            EventKind.PILOT_ASIDE: _pilot_aside,
            EventKind.PILOT_WAITS: _pilot_phase(PilotPhase.RELEASED),
            EventKind.PILOT_ENDED: _pilot_ended,
            EventKind.WORKER_WARM: _worker_warm,
            EventKind.WORKER_LEFT: _worker_gone,
            EventKind.WORKER_LOST: _worker_gone,
            EventKind.GENERATION: _generation,
            EventKind.SWITCHED: _switched,
            EventKind.SAMPLES: _samples,
            EventKind.PROBE_BEGUN: _probe_begun,
            EventKind.PROBE_ENDED: _probe_ended,
        }
        self._drained: dict[str, float] = {}
        self._earlier: dict[tuple[str, str], deque[Evidence]] = {}
        self._starts: deque[float] = deque(maxlen=64)  #: of all jobs: they are the site's, not theirs
        self.holes = Holes()
        self.usage = Usage()
        self.spending = Spending()
        self.exits = Exits()
        self.unstarted = Unstarted()
        self.paces = Paces()
        self.pool = PoolLevels()
        self.signs = Signs()
        self.last_seq = 0

    def apply(self, events: Iterable[Event]) -> None:
        """Fold events in the order of the journal."""
        for event in events:
            self.last_seq = max(self.last_seq, event.seq)
            self.holes.apply(event)
            self.exits.apply(event)
            self.unstarted.apply(event)
            self.paces.apply(event)
            self.pool.apply(event)
            self.signs.apply(event)
            if event.kind is EventKind.OPERATOR and event.data.get("verb") == "drain":
                until = float(cast(float, event.data["until"]))
                self._drained.update(dict.fromkeys(cast(list[str], event.data["nodes"]), until))
            if event.job is None:
                continue
            if event.kind is EventKind.JOB_ANNOUNCED:
                self._records.setdefault(event.job, _Record(job_from(event.data)))
                continue
            record, fold = self._records.get(event.job), self._folds.get(event.kind)
            if record is not None and fold is not None:
                was_over, phase = record.phase.is_over, record.phase
                before = record.pilots.get(event.pilot or "")
                fold(record, event)
                record.view = None
                if phase in _WAITS_NOT and record.phase not in _WAITS_NOT:
                    record.turned_at = event.at
                if before is None and event.pilot in record.pilots:  # a further node of a task, just started on
                    before = Pilot(event.pilot, record.job.id, PilotPhase.ENDED, event.at)
                if before is not None:
                    self._turned(record, before, record.pilots[before.id], event.at)
                if record.phase.is_over and not was_over:
                    self._remember(record)

    def _turned(self, record: _Record, before: Pilot, after: Pilot, at: float) -> None:
        """A pilot takes or gives up its node: the job's wait may end or begin, and its account has used the node."""
        if before.phase is PilotPhase.RELEASED and after.phase is PilotPhase.RUNNING and after.started_at is not None:
            self._starts.append(max(0.0, after.started_at - before.since))
        if before.is_active == after.is_active:
            return
        record.active += 1 if after.is_active else -1
        if after.is_active and record.active == 1:
            record.waited_s, record.turned_at = max(0.0, at - record.turned_at), at
        elif not after.is_active:
            if record.active == 0:
                record.turned_at = at
            if before.started_at is not None:
                self.usage.add(record.job.account, at, at - before.started_at)
                self.spending.add(record.job.account, record.job.id, before.started_at, at)

    def used(self, now: float) -> Mapping[str, float]:
        """Node-seconds by account, old ones fading, running pilots included."""
        running: dict[str, float] = {}
        for _, record in sorted(self._records.items()):
            if record.active:
                running[record.job.account] = running.get(record.job.account, 0.0) + record.held_s(now, 0.0)
        return self.usage.lately(running)

    def spent(self, budgets: Iterable[AccountBudget], now: float) -> Spent:
        """What budgets are held against, running pilots included."""
        records = sorted(self._records.items())
        by_budget = {}
        for budget in budgets:
            begin = budget.period.begin(now)
            used = sum(self.spending.of_account(account, begin) for account in sorted(budget.accounts))
            running = [r.held_s(now, begin) for _, r in records if r.active and r.job.account in budget.accounts]
            by_budget[budget.name] = used + sum(running)
        by_job = {
            job_id: self.spending.by_job.get(job_id, 0.0) + record.held_s(now, 0.0)
            for job_id, record in records
            if record.job.budget_node_s is not None
        }
        return Spent(by_budget, by_job)

    def views(self) -> Mapping[int, JobView]:
        """What is known of every job, by id; immutable, and built anew only for jobs that changed."""
        return {job_id: self._view(record) for job_id, record in sorted(self._records.items())}

    def known(self) -> Mapping[int, Known]:
        """What was learnt of every job that is not over, for the advisor; nothing of those whose curve was given."""
        found: dict[int, Known] = {}
        pools: dict[tuple[str, str], Pooled | None] = {}
        for job_id, record in sorted(self._records.items()):
            if record.phase.is_over or record.job.given_curve is not None:
                continue
            self._fitted(record)
            key = application(record.job)
            alone = record.fit is None
            if alone and key not in pools:
                pools[key] = self._pooled(key, job_id)
            found[job_id] = Known(
                record.fit,
                pools[key] if alone else None,
                record.probe,
                dict(record.tries),
                key,
                self.ignored(job_id),
                record.first_sample_at,
            )
        return found

    def ignored(self, job_id: int) -> Mapping[str, int]:
        """How many of a job's samples were not believed, by reason."""
        record = self._records[job_id]
        return dict(record.ignored + Counter(record.fit.ignored if record.fit else {}))

    def over_since(self) -> Mapping[int, float]:
        """When each job that is over ended (Unix seconds)."""
        return {j: r.over_since for j, r in self._records.items() if r.over_since is not None}

    def drained(self, now: float) -> frozenset[str]:
        """Nodes that operators keep pilots off at `now` (Unix seconds)."""
        return frozenset(name for name, until in self._drained.items() if until > now)

    def unseen_arrays(self) -> Mapping[int, tuple[int, ...]]:
        """Arrays that owners told of and nobody has looked at yet, by job."""
        return {j: tuple(r.unseen_arrays) for j, r in sorted(self._records.items()) if r.unseen_arrays}

    def samples(self, job_id: int) -> tuple[ThroughputSample, ...]:
        """The windows of training that a job has reported lately."""
        return tuple(self._records[job_id].samples)

    def forget_over(self, before: float) -> None:
        """Drop jobs that ended before `before` and have no active pilot: the journal still has them."""
        for job_id, record in list(self._records.items()):
            ended = record.over_since is not None and record.over_since < before
            if ended and not self._view(record).active:
                del self._records[job_id]
                self.spending.forget(job_id)

    def _view(self, record: _Record) -> JobView:
        if record.view is None:
            phase = record.phase
            if phase is JobPhase.QUEUED and record.world is not None and record.world.members:
                phase = JobPhase.RUNNING
            record.view = JobView(
                job=record.job,
                phase=phase,
                pilots=dict(record.pilots),
                world=record.world,
                curve=record.job.given_curve or self._fitted(record),
                costs=self._measured_costs(record),
                samples_done=record.samples_done,
                reason=record.reason,
                topped_up_at=record.topped_up_at,
                failures=record.failures,
                turned_at=record.turned_at,
                waited_s=record.waited_s,
                batches=self._batch_curves(record),
                noise_scale=record.noise_scale,
            )
        return record.view

    def _fitted(self, record: _Record) -> Curve | None:
        """The curve of the samples so far; fitted anew only when there are others."""
        if record.fitted_at != record.samples_taken:
            record.fit = fit(record.samples, self._pooled(application(record.job), record.job.id))
            record.curve = None if record.fit is None else record.fit.curve(record.job.max_nodes)
            record.telling = telling(record.fit, record.telling)
            record.fitted_at = record.samples_taken
        return record.curve

    def _batch_curves(self, record: _Record) -> tuple[tuple[int, Curve], ...]:
        """By batch, for a job whose batch is free; fitted anew only when there are other samples."""
        if record.job.batch_min is None or record.phase.is_over:
            return ()
        if record.batches_at != record.samples_taken:
            record.batches = batch_curves(record.job, record.samples)
            record.batches_at = record.samples_taken
        return record.batches

    def _pooled(self, key: tuple[str, str], but: int) -> Pooled | None:
        """What other jobs of an application have measured, each on two sizes or more; the newest few."""
        jobs = list(self._earlier.get(key, ()))
        for job_id, record in sorted(self._records.items()):
            if job_id != but and not record.phase.is_over and record.telling and application(record.job) == key:
                jobs.append(record.telling)
        return Pooled(tuple(jobs[-MOST:])) if jobs else None

    def _remember(self, record: _Record) -> None:
        """A job is over: its application keeps what it has measured."""
        self._fitted(record)
        if record.telling:
            key = application(record.job)
            kept = self._earlier.pop(key, deque(maxlen=MOST))
            kept.append(record.telling)
            self._earlier[key] = kept
            if len(self._earlier) > APPLICATIONS_KEPT:
                del self._earlier[next(iter(self._earlier))]

    def _measured_costs(self, record: _Record) -> ResizeCosts:
        return ResizeCosts(
            start_s=_median(self._starts, self._costs.start_s),
            activate_s=_median(record.activations, self._costs.activate_s),
            grow_s=_median(record.pauses[True], self._costs.grow_s),
            shrink_s=_median(record.pauses[False], self._costs.shrink_s),
        )


def _median(values: deque[float], otherwise: float) -> float:
    return sorted(values)[len(values) // 2] if values else otherwise


def _phase(phase: JobPhase) -> Callable[[_Record, Event], None]:
    def fold(record: _Record, event: Event) -> None:
        if record.phase.is_over:
            return
        record.phase, record.reason = phase, event.reason
        if phase.is_over:
            record.over_since = event.at
            record.world = None

    return fold


def _attached(record: _Record, event: Event) -> None:
    record.unseen_arrays[int(cast(int, event.data["array_id"]))] = event.at


def _array_refused(record: _Record, event: Event) -> None:
    record.unseen_arrays.pop(int(cast(int, event.data["array_id"])), None)
    record.reason = event.reason


def _tasks_added(record: _Record, event: Event) -> None:
    array_id = int(cast(int, event.data["array_id"]))
    record.unseen_arrays.pop(array_id, None)
    for task in cast(list[int], event.data["tasks"]):
        pilot = f"{array_id}_{task}"
        record.pilots.setdefault(pilot, Pilot(pilot, record.job.id, PilotPhase.HELD, event.at))
    if record.phase is JobPhase.ANNOUNCED:
        record.phase = JobPhase.QUEUED


def _intent(record: _Record, event: Event) -> None:
    kind = event.data.get("type")
    if kind == "top_up":
        record.topped_up_at = event.at
    pilot = record.pilots.get(event.pilot or "")
    if pilot is None and kind == "start" and event.pilot and task_of(event.pilot) in record.pilots:
        # A further node of a task is a pilot only while the task holds it.
        pilot = Pilot(event.pilot, record.job.id, PilotPhase.ENDED, event.at)
    if pilot is None:
        return
    phases = {"start": PilotPhase.RELEASED, "leave": PilotPhase.LEAVING, "recycle": PilotPhase.RECYCLING}
    phase = phases.get(str(kind))
    if phase is None:
        return
    node = event.node or pilot.node
    since = event.at if phase is not pilot.phase or phase is PilotPhase.RECYCLING else pilot.since
    replaces = str(event.data.get("replaces", "")) if kind == "start" else pilot.replaces
    record.pilots[pilot.id] = replace(
        pilot, phase=phase, since=since, node=node, reason=event.reason, replaces=replaces
    )


def _outcome(record: _Record, event: Event) -> None:
    kind, done = event.data.get("type"), bool(event.data.get("done"))
    if kind == "cancel" and done:
        for name in cast(list[str], event.data.get("pilots", [])):
            pilot = record.pilots.get(name)
            if pilot is not None and pilot.phase in (PilotPhase.HELD, PilotPhase.ASIDE):
                record.pilots[name] = replace(pilot, phase=PilotPhase.ENDED, since=event.at, node="")
        return
    pilot = record.pilots.get(event.pilot or "")
    if pilot is None:
        return
    if kind == "start" and not done and pilot.phase is PilotPhase.RELEASED:
        phase = PilotPhase.ENDED if pilot.is_part else PilotPhase.HELD
        record.pilots[pilot.id] = replace(pilot, phase=phase, since=event.at, node="")
    elif kind == "cut" and done:
        record.pilots[pilot.id] = replace(pilot, ends_at=cast(float, event.data["ends_at"]))


def _pilot_started(record: _Record, event: Event) -> None:
    pilot = record.pilots.get(event.pilot or "")
    if pilot is None:
        return
    phase = pilot.phase if pilot.phase is PilotPhase.LEAVING else PilotPhase.RUNNING
    record.pilots[pilot.id] = replace(
        pilot,
        phase=phase,
        since=pilot.since if phase is pilot.phase else event.at,
        node=event.node or pilot.node,
        started_at=cast(float | None, event.data.get("started_at")),
        ends_at=cast(float | None, event.data.get("ends_at")),
    )


def _pilot_phase(phase: PilotPhase) -> Callable[[_Record, Event], None]:
    def fold(record: _Record, event: Event) -> None:
        pilot = record.pilots.get(event.pilot or "")
        if pilot is None:
            return
        record.pilots[pilot.id] = Pilot(pilot.id, pilot.job_id, phase, event.at, reason=event.reason)
        if record.world is not None and pilot.id in record.world.members:
            left = tuple(m for m in record.world.members if m != pilot.id)
            record.world = replace(record.world, members=left) if left else None

    return fold


def _pilot_aside(record: _Record, event: Event) -> None:
    _pilot_phase(PilotPhase.ASIDE)(record, event)
    record.reason = f"task {event.pilot} stays held: {event.reason}"


def _pilot_ended(record: _Record, event: Event) -> None:
    _pilot_phase(PilotPhase.ENDED)(record, event)
    pilot = record.pilots.get(event.pilot or "")
    if pilot is None:
        return
    state = SlurmState(str(event.data.get("state", SlurmState.UNKNOWN)))
    if event.data.get("preempted"):
        state = SlurmState.PREEMPTED
    record.pilots[pilot.id] = replace(pilot, ended_as=state)
    if state in (SlurmState.FAILED, SlurmState.COMPLETED, SlurmState.OUT_OF_MEMORY) and not pilot.is_part:
        record.failures += 1


def _worker_warm(record: _Record, event: Event) -> None:
    record.failures = 0
    pilot = record.pilots.get(event.pilot or "")
    if pilot is None:
        return
    record.pilots[pilot.id] = replace(pilot, ready=True)
    if pilot.started_at is not None and event.at > pilot.started_at:
        record.activations.append(event.at - pilot.started_at)


def _worker_gone(record: _Record, event: Event) -> None:
    """Of a task that holds several nodes: they are given back when none of its workers is left."""
    pilot = record.pilots.get(event.pilot or "")
    if pilot is not None and pilot.ready and (pilot.is_part or pilot_name(pilot.id, 1) in record.pilots):
        record.pilots[pilot.id] = replace(pilot, ready=False)


def _generation(record: _Record, event: Event) -> None:
    members = tuple(cast(list[str], event.data["members"]))
    generation = int(cast(int, event.data["generation"]))
    record.world = World(record.job.id, generation, members, event.at) if members else None
    record.world_sizes.append(len(members))
    if record.probe is not None and len(members) == record.probe.nodes:
        record.probe = replace(record.probe, reached=True)


def _switched(record: _Record, event: Event) -> None:
    """A script in restart mode tells its pause twice: when it is started, and, if it says so, when it trains."""
    change = event.data.get("generation"), bool(event.data.get("grew"))
    pauses = record.pauses[change[1]]
    if change == record.paused_for and pauses:
        pauses.pop()
    pauses.append(float(cast(float, event.data["pause_s"])))
    record.paused_for = change


def _probe_begun(record: _Record, event: Event) -> None:
    nodes = int(cast(int, event.data["nodes"]))
    reached = record.world is not None and len(record.world.members) == nodes
    record.probe = Probe(nodes, event.at, 0, reached)
    record.probe_windows.clear()
    record.tries[nodes] += 1


def _probe_ended(record: _Record, event: Event) -> None:
    record.probe = None


def _samples(record: _Record, event: Event) -> None:
    data = cast(dict[str, float], event.data)
    sample = ThroughputSample(
        event.at, int(data["nodes"]), data["samples"], data["seconds"], int(data.get("steps", 0))
    )
    wrong = nonsense(sample)
    if not wrong and record.world_sizes and sample.nodes not in record.world_sizes:
        wrong = "its node count is none that the job had lately"
    if wrong:
        record.ignored[wrong] += 1
        return
    noise = data.get("noise_scale")
    record.noise_scale = record.noise_scale if noise is None or noise < 0 else noise
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    total = data.get("total")
    record.samples_done = record.samples_done + data["samples"] if total is None else max(record.samples_done, total)
    if not data.get("steady", True):
        return
    record.samples_taken += 1
    if record.first_sample_at is None:
        record.first_sample_at = event.at
    remember(record.samples, sample)
    if record.probe is not None and record.probe.nodes == sample.nodes:
        record.probe_windows[event.pilot or ""] += 1
        windows = max(record.probe_windows.values())
        record.probe = replace(record.probe, windows=windows, reached=True)
