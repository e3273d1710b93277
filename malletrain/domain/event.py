"""What the journal records: facts in order, never edited. The ledger folds them into what is known.

A payload's fields are the keys of the row's JSON `data`, in their order (`malletrain.store.encoding`). A new field
has a default, with which older rows are read; one marked `SPARSE` is not written while it has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from malletrain.domain.decision import SPARSE, Action
from malletrain.domain.job import MailType, MalleableJob, ScriptVerdict
from malletrain.domain.snapshot import SlurmState

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class EventKind(StrEnum):
    """The name of each kind of fact, as the journal's column `kind` has it."""

    # A job's life
    JOB_ANNOUNCED = "job_announced"
    ARRAY_ATTACHED = "array_attached"
    ARRAY_REFUSED = "array_refused"
    TASKS_ADDED = "tasks_added"
    JOB_HELD = "job_held"
    JOB_RELEASED = "job_released"
    JOB_CANCELLED = "job_cancelled"
    JOB_COMPLETED = "job_completed"
    JOB_FAILED = "job_failed"
    JOB_NOTIFIED = "job_notified"
    SCRIPT_CHECKED = "script_checked"
    # What the daemon meant to do, and what became of it
    INTENT = "intent"
    OUTCOME = "outcome"
    # What Slurm showed of a pilot
    PILOT_STARTED = "pilot_started"
    PILOT_HELD = "pilot_held"
    PILOT_ASIDE = "pilot_aside"
    STARTS_REFUSED = "starts_refused"
    PILOT_WAITS = "pilot_waits"
    PILOT_ENDED = "pilot_ended"
    # What workers reported
    WORKER_JOINED = "worker_joined"
    WORKER_WARM = "worker_warm"
    WORKER_LEFT = "worker_left"
    WORKER_LOST = "worker_lost"
    WORKER_STUCK = "worker_stuck"
    GENERATIONS_RESERVED = "generations_reserved"
    GENERATION = "generation"
    SWITCHED = "switched"
    SAMPLES = "samples"
    PROBE_BEGUN = "probe_begun"
    PROBE_ENDED = "probe_ended"
    METRIC = "metric"
    # The daemon itself
    DAEMON_STARTED = "daemon_started"
    DAEMON_STOPPED = "daemon_stopped"
    DECIDED = "decided"
    BREAKER = "breaker"
    NODE_AILS = "node_ails"
    CLUSTER_UNAVAILABLE = "cluster_unavailable"
    MAIN_STARTED = "main_started"
    MAIN_ARRIVED = "main_arrived"
    MAIN_MET = "main_met"
    STRAYS = "strays"
    POOL = "pool"
    HOLES_OPENED = "holes_opened"
    HOLES_ENDED = "holes_ended"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class JobAnnounced:
    """A researcher asked for a job. The row has the job's fields."""

    kind: ClassVar[EventKind] = EventKind.JOB_ANNOUNCED
    job: MalleableJob


