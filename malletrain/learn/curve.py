"""Samples to scalability curve: which family fits, what it says between and beyond, and how wrong it may be.

Every shape of every family (`malletrain.learn.curve_families`) is weighed by how well it explains the measured
sizes, of the job and of others of its kind (Bayesian model averaging over shapes, kinds, and how far a family may
be off: `malletrain.learn.prior_jobs`, `malletrain.learn.gaussian_process`). The median of the mixture is the curve:
the best estimate of log throughput under absolute error, and one that a few shapes far off do not move. Measured
sizes stay as they were measured; the band holds nine tenths of the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from statistics import median

import numpy as np

from malletrain.domain.job import Curve, ThroughputSample
from malletrain.learn.curve_families import Scaling, grid, width_factor
from malletrain.learn.gaussian_process import (
    Points,
    log_likelihoods,
    normal_quantile,
    posterior_covariance,
    posterior_mean,
)
from malletrain.learn.prior_jobs import MISFITS, Evidence, PriorJobs, kinds
from malletrain.learn.samples import by_class, consistent_rates, scaling_of, since_drift, valid_samples
from malletrain.sizing.values import Floats, Ints

#: Noise of a size's level where it was seen too seldom to tell, relative.
ASSUMED_NOISE = 0.02
#: Standard deviations that are more than noise.
CLEAR_SIGMAS = 1.96
#: What the band leaves out on either side of the mixture (docs/figures.md: how often it held the truth).
BAND_TAIL = 0.05
#: Throughput over nodes has a knee where its exponent between the two largest measured sizes is below this. Beyond
#: it no scenario grows faster than between them, where it is not known whether the total batch is fixed: those with
#: such an exponent whose total batch is fixed seldom steepen again.
KNEE_EXPONENT = 0.7
#: Below this exponent (a doubling of the nodes brings little more than a quarter) no larger size is tried on a guess.
FLAT_EXPONENT = 0.35
#: Of a scenario's deviation from its shape, along the two widest directions: how many standard deviations, and how
#: likely; mean nothing, variance one in each.
_TILT_SIGMAS = 3**0.5
_TILTS = (
    (0.0, 0.0, 1 / 3),
    *((z, 0.0, 1 / 6) for z in (-_TILT_SIGMAS, _TILT_SIGMAS)),
    *((0.0, z, 1 / 6) for z in (-_TILT_SIGMAS, _TILT_SIGMAS)),
)
#: So many scenarios are looked at, at most.
MAX_SCENARIOS = 2048
#: So many shapes, drawn in proportion to their weights, say where the median lies, to 1/512 of the mixture.
MEDIAN_SHAPES = 512
#: Shapes less likely than this part of the likeliest are in no curve.
MIN_RELATIVE_WEIGHT = 1e-3
#: What a job is called whose curve is likely as other jobs of its application have shown.
PRIOR_JOBS = "pooled"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Samples/s on `nodes` nodes, and the band that should hold the truth nine times in ten."""

    nodes: int
    rate: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Half the band over the rate."""
        return (self.high - self.low) / (2 * self.rate)


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """A measured size: the median of its windows."""

    nodes: int
    rate: float
    windows: int


@dataclass(frozen=True)
class _MixturePart:
    """The likely shapes of one kind with one misfit, their weights, and the points that they are bent to."""

    weight: Floats
    shape: Ints
    misfit: float
    points: Points

    @property
    def largest(self) -> int:
        """The largest size among its points; 0 without any."""
        return int(self.points.nodes.max(initial=0))


@dataclass(frozen=True)
class CurveFit:
    """What the samples say.

    `family` is the likeliest one, `probabilities` are all of them, and that the job is as others of its application.
    `ignored` counts samples that were not believed, by reason. `noise` is the relative scatter of windows of one
    size. `node_class` is that of the nodes which all this holds on, where the site has several; `scaling` what the
    windows' batches say.
    """

    family: str
    probabilities: Mapping[str, float]
    measured: tuple[MeasuredSize, ...]
    ignored: Mapping[str, int]
    noise: float
    _parts: tuple[_MixturePart, ...] = field(repr=False, compare=False)
    _curves: dict[int, Curve] = field(repr=False, compare=False, default_factory=dict)  #: by size, as asked for
    node_class: str = ""
    scaling: Scaling | None = None

    @property
    def evidence(self) -> Evidence:
        """What this job tells others of its application."""
        return tuple((m.nodes, m.rate, m.windows, self.noise) for m in self.measured)

    def at(self, sizes: Sequence[int]) -> tuple[Estimate, ...]:
        """Estimates on these sizes, each at least 1."""
        weight, mean, sigma = self._mixture(sizes)
        # The band holds what a measurement would show: at a measured size, the noise of its windows.
        seen = np.array(
            [self.noise / math.sqrt(max(self._windows(n), 1)) if self._windows(n) else 0.0 for n in sizes]
        )
        sigma = np.maximum(sigma, seen)
        # A knee that is smoothed out again is unlikely, and is in the band.
        above = self._mixture(sizes, keeps_knee=False)[1] if self.last_exponent < KNEE_EXPONENT else mean
        low = normal_quantile(weight, mean, sigma, BAND_TAIL)
        high = normal_quantile(weight, above, sigma, 1 - BAND_TAIL)
        centre = _median(weight, mean, sigma)
        exact = {m.nodes: m.rate for m in self.measured}
        found = []
        for n, c, below, above in zip(sizes, centre.tolist(), low.tolist(), high.tolist(), strict=True):
            rate = exact.get(n, self._scale(c))
            width = self.band_width(n, rate)
            less, more = width * min(below - c, 0.0), width * max(above - c, 0.0)
            found.append(Estimate(n, rate, rate * math.exp(less), rate * math.exp(more)))
        return tuple(found)

    def band_width(self, nodes: int, rate: float) -> float:
        """The band's width over the mixture's on so many nodes, where `rate` is expected (samples/s): another beyond
        what was measured, where one node and two sizes more were. With two sizes the mixture is unsure enough."""
        if len(self.measured) < 3 or self.measured[0].nodes > 1 or nodes <= self.seen:
            return 1.0
        return width_factor(self.scaling, rate / (nodes * self.measured[0].rate))

    def rates(self, sizes: Sequence[int]) -> list[float]:
        """Samples/s on these sizes, each at least 1, without the band: that costs more."""
        exact = {m.nodes: m.rate for m in self.measured}
        if all(n in exact for n in sizes):
            return [exact[n] for n in sizes]
        centre = _median(*self._mixture(sizes)).tolist()
        return [exact.get(n, self._scale(c)) for n, c in zip(sizes, centre, strict=True)]

    def scenarios(self, sizes: Sequence[int]) -> tuple[Floats, Floats]:
        """What the curve may be: weights that add up to 1, and samples/s of each scenario (row) on each size."""
        wanted = np.array(sizes, dtype=np.float64)
        bent = self._bent(wanted)
        weight = np.concatenate([part.weight * share for part, _ in bent for _, _, share in _TILTS])
        weight /= weight.sum()
        # As likely as before to 1 / MAX_SCENARIOS, and a tenth of the work for a new job.
        drawn = len(weight) > MAX_SCENARIOS
        kept = _resampled(weight, MAX_SCENARIOS) if drawn else np.arange(len(weight))
        levels, begin = [], 0
        for part, mean in bent:
            value, vector = np.linalg.eigh(posterior_covariance(part.points, wanted, part.misfit))
            wide = vector[:, -2:] * np.sqrt(np.maximum(value[-2:], 0.0))
            for one, two, _ in _TILTS:
                first, last = np.searchsorted(kept, (begin, begin + len(part.weight)))
                rows = mean[kept[first:last] - begin]
                levels.append(rows + one * wide[:, -1] + (two * wide[:, 0] if wide.shape[1] > 1 else 0.0))
                begin += len(part.weight)
        level = np.exp(np.concatenate(levels) + self._level)
        return (np.full(MAX_SCENARIOS, 1 / MAX_SCENARIOS) if drawn else weight), level

    @property
    def seen(self) -> int:
        """The largest size that was measured: on the job, or on those of its application that it is likely like."""
        likely = sorted(((part.largest, float(part.weight.sum())) for part in self._parts), reverse=True)
        reaching = accumulate(weight for _, weight in likely)
        return next(size for (size, _), share in zip(likely, reaching, strict=True) if share >= 0.5)

    @property
    def falls(self) -> bool:
        """Whether the largest measured size trains less than a smaller one, by more than noise.

        One node does not count: the first step beyond a node may cost more than it brings, and the next ones gain.
        """
        rates = [m.rate for m in self.measured if m.nodes > 1]
        return bool(rates) and math.log(rates[-1]) < math.log(max(rates)) - CLEAR_SIGMAS * self.noise

    @property
    def last_exponent(self) -> float:
        """d log throughput / d log nodes between the two largest measured sizes, at most: the windows' noise is
        added. Infinite with fewer than two measured sizes above one node (the first boundary tells nothing of the
        next)."""
        if len(self.measured) < 2 or self.measured[-2].nodes == 1:
            return math.inf
        less, more = self.measured[-2:]
        apart = CLEAR_SIGMAS * self.noise * math.sqrt(1 / less.windows + 1 / more.windows)
        return (math.log(more.rate / less.rate) + apart) / math.log(more.nodes / less.nodes)

    @property
    def flat(self) -> bool:
        """Whether the largest measured size trains hardly more than the one before it, which is no guess."""
        return self.last_exponent < FLAT_EXPONENT

    def curve(self, max_nodes: int) -> Curve:
        """The curve up to `max_nodes`: measured sizes and enough others for straight lines between them."""
        if (kept := self._curves.get(max_nodes)) is not None:
            return kept
        sizes = sorted({m.nodes for m in self.measured}.union(grid_sizes(max_nodes)))
        curve = self._curves[max_nodes] = Curve(tuple(zip(sizes, self.rates(sizes), strict=True)))
        return curve

    @property
    def error_bound(self) -> float:
        """The largest relative error between the smallest and the largest measured size."""
        low, high = self.measured[0].nodes, self.measured[-1].nodes
        sizes = sorted({round(low * (high / low) ** (i / 32)) for i in range(33)})
        return max(e.error for e in self.at(sizes))

    @property
    def _level(self) -> float:
        return math.fsum(math.log(m.rate) for m in self.measured) / max(len(self.measured), 1)

    def _scale(self, level: float) -> float:
        return math.exp(min(max(level + self._level, -500.0), 500.0))

    def _windows(self, nodes: int) -> int:
        return next((m.windows for m in self.measured if m.nodes == nodes), 0)

    def _bent(self, wanted: Floats, keeps_knee: bool = True) -> list[tuple[_MixturePart, Floats]]:
        """Every part, and its shapes bent to pass by the measured points: log samples/s less their mean."""
        found = []
        on_wanted, tables = grid().log_shape(wanted), {}
        # Where the scaling is known its families say how a curve goes on; a curve has a knee for one of two reasons.
        bends = keeps_knee and self.scaling is None
        exponent = 0.0 if self.falls else self.last_exponent if bends else math.inf
        for part in self._parts:
            key = id(part.points)
            if key not in tables:
                tables[key] = grid().log_shape(part.points.nodes)
            mean = posterior_mean(part.points, tables[key][part.shape], wanted, on_wanted[part.shape], part.misfit)
            if exponent < KNEE_EXPONENT and part.largest <= self.measured[-1].nodes:
                # What has begun to fall is not expected to rise again, nor what has bent to grow faster, unless
                # others of its kind have been seen to.
                beyond = np.log(np.maximum(wanted / self.measured[-1].nodes, 1.0))
                most = math.log(self.measured[-1].rate) - self._level + max(exponent, 0.0) * beyond
                mean = np.where(beyond > 0, np.minimum(mean, most), mean)
            found.append((part, mean))
        return found

    def _mixture(self, sizes: Sequence[int], keeps_knee: bool = True) -> tuple[Floats, Floats, Floats]:
        """Weights, means and standard deviations (rows: shapes of all parts) on the sizes. `keeps_knee`: beyond a
        measured knee no shape grows faster than at it, where the scaling is not known."""
        wanted = np.array(sizes, dtype=np.float64)
        bent = self._bent(wanted, keeps_knee)
        weight = np.concatenate([part.weight for part, _ in bent])
        mean = np.concatenate([mean for _, mean in bent])
        sigma = []
        for part, of_shapes in bent:
            variance = np.diag(posterior_covariance(part.points, wanted, part.misfit))
            sigma.append(np.broadcast_to(np.sqrt(np.maximum(variance, 0.0)), of_shapes.shape))
        return weight, mean, np.concatenate(sigma)


def _median(weight: Floats, mean: Floats, sigma: Floats) -> Floats:
    """Of each column's mixture of normals; where there are many shapes, of a sample of them."""
    if len(weight) > MEDIAN_SHAPES:
        drawn = _resampled(weight, MEDIAN_SHAPES)
        weight, mean, sigma = np.full(MEDIAN_SHAPES, 1 / MEDIAN_SHAPES), mean[drawn], sigma[drawn]
    return normal_quantile(weight, mean, sigma, 0.5)


