"""The sizing problem: how many nodes each malleable job gets for the coming horizon, and what an answer is.

Malleable jobs j run on c_j nodes now and may run on k in {0} u permitted_j. Nodes are interchangeable, so only counts
decide: any counts whose sum fits can be reached without moving a job (shrinkers keep a subset, growers take free
ones).

    maximise  sum_j v_j(k_j)    subject to  sum_j k_j <= N  and the side constraints

after Liu et al., BFTrainer (arXiv 2106.12091). What v_j is: `malletrain.sizing.values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from malletrain.domain.decision import SizingStatus
from malletrain.domain.errors import InvalidInput
from malletrain.domain.job import Curve

JobId = int | str

#: The largest node count that is believed. The largest machines of 2026 have about 10^5 nodes.
MAX_NODES = 1_000_000
#: Magnitudes beyond this are taken for nonsense; sums of products of them still fit a float.
MAX_MAGNITUDE = 1e100


class Value(StrEnum):
    """Which formula says what a size is worth (`malletrain.sizing.values`)."""

    ELASTIC = "elastic"  #: samples really trained over the horizon
    BFTRAINER = "bftrainer"  #: the objective as published


def _finite(where: str, number: float, *, least: float = 0.0) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidInput(where, f"must be a number, not {number!r}")
    if not math.isfinite(number) or number < least or number > MAX_MAGNITUDE:
        raise InvalidInput(where, f"must be a finite number of at least {least:g}, not {number!r}")


def _count(where: str, number: int, *, least: int = 0) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(where, f"must be a whole number, not {number!r}")
    if not least <= number <= MAX_NODES:
        raise InvalidInput(where, f"must be between {least} and {MAX_NODES}, not {number}")


#: Curves that were found sound, by identity: a job's curve is looked at once, not at every decision.
_VALID_CURVES: dict[int, Curve] = {}


def _curve(where: str, curve: Curve) -> None:
    if id(curve) in _VALID_CURVES:  # it is kept, so no other curve can have its identity
        return
    before = 0
    for nodes, rate in curve.points:
        _count(where, nodes, least=1)
        if nodes <= before:
            raise InvalidInput(where, f"node counts must rise; {nodes} follows {before}")
        _finite(f"{where} at {nodes} nodes", rate)
        before = nodes
    if len(_VALID_CURVES) >= 20_000:
        _VALID_CURVES.clear()
    _VALID_CURVES[id(curve)] = curve


@dataclass(frozen=True, slots=True)
class Synchronous:
    """A synchronous job on nodes of several classes (Liu et al., TPDS 2024).

    Shares of the batch are in proportion to speed, gradients go round a ring. On n_q nodes of class q, K in all, a
    step takes

        step_samples / sum_q class_rates[q] n_q  +  exchange_s (K - 1) / K     seconds

    `class_rates`: samples/s of one node alone, by class; `exchange_s`: 2 D / r, gradient bytes over bandwidth.
    """

    step_samples: float
    class_rates: Mapping[str, float]
    exchange_s: float = 0.0

    def __post_init__(self) -> None:
        _finite("synchronous: step_samples", self.step_samples)
        _finite("synchronous: exchange_s", self.exchange_s)
        for name, rate in self.class_rates.items():
            _finite(f"synchronous: class_rates of {name!r}", rate)


@dataclass(frozen=True, slots=True)
class OnClasses:
    """How a job runs on nodes of several classes."""

    #: Samples/s by class, in the units of the job's own curve. Classes that are not named it does not take; with none
    #: named, each is as its own curve says.
    curves: Mapping[str, Curve] = field(default_factory=dict)
    #: Its present nodes by class; where they are not told apart, they count as of whichever class is looked at.
    current: Mapping[str, int] = field(default_factory=dict)
    min: Mapping[str, int] = field(default_factory=dict)  #: fewest nodes of a class, where more than the job's `min`
    spans: bool = False  #: it may train on several classes at once, with shares of the batch in proportion to speed
    equal_shares: bool = False  #: with equal ones, so that the slowest class gates it

    def __post_init__(self) -> None:
        for name, curve in self.curves.items():
            _curve(f"on_classes: curve of {name!r}", curve)
        for what, counts in (("current", self.current), ("min", self.min)):
            for name, nodes in counts.items():
                _count(f"on_classes: {what} of {name!r}", nodes)


@dataclass(frozen=True, slots=True)
class Due:
    """A deadline: `samples` are to be trained within `seconds` from now (policy `deadline`)."""

    seconds: float
    samples: float

    def __post_init__(self) -> None:
        _finite("due: seconds", self.seconds)
        _finite("due: samples", self.samples)


@dataclass(frozen=True, slots=True)
class JobDemand:
    """What one job wants, and what a change costs it.

    Raises:
        InvalidInput: naming the job and the field.
    """

    id: JobId  #: unique in the problem
    current: int  #: nodes it trains on now, lost ones not counted; it need not be a permitted size
    min: int  #: fewest nodes it may run on; zero is always permitted too
    max: int
    curve: Curve  #: samples/s over nodes
    sizes: tuple[int, ...] = ()  #: when given, the only permitted counts; those outside [min, max] are left out
    weight: float = 1.0
    grow_s: float = 0.0  #: seconds the whole job stands still when it grows, or shrinks
    shrink_s: float = 0.0
    activate_s: float = 0.0  #: until newly given nodes are ready; the nodes it has train on meanwhile
    remaining_samples: float | None = None
    #: Where the batch is free, the curve for each (samples a step), for policies that choose it; `curve` is of the
    #: present one.
    batches: tuple[tuple[int, Curve], ...] = ()
    noise_scale: float | None = None  #: of gradients, in samples (policy `goodput`)
    synchronous: Synchronous | None = None  #: how it runs on several classes at once, after TPDS
    on_classes: OnClasses | None = None  #: the same, by curves; `synchronous` says what a mixture trains
    bonus: tuple[tuple[int, float], ...] = ()  #: by size what measuring it is worth, in the problem's values
    #: The only size besides zero that it may have, because it is being measured there; zero then costs more than all
    #: other jobs together can gain.
    locked: int | None = None
    doubt: float = 0.0  #: how wrong the curve may be at `current`, relative: it is not shrunk for less
    #: It comes before everything, locks too: no nodes cost more than all locks and all that others can gain.
    must_run: bool = False
    due: Due | None = None
    interval_s: float | None = None  #: mean seconds between two changes, over which a stall has to pay; None: horizon

    def __post_init__(self) -> None:
        if isinstance(self.id, bool) or not isinstance(self.id, int | str):
            raise InvalidInput("job id", f"must be a number or a text, not {self.id!r}")
        here = f"job {self.id!r}"
        for name in ("current", "min", "max"):
            _count(f"{here}: {name}", getattr(self, name))
        if self.min > self.max:
            raise InvalidInput(f"{here}: min", f"{self.min} is above max {self.max}")
        for size in self.sizes:
            _count(f"{here}: sizes", size)
        for name in ("weight", "grow_s", "shrink_s", "activate_s", "doubt", "remaining_samples", "noise_scale"):
            if getattr(self, name) is not None or name not in ("remaining_samples", "noise_scale"):
                _finite(f"{here}: {name}", getattr(self, name))
        if self.interval_s is not None:
            _finite(f"{here}: interval_s", self.interval_s, least=1e-3)  # stalls are divided by it
        for size, added in self.bonus:
            _count(f"{here}: bonus", size, least=1)
            _finite(f"{here}: bonus of size {size}", added)
        if self.locked is not None:
            _count(f"{here}: locked", self.locked, least=1)
            if not self.permits(self.locked):
                raise InvalidInput(f"{here}: locked", f"{self.locked} is not a permitted size")
        _curve(f"{here}: throughput", self.curve)
        for batch, curve in self.batches:
            _count(f"{here}: batches", batch, least=1)
            _curve(f"{here}: throughput at batch {batch}", curve)

    def permits(self, nodes: int) -> bool:
        """Whether the job may run on so many nodes."""
        return nodes == 0 or (self.min <= nodes <= self.max and (not self.sizes or nodes in self.sizes))


@dataclass(frozen=True, slots=True)
class LinearLimit:
    """A side constraint  lower <= sum_j a_j k_j <= upper  over the jobs named in `coefficients` (others count 0)."""

    name: str
    coefficients: Mapping[JobId, float]
    upper: float = math.inf
    lower: float = -math.inf

    def __post_init__(self) -> None:
        for job, a in self.coefficients.items():
            _finite(f"constraint {self.name!r}: coefficient of {job!r}", a, least=-MAX_MAGNITUDE)
        if math.isnan(self.upper) or math.isnan(self.lower):
            raise InvalidInput(f"constraint {self.name!r}", "a bound is not a number")


@dataclass(frozen=True, slots=True)
class ArrivingWork:
    """A job such as a budget's accounts submit, for what is to come: `work_s` seconds on one node arrive with each,
    `per_s` of them a second. `curve`: speed-ups over nodes, at the sizes that it may have."""

    curve: Curve
    work_s: float
    per_s: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("work_s", "per_s", "weight"):
            _finite(f"arriving work: {name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """What is left to these jobs together (an account's, for its period): for policy `budget`."""

    name: str
    jobs: frozenset[JobId]
    node_s: float
    #: By job, its work that is left, in the units of its curve times seconds; else what the demand says.
    left: Mapping[JobId, float] = field(default_factory=dict)
    seconds: float = 0.0  #: how long the budget must last
    arriving: tuple[ArrivingWork, ...] = ()  #: what will be submitted meanwhile and paid from it too

    def __post_init__(self) -> None:
        _finite(f"budget {self.name!r}: node_s", self.node_s)
        _finite(f"budget {self.name!r}: seconds", self.seconds)
        for job, work in self.left.items():
            _finite(f"budget {self.name!r}: left of {job!r}", work)


@dataclass(frozen=True, slots=True)
class Problem:
    """One sizing problem.

    Raises:
        InvalidInput: naming the field.
    """

    horizon_s: float  #: over which gains and costs are weighed; 120 to 600 pay best on measured logs
    nodes: int  #: that may be used, those that jobs hold now included
    jobs: tuple[JobDemand, ...]
    value: Value = Value.ELASTIC
    alpha: float = 0.0  #: above 0 the objective is alpha-fair over speed-ups O(k)/O(1)
    constraints: tuple[LinearLimit, ...] = ()
    budgets: tuple[NodeBudget, ...] = ()  #: for policy `budget`
    classes: Mapping[str, int] = field(default_factory=dict)  #: nodes of each class, where they differ

    def __post_init__(self) -> None:
        _finite("horizon_s", self.horizon_s)
        _count("nodes", self.nodes)
        _finite("alpha", self.alpha)
        if self.value not in (*Value,):
            raise InvalidInput("value", f"must be one of {', '.join(Value)}, not {self.value!r}")
        for name, nodes in self.classes.items():
            _count(f"classes: {name!r}", nodes)
        if self.classes and sum(self.classes.values()) != self.nodes:
            raise InvalidInput("classes", f"add up to {sum(self.classes.values())} nodes, not {self.nodes}")
        ids = set()
        for demand in self.jobs:
            if demand.id in ids:
                raise InvalidInput(f"job {demand.id!r}: id", "is used twice")
            ids.add(demand.id)
        for limit in self.constraints:
            for job in limit.coefficients:
                if job not in ids:
                    raise InvalidInput(f"constraint {limit.name!r}", f"names the unknown job {job!r}")

    def in_order(self) -> tuple[JobDemand, ...]:
        """The jobs by id, numbers before texts: the order of every table and of every tie."""
        if all(type(job.id) is int for job in self.jobs):
            return tuple(sorted(self.jobs, key=attrgetter("id")))
        return tuple(sorted(self.jobs, key=lambda job: id_order(job.id)))


def id_order(job: JobId) -> tuple[bool, int, str]:
    """Sort key of job ids: numbers by value, then texts."""
    return (True, 0, job) if isinstance(job, str) else (False, job, "")


@dataclass(frozen=True, slots=True)
class Sizes:
    """An answer: nodes for every job of the problem.

    `objective` is what the sizes are worth by the problem's own values; `bound` what no sizes can exceed (infinite
    when the policy proves none). `reason` says in one line how the answer came about; `work` counts what the solver
    did (never seconds, so that equal inputs give equal answers). `batches`: samples a step, where a policy chooses
    it; `classes`: of each job's nodes, how many of which class, where a policy tells classes apart.
    """

    status: SizingStatus
    objective: float
    bound: float
    sizes: Mapping[JobId, int]
    reason: str
    work: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[JobId, int] = field(default_factory=dict)
    classes: Mapping[JobId, Mapping[str, int]] = field(default_factory=dict)