@dataclass(frozen=True, slots=True)
class ArrayAttached:
    """A job's owner submitted a held array of `tasks` tasks; it is not inspected yet."""

    kind: ClassVar[EventKind] = EventKind.ARRAY_ATTACHED
    array_id: int
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class ArrayRefused:
    """An array holds no task that can be a pilot. `gone`: Slurm has none of its tasks."""

    kind: ClassVar[EventKind] = EventKind.ARRAY_REFUSED
    array_id: int
    faults: tuple[str, ...] = ()
    gone: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class TasksAdded:
    """Held tasks of an array were inspected and found sound: they are pilots."""

    kind: ClassVar[EventKind] = EventKind.TASKS_ADDED
    array_id: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobHeld:
    """`waits`: for other jobs, until these have come so far; otherwise until its owner releases it."""

    kind: ClassVar[EventKind] = EventKind.JOB_HELD
    by: str = field(default="", metadata=SPARSE)
    waits: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobReleased:
    kind: ClassVar[EventKind] = EventKind.JOB_RELEASED
    by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """`by` is empty where a rule, not a person, ended the job."""

    kind: ClassVar[EventKind] = EventKind.JOB_CANCELLED
    by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """The script ended as it should; `result` is what it handed over."""

    kind: ClassVar[EventKind] = EventKind.JOB_COMPLETED
    result: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The script failed at `step`, or a rule gave the job up (None)."""

    kind: ClassVar[EventKind] = EventKind.JOB_FAILED
    step: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobNotified:
    """The job's owner is about to hear of its begin or end, which is not done again; or (`failed`) this failed,
    and the reason says how."""

    kind: ClassVar[EventKind] = EventKind.JOB_NOTIFIED
    what: MailType
    failed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ScriptChecked:
    """Whether a script trains alike at every size. The fields are those of `malletrain.domain.job.ScriptCheck`."""

    kind: ClassVar[EventKind] = EventKind.SCRIPT_CHECKED
    digest: str
    verdict: ScriptVerdict
    text: str = ""
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class ActionIntent:
    """The daemon is about to act. The row has the action's `type` and fields."""

    kind: ClassVar[EventKind] = EventKind.INTENT
    action: Action


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What became of an action, as in `malletrain.domain.decision.Outcome`. The row has the action's `type` and
    fields as well."""

    kind: ClassVar[EventKind] = EventKind.OUTCOME
    action: Action
    done: bool
    detail: str = ""
    restarts: int | None = field(default=None, metadata=SPARSE)
    preempted: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PilotStarted:
    """Slurm runs a pilot; `node_class` where the site has nodes of several classes. Times as Slurm gave them."""

    kind: ClassVar[EventKind] = EventKind.PILOT_STARTED
    started_at: float | None = None
    ends_at: float | None = None
    node_class: str | None = field(default=None, metadata=SPARSE | {"key": "class"})
    unasked: bool = field(default=False, metadata=SPARSE)  #: the daemon had not released it


@dataclass(frozen=True, slots=True)
class PilotHeld:
    """A pilot is back in the held array; `preempted`: Slurm had taken its node for a main job before that. `left_at`:
    when its node was free, epilog and all, by Slurm (Unix seconds, rounded down); None: not known."""

    kind: ClassVar[EventKind] = EventKind.PILOT_HELD
    preempted: bool = field(default=False, metadata=SPARSE)
    left_at: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PilotSetAside:
    """A pilot's task stays held: somebody changed it, and the reason says how."""

    kind: ClassVar[EventKind] = EventKind.PILOT_ASIDE


@dataclass(frozen=True, slots=True)
class StartsRefused:
    """Slurm refuses the starts of a job's pilots, in the words of the reason; or (`refused` False) does no more."""

    kind: ClassVar[EventKind] = EventKind.STARTS_REFUSED
    refused: bool


@dataclass(frozen=True, slots=True)
class PilotWaits:
    """Slurm has a pilot's task waiting, though the daemon did not release it."""

    kind: ClassVar[EventKind] = EventKind.PILOT_WAITS


@dataclass(frozen=True, slots=True)
class PilotEnded:
    """A pilot's task is consumed, in Slurm's `state`; one of several nodes in a task has no exit of its own.
    `left_at` as of `PilotHeld`."""

    kind: ClassVar[EventKind] = EventKind.PILOT_ENDED
    state: SlurmState = SlurmState.UNKNOWN
    preempted: bool = False
    exit_code: int | None = None
    detail: str | None = field(default=None, metadata=SPARSE)
    left_at: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    kind: ClassVar[EventKind] = EventKind.WORKER_JOINED
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerWarm:
    """A worker can join a world; `stages` are the seconds of each part of its activation."""

    kind: ClassVar[EventKind] = EventKind.WORKER_WARM
    worker: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


#: How the reason of a job begins whose state could not be saved.
UNSAVED_WORDS = "not saved as it left its nodes, so that steps are done again"


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker is out of its world in order, at `step` and with the checkpoint that it `saved` (None: none), if it
    says so; `unsaved`: why it could not save."""

    kind: ClassVar[EventKind] = EventKind.WORKER_LEFT
    worker: str = field(default="", metadata=SPARSE)
    step: int | None = field(default=None, metadata=SPARSE)
    saved: str | None = field(default="", metadata=SPARSE)
    unsaved: str = field(default="", metadata=SPARSE)

    @property
    def unsaved_in_words(self) -> str:
        """What the job's owner should know; "" where nothing went wrong."""
        return f"{UNSAVED_WORDS}: {self.unsaved}" if self.unsaved else ""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is given up. `fenced`: its node is to be taken back, since it may train where it is not heard."""

    kind: ClassVar[EventKind] = EventKind.WORKER_LOST
    worker: str = ""
    how: str = ""
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStuck:
    """A worker's script has made no step for a minute, and is at a place; or (`place` empty) goes on."""

    kind: ClassVar[EventKind] = EventKind.WORKER_STUCK
    worker: str
    place: str = ""

    @property
    def in_words(self) -> str:
        """What the job's owner should know; "" where it goes on."""
        return f"{stuck_words(self.worker)}: it is at {self.place}" if self.place else ""


