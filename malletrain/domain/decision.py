"""What was decided: sizes, placement, actions and refusals, each with its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

#: Metadata of a field that the journal leaves out where it has its default.
SPARSE = {"sparse": True}


class LeaveCause(StrEnum):
    """Why a pilot leaves its node."""

    YIELD = "yield"  #: a main job could start on it
    HOLE_CLOSES = "hole_closes"  #: its time is nearly up
    NODE_WANTED = "node_wanted"  #: staff drains, reserves, reboots or powers the node
    SHRINK = "shrink"  #: another job uses the node better
    JOB_OVER = "job_over"  #: its job has finished, was cancelled or is held
    RESERVE = "reserve"  #: too few nodes are idle for the reserve
    STRAGGLER = "straggler"  #: its worker holds up the others
    IDLE = "idle"  #: its job holds nodes, and commits no step
    NO_WORKER = "no_worker"  #: no worker has joined from it, though others of its job train
    SET_ASIDE = "set_aside"  #: its job or user gets no nodes for a while (`loop.trackers.harm_signals`)
    CO_ALLOCATED_GONE = "fellow_gone"  #: its task holds several nodes, and the worker on another of them is gone
    UNASKED = "unasked"  #: its task was released by somebody else
    OPERATOR = "operator"  #: `malletrain drain` or the breaker


#: Who leaves for one of these and is late holds up the main queue or the staff, or has done so too often.
KILLED_WHEN_LATE = frozenset(
    {
        LeaveCause.YIELD,
        LeaveCause.HOLE_CLOSES,
        LeaveCause.NODE_WANTED,
        LeaveCause.RESERVE,
        LeaveCause.OPERATOR,
        LeaveCause.SET_ASIDE,
        LeaveCause.UNASKED,
    }
)


@dataclass(frozen=True, slots=True)
class StartPilot:
    """Pin the held task `pilot` to `node`, limit it to `limit_s` seconds, release it.

    `replaces`: the pilot of a slow worker that leaves once this one is ready.
    """

    job_id: int
    pilot: str
    node: str
    limit_s: float
    reason: str
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class LeavePilot:
    """Ask the worker of `pilot` to leave its world, then recycle the task; at `deadline` recycle it regardless.

    `main_job`: the main job that is given the node, '' where the cause is another.
    """

    job_id: int
    pilot: str
    node: str
    cause: LeaveCause
    deadline: float
    reason: str
    main_job: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CutLimit:
    """Shorten the time limit of the running `pilot` so that it ends by `ends_at`."""

    job_id: int
    pilot: str
    node: str
    ends_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class RecyclePilot:
    """Requeue and hold `pilot` again: its node is free at once, its task serves the next hole."""

    job_id: int
    pilot: str
    node: str
    reason: str
    unstarted: str = ""  #: it never started, and this rests: `job 7` the job, a node the job on this node
    main_job: str = field(default="", metadata=SPARSE)  #: that is given the node
    #: Its payload had its time to leave, and is killed first: SIGTERM would give it Slurm's KillWait once more.
    kill: bool = field(default=False, metadata=SPARSE)
    #: Unstarted because the node lacks what the job asks for, which says nothing of the node for others.
    unfit: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """Cancel the held tasks of a job that is over."""

    job_id: int
    pilots: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TopUp:
    """Have a worker of the job submit `tasks` held tasks more, as the job's owner."""

    job_id: int
    tasks: int
    reason: str


Action = StartPilot | LeavePilot | CutLimit | RecyclePilot | CancelTasks | TopUp

#: What the journal and the metrics call each.
ACTION_NAMES: Mapping[type[Action], str] = {
    StartPilot: "start",
    LeavePilot: "leave",
    CutLimit: "cut",
    RecyclePilot: "recycle",
    CancelTasks: "cancel",
    TopUp: "top_up",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was considered and not done. `subject` is a job (`job 3`), node or pilot."""

    subject: str
    reason: str


class Hole(NamedTuple):  # each look makes one for every node that is free or harvested
    """A node that may be harvested until `until` (Unix seconds), and which plan or reservation says so.

    `cohort`: when it opened, the same for nodes that became idle together (None: where that does not matter).
    """

    node: str
    until: float
    reason: str
    cohort: float | None = None


@dataclass(frozen=True, slots=True)
class Stray:
    """A Slurm job in the harvest partition that is no pilot. `job`: its id as squeue has it; `nodes`: those that it
    holds, none while it waits; `left`: why it is left alone, '' where the daemon takes its nodes back."""

    job: str
    user: str
    nodes: tuple[str, ...] = ()
    left: str = ""


class SizingStatus(StrEnum):
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"  #: an incumbent, not proven best
    FALLBACK = "fallback"  #: no answer: present sizes cut to the live nodes


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one look at the cluster. Nothing has been touched yet. `nodes` were shared out among jobs that
    held `held`, looking `horizon_s` ahead: with what is known of the jobs, all that `sizes` follow from."""

    at: float
    sizes: Mapping[int, int] = field(default_factory=dict)
    nodes: int = 0
    held: Mapping[int, int] = field(default_factory=dict)
    horizon_s: float = 0.0
    reason: str = ""  #: how the sizes came about
    status: SizingStatus = SizingStatus.OPTIMAL
    objective: float = 0.0
    holes: Collection[Hole] = ()
    actions: tuple[Action, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    #: For jobs whose batch is free: (nodes, samples of a step) from so many nodes on, rising.
    batches: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    strays: tuple[Stray, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one action."""

    done: bool
    detail: str = ""  #: Slurm's answer, or why the action was not taken after all
    unfit: bool = False  #: the task is no longer what a pilot must be, since somebody changed it: it is set aside
    refused: bool = False  #: Slurm said no to a sound task (rights, limits, policy): the job rests
    restarts: int | None = None  #: of a start, Slurm's restart count of the task (None: not known)
    preempted: bool = False  #: of a recycling, Slurm had preempted the pilot by then (PreemptTime)
