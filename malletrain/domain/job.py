"""Malleable jobs, their pilots and their worlds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from malletrain.domain.decision import SPARSE, LeaveCause
from malletrain.domain.snapshot import SlurmState


class JobPhase(StrEnum):
    """Where a malleable job is in its life."""

    ANNOUNCED = "announced"  #: known to the daemon, its Slurm array not yet seen
    QUEUED = "queued"  #: waits for nodes
    RUNNING = "running"  #: has a world that trains
    HELD = "held"  #: its owner asked for a pause
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELLED)


class Elastic(StrEnum):
    """How a job takes another size."""

    LIVE = "live"  #: in process
    RESTART = "restart"  #: by checkpoint and relaunch
    TASKS = "tasks"  #: its nodes work on independent items, and do not see it


class ScriptVerdict(StrEnum):
    """Whether a script trains alike at every size, by `malletrain check`."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ScriptCheck:
    """What a check of a job's script has found, in its first sentence. `digest`: of the script, its arguments and
    data, and the releases that it ran with; `nodes`: of the job from then on, if it keeps its size."""

    digest: str
    verdict: ScriptVerdict
    text: str = ""
    nodes: int = 0

    def why_fixed(self) -> str:
        """What the owner of a job that keeps its size should know."""
        return (
            f"stays at {self.nodes} nodes, or none: its script trains otherwise at other sizes ({self.text}): "
            "`malletrain check` says more; mend it, or submit it with --trust or --elastic=restart"
        )


class DependencyKind(StrEnum):
    """What must have become of another job before a job may begin; the words are Slurm's."""

    AFTER = "after"  #: it has begun to train, or is over
    AFTER_ANY = "afterany"  #: it is over
    AFTER_OK = "afterok"  #: it has completed
    AFTER_NOT_OK = "afternotok"  #: it has failed or was cancelled


class MailType(StrEnum):
    """What the owner gets messages about; the words are Slurm's (sbatch --mail-type)."""

    BEGIN = "begin"  #: it has begun to train
    END = "end"  #: it is over, however
    FAIL = "fail"  #: it has failed


class Profile(StrEnum):
    """How a job's scalability is learnt."""

    NONE = "none"  #: not at all: it is taken to scale perfectly
    PASSIVE = "passive"  #: from the sizes that it gets anyway
    ACTIVE = "active"  #: sizes that are worth knowing are tried
    DOWNWARD = "downward"  #: each halving of its first size is tried, from large to small (MalleTrain's order)
    GIVEN = "given"  #: its owner's curve is believed


@dataclass(frozen=True, slots=True)
class Curve:
    """Throughput over node count: `points` are (nodes, samples/s), sorted, above zero.

    Linear between points and from (0, 0); constant beyond the last (the contract of `malletrain plan`).
    """

    points: tuple[tuple[int, float], ...]

    def throughput(self, nodes: int) -> float:
        """Samples/s on `nodes` nodes; 0 on none."""
        below_n, below_rate = 0, 0.0
        for n, rate in self.points:
            if nodes <= n:
                return below_rate + (rate - below_rate) * (nodes - below_n) / (n - below_n)
            below_n, below_rate = n, rate
        return below_rate

    @property
    def of_one(self) -> float:
        """Throughput on one node, never 0: where it is, the first positive point's share; 1 where nothing trains."""
        nodes, rate = next(((n, rate) for n, rate in self.points if rate > 0), (1, 1.0))
        return self.throughput(1) or rate / nodes

    def best_size(self, most: int) -> int:
        """The fewest nodes up to `most` with the highest throughput: more are of no use."""
        sizes = [n for n, _ in self.points if n <= most]
        return max([*sizes, most], key=lambda n: (self.throughput(n), -n))

    def over_one(self) -> Curve:
        """The same in speed-ups over one node; as it is where nothing trains on one."""
        return self.over(self.throughput(1) or 1.0)

    def over(self, rate: float) -> Curve:
        """The same in multiples of `rate` samples/s."""
        return Curve(tuple((n, each / rate) for n, each in self.points))

    @staticmethod
    def linear(max_nodes: int, rate_of_one: float = 1.0) -> Curve:
        """Perfect scaling up to `max_nodes`: what is assumed of a job without measurements."""
        return Curve(((max(1, max_nodes), rate_of_one * max(1, max_nodes)),))


