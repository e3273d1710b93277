"""What is known of one job, and how each event changes it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from malletrain.domain.event import Event, EventKind
from malletrain.domain.job import (
    Curve,
    JobPhase,
    JobView,
    MalleableJob,
    Pilot,
    PilotPhase,
    Probe,
    ResizeCosts,
    ThroughputSample,
    World,
    pilot_name,
    task_of,
)
from malletrain.domain.snapshot import SlurmState
from malletrain.learn.curve import CurveFit
from malletrain.learn.prior_jobs import Evidence
from malletrain.learn.samples import invalid_reason, keep_sample

#: Samples kept for each job's curve: windows of seconds, so this is hours of training.
SAMPLES_KEPT = 512


@dataclass
class Record:
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
    costs: ResizeCosts | None = None  #: None: to be asked for again
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


def _phase(phase: JobPhase) -> Callable[[Record, Event], None]:
    def fold(record: Record, event: Event) -> None:
        if record.phase.is_over:
            return
        record.phase, record.reason = phase, event.reason
        if phase.is_over:
            record.over_since = event.at
            record.world = None

    return fold


def _attached(record: Record, event: Event) -> None:
    record.unseen_arrays[int(cast(int, event.data["array_id"]))] = event.at


def _array_refused(record: Record, event: Event) -> None:
    record.unseen_arrays.pop(int(cast(int, event.data["array_id"])), None)
    record.reason = event.reason


def _starts_refused(record: Record, event: Event) -> None:
    record.reason = f"Slurm refuses its pilots: {event.reason}" if event.data.get("refused") else ""


def _tasks_added(record: Record, event: Event) -> None:
    array_id = int(cast(int, event.data["array_id"]))
    record.unseen_arrays.pop(array_id, None)
    for task in cast(list[int], event.data["tasks"]):
        pilot = f"{array_id}_{task}"
        record.pilots.setdefault(pilot, Pilot(pilot, record.job.id, PilotPhase.HELD, event.at))
    if record.phase is JobPhase.ANNOUNCED:
        record.phase = JobPhase.QUEUED


def _intent(record: Record, event: Event) -> None:
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
    leave_by = cast(float | None, event.data.get("deadline"))  # of a leave
    record.pilots[pilot.id] = replace(
        pilot, phase=phase, since=since, node=node, reason=event.reason, replaces=replaces, leave_by=leave_by
    )


def _outcome(record: Record, event: Event) -> None:
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
    elif kind == "start" and done:
        record.pilots[pilot.id] = replace(pilot, restarts=cast(int | None, event.data.get("restarts")))
    elif kind == "cut" and done:
        record.pilots[pilot.id] = replace(pilot, ends_at=cast(float, event.data["ends_at"]))


def _pilot_started(record: Record, event: Event) -> None:
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
        node_class=str(event.data.get("class", pilot.node_class if event.node in (None, pilot.node) else "")),
    )


def _pilot_phase(phase: PilotPhase) -> Callable[[Record, Event], None]:
    def fold(record: Record, event: Event) -> None:
        pilot = record.pilots.get(event.pilot or "")
        if pilot is None:
            return
        record.pilots[pilot.id] = Pilot(pilot.id, pilot.job_id, phase, event.at, reason=event.reason)
        if record.world is not None and pilot.id in record.world.members:
            left = tuple(m for m in record.world.members if m != pilot.id)
            record.world = replace(record.world, members=left) if left else None

    return fold


def _pilot_aside(record: Record, event: Event) -> None:
    _pilot_phase(PilotPhase.ASIDE)(record, event)
    record.reason = f"task {event.pilot} stays held: {event.reason}"


def _pilot_ended(record: Record, event: Event) -> None:
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


def _worker_warm(record: Record, event: Event) -> None:
    record.failures = 0
    pilot = record.pilots.get(event.pilot or "")
    if pilot is None:
        return
    record.pilots[pilot.id] = replace(pilot, ready=True)


def _worker_gone(record: Record, event: Event) -> None:
    """Of a task that holds several nodes: they are given back when none of its workers is left."""
    pilot = record.pilots.get(event.pilot or "")
    if pilot is not None and pilot.ready and (pilot.is_part or pilot_name(pilot.id, 1) in record.pilots):
        record.pilots[pilot.id] = replace(pilot, ready=False)


def _generation(record: Record, event: Event) -> None:
    members = tuple(cast(list[str], event.data["members"]))
    generation = int(cast(int, event.data["generation"]))
    record.world = World(record.job.id, generation, members, event.at) if members else None
    record.world_sizes.append(len(members))
    if record.probe is not None and len(members) == record.probe.nodes:
        record.probe = replace(record.probe, reached=True)


def _probe_begun(record: Record, event: Event) -> None:
    nodes = int(cast(int, event.data["nodes"]))
    reached = record.world is not None and len(record.world.members) == nodes
    record.probe = Probe(nodes, event.at, 0, reached)
    record.probe_windows.clear()
    record.tries[nodes] += 1


def _probe_ended(record: Record, event: Event) -> None:
    record.probe = None


def _class_of_world(record: Record) -> str:
    """The classes of the nodes that train."""
    members = record.world.members if record.world is not None else ()
    classes = {record.pilots[name].node_class for name in members if name in record.pilots}
    return " + ".join(sorted(each for each in classes if each))


def _samples(record: Record, event: Event) -> None:
    data = cast(dict[str, float], event.data)
    sample = ThroughputSample(
        event.at,
        int(data["nodes"]),
        data["samples"],
        data["seconds"],
        int(data.get("steps", 0)),
        _class_of_world(record),
    )
    wrong = invalid_reason(sample)
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
    keep_sample(record.samples, sample)
    if record.probe is not None and record.probe.nodes == sample.nodes:
        record.probe_windows[event.pilot or ""] += 1
        windows = max(record.probe_windows.values())
        record.probe = replace(record.probe, windows=windows, reached=True)


#: Events of other kinds change nothing in a job.
FOLDS: Mapping[EventKind, Callable[[Record, Event], None]] = {
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
    EventKind.STARTS_REFUSED: _starts_refused,
    EventKind.PILOT_STARTED: _pilot_started,
    EventKind.PILOT_HELD: _pilot_phase(PilotPhase.HELD),
    EventKind.PILOT_ASIDE: _pilot_aside,
    EventKind.PILOT_WAITS: _pilot_phase(PilotPhase.RELEASED),
    EventKind.PILOT_ENDED: _pilot_ended,
    EventKind.WORKER_WARM: _worker_warm,
    EventKind.WORKER_LEFT: _worker_gone,
    EventKind.WORKER_LOST: _worker_gone,
    EventKind.GENERATION: _generation,
    EventKind.SAMPLES: _samples,
    EventKind.PROBE_BEGUN: _probe_begun,
    EventKind.PROBE_ENDED: _probe_ended,
}
