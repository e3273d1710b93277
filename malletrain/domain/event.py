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


#: The class of each kind of fact.
FACTS: dict[str, type[Fact]] = {}


@dataclass(frozen=True, slots=True)
class Fact:
    """What was recorded, of one kind."""

    kind: ClassVar[EventKind]

    def __init_subclass__(cls, kind: EventKind | None = None) -> None:
        if kind is not None:  # None: `dataclass` makes the class anew, with slots
            cls.kind = kind
        FACTS[cls.kind] = cls


@dataclass(frozen=True, slots=True)
class JobAnnounced(Fact, kind=EventKind.JOB_ANNOUNCED):
    """A researcher asked for a job. The row has the job's fields."""

    job: MalleableJob


@dataclass(frozen=True, slots=True)
class ArrayAttached(Fact, kind=EventKind.ARRAY_ATTACHED):
    """A job's owner submitted a held array of `tasks` tasks; it is not inspected yet."""

    array_id: int
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class ArrayRefused(Fact, kind=EventKind.ARRAY_REFUSED):
    """An array holds no task that can be a pilot. `gone`: Slurm has none of its tasks."""

    array_id: int
    faults: tuple[str, ...] = ()
    gone: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class TasksAdded(Fact, kind=EventKind.TASKS_ADDED):
    """Held tasks of an array were inspected and found sound: they are pilots."""

    array_id: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobHeld(Fact, kind=EventKind.JOB_HELD):
    """`waits`: for other jobs, until these have come so far; otherwise until its owner releases it."""

    by: str = field(default="", metadata=SPARSE)
    waits: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobReleased(Fact, kind=EventKind.JOB_RELEASED):
    by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobCancelled(Fact, kind=EventKind.JOB_CANCELLED):
    """`by` is empty where a rule, not a person, ended the job."""

    by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobCompleted(Fact, kind=EventKind.JOB_COMPLETED):
    """The script ended as it should; `result` is what it handed over."""

    result: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFailed(Fact, kind=EventKind.JOB_FAILED):
    """The script failed at `step`, or a rule gave the job up (None)."""

    step: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobNotified(Fact, kind=EventKind.JOB_NOTIFIED):
    """The job's owner is about to hear of its begin or end, which is not done again; or (`failed`) this failed,
    and the reason says how."""

    what: MailType
    failed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ScriptChecked(Fact, kind=EventKind.SCRIPT_CHECKED):
    """Whether a script trains alike at every size. The fields are those of `malletrain.domain.job.ScriptCheck`."""

    digest: str
    verdict: ScriptVerdict
    text: str = ""
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class ActionIntent(Fact, kind=EventKind.INTENT):
    """The daemon is about to act. The row has the action's `type` and fields."""

    action: Action


@dataclass(frozen=True, slots=True)
class ActionOutcome(Fact, kind=EventKind.OUTCOME):
    """What became of an action, as in `malletrain.domain.decision.Outcome`. The row has the action's `type` and
    fields as well."""

    action: Action
    done: bool
    detail: str = ""
    restarts: int | None = field(default=None, metadata=SPARSE)
    preempted: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PilotStarted(Fact, kind=EventKind.PILOT_STARTED):
    """Slurm runs a pilot; `node_class` where the site has nodes of several classes. Times as Slurm gave them."""

    started_at: float | None = None
    ends_at: float | None = None
    node_class: str | None = field(default=None, metadata=SPARSE | {"key": "class"})
    unasked: bool = field(default=False, metadata=SPARSE)  #: the daemon had not released it


@dataclass(frozen=True, slots=True)
class PilotHeld(Fact, kind=EventKind.PILOT_HELD):
    """A pilot is back in the held array; `preempted`: Slurm had taken its node for a main job before that. `left_at`:
    when its node was free, epilog and all, by Slurm (Unix seconds, rounded down); None: not known."""

    preempted: bool = field(default=False, metadata=SPARSE)
    left_at: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PilotSetAside(Fact, kind=EventKind.PILOT_ASIDE):
    """A pilot's task stays held: somebody changed it, and the reason says how."""


