"""Answers for people and their programs: one frozen row per job, pilot, node, event, as it travels in JSON.

A reader takes rows of a newer daemon too: keys that it does not know are left out, and keys with a default may be
missing. Times are Unix seconds, durations seconds, rates samples per second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from malletrain.wire.codec import Codec
from malletrain.wire.errors import WireError

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class BadRow(WireError):
    """What came is not the row that was asked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """A value that travels as one JSON object, its fields as keys."""

    def to_json(self) -> dict[str, JsonValue]:
        """A JSON object of the fields; tuples become lists."""
        return _CODEC.to_json(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The row of a JSON object.
        Raises BadRow: a key is missing or its value has another type; names the row and the key."""
        return _CODEC.record(cls, value, cls.__name__)


@dataclass(frozen=True, slots=True)
class PilotRow(Row):
    """One pilot, or held task. `phase` is a word of `domain.job.PilotPhase`."""

    id: str
    phase: str
    node: str = ""
    started_at: float | None = None
    ends_at: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SizeRow(Row):
    """What is known of one size of a job: samples/s and the band around it; `windows`: of training, 0 where it is
    estimated."""

    nodes: int
    rate: float
    low: float
    high: float
    windows: int = 0


@dataclass(frozen=True, slots=True)
class ProfileRow(Row):
    """What is known of a job's scalability. `profile` is a word of `domain.job.Profile`; `noise` the relative scatter
    of a window; `probe_nodes` the size that it is kept on to be measured, if any; `ignored` counts samples that were
    not believed, by reason; `next` says what would be measured next, and why, or why nothing. `costs`: seconds that a
    change of size costs it (start, activation, grow, shrink, loss); `node_class`: of the nodes that the curve holds
    on, where there are several."""

    job: int
    profile: str
    sizes: tuple[SizeRow, ...] = ()
    family: str = ""
    noise: float | None = None
    probe_nodes: int | None = None
    ignored: dict[str, int] = field(default_factory=dict)
    next: str = ""
    costs: dict[str, float] = field(default_factory=dict)
    node_class: str = ""


@dataclass(frozen=True, slots=True)
class JobRow(Row):
    """One malleable job. `nodes` are held by its pilots now, `members` train together in generation `generation`.

    `rate` is that of the last window of training, `mean_pause_s` the mean stall of its `resizes`; `metrics` the last
    value of each figure that the script reported; `held_tasks` the pilots that wait for a hole; `pilots` lists those
    that hold a node or are about to. `check_verdict` says whether its script trains alike at every size (`equal`,
    `different`, `undecided`; empty: not checked), `check_text` why, `check_digest` which script that was; a job that
    is `different` stays at `fixed_nodes`, unless its owner answers for it (`trusted`).
    """

    id: int
    name: str
    user: str
    uid: int
    account: str
    phase: str
    min_nodes: int
    max_nodes: int
    submitted_at: float
    reason: str = ""
    sizes: tuple[int, ...] = ()
    weight: float = 1.0
    elastic: str = "live"
    nodes: int = 0
    members: int = 0
    held_tasks: int = 0
    generation: int = 0
    rate: float = 0.0
    samples: float = 0.0
    total_samples: float | None = None
    node_seconds: float = 0.0
    resizes: int = 0
    mean_pause_s: float | None = None
    max_pause_s: float | None = None
    preemptions: int = 0
    lost_workers: int = 0
    ended_at: float | None = None
    metrics: Mapping[str, JsonValue] = field(default_factory=dict)
    result: Mapping[str, JsonValue] = field(default_factory=dict)
    pilots: tuple[PilotRow, ...] = ()
    batch_min: int | None = None
    batch_max: int | None = None
    batch: int | None = None
    noise_scale: float | None = None
    trusted: bool = False
    check_verdict: str = ""
    check_text: str = ""
    check_digest: str = ""
    fixed_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRow(Row):
    """One node. `state` is a word of `malletrain snapshot`, or `pilot`: then `job` and `pilot` say whose; or `stray`:
    a job of the harvest partition that is no pilot, the `holder`, has it.

    `until` is when the pilot's time limit runs out; `holder` the Slurm job that holds a node of the main queue.
    """

    name: str
    state: str
    job: int | None = None
    pilot: str = ""
    until: float | None = None
    holder: str = ""


@dataclass(frozen=True, slots=True)
class PoolRow(Row):
    """Node counts: `idle`, `planned` for a main job, `harvested` by pilots, held by the `main` queue, `down`,
    `reserved`, `powered_down`, `stray`: held by jobs of the harvest partition that are no pilots."""

    at: float = 0.0
    idle: int = 0
    planned: int = 0
    harvested: int = 0
    main: int = 0
    down: int = 0
    reserved: int = 0
    stray: int = 0
    powered_down: int = 0


@dataclass(frozen=True, slots=True)
class EventRow(Row):
    """One fact of the journal; `kind` and the keys of `data` are those of `domain.event.FACTS`."""

    seq: int
    at: float
    kind: str
    job: int | None = None
    pilot: str | None = None
    node: str | None = None
    reason: str = ""
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecisionRow(Row):
    """The last decision: nodes per job id, and how good the answer is (`optimal`, `feasible`, `fallback`)."""

    at: float = 0.0
    sizes: Mapping[str, JsonValue] = field(default_factory=dict)
    status: str = ""
    objective: float = 0.0


@dataclass(frozen=True, slots=True)
class StatusRow(Row):
    """The whole picture at `at`; `taken_at` is when Slurm was last seen, None before the first look."""

    at: float
    pool: PoolRow
    nodes: tuple[NodeRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    decision: DecisionRow = DecisionRow()
    taken_at: float | None = None
    version: str = ""
    notices: tuple[str, ...] = ()  #: why nothing starts, and what is in the way


@dataclass(frozen=True, slots=True)
class UsageRow(Row):
    """What one account's user was given on one day (UTC, `2026-11-20`): node-seconds that pilots held nodes; `share`:
    their part of all that was given on that day, None where the reader may not see all of it."""

    day: str
    user: str
    account: str
    node_seconds: float
    samples: float = 0.0
    jobs: int = 0
    stays: int = 0
    preemptions: int = 0
    share: float | None = None


@dataclass(frozen=True, slots=True)
class PromiseCostRow(Row):
    """What a bound on the delay of 95 % of main jobs costs: `reserve_nodes` idle in the mean, and the share of what
    could be harvested without a reserve that is left."""

    delay_s: float
    reserve_nodes: float
    harvest_share: float


@dataclass(frozen=True, slots=True)
class PromiseKeptRow(Row):
    """How the promise was kept for the main jobs that arrived from `since` to `until`: `met` of them met pilots,
    `delayed` started later for it. `within`: the share that started at most `bound_s` later, and `at_least` its lower
    confidence bound at the stated chance; None where no bound is promised or no job arrived. `broken` says which
    promise these jobs show to be broken, or ""; `behind`: so many more waited behind these, later by at most
    `behind_longest_s`."""

    since: float
    until: float
    main_jobs: int
    met: int
    delayed: int
    delay_p95_s: float
    delay_mean_s: float
    longest_s: float = 0.0
    bound_s: float | None = None
    within: float | None = None
    at_least: float | None = None
    broken: str = ""
    behind: int = 0
    behind_longest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MainJobDelayRow(Row):
    """One main job that met pilots. It could have started at `could_at` without them, and did at `started_at`;
    `cause` is a word of `loop.trackers.main_jobs.DelayCause`, `reason` says it in words."""

    main_job: str
    user: str
    could_at: float
    started_at: float
    nodes: tuple[str, ...] = ()
    delay_s: float = 0.0
    freed_s: float = 0.0
    preempted: int = 0
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PromiseRow(Row):
    """What the site promises its main queue, what that costs and how it was kept.

    `stated`: the keys of [promise] that are set, seconds and shares; empty: nothing is promised, and the curve shows
    what a promise would cost. `arrivals` main jobs are known, `hour` says which of them count now; `yields`: jobs
    that nodes were freed for, in `freed_median_s`. `steps_back`: how often the daemon has become stricter, the
    last time for `stepped_for`.
    """

    stated: dict[str, float] = field(default_factory=dict)
    arrivals: int = 0
    hour: str = ""
    yields: int = 0
    freed_median_s: float | None = None
    cycle_s: float = 0.0
    reserve_nodes: int | None = None
    reserve_reason: str = ""
    steps_back: int = 0
    stepped_for: str = ""
    pilot_cap: int | None = None
    cap_reason: str = ""
    curve: tuple[PromiseCostRow, ...] = ()
    kept: PromiseKeptRow | None = None
    main_jobs: tuple[MainJobDelayRow, ...] = ()


_CODEC = Codec(BadRow, missing="missing; daemon and command are of different releases")