def stuck_words(worker: str) -> str:
    """How the reason of a job begins that waits for this worker."""
    return f"{worker} makes no step"


@dataclass(frozen=True, slots=True)
class GenerationsReserved:
    """This daemon may give the job's next worlds numbers up to `until`; a later daemon gives only higher ones."""

    kind: ClassVar[EventKind] = EventKind.GENERATIONS_RESERVED
    until: int


@dataclass(frozen=True, slots=True)
class GenerationPublished:
    """A job's next world: the pilots of its `members`, and the samples of a step where the daemon chooses them.
    `switched_by`: "plan", or "fault" where the world before is broken."""

    kind: ClassVar[EventKind] = EventKind.GENERATION
    generation: int
    members: tuple[str, ...]
    switched_by: str = field(default="", metadata=SPARSE)
    batch: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GenerationSwitched:
    """A world of `nodes` trains; the one before stood still for `pause_s`."""

    kind: ClassVar[EventKind] = EventKind.SWITCHED
    generation: int = 0
    nodes: int = 0
    pause_s: float = 0.0
    step: int | None = None
    grew: bool = False


@dataclass(frozen=True, slots=True)
class SamplesReported:
    """A window of training that ended with `step` (`malletrain.wire.messages.Samples`); `total` of the job so far.
    `steady`: nothing else took time in it. `merged`: of how many windows journal upkeep has made this one."""

    kind: ClassVar[EventKind] = EventKind.SAMPLES
    step: int | None = field(default=None, metadata=SPARSE)
    nodes: int = 0
    samples: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    total: float | None = field(default=None, metadata=SPARSE)
    steady: bool = True
    parts: Mapping[str, float] = field(default_factory=dict)
    noise_scale: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    merged: int = field(default=1, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ProbeBegun:
    """A job is kept on `nodes` nodes to be measured."""

    kind: ClassVar[EventKind] = EventKind.PROBE_BEGUN
    nodes: int


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    kind: ClassVar[EventKind] = EventKind.PROBE_ENDED
    nodes: int


@dataclass(frozen=True, slots=True)
class MetricReported:
    """A figure that the training script reported, after `samples` samples."""

    kind: ClassVar[EventKind] = EventKind.METRIC
    name: str
    value: float | None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class DaemonStarted:
    """The `url` that callers know the daemon by; with `--observe` instead the seconds between looks and of a leave,
    and two limits."""

    kind: ClassVar[EventKind] = EventKind.DAEMON_STARTED
    version: str = ""
    pid: int | None = field(default=None, metadata=SPARSE)
    stage: str = field(default="", metadata=SPARSE)  #: as older releases wrote it
    look_s: float = field(default=0.0, metadata=SPARSE)
    leave_s: float = field(default=0.0, metadata=SPARSE)
    keep_idle: int | None = field(default=None, metadata=SPARSE)
    max_pilots: int | None = field(default=None, metadata=SPARSE)
    url: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class DaemonStopped:
    kind: ClassVar[EventKind] = EventKind.DAEMON_STOPPED


@dataclass(frozen=True, slots=True)
class SizesDecided:
    """New sizes by job. `nodes` were shared out (None: written before this was kept) among jobs that held `held`."""

    kind: ClassVar[EventKind] = EventKind.DECIDED
    sizes: Mapping[int, int] = field(default_factory=dict)
    status: str = ""
    objective: float = 0.0
    nodes: int | None = field(default=None, metadata=SPARSE)
    held: Mapping[int, int] = field(default_factory=dict)
    horizon_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BreakerSwitched:
    """The daemon steps back (`open`), and the reason says for which sign of harm; or acts again."""

    kind: ClassVar[EventKind] = EventKind.BREAKER
    open: bool


@dataclass(frozen=True, slots=True)
class NodeAils:
    """Slurm took a node out of service soon after a pilot ended on it."""

    kind: ClassVar[EventKind] = EventKind.NODE_AILS


@dataclass(frozen=True, slots=True)
class SlurmUnavailable:
    """Slurm gave no usable answer; written once until it does again."""

    kind: ClassVar[EventKind] = EventKind.CLUSTER_UNAVAILABLE


@dataclass(frozen=True, slots=True)
class MainJobsStarted:
    """How many main jobs were first seen running; with `--observe` alone."""

    kind: ClassVar[EventKind] = EventKind.MAIN_STARTED
    jobs: int


@dataclass(frozen=True, slots=True)
class MainJobsArrived:
    """Main jobs that a look showed for the first time. Of each its id (an array is one), when it was submitted (Unix
    seconds), its nodes, and how many tasks of it there were."""

    kind: ClassVar[EventKind] = EventKind.MAIN_ARRIVED
    main_jobs: tuple[str, ...]
    submitted_at: tuple[float, ...]
    nodes: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MainJobMet:
    """A main job that pilots made room for, or that has a node which a pilot had until lately.

    Without a node: `main_job` of `user` is given nodes, which the intents name. With one: it runs there since
    `started_at`, and the event's pilot was gone by `left_at`; `preempted`: Slurm had taken the node from it.
    """

    kind: ClassVar[EventKind] = EventKind.MAIN_MET
    main_job: str
    user: str = ""
    submitted_at: float | None = None
    started_at: float | None = None
    left_at: float | None = None
    preempted: bool = False
    #: A better job waited that could not start: only backfill could start this one.
    behind: bool = field(default=False, metadata=SPARSE)
    #: A heterogeneous job that Slurm put off, since it had to preempt a pilot for one of its parts.
    put_off: bool = field(default=False, metadata=SPARSE)
    #: No pilot need have been on its nodes: it waited behind this main job, which pilots had delayed.
    waited_for: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class StraysTakenBack:
    """Jobs of `user` in the harvest partition that are no pilots, `count` of them, are about to be ended; or
    (`failed`) that failed, and the reason says how. `jobs` and `nodes` name the first few."""

    kind: ClassVar[EventKind] = EventKind.STRAYS
    user: str
    count: int = 0
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    failed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PoolCounted:
    """Nodes by use, whenever they changed: `harvested` are held by pilots, `stray` by jobs of the harvest partition
    that are none, `down` not to be had, `reserved` for a reservation or maintenance."""

    kind: ClassVar[EventKind] = EventKind.POOL
    idle: int = 0
    planned: int = 0
    harvested: int = 0
    main: int = 0
    down: int = 0
    reserved: int = field(default=0, metadata=SPARSE)
    stray: int = field(default=0, metadata=SPARSE)

    @property
    def without_main(self) -> int:
        """Nodes without a main job: what there is to harvest."""
        return self.idle + self.planned + self.harvested + self.stray


@dataclass(frozen=True, slots=True)
class HolesOpened:
    """A cohort of nodes that have no main job now; `seen_whole` False: since an unknown time."""

    kind: ClassVar[EventKind] = EventKind.HOLES_OPENED
    nodes: tuple[str, ...]
    seen_whole: bool = True


@dataclass(frozen=True, slots=True)
class HolesEnded:
    """Nodes whose hole is over, `taken` by the main queue or not."""

    kind: ClassVar[EventKind] = EventKind.HOLES_ENDED
    nodes: tuple[str, ...]
    taken: bool


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What an operator asked for: "drain" keeps pilots off `nodes` `until` then (Unix seconds); "ban" refuses the
    user `user` with id `uid` until "unban"."""

    kind: ClassVar[EventKind] = EventKind.OPERATOR
    verb: str
    by: str = ""
    nodes: tuple[str, ...] = ()
    until: float = 0.0
    user: str = field(default="", metadata=SPARSE)
    uid: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class UnknownFact:
    """A row of a kind that a newer release wrote: kept as it is, and folded into nothing."""

    kind: str
    data: Mapping[str, JsonValue]


Payload = (
    JobAnnounced | ArrayAttached | ArrayRefused | TasksAdded
    | JobHeld | JobReleased | JobCancelled | JobCompleted | JobFailed | JobNotified | ScriptChecked
    | ActionIntent | ActionOutcome
    | StartsRefused | PilotStarted | PilotHeld | PilotSetAside | PilotWaits | PilotEnded
    | WorkerJoined | WorkerWarm | WorkerLeft | WorkerLost | WorkerStuck
    | GenerationsReserved | GenerationPublished | GenerationSwitched
    | SamplesReported | MetricReported | ProbeBegun | ProbeEnded
    | DaemonStarted | DaemonStopped | SizesDecided | BreakerSwitched | NodeAils | SlurmUnavailable
    | MainJobsStarted | MainJobsArrived | MainJobMet | StraysTakenBack | PoolCounted
    | HolesOpened | HolesEnded | OperatorRequest | UnknownFact
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One fact. `at` is Unix seconds, `reason` is for people alone, `seq` the journal's number (0: not written)."""

    at: float
    payload: Payload
    job: int | None = None
    pilot: str | None = None
    node: str | None = None
    reason: str = ""
    seq: int = 0

    @property
    def kind(self) -> str:
        """The kind's name; an `EventKind`, unless a newer release wrote the event."""
        return self.payload.kind