@dataclass(frozen=True, slots=True)
class MalleableJob:
    """What a researcher asked for. Node counts are inclusive; `sizes`, when given, lists the only permitted ones."""

    id: int
    name: str
    user: str
    uid: int
    account: str
    min_nodes: int
    max_nodes: int
    submitted_at: float
    sizes: tuple[int, ...] = ()
    weight: float = 1.0
    elastic: Elastic = Elastic.LIVE
    given_curve: Curve | None = None
    total_samples: float | None = None
    profile: Profile | None = None  #: None: as the site has it
    key: str = ""  #: what its owner called the request: asked again with the same, it is the same job
    #: Samples of a step, of all nodes together, that the daemon may choose from; None: the script's own.
    batch_min: int | None = None
    batch_max: int | None = None
    budget_node_s: float | None = None  #: node-seconds after which it ends; None: none
    deadline: float | None = None  #: by when its `total_samples` are to be trained (Unix seconds)
    #: Other jobs of its owner, all of which it waits for before it begins.
    after: tuple[tuple[DependencyKind, int], ...] = field(default=(), metadata=SPARSE)
    #: Patterns of its tasks' output files as in sbatch(1), as absolute paths: of standard output, and of standard
    #: error where that is another.
    output: tuple[str, ...] = field(default=(), metadata=SPARSE)
    #: What the owner gets messages about, and at which address or user name.
    mail: tuple[MailType, ...] = field(default=(), metadata=SPARSE)
    mail_user: str = field(default="", metadata=SPARSE)
    #: Its fewest nodes of classes of nodes, by a word of the class (`malletrain.learn.class_curves.least_on`).
    class_min: tuple[tuple[str, int], ...] = field(default=(), metadata=SPARSE)
    #: Its owner answers for its script: it is not checked, and resized whatever a check has found.
    trusted: bool = field(default=False, metadata=SPARSE)

    def permits(self, nodes: int) -> bool:
        """Whether the job may run on so many nodes. Zero is always permitted."""
        if nodes == 0:
            return True
        return self.min_nodes <= nodes <= self.max_nodes and (not self.sizes or nodes in self.sizes)


_SYMBOL = re.compile(r"%(\d*)([A-Za-z%])")


def output_file(pattern: str, task: str, job: str, user: str, quote: Callable[[str], str] = str) -> str:
    """The file of task `12_3` of the job named `job` by a pattern of sbatch(1), such as `/home/ada/%x-%A_%a.out`; `*`
    for what is not known beforehand, such as the node.

    `quote` is applied to all that is known, as `glob.escape` is for a search.
    """
    array, _, index = task.partition("_")
    known = {"A": array, "a": index, "x": job, "u": user, "%": "%"}
    pieces, at = [], 0
    for symbol in _SYMBOL.finditer(pattern):
        width, letter = symbol.groups()
        value = known.get(letter)
        if value is not None and width and letter in "Aa":
            value = value.zfill(int(width))
        pieces += [quote(pattern[at : symbol.start()]), "*" if value is None else quote(value)]
        at = symbol.end()
    return "".join([*pieces, quote(pattern[at:])])


def keeps_its_size(job: MalleableJob, check: ScriptCheck | None) -> bool:
    """Whether no worker of the job may join or leave while it trains: `malletrain check` has found that the script
    trains otherwise then, and its owner did not submit it with `--trust`."""
    resizes = job.elastic is Elastic.LIVE and not job.trusted
    return resizes and check is not None and check.verdict is ScriptVerdict.DIFFERENT


def terms_of(job: MalleableJob, check: ScriptCheck | None) -> MalleableJob:
    """The job as it may be given nodes: as its owner asked for it, or as many as it keeps."""
    if check is None or not keeps_its_size(job, check):
        return job
    size = size_kept(check.nodes, job.min_nodes, job.max_nodes, job.sizes)
    return replace(job, min_nodes=size, max_nodes=size, sizes=())


def size_kept(nodes: int, least: int, most: int, sizes: Sequence[int]) -> int:
    """The size that a job keeps that trains on `nodes` nodes now: these where it may have them, else its fewest."""
    if nodes and least <= nodes <= most and (not sizes or nodes in sizes):
        return nodes
    return min(sizes, default=least)


class PilotPhase(StrEnum):
    """Where a pilot, one task of a held array, is in its life."""

    HELD = "held"  #: waits in the held array, for a hole
    RELEASED = "released"  #: pinned, limited and released; Slurm has not started it yet
    RUNNING = "running"  #: Slurm runs it
    LEAVING = "leaving"  #: its worker was asked to leave the world
    RECYCLING = "recycling"  #: requeued, its node is being freed
    ASIDE = "aside"  #: held, but no longer what a pilot must be: somebody changed it
    ENDED = "ended"  #: consumed: this task will not come back


