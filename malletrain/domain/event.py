"""What the journal records: facts in order, never edited. The ledger folds them into what is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class EventKind(StrEnum):
    """Kinds of events, with the keys of their `data`."""

    # A job's life
    JOB_ANNOUNCED = "job_announced"  #: the fields of MalleableJob
    ARRAY_ATTACHED = "array_attached"  #: array_id, tasks: number of tasks, as the owner said: not yet looked at
    ARRAY_REFUSED = "array_refused"  #: array_id, faults: [str]
    TASKS_ADDED = "tasks_added"  #: array_id, tasks: [int]: held array tasks seen in Slurm and found sound
    JOB_HELD = "job_held"  #: by
    JOB_RELEASED = "job_released"  #: by
    JOB_CANCELLED = "job_cancelled"  #: by
    JOB_COMPLETED = "job_completed"  #: result: {..}
    JOB_FAILED = "job_failed"
    # What the daemon meant to do, and what became of it
    INTENT = "intent"  #: action: type, and its fields
    OUTCOME = "outcome"  #: action: type, done, detail; restarts (of a start: Slurm's restart count of the task)
    REFUSAL = "refusal"  #: subject
    # What Slurm showed of a pilot
    PILOT_STARTED = "pilot_started"  #: started_at, ends_at, class (of the node, where the site has several)
    PILOT_HELD = "pilot_held"  #: back in the held array
    PILOT_ASIDE = "pilot_aside"  #: its task stays held: somebody changed it, and the reason says how
    STARTS_REFUSED = "starts_refused"  #: refused: bool: Slurm refuses the job's pilots (reason: why), or no more
    PILOT_WAITS = "pilot_waits"  #: Slurm has it waiting, though nobody released it
    PILOT_ENDED = "pilot_ended"  #: state, preempted: bool, exit_code, detail
    # What workers reported
    WORKER_JOINED = "worker_joined"  #: worker
    WORKER_WARM = "worker_warm"  #: worker, stages: {name: seconds}
    WORKER_LEFT = "worker_left"  #: worker
    WORKER_LOST = "worker_lost"  #: worker, how
    GENERATION = "generation"  #: generation, members: [pilot], switched_by, batch (if chosen); published
    SWITCHED = "switched"  #: generation, nodes, pause_s, step, grew: bool, state_bytes (if told)
    SAMPLES = "samples"  #: nodes, samples, seconds, steps: an undisturbed window; total: so far; noise_scale
    PROBE_BEGUN = "probe_begun"  #: nodes: the size that the job is kept on to be measured
    PROBE_ENDED = "probe_ended"  #: nodes
    METRIC = "metric"  #: name, value, samples: a figure that the training script reported
    # The daemon itself
    DAEMON_STARTED = "daemon_started"  #: version, pid, stage; with --observe: look_s, leave_s, keep_idle, max_pilots
    DAEMON_STOPPED = "daemon_stopped"
    DECIDED = "decided"  #: sizes, status, objective; nodes that were shared out, held: {job: nodes}, horizon_s
    BREAKER = "breaker"  #: open: bool; the reason says which sign of harm there were too many of
    NODE_AILS = "node_ails"  #: Slurm took the node out of service soon after a pilot
    CLUSTER_UNAVAILABLE = "cluster_unavailable"
    MAIN_STARTED = "main_started"  #: jobs: how many main jobs were first seen running; with --observe only
    POOL = "pool"  #: idle, planned, harvested, main, down: node counts, when they changed
    HOLES_OPENED = "holes_opened"  #: nodes: [str]: a cohort, without main job now; seen_whole: False: for longer
    HOLES_ENDED = "holes_ended"  #: nodes: [str], taken: by the main queue?, last_seen: where not seen up to now
    OPERATOR = "operator"  #: verb, by, nodes


@dataclass(frozen=True, slots=True)
class Event:
    """One fact. `at` is Unix seconds, `seq` the journal's number for it (0 before it is written)."""

    at: float
    kind: EventKind
    job: int | None = None
    pilot: str | None = None
    node: str | None = None
    reason: str = ""
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    seq: int = 0
