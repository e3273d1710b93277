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
#: Shortest time between two changes of a job that is believed: stalls are divided by it.
MIN_INTERVAL_S = 1e-3


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
MAX_VALID_CURVES = 20_000


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
    if len(_VALID_CURVES) >= MAX_VALID_CURVES:
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
    """How a job runs on nodes of several classes.

    Args:
        curves: samples/s over nodes of one class, by class, in the units of the job's own curve. The job takes no
            nodes of classes that are not named; with none named, every class is as its own curve says.
        current: of its present nodes, how many of which class; where they are not told apart, they count as being of
            whichever class a size is looked at for.
        min: the fewest nodes of a class, where that is more than the job's `min` (memory, for instance).
        spans: it may train on several classes at once, with shares of the batch in proportion to speed, or
        equal_shares: with equal ones, so that the slowest class gates it.
    """

    curves: Mapping[str, Curve] = field(default_factory=dict)
    current: Mapping[str, int] = field(default_factory=dict)
    min: Mapping[str, int] = field(default_factory=dict)
    spans: bool = False
    equal_shares: bool = False

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

    Args:
        id: unique in the problem.
        current: nodes it trains on now, lost ones not counted. It need not be a permitted size.
        min, max: fewest and most nodes it may run on; zero is always permitted too.
        sizes: when given, the only permitted counts; those outside [min, max] are left out.
        weight: multiplies the job's value.
        grow_s, shrink_s: seconds the whole job stands still when it grows or shrinks.
        activate_s: seconds until newly given nodes are ready; the nodes it has train on meanwhile.
        curve: samples/s over nodes.
        remaining_samples: the job's work that is left, in samples; None when it is not known.
        batches: where the batch is free, the curve for each batch size (samples a step), for policies that choose it;
            `curve` is that of the present one.
        synchronous: how it runs on nodes of several classes at once, after TPDS.
        on_classes: how it runs on nodes of several classes, by curves; `synchronous` says what a mixture trains.
        noise_scale: the gradient noise scale, in samples, where the job reports it (policy `goodput`).
        bonus: (size, added value) pairs, in the units of the problem's values: what measuring that size is worth.
        doubt: how wrong the curve may be where the job trains now, relative: it is not shrunk for less.
        must_run: it comes before everything, locks too (it has waited too long, or has a deadline): no nodes cost
            more than all locks are worth, and than all other jobs together can gain.
        due: its deadline, where it has one (policy `deadline`).
        interval_s: mean seconds between two changes of the job's nodes: over so long a stall has to pay. None: over
            the problem's horizon.
        locked: the only size besides zero that it may have, because it is being measured there; zero then costs more
            than all other jobs together can gain, so that the lock holds as long as the nodes are there and no job
            that must run needs them.

    Raises:
        InvalidInput: naming the job and the field.
    """

    id: JobId
    current: int
    min: int
    max: int
    curve: Curve
    sizes: tuple[int, ...] = ()
    weight: float = 1.0
    grow_s: float = 0.0
    shrink_s: float = 0.0
    activate_s: float = 0.0
    remaining_samples: float | None = None
    batches: tuple[tuple[int, Curve], ...] = ()
    noise_scale: float | None = None
    synchronous: Synchronous | None = None
    on_classes: OnClasses | None = None
    bonus: tuple[tuple[int, float], ...] = ()
    locked: int | None = None
    doubt: float = 0.0
    must_run: bool = False
    due: Due | None = None
    interval_s: float | None = None

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
            _finite(f"{here}: interval_s", self.interval_s, least=MIN_INTERVAL_S)
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
class ResizeLimit:
    """At most `at_most` jobs change their size. A job whose present size is not permitted does not count: it must."""

    at_most: int
    name: str = "resizes"

    def __post_init__(self) -> None:
        _count(f"constraint {self.name!r}: at_most", self.at_most)


Constraint = LinearLimit | ResizeLimit


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
    """`node_s` node-seconds are left to these jobs together (an account's, for its period): for policy `budget`.

    Args:
        left: by job, its work that is left, in the units of its demand's curve times seconds; where it is not named,
            what the demand says.
        seconds: how long the budget must last; `arriving`: what will be submitted meanwhile and paid from it too.
    """

    name: str
    jobs: frozenset[JobId]
    node_s: float
    left: Mapping[JobId, float] = field(default_factory=dict)
    seconds: float = 0.0
    arriving: tuple[ArrivingWork, ...] = ()

    def __post_init__(self) -> None:
        _finite(f"budget {self.name!r}: node_s", self.node_s)
        _finite(f"budget {self.name!r}: seconds", self.seconds)
        for job, work in self.left.items():
            _finite(f"budget {self.name!r}: left of {job!r}", work)


@dataclass(frozen=True, slots=True)
class Problem:
    """One sizing problem.

    Args:
        horizon_s: seconds over which gains and costs are weighed; 120 to 600 pay best on measured logs.
        nodes: how many nodes may be used, those that jobs hold now included.
        alpha: 0 takes values as they are; above 0 the objective is alpha-fair over speed-ups O(k)/O(1).
        constraints, budgets: what binds the answer; budgets are for policy `budget`.
        classes: how many of the nodes are of each class, where they differ.
        supply: equally likely numbers of nodes in the time to come, ascending (policy `deadline`).

    Raises:
        InvalidInput: naming the field.
    """

    horizon_s: float
    nodes: int
    jobs: tuple[JobDemand, ...]
    value: Value = Value.ELASTIC
    alpha: float = 0.0
    constraints: tuple[Constraint, ...] = ()
    budgets: tuple[NodeBudget, ...] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    supply: tuple[int, ...] = ()

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
        for nodes in self.supply:
            _count("supply", nodes)
        if list(self.supply) != sorted(self.supply):
            raise InvalidInput("supply", "must ascend")
        ids = set()
        for job in self.jobs:
            if job.id in ids:
                raise InvalidInput(f"job {job.id!r}: id", "is used twice")
            ids.add(job.id)
        for constraint in self.constraints:
            if isinstance(constraint, LinearLimit):
                unknown = [job for job in constraint.coefficients if job not in ids]
                if unknown:
                    raise InvalidInput(f"constraint {constraint.name!r}", f"names the unknown job {unknown[0]!r}")

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