def _resampled(weight: Floats, count: int) -> Ints:
    """`count` places drawn in proportion to their weights, which add up to 1 (systematic resampling)."""
    at = (np.arange(count) + 0.5) / count
    return np.searchsorted(np.cumsum(weight), at).clip(max=len(weight) - 1)


def grid_sizes(most: int) -> Sequence[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`: enough for straight lines between them."""
    sizes = {1, max(1, most)}
    size = 2
    while size <= most:
        sizes |= {size, min(size + size // 2, most)}
        size *= 2
    return sorted(sizes)


def fit_curve(samples: Iterable[ThroughputSample], prior_jobs: PriorJobs | None = None) -> CurveFit | None:
    """The curve of a job from its windows of training; None while no sample can be believed.

    `prior_jobs` is what other jobs of its application have measured. Where throughput has changed at the same size
    (another phase, a slower network), the windows from before do not count: sizes that were measured then are to be
    measured again. What was measured on nodes of another class counts as another run of the application. The windows'
    batches say whether the total batch or the batch a node is fixed, and with it which families are likely.
    """
    kept, ignored = valid_samples(samples)
    kept, elsewhere = by_class(kept)
    for windows_there in elsewhere:
        prior_jobs = _as_another_run(windows_there, prior_jobs)
    if elsewhere:
        ignored["on nodes of another class: the shape counts, the level does not"] = sum(map(len, elsewhere))
    before, now = since_drift(kept)
    windows, more = consistent_rates(now)
    if not windows:
        return None
    ignored |= more
    if before:
        ignored["from before its throughput changed"] = len(before)
    found = _fit(_measured(windows), _scatter(windows), prior_jobs, scaling_of(now))
    return replace(found, ignored=dict(sorted(ignored.items())), node_class=kept[-1].node_class)


def _measured(windows: Mapping[int, Sequence[float]]) -> tuple[MeasuredSize, ...]:
    return tuple(MeasuredSize(n, median(rates), len(rates)) for n, rates in sorted(windows.items()))


def _as_another_run(samples: Iterable[ThroughputSample], prior_jobs: PriorJobs | None) -> PriorJobs | None:
    windows, _ = consistent_rates(samples)
    if len(windows) < 2:
        return prior_jobs
    noise = _scatter(windows)
    run = tuple((m.nodes, m.rate, m.windows, noise) for m in _measured(windows))
    return PriorJobs((*(prior_jobs.jobs if prior_jobs else ()), run))


def expected_speedup(prior_jobs: PriorJobs, max_nodes: int) -> Curve:
    """The speed-up up to `max_nodes` of a job without measurements, by others of its application; 1 on one."""
    curve = _fit((), ASSUMED_NOISE, prior_jobs).curve(max_nodes)
    return Curve(tuple((n, rate / curve.points[0][1]) for n, rate in curve.points))


def shared_evidence(found: CurveFit | None, before: Evidence) -> Evidence:
    """What a job tells others of its application: nothing before two sizes are measured; the same as before until
    another size is, or one has twice the windows, so that nobody has to look again at every window."""
    if found is None or len(found.measured) < 2:
        return ()
    now = found.evidence
    same = [(n, windows.bit_length()) for n, _, windows, _ in now] == [(n, w.bit_length()) for n, _, w, _ in before]
    return before if same else now


@lru_cache(maxsize=128)  # jobs of a trace, and simulated ones, measure the same
def _fit(
    measured: tuple[MeasuredSize, ...], noise: float, prior_jobs: PriorJobs | None, scaling: Scaling | None = None
) -> CurveFit:
    own = Points.of([(0, [(m.nodes, m.rate, m.windows, noise) for m in measured])])
    found: list[tuple[Floats, Ints, Points, bool]] = []
    for kind in kinds(prior_jobs, scaling):
        points = own.and_also(kind.points)
        table = grid().log_shape(points.nodes)[kind.shape]
        evidence = log_likelihoods(points, table, MISFITS) - log_likelihoods(
            kind.points, table[:, len(own) :], MISFITS
        )
        found.append((kind.log_prior + kind.log_weight + evidence, kind.shape, points, bool(len(kind.points))))
    top = max(float(weight.max()) for weight, *_ in found)
    parts, by_family = [], np.zeros(len(grid().names) + 1)
    for log_weight, shape, points, is_pooled in found:
        weight = np.exp(log_weight - top)
        if is_pooled:
            by_family[-1] += weight.sum()
        else:
            by_family[:-1] += np.bincount(grid().family[shape], weight.sum(axis=0), len(grid().names))
        for row, misfit in zip(weight, MISFITS, strict=True):
            likely = np.flatnonzero(row > MIN_RELATIVE_WEIGHT)
            if len(likely):
                parts.append(_MixturePart(row[likely], shape[likely], misfit, points))
    total = sum(float(part.weight.sum()) for part in parts)
    parts = [_MixturePart(part.weight / total, part.shape, part.misfit, part.points) for part in parts]
    names = (*grid().names, PRIOR_JOBS)
    by_family /= by_family.sum()
    return CurveFit(
        family=names[int(np.argmax(by_family))],
        probabilities=dict(zip(names, by_family.tolist(), strict=True)),
        measured=measured,
        ignored={},
        noise=noise,
        _parts=tuple(parts),
        scaling=scaling,
    )


def _scatter(windows: Mapping[int, Sequence[float]]) -> float:
    """Relative scatter of one window, pooled over sizes (median absolute deviation), or the assumed one."""
    off = [abs(x / median(rates) - 1) for rates in windows.values() if len(rates) >= 3 for x in rates]
    return max(1.4826 * median(off), 1e-3) if off else ASSUMED_NOISE