#: Such a pilot holds a node, or is about to.
ACTIVE_PHASES = frozenset({PilotPhase.RELEASED, PilotPhase.RUNNING, PilotPhase.LEAVING, PilotPhase.RECYCLING})


def task_of(pilot: str) -> str:
    """The Slurm task, `123_4`, that a pilot lives in."""
    return pilot.partition("+")[0]


def part_of(pilot: str) -> int:
    """Which node of its task a pilot holds, from 0."""
    part = pilot.partition("+")[2]
    return int(part) if part.isascii() and part.isdigit() else 0


def pilot_name(task: str, part: int) -> str:
    """The reverse of `task_of` and `part_of`."""
    return f"{task}+{part}" if part else task


@dataclass(frozen=True, slots=True)
class Pilot:
    """One node, held for one malleable job for one hole. `id` is the Slurm task's that holds it, `123_4`; of a task
    that holds several nodes it is the first pilot's, and the others are `123_4+1`, `123_4+2`, ...: they come and go
    with it, and wait in no array."""

    id: str
    job_id: int
    phase: PilotPhase
    since: float  #: when it entered its phase (Unix seconds)
    node: str = ""
    started_at: float | None = None
    ends_at: float | None = None  #: when its time limit runs out (Unix seconds)
    leave_by: float | None = None  #: one that was asked to leave is recycled then, whether it has left or not
    leave_cause: LeaveCause | None = None
    reason: str = ""
    ended_as: SlurmState | None = None
    ready: bool = False  #: its worker is warm, or trains
    replaces: str = ""  #: the pilot of a slow worker that it was started for
    node_class: str = ""  #: where the site has several
    restarts: int | None = None  #: Slurm's restart count of its present run, where it is known
    idle_since: float | None = None  #: since when it runs and no worker of it has joined or trained; None: one has
    preempted: bool = False  #: Slurm had taken its node for a main job when it was recycled
    unheard: bool = False  #: of a task of several nodes: its worker was warm and is lost, and may train on unheard
    was_warm: bool = False  #: its worker has been ready since it started
    asked_on: str = ""  #: of one that is held, the node of a start whose outcome is not known
    unasked: bool = False  #: it runs, and the daemon had not released it

    @property
    def is_active(self) -> bool:
        return self.phase in ACTIVE_PHASES

    @property
    def task(self) -> str:
        """The Slurm task that it lives in."""
        return task_of(self.id)

    @property
    def is_part(self) -> bool:
        """Whether it is a further one of a task that holds several nodes."""
        return "+" in self.id


@dataclass(frozen=True, slots=True)
class PilotEnd:
    """How a pilot ended, as Slurm tells it; `state` UNKNOWN: Slurm has forgotten it. `held`: it has not ended but
    waits in the held array again."""

    state: SlurmState
    preempted: bool = False
    held: bool = False
    exit_code: int | None = None
    detail: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the task is consumed: it will not run again."""
        return self.state not in (SlurmState.PENDING, SlurmState.RUNNING)


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """A held array, looked at before its tasks are trusted: the sound tasks, and what is wrong with the others.
    `gone`: Slurm has no such array of the job's user, or has it no more."""

    array_id: int
    tasks: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    gone: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """The workers that train together: `members` are pilot ids in rank order."""

    job_id: int
    generation: int
    members: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True)
class ThroughputSample:
    """A window of undisturbed training in `steps` steps (0: not known). `node_class`: of its nodes, where the site
    has several; joined by " + " where they differ."""

    at: float
    nodes: int
    samples: float
    seconds: float
    steps: int
    node_class: str = ""

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


@dataclass(frozen=True, slots=True)
class ResizeCosts:
    """Seconds that a change of size costs a job: `activate_s` a node's start until its worker is warm (the old
    world trains on), `grow_s` and `shrink_s` the stall of the whole world; `start_s` what Slurm takes from a
    pilot's release until it runs (its cycle, the prolog), before activation begins; `loss_s` the stall when a node is
    lost without warning, which no change is charged with."""

    activate_s: float = 5.0
    grow_s: float = 0.3
    shrink_s: float = 0.1
    start_s: float = 0.0
    loss_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Probe:
    """A job is kept on `nodes` nodes since `since` (Unix seconds) to be measured there. `windows` came in so far;
    `reached`: it has trained on so many nodes since."""

    nodes: int
    since: float
    windows: int = 0
    reached: bool = False