@dataclass(frozen=True, slots=True)
class StartsRefused(Fact, kind=EventKind.STARTS_REFUSED):
    """Slurm refuses the starts of a job's pilots, in the words of the reason; or (`refused` False) does no more."""

    refused: bool


@dataclass(frozen=True, slots=True)
class PilotWaits(Fact, kind=EventKind.PILOT_WAITS):
    """Slurm has a pilot's task waiting, though the daemon did not release it."""


@dataclass(frozen=True, slots=True)
class PilotEnded(Fact, kind=EventKind.PILOT_ENDED):
    """A pilot's task is consumed, in Slurm's `state`; one of several nodes in a task has no exit of its own.
    `left_at` as of `PilotHeld`."""

    state: SlurmState = SlurmState.UNKNOWN
    preempted: bool = False
    exit_code: int | None = None
    detail: str | None = field(default=None, metadata=SPARSE)
    left_at: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class WorkerJoined(Fact, kind=EventKind.WORKER_JOINED):
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerWarm(Fact, kind=EventKind.WORKER_WARM):
    """A worker can join a world; `stages` are the seconds of each part of its activation."""

    worker: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


#: How the reason of a job begins whose state could not be saved.
UNSAVED_WORDS = "not saved as it left its nodes, so that steps are done again"


@dataclass(frozen=True, slots=True)
class WorkerLeft(Fact, kind=EventKind.WORKER_LEFT):
    """A worker is out of its world in order, at `step` and with the checkpoint that it `saved` (None: none), if it
    says so; `unsaved`: why it could not save."""

    worker: str = field(default="", metadata=SPARSE)
    step: int | None = field(default=None, metadata=SPARSE)
    saved: str | None = field(default="", metadata=SPARSE)
    unsaved: str = field(default="", metadata=SPARSE)

    @property
    def unsaved_in_words(self) -> str:
        """What the job's owner should know; "" where nothing went wrong."""
        return f"{UNSAVED_WORDS}: {self.unsaved}" if self.unsaved else ""


@dataclass(frozen=True, slots=True)
class WorkerLost(Fact, kind=EventKind.WORKER_LOST):
    """A worker is given up. `fenced`: its node is to be taken back, since it may train where it is not heard."""

    worker: str = ""
    how: str = ""
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStuck(Fact, kind=EventKind.WORKER_STUCK):
    """A worker's script has made no step for a minute, and is at a place; or (`place` empty) goes on."""

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
class GenerationsReserved(Fact, kind=EventKind.GENERATIONS_RESERVED):
    """This daemon may give the job's next worlds numbers up to `until`; a later daemon gives only higher ones."""

    until: int


@dataclass(frozen=True, slots=True)
class GenerationPublished(Fact, kind=EventKind.GENERATION):
    """A job's next world: the pilots of its `members`, and the samples of a step where the daemon chooses them.
    `switched_by`: "plan", or "fault" where the world before is broken."""

    generation: int
    members: tuple[str, ...]
    switched_by: str = field(default="", metadata=SPARSE)
    batch: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GenerationSwitched(Fact, kind=EventKind.SWITCHED):
    """A world of `nodes` trains; the one before stood still for `pause_s`."""

    generation: int = 0
    nodes: int = 0
    pause_s: float = 0.0
    step: int | None = None
    grew: bool = False


@dataclass(frozen=True, slots=True)
class SamplesReported(Fact, kind=EventKind.SAMPLES):
    """A window of training that ended with `step` (`malletrain.wire.messages.Samples`); `total` of the job so far.
    `steady`: nothing else took time in it. `merged`: of how many windows journal upkeep has made this one."""

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
class ProbeBegun(Fact, kind=EventKind.PROBE_BEGUN):
    """A job is kept on `nodes` nodes to be measured."""

    nodes: int


@dataclass(frozen=True, slots=True)
class ProbeEnded(Fact, kind=EventKind.PROBE_ENDED):
    nodes: int


