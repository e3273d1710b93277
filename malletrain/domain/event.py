"""What the journal records: facts in order, never edited. The ledger folds them into what is known.

A payload's fields are the keys of the row's JSON `data`, in their order (`malletrain.store.encoding`). A new field
has a default, with which older rows are read; one marked `SPARSE` is not written while it has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar

from malletrain.domain.decision import SPARSE, Action
from malletrain.domain.job import MailType, MalleableJob, ScriptVerdict
from malletrain.domain.snapshot import SlurmState

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


#: The class of each kind of fact.
FACTS: dict[str, type[Fact]] = {}


@dataclass(frozen=True, slots=True)
class Fact:
    """What was recorded, of one kind: a word, as the journal's column `kind` has it."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:  # "": `dataclass` makes the class anew, with slots
            cls.kind = kind
        FACTS[cls.kind] = cls


@dataclass(frozen=True, slots=True)
class JobAnnounced(Fact, kind="job_announced"):
    """A researcher asked for a job. The row has the job's fields."""

    job: MalleableJob


@dataclass(frozen=True, slots=True)
class ArrayAttached(Fact, kind="array_attached"):
    """A job's owner submitted a held array of `tasks` tasks; it is not inspected yet."""

    array_id: int
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class ArrayRefused(Fact, kind="array_refused"):
    """An array holds no task that can be a pilot. `gone`: Slurm has none of its tasks."""

    array_id: int
    faults: tuple[str, ...] = ()
    gone: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class TasksAdded(Fact, kind="tasks_added"):
    """Held tasks of an array were inspected and found sound: they are pilots."""

    array_id: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobHeld(Fact, kind="job_held"):
    """`waits`: for other jobs, until these have come so far; otherwise until its owner releases it."""

    by: str = field(default="", metadata=SPARSE)
    waits: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobReleased(Fact, kind="job_released"):
    by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobCancelled(Fact, kind="job_cancelled"):
    """`by` is empty where a rule, not a person, ended the job."""

    by: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobCompleted(Fact, kind="job_completed"):
    """The script ended as it should; `result` is what it handed over."""

    result: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFailed(Fact, kind="job_failed"):
    """The script failed at `step`, or a rule gave the job up (None)."""

    step: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobNotified(Fact, kind="job_notified"):
    """The job's owner is about to hear of its begin or end, which is not done again; or (`failed`) this failed,
    and the reason says how."""

    what: MailType
    failed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ScriptChecked(Fact, kind="script_checked"):
    """Whether a script trains alike at every size. The fields are those of `malletrain.domain.job.ScriptCheck`."""

    digest: str
    verdict: ScriptVerdict
    text: str = ""
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class ActionIntent(Fact, kind="intent"):
    """The daemon is about to act. The row has the action's `type` and fields."""

    action: Action


@dataclass(frozen=True, slots=True)
class ActionOutcome(Fact, kind="outcome"):
    """What became of an action, as in `malletrain.domain.decision.Outcome`. The row has the action's `type` and
    fields as well."""

    action: Action
    done: bool
    detail: str = ""
    restarts: int | None = field(default=None, metadata=SPARSE)
    preempted: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PilotStarted(Fact, kind="pilot_started"):
    """Slurm runs a pilot; `node_class` where the site has nodes of several classes. Times as Slurm gave them."""

    started_at: float | None = None
    ends_at: float | None = None
    node_class: str | None = field(default=None, metadata=SPARSE | {"key": "class"})
    unasked: bool = field(default=False, metadata=SPARSE)  #: the daemon had not released it


@dataclass(frozen=True, slots=True)
class PilotHeld(Fact, kind="pilot_held"):
    """A pilot is back in the held array; `preempted`: Slurm had taken its node for a main job before that. `left_at`:
    when its node was free, epilog and all, by Slurm (Unix seconds, rounded down); None: not known."""

    preempted: bool = field(default=False, metadata=SPARSE)
    left_at: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PilotSetAside(Fact, kind="pilot_aside"):
    """A pilot's task stays held: somebody changed it, and the reason says how."""


@dataclass(frozen=True, slots=True)
class StartsRefused(Fact, kind="starts_refused"):
    """Slurm refuses the starts of a job's pilots, in the words of the reason; or (`refused` False) does no more."""

    refused: bool


@dataclass(frozen=True, slots=True)
class PilotWaits(Fact, kind="pilot_waits"):
    """Slurm has a pilot's task waiting, though the daemon did not release it."""


@dataclass(frozen=True, slots=True)
class PilotEnded(Fact, kind="pilot_ended"):
    """A pilot's task is consumed, in Slurm's `state`; one of several nodes in a task has no exit of its own.
    `left_at` as of `PilotHeld`."""

    state: SlurmState = SlurmState.UNKNOWN
    preempted: bool = False
    exit_code: int | None = None
    detail: str | None = field(default=None, metadata=SPARSE)
    left_at: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class WorkerJoined(Fact, kind="worker_joined"):
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerWarm(Fact, kind="worker_warm"):
    """A worker can join a world; `stages` are the seconds of each part of its activation."""

    worker: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


#: How the reason of a job begins whose state could not be saved.
UNSAVED_WORDS = "not saved as it left its nodes, so that steps are done again"