@dataclass(frozen=True)
class JobView:
    """All that is known of one job at one moment; it lives, with what is derived of it, until its job changes."""

    job: MalleableJob
    phase: JobPhase
    pilots: Mapping[str, Pilot] = field(default_factory=dict)
    world: World | None = None
    curve: Curve | None = None
    costs: ResizeCosts = ResizeCosts()
    samples_done: float = 0.0
    reason: str = ""
    topped_up_at: float | None = None
    failures: int = 0  #: pilots that failed one after the other before any worker was ready
    nodes_since: float = 0.0  #: since when it has nodes, or has none though it wants some (Unix seconds)
    waited_s: float = 0.0  #: how long it had waited for the nodes that it has now
    batches: tuple[tuple[int, Curve], ...] = ()  #: samples/s by batch, where the daemon chooses it and knows enough
    noise_scale: float | None = None  #: the gradient noise scale that it reports, in samples
    curve_refuted: str = ""  #: how measurements contradict the curve that its owner gave
    committed_at: float | None = None  #: when steps were last reported (Unix seconds)
    waits: bool = False  #: held until other jobs have come so far
    costs_from: str = field(default="", compare=False)  #: whose changes have shown `costs`, in words
    array_gone: str = ""  #: why it has no task and will get none: Slurm does not have its array
    #: When its first world began and when others followed, of the latest (Unix seconds, ascending).
    worlds_at: tuple[float, ...] = ()
    check: ScriptCheck | None = None  #: of its script; `job` has the one size then that it may have
    fixed: str = ""  #: why it keeps its size

    @property
    def rate_of_one(self) -> float:
        """Samples/s on one node; 1 where that is not known: what turns samples into the units of speed-ups."""
        return (self.curve.throughput(1) if self.curve else 0.0) or 1.0

    @property
    def done_s(self) -> float:
        """Seconds of one node's work that were done."""
        return self.samples_done / self.rate_of_one

    @property
    def left_s(self) -> float | None:
        """Seconds of one node's work that are left; None where that is not known."""
        if self.job.total_samples is None or self.curve is None:
            return None
        return max(self.job.total_samples - self.samples_done, 0.0) / self.rate_of_one

    @cached_property
    def _out(self) -> tuple[Pilot, ...]:
        """Pilots that do not wait: a few of many."""
        held = PilotPhase.HELD
        return tuple([p for p in self.pilots.values() if p.phase is not held])

    @cached_property
    def active(self) -> tuple[Pilot, ...]:
        """Pilots that hold a node or are about to, by id."""
        ended = PilotPhase.ENDED
        return tuple(sorted([p for p in self._out if p.phase is not ended], key=attrgetter("id")))

    @cached_property
    def staying(self) -> tuple[Pilot, ...]:
        """Pilots that hold a node and were not asked to leave."""
        staying = (PilotPhase.RUNNING, PilotPhase.RELEASED)
        return tuple([p for p in self.active if p.phase in staying])

    @cached_property
    def leaving(self) -> tuple[Pilot, ...]:
        """Pilots that still hold a node and were asked to leave it."""
        leaving = (PilotPhase.LEAVING, PilotPhase.RECYCLING)
        return tuple([p for p in self.active if p.phase in leaving])

    @cached_property
    def unsettled(self) -> tuple[Pilot, ...]:
        """Active pilots that are on their way in or out: not simply running."""
        running = PilotPhase.RUNNING
        return tuple([p for p in self.active if p.phase is not running])

    @cached_property
    def co_allocated(self) -> Mapping[str, tuple[Pilot, ...]]:
        """The active pilots of each task that holds several nodes, by task."""
        found: dict[str, list[Pilot]] = {}
        for pilot in self.active:
            if "+" in pilot.id:  # as `is_part`, for hundreds
                found.setdefault(pilot.task, [])
        for pilot in self.active if found else ():
            if pilot.task in found:
                found[pilot.task].append(pilot)
        return {task: tuple(pilots) for task, pilots in found.items()}

    @cached_property
    def held_count(self) -> int:
        """How many pilots wait for a hole."""
        return len(self.pilots) - len(self._out)

    @cached_property
    def held(self) -> tuple[Pilot, ...]:
        """Pilots that wait for a hole, oldest array and lowest task first."""
        held = PilotPhase.HELD
        waiting = sorted([p for p in self.pilots.values() if p.phase is held], key=attrgetter("id"))
        return tuple(sorted(waiting, key=lambda p: len(p.id)))