@dataclass(frozen=True, slots=True)
class MetricReported(Fact, kind=EventKind.METRIC):
    """A figure that the training script reported, after `samples` samples."""

    name: str
    value: float | None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class DaemonStarted(Fact, kind=EventKind.DAEMON_STARTED):
    """The `url` that callers know the daemon by; with `--observe` instead the seconds between looks and of a leave,
    and two limits."""

    version: str = ""
    pid: int | None = field(default=None, metadata=SPARSE)
    stage: str = field(default="", metadata=SPARSE)  #: as older releases wrote it
    look_s: float = field(default=0.0, metadata=SPARSE)
    leave_s: float = field(default=0.0, metadata=SPARSE)
    keep_idle: int | None = field(default=None, metadata=SPARSE)
    max_pilots: int | None = field(default=None, metadata=SPARSE)
    url: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class DaemonStopped(Fact, kind=EventKind.DAEMON_STOPPED):
    """In order; one that was killed writes nothing."""


@dataclass(frozen=True, slots=True)
class SizesDecided(Fact, kind=EventKind.DECIDED):
    """New sizes by job. `nodes` were shared out (None: written before this was kept) among jobs that held `held`."""

    sizes: Mapping[int, int] = field(default_factory=dict)
    status: str = ""
    objective: float = 0.0
    nodes: int | None = field(default=None, metadata=SPARSE)
    held: Mapping[int, int] = field(default_factory=dict)
    horizon_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BreakerSwitched(Fact, kind=EventKind.BREAKER):
    """The daemon steps back (`open`), and the reason says for which sign of harm; or acts again."""

    open: bool


@dataclass(frozen=True, slots=True)
class NodeAils(Fact, kind=EventKind.NODE_AILS):
    """Slurm took a node out of service soon after a pilot ended on it."""


@dataclass(frozen=True, slots=True)
class SlurmUnavailable(Fact, kind=EventKind.CLUSTER_UNAVAILABLE):
    """Slurm gave no usable answer; written once until it does again."""


@dataclass(frozen=True, slots=True)
class MainJobsStarted(Fact, kind=EventKind.MAIN_STARTED):
    """How many main jobs were first seen running; with `--observe` alone."""

    jobs: int


@dataclass(frozen=True, slots=True)
class MainJobsArrived(Fact, kind=EventKind.MAIN_ARRIVED):
    """Main jobs that a look showed for the first time. Of each its id (an array is one), when it was submitted (Unix
    seconds), its nodes, and how many tasks of it there were."""

    main_jobs: tuple[str, ...]
    submitted_at: tuple[float, ...]
    nodes: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MainJobMet(Fact, kind=EventKind.MAIN_MET):
    """A main job that pilots made room for, or that has a node which a pilot had until lately.

    Without a node: `main_job` of `user` is given nodes, which the intents name. With one: it runs there since
    `started_at`, and the event's pilot was gone by `left_at`; `preempted`: Slurm had taken the node from it.
    """

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
class StraysTakenBack(Fact, kind=EventKind.STRAYS):
    """Jobs of `user` in the harvest partition that are no pilots, `count` of them, are about to be ended; or
    (`failed`) that failed, and the reason says how. `jobs` and `nodes` name the first few."""

    user: str
    count: int = 0
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    failed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PoolCounted(Fact, kind=EventKind.POOL):
    """Nodes by use, whenever they changed: `harvested` are held by pilots, `stray` by jobs of the harvest partition
    that are none, `down` not to be had, `reserved` for a reservation or maintenance."""

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
class HolesOpened(Fact, kind=EventKind.HOLES_OPENED):
    """A cohort of nodes that have no main job now; `seen_whole` False: since an unknown time."""

    nodes: tuple[str, ...]
    seen_whole: bool = True


@dataclass(frozen=True, slots=True)
class HolesEnded(Fact, kind=EventKind.HOLES_ENDED):
    """Nodes whose hole is over, `taken` by the main queue or not."""

    nodes: tuple[str, ...]
    taken: bool


@dataclass(frozen=True, slots=True)
class OperatorRequest(Fact, kind=EventKind.OPERATOR):
    """What an operator asked for: "drain" keeps pilots off `nodes` `until` then (Unix seconds); "ban" refuses the
    user `user` with id `uid` until "unban"."""

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


Payload = Fact | UnknownFact


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