@dataclass(frozen=True, slots=True)
class WorkerLeft(Fact, kind="worker_left"):
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
class WorkerLost(Fact, kind="worker_lost"):
    """A worker is given up. `fenced`: its node is to be taken back, since it may train where it is not heard."""

    worker: str = ""
    how: str = ""
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStuck(Fact, kind="worker_stuck"):
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
class GenerationsReserved(Fact, kind="generations_reserved"):
    """This daemon may give the job's next worlds numbers up to `until`; a later daemon gives only higher ones."""

    until: int


@dataclass(frozen=True, slots=True)
class GenerationPublished(Fact, kind="generation"):
    """A job's next world: the pilots of its `members`, and the samples of a step where the daemon chooses them.
    `switched_by`: "plan", or "fault" where the world before is broken."""

    generation: int
    members: tuple[str, ...]
    switched_by: str = field(default="", metadata=SPARSE)
    batch: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GenerationSwitched(Fact, kind="switched"):
    """A world of `nodes` trains; the one before stood still for `pause_s`."""

    generation: int = 0
    nodes: int = 0
    pause_s: float = 0.0
    step: int | None = None
    grew: bool = False


@dataclass(frozen=True, slots=True)
class SamplesReported(Fact, kind="samples"):
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
class ProbeBegun(Fact, kind="probe_begun"):
    """A job is kept on `nodes` nodes to be measured."""

    nodes: int


@dataclass(frozen=True, slots=True)
class ProbeEnded(Fact, kind="probe_ended"):
    nodes: int


@dataclass(frozen=True, slots=True)
class MetricReported(Fact, kind="metric"):
    """A figure that the training script reported, after `samples` samples."""

    name: str
    value: float | None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class DaemonStarted(Fact, kind="daemon_started"):
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
class DaemonStopped(Fact, kind="daemon_stopped"):
    """In order; one that was killed writes nothing."""


@dataclass(frozen=True, slots=True)
class SizesDecided(Fact, kind="decided"):
    """New sizes by job. `nodes` were shared out (None: written before this was kept) among jobs that held `held`."""

    sizes: Mapping[int, int] = field(default_factory=dict)
    status: str = ""
    objective: float = 0.0
    nodes: int | None = field(default=None, metadata=SPARSE)
    held: Mapping[int, int] = field(default_factory=dict)
    horizon_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BreakerSwitched(Fact, kind="breaker"):
    """The daemon steps back (`open`), and the reason says for which sign of harm; or acts again."""

    open: bool


@dataclass(frozen=True, slots=True)
class NodeAils(Fact, kind="node_ails"):
    """Slurm took a node out of service soon after a pilot ended on it."""


@dataclass(frozen=True, slots=True)
class SlurmUnavailable(Fact, kind="cluster_unavailable"):
    """Slurm gave no usable answer; written once until it does again."""


@dataclass(frozen=True, slots=True)
class MainJobsStarted(Fact, kind="main_started"):
    """How many main jobs were first seen running; with `--observe` alone."""

    jobs: int


@dataclass(frozen=True, slots=True)
class MainJobsArrived(Fact, kind="main_arrived"):
    """Main jobs that a look showed for the first time. Of each its id (an array is one), when it was submitted (Unix
    seconds), its nodes, and how many tasks of it there were."""

    main_jobs: tuple[str, ...]
    submitted_at: tuple[float, ...]
    nodes: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MainJobMet(Fact, kind="main_met"):
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
    cycle_s: float = field(default=0.0, metadata=SPARSE)  #: of Slurm's backfill then; 0: not known
    #: No pilot need have been on its nodes: it waited behind this main job, which pilots had delayed.
    waited_for: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class StraysTakenBack(Fact, kind="strays"):
    """Jobs of `user` in the harvest partition that are no pilots, `count` of them, are about to be ended; or
    (`failed`) that failed, and the reason says how. `jobs` and `nodes` name the first few."""

    user: str
    count: int = 0
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    failed: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PoolCounted(Fact, kind="pool"):
    """Nodes by use, whenever they changed: `harvested` are held by pilots, `stray` by jobs of the harvest partition
    that are none, `down` not to be had, `reserved` for a reservation or maintenance, `powered_down` by Slurm."""

    idle: int = 0
    planned: int = 0
    harvested: int = 0
    main: int = 0
    down: int = 0
    reserved: int = field(default=0, metadata=SPARSE)
    stray: int = field(default=0, metadata=SPARSE)
    powered_down: int = field(default=0, metadata=SPARSE)

    @property
    def without_main(self) -> int:
        """Nodes without a main job: what there is to harvest."""
        return self.idle + self.planned + self.harvested + self.stray


@dataclass(frozen=True, slots=True)
class HolesOpened(Fact, kind="holes_opened"):
    """A cohort of nodes that have no main job now; `seen_whole` False: since an unknown time."""

    nodes: tuple[str, ...]
    seen_whole: bool = True


@dataclass(frozen=True, slots=True)
class HolesEnded(Fact, kind="holes_ended"):
    """Nodes whose hole is over, `taken` by the main queue or not."""

    nodes: tuple[str, ...]
    taken: bool


@dataclass(frozen=True, slots=True)
class OperatorRequest(Fact, kind="operator"):
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
        """That of a class in `FACTS`, unless a newer release wrote the event."""
        return self.payload.kind

    @property
    def free_at(self) -> float:
        """When a pilot that is held again, or has ended, had left its node: by Slurm, else by the look."""
        left_at = self.payload.left_at if isinstance(self.payload, PilotHeld | PilotEnded) else None
        return self.at if left_at is None else min(left_at, self.at)


def utc(at: float) -> str:
    """Unix seconds as people write them, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
