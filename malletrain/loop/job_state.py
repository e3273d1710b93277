"""What is known of one job, how each event changes it, and what its owner is to hear of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from malletrain.domain import event as kinds
from malletrain.domain.decision import CancelTasks, StartPilot, TopUp
from malletrain.domain.event import Event
from malletrain.domain.job import (
    Curve,
    JobPhase,
    MailType,
    MalleableJob,
    Pilot,
    PilotPhase,
    Probe,
    ResizeCosts,
    ScriptCheck,
    ThroughputSample,
    World,
    pilot_name,
    task_of,
)
from malletrain.domain.pilot_life import NO_DAEMON_STATUS, after, is_without_node, without_worker
from malletrain.domain.snapshot import SlurmState
from malletrain.learn.curve import CurveFit
from malletrain.learn.prior_jobs import Evidence
from malletrain.learn.samples import MAX_NOISE_SCALE, KeptWindows, invalid_reason, refutation

#: Changes of a job's world that are kept with their times: what they say of its pace is then of late.
WORLDS_KEPT = 17


@dataclass
class JobState:
    """What is known of one job; folded in place."""

    job: MalleableJob
    phase: JobPhase = JobPhase.ANNOUNCED
    reason: str = ""
    over_since: float | None = None
    pilots: dict[str, Pilot] = field(default_factory=dict)
    world: World | None = None
    samples: KeptWindows = field(default_factory=KeptWindows)
    samples_taken: int = 0
    first_sample_at: float | None = None
    samples_done: float = 0.0
    committed_at: float | None = None
    fit: CurveFit | None = None
    by_class: Mapping[str, CurveFit] = field(default_factory=dict)  #: of each class of nodes, where it saw several
    curve: Curve | None = None
    telling: Evidence = ()  #: what jobs of its application learn from it
    fitted_at: int = 0  #: `samples_taken` when `curve` was fitted
    ignored: Counter[str] = field(default_factory=Counter)
    world_sizes: deque[int] = field(default_factory=lambda: deque(maxlen=8))
    curve_refuted: str = ""
    probe: Probe | None = None
    probe_windows: Counter[str] = field(default_factory=Counter)  #: by the worker that reported them
    probes: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))  #: when begun, and the size
    phase_began: float | None = None  #: when its throughput last changed at one size
    costs: ResizeCosts | None = None  #: None: to be asked for again
    topped_up_at: float | None = None
    failures: int = 0
    batches: tuple[tuple[int, Curve], ...] = ()
    batches_at: int = 0  #: `samples_taken` when `batches` was fitted
    noise_scale: float | None = None
    active: int = 0  #: pilots that hold a node or are about to
    nodes_since: float = 0.0
    waited_s: float = 0.0
    unseen_arrays: dict[int, float] = field(default_factory=dict)
    waits: bool = False  #: held until other jobs have come so far
    array_gone: str = ""  #: why its last array, which Slurm does not have, was refused
    unsaved: str = ""  #: why its state could not be saved when it last left all its nodes
    begun_at: float | None = None  #: when it first had a world
    worlds_at: deque[float] = field(default_factory=lambda: deque(maxlen=WORLDS_KEPT))  #: when it had another one
    world_of: frozenset[str] = frozenset()  #: the members of the world that was last published
    notified: set[MailType] = field(default_factory=set)  #: of what its owner has been told
    check: ScriptCheck | None = None  #: the last one of its script

    @property
    def believed_curve(self) -> Curve | None:
        """The curve that its owner gave, as long as nothing contradicts it."""
        return None if self.curve_refuted else self.job.given_curve

    def held_s(self, now: float, since: float) -> float:
        """Node-seconds since `since` of the pilots that still hold their nodes."""
        running = [p.started_at for p in self.pilots.values() if p.started_at is not None and p.is_active]
        return sum(max(0.0, now - max(begun, since)) for begun in running)


#: Ends of a pilot that its script is to blame for.
_FAILED_STATES = (SlurmState.FAILED, SlurmState.COMPLETED, SlurmState.OUT_OF_MEMORY)


def fold(record: JobState, event: Event) -> bool:
    """Take in one event of the job. False where events of its kind change nothing in a job."""
    match event.payload:
        case kinds.SamplesReported() as window:
            _samples(record, event, window)
        case kinds.ArrayAttached(array_id=array_id):
            record.unseen_arrays[array_id] = event.at
            record.array_gone = ""
        case kinds.ArrayRefused(array_id=array_id, gone=gone):
            record.unseen_arrays.pop(array_id, None)
            record.reason = event.reason
            record.array_gone = event.reason if gone and not record.unseen_arrays else ""
        case kinds.StartsRefused(refused=refused):
            record.reason = f"Slurm refuses its pilots: {event.reason}" if refused else ""
        case kinds.TasksAdded() as added:
            _tasks_added(record, event, added)
        case kinds.JobHeld(waits=waits):
            _enter_phase(record, event, JobPhase.HELD)
            record.waits = waits
        case kinds.JobReleased():
            _enter_phase(record, event, JobPhase.QUEUED)
        case kinds.JobCancelled():
            _enter_phase(record, event, JobPhase.CANCELLED)
        case kinds.JobCompleted():
            _enter_phase(record, event, JobPhase.COMPLETED)
        case kinds.JobFailed():
            _enter_phase(record, event, JobPhase.FAILED)
        case kinds.JobNotified(what=what):
            record.notified.add(what)
        case kinds.ScriptChecked(digest=digest, verdict=verdict, text=text, nodes=nodes):
            record.check = ScriptCheck(digest, verdict, text, nodes)
        case kinds.WorkerStuck() as stuck:
            _stuck(record, stuck)
        case kinds.ActionIntent(action=TopUp()):
            record.topped_up_at = event.at
        case kinds.ActionOutcome(action=CancelTasks(pilots=names)):
            for name in names:
                if name in record.pilots:
                    record.pilots[name] = after(record.pilots[name], event)
        case (
            kinds.ActionIntent()
            | kinds.ActionOutcome()
            | kinds.PilotStarted()
            | kinds.PilotHeld()
            | kinds.PilotSetAside()
            | kinds.PilotWaits()
            | kinds.PilotEnded()
            | kinds.WorkerWarm()
            | kinds.WorkerLeft()
            | kinds.WorkerLost()
        ):
            _of_pilot(record, event)
        case kinds.GenerationPublished() as published:
            _generation(record, event, published)
        case kinds.ProbeBegun(nodes=nodes):
            reached = record.world is not None and len(record.world.members) == nodes
            record.probe = Probe(nodes, event.at, 0, reached)
            record.probe_windows.clear()
            record.probes.append((event.at, nodes))
        case kinds.ProbeEnded():
            record.probe = None
        case _:
            return False
    return True


def _enter_phase(record: JobState, event: Event, phase: JobPhase) -> None:
    if record.phase.is_over:
        return
    record.phase, record.reason = phase, event.reason
    if phase.is_over:
        record.over_since = event.at
        record.world = None


def _tasks_added(record: JobState, event: Event, added: kinds.TasksAdded) -> None:
    record.unseen_arrays.pop(added.array_id, None)
    for task in added.tasks:
        pilot = f"{added.array_id}_{task}"
        record.pilots.setdefault(pilot, Pilot(pilot, record.job.id, PilotPhase.HELD, event.at))
    if record.phase is JobPhase.ANNOUNCED:
        record.phase = JobPhase.QUEUED


def _stuck(record: JobState, stuck: kinds.WorkerStuck) -> None:
    if stuck.place and not record.phase.is_over:
        record.reason = stuck.in_words
    elif record.reason.startswith(kinds.stuck_words(stuck.worker)):
        record.reason = ""


def _of_pilot(record: JobState, event: Event) -> None:
    payload, name = event.payload, event.pilot or ""
    if isinstance(payload, kinds.WorkerWarm):
        record.failures = 0
    if isinstance(payload, kinds.WorkerLeft | kinds.WorkerLost):
        _stuck(record, kinds.WorkerStuck(payload.worker))
    if isinstance(payload, kinds.WorkerLeft) and (payload.saved or payload.unsaved):
        record.unsaved = payload.unsaved_in_words
    if isinstance(payload, kinds.PilotSetAside):
        record.reason = f"task {event.pilot} stays held: {event.reason}"
    pilot = record.pilots.get(name)
    starts = isinstance(payload, kinds.ActionIntent) and isinstance(payload.action, StartPilot)
    if pilot is None and starts and name and task_of(name) in record.pilots:
        # A further node of a task is a pilot only while the task holds it.
        pilot = Pilot(name, record.job.id, PilotPhase.ENDED, event.at)
    if pilot is None:
        return
    is_whole = not pilot.is_part and pilot_name(name, 1) not in record.pilots
    if is_whole and isinstance(payload, kinds.WorkerLeft | kinds.WorkerLost):
        if isinstance(payload, kinds.WorkerLost):
            record.pilots[name] = without_worker(pilot, event.at)
        return  # a task of one node is given back as soon as its worker has left
    record.pilots[name] = changed = after(pilot, event)
    if is_without_node(event) and record.world is not None and name in record.world.members:
        left = tuple(member for member in record.world.members if member != name)
        record.world = replace(record.world, members=left) if left else None
    # One that was to go says nothing of the script: it may have been killed.
    by_itself = pilot.phase not in (PilotPhase.LEAVING, PilotPhase.RECYCLING)
    # Nor does one whose worker was ready say anything of the start: it may have finished while the daemon was away,
    # or have given up on a daemon whose clock had jumped. One that no daemon took has not begun its script.
    failed = (
        isinstance(payload, kinds.PilotEnded)
        and payload.exit_code != NO_DAEMON_STATUS
        and changed.ended_as in _FAILED_STATES
        and not pilot.was_warm
    )
    if failed and by_itself and not pilot.is_part:
        record.failures += 1


def _generation(record: JobState, event: Event, published: kinds.GenerationPublished) -> None:
    members = published.members
    record.world = World(record.job.id, published.generation, members, event.at) if members else None
    record.world_sizes.append(len(members))
    if members and record.begun_at is None:
        record.begun_at = event.at
    if members and record.world_of != set(members):
        record.worlds_at.append(event.at)
    record.world_of = frozenset(members)
    for name in members:
        _trains(record, name)
    if record.probe is not None and len(members) == record.probe.nodes:
        record.probe = replace(record.probe, reached=True)


def _trains(record: JobState, name: str) -> None:
    pilot = record.pilots.get(name)
    if pilot is not None and pilot.idle_since is not None:
        record.pilots[name] = replace(pilot, idle_since=None)


def _class_of_world(record: JobState) -> str:
    """The classes of the nodes that train."""
    members = record.world.members if record.world is not None else ()
    classes = {record.pilots[name].node_class for name in members if name in record.pilots}
    return " + ".join(sorted(each for each in classes if each))


def _samples(record: JobState, event: Event, window: kinds.SamplesReported) -> None:
    sample = ThroughputSample(
        event.at, window.nodes, window.samples, window.seconds, window.steps, _class_of_world(record)
    )
    wrong = invalid_reason(sample)
    if not wrong and record.world_sizes and sample.nodes not in record.world_sizes:
        wrong = "its node count is none that the job had lately"
    if wrong:
        record.ignored[wrong] += 1
        return
    record.committed_at = event.at
    for name in record.world.members if record.world is not None else ():  # the main worker speaks for all
        _trains(record, name)
    noise, total = window.noise_scale, window.total
    if noise is not None and 0.0 <= noise <= MAX_NOISE_SCALE:
        record.noise_scale = noise
    # Every worker reports, and windows leave out what was disturbed: the job's own count is the truth.
    record.samples_done = record.samples_done + window.samples if total is None else max(record.samples_done, total)
    if not window.steady:
        return
    record.samples_taken += 1
    if record.first_sample_at is None:
        record.first_sample_at = event.at
    record.samples.keep(sample)
    if record.believed_curve is not None:
        record.curve_refuted = refutation(record.believed_curve, record.samples, sample)
    if (began := record.samples.forget_earlier_phase(sample)) is not None:
        record.phase_began = began
    if record.probe is not None and record.probe.nodes == sample.nodes:
        record.probe_windows[event.pilot or ""] += 1
        windows = max(record.probe_windows.values())
        record.probe = replace(record.probe, windows=windows, reached=True)


#: What is older (seconds) is no news: the daemon was away for so long, or could not send.
MAX_NOTICE_AGE_S = 86400.0


@dataclass(frozen=True, slots=True)
class JobNotice:
    """One message: `what` has become of a job (BEGIN or END), `at` that time, with the `reason` for people."""

    job: MalleableJob
    what: MailType
    phase: JobPhase
    at: float
    reason: str
    samples: float


def notices_due(records: Iterable[JobState], now: float) -> Iterator[JobNotice]:
    """Notices that owners asked for and have not got, job by job. A job that fails ends too: one notice says so."""
    for record in records:
        wanted, notified = record.job.mail, record.notified
        if not wanted:
            continue
        begun, over = record.begun_at, record.over_since
        begins = MailType.BEGIN in wanted and MailType.BEGIN not in notified and over is None
        if begins and begun is not None and now - begun < MAX_NOTICE_AGE_S:
            yield JobNotice(record.job, MailType.BEGIN, JobPhase.RUNNING, begun, "", record.samples_done)
        ends = MailType.END in wanted or (MailType.FAIL in wanted and record.phase is JobPhase.FAILED)
        if ends and MailType.END not in notified and over is not None and now - over < MAX_NOTICE_AGE_S:
            yield JobNotice(record.job, MailType.END, record.phase, over, record.reason, record.samples_done)
