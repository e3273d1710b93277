"""Samples to scalability curve: which family fits, what it says between and beyond, and how wrong it may be.

Every shape of every family (`malletrain.decide.families`) is weighed by how well it explains the measured sizes
(Bayesian model averaging; the scale is free, the misfit of any family is one of three magnitudes). Each shape is bent
to pass through the measured points; their weighted mean is the curve. So measured points stay exact, families serve
between and beyond, and the band widens where shapes disagree and with the distance to what was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.pooled import MISFITS, Pooled, Shapes, shapes
from malletrain.domain.job import Curve, ThroughputSample

Floats = NDArray[np.float64]

MOST_NODES = 1_000_000
#: Samples/s beyond which a number is taken for nonsense.
_ABSURD_RATE = 1e15
#: Noise of a size's level where it was seen too seldom to tell, relative.
_NOISE = 0.02
#: Half the band in standard deviations.
_BAND = 1.96
#: Standard deviations by which scenarios leave their shape, beyond the largest measured size or elsewhere, and how
#: likely: the mean is the shape, the variance on either side is one.
_TILTS = (
    (0.0, 0.0, 1 / 3),
    *((z, 0.0, 1 / 6) for z in (-(3**0.5), 3**0.5)),
    *((0.0, z, 1 / 6) for z in (-(3**0.5), 3**0.5)),
)
#: Shapes less likely than this part of the likeliest are in no scenario.
_NEGLIGIBLE = 1e-3
#: A window this far from its size's median (as a ratio) is a fault, where three or more windows tell.
_FAR = 2.0
#: More throughput a node than on fewer nodes by this factor is a fault of one of the two.
_SUPERLINEAR = 3.0


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
class Measured:
    """A measured size: the median of its windows."""

    nodes: int
    rate: float
    windows: int


@dataclass(frozen=True)
class CurveFit:
    """What the samples say.

    `family` is the likeliest one, `probabilities` are all of them. `ignored` counts samples that were not believed,
    by reason. `noise` is the relative scatter of windows of one size.
    """

    family: str
    probabilities: Mapping[str, float]
    measured: tuple[Measured, ...]
    ignored: Mapping[str, int]
    noise: float
    _shapes: Shapes = field(repr=False, compare=False)
    _weight: Floats = field(repr=False, compare=False)
    _misfits: Floats = field(repr=False, compare=False)
    _misfit: float = field(repr=False, compare=False)

    def at(self, sizes: Sequence[int]) -> tuple[Estimate, ...]:
        """Estimates on these sizes, each at least 1."""
        known, wanted = self._known(), np.array(sizes, dtype=np.float64)
        bent = self._bent(known, wanted)
        mean = self._weight @ bent
        spread = self._weight @ (bent - mean) ** 2
        noise = np.array([self.noise**2 / m.windows for m in self.measured]) @ _blend(known, wanted)
        half = _BAND * np.sqrt(spread + noise + self._misfit**2 * _distance(known, wanted))
        exact = {m.nodes: m.rate for m in self.measured}
        return tuple(
            Estimate(n, exact.get(n, r), exact.get(n, r) * math.exp(-h), exact.get(n, r) * math.exp(h))
            for n, r, h in zip(sizes, np.exp(mean).tolist(), np.minimum(half, 50.0).tolist(), strict=True)
        )

    def scenarios(self, sizes: Sequence[int]) -> tuple[Floats, Floats]:
        """What the curve may be: weights that add up to 1, and samples/s of each scenario (row) on each size."""
        known, wanted = self._known(), np.array(sizes, dtype=np.float64)
        likely = np.flatnonzero(self._weight > _NEGLIGIBLE * self._weight.max())
        bent = self._bent(known, wanted)[likely]
        off = self._misfits[likely, None] * np.sqrt(_distance(known, wanted))
        beyond = wanted > known[-1]
        weight = np.concatenate([self._weight[likely] * share for _, _, share in _TILTS])
        tilted = np.concatenate([bent + np.where(beyond, up, down) * off for up, down, _ in _TILTS])
        return weight / weight.sum(), np.exp(tilted)

    def _known(self) -> Floats:
        return np.array([m.nodes for m in self.measured], dtype=np.float64)

    def _bent(self, known: Floats, wanted: Floats) -> Floats:
        """Every shape, bent to pass through the measured points: log samples/s on the wanted sizes."""
        level = np.log([m.rate for m in self.measured])
        bent: Floats = self._shapes.log_shape(wanted)
        bent = bent + (level - self._shapes.log_shape(known)) @ _blend(known, wanted)
        if self.falls:
            # What has begun to fall is not expected to rise again.
            bent = np.where(wanted > known[-1], np.minimum(bent, level[-1]), bent)
        return bent

    @property
    def falls(self) -> bool:
        """Whether the largest measured size trains less than a smaller one, by more than noise.

        One node does not count: the first step beyond a node may cost more than it brings, and the next ones gain.
        """
        rates = [m.rate for m in self.measured if m.nodes > 1]
        return bool(rates) and math.log(rates[-1]) < math.log(max(rates)) - _BAND * self.noise

    def curve(self, max_nodes: int) -> Curve:
        """The curve up to `max_nodes`: measured sizes and enough others for straight lines between them."""
        sizes = {m.nodes for m in self.measured} | {1, max(1, max_nodes)}
        size = 1
        while size < max_nodes:
            sizes |= {size, min(size + size // 2, max_nodes)} if size > 1 else {1}
            size *= 2
        return Curve(tuple((e.nodes, e.rate) for e in self.at(sorted(sizes))))

    @property
    def error_bound(self) -> float:
        """The largest relative error between the smallest and the largest measured size."""
        low, high = self.measured[0].nodes, self.measured[-1].nodes
        sizes = sorted({round(low * (high / low) ** (i / 32)) for i in range(33)})
        return max(e.error for e in self.at(sizes))


def fit(samples: Iterable[ThroughputSample], pooled: Pooled | None = None) -> CurveFit | None:
    """The curve of a job from its windows of training; None while no sample can be believed.

    `pooled` is what other jobs of its application have shown.
    """
    windows, ignored = believable(samples)
    if not windows:
        return None
    noise = _scatter(windows)
    measured = tuple(Measured(n, median(rates), len(rates)) for n, rates in sorted(windows.items()))
    nodes = np.array([m.nodes for m in measured], dtype=np.float64)
    possible = shapes(pooled)
    residual = np.log([m.rate for m in measured]) - possible.log_shape(nodes)
    square = ((residual - residual.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    level_noise = noise**2 / float(np.mean([m.windows for m in measured]))
    log_weight = []
    for misfit, prior in zip(MISFITS, possible.prior, strict=True):
        variance = level_noise + misfit**2
        with np.errstate(divide="ignore"):
            log_prior = np.log(prior)
        log_weight.append(log_prior - square / (2 * variance) - np.log(variance) * (len(nodes) - 1) / 2)
    weight = np.exp(np.array(log_weight) - np.max(log_weight))
    weight /= weight.sum()
    by_shape = weight.sum(axis=0)
    by_family = np.bincount(possible.family, by_shape, len(possible.names))
    return CurveFit(
        family=possible.names[int(np.argmax(by_family))],
        probabilities=dict(zip(possible.names, by_family.tolist(), strict=True)),
        measured=measured,
        ignored=ignored,
        noise=noise,
        _shapes=possible,
        _weight=by_shape,
        _misfits=np.sqrt(np.array(MISFITS) ** 2 @ weight / np.maximum(by_shape, 1e-300)),
        _misfit=float(np.sqrt(weight.sum(axis=1) @ np.array(MISFITS) ** 2)),
    )


def believable(samples: Iterable[ThroughputSample]) -> tuple[dict[int, list[float]], dict[str, int]]:
    """The rates by size, and how many samples were left out, by reason."""
    ignored: Counter[str] = Counter()
    windows: dict[int, list[float]] = {}
    for sample in samples:
        wrong = nonsense(sample)
        if wrong:
            ignored[wrong] += 1
        else:
            windows.setdefault(sample.nodes, []).append(sample.rate)
    for nodes, rates in windows.items():
        if len(rates) >= 3:
            middle = median(rates)
            near = [rate for rate in rates if middle / _FAR <= rate <= middle * _FAR]
            ignored["far from the other samples at its size"] += len(rates) - len(near)
            windows[nodes] = near
    windows = {nodes: rates for nodes, rates in windows.items() if rates}
    while (liar := _superlinear(windows)) is not None:
        ignored["more throughput a node than other sizes by far"] += len(windows.pop(liar))
    return windows, {reason: count for reason, count in sorted(ignored.items()) if count}


def nonsense(sample: ThroughputSample) -> str:
    """Why a single sample cannot be right; empty when it can."""
    if isinstance(sample.nodes, bool) or not isinstance(sample.nodes, int) or not 1 <= sample.nodes <= MOST_NODES:
        return "the node count is not a number that can be"
    if not (math.isfinite(sample.seconds) and sample.seconds > 0):
        return "the time is not above zero"
    if not (math.isfinite(sample.samples) and sample.samples > 0):
        return "the rate is not above zero"
    rate = math.log(sample.samples) - math.log(sample.seconds)
    if abs(rate) > math.log(_ABSURD_RATE):
        return "the rate is absurd"
    return ""


def _superlinear(windows: Mapping[int, Sequence[float]]) -> int | None:
    """The size that contradicts most others by far more throughput a node on more nodes.

    Of equals the one with the fewest windows, then the largest size.
    """
    a_node = {nodes: median(rates) / nodes for nodes, rates in windows.items()}
    clashes: Counter[int] = Counter()
    for small in a_node:
        for large in a_node:
            if small < large and a_node[large] > _SUPERLINEAR * a_node[small]:
                clashes[small] += 1
                clashes[large] += 1
    return max(clashes, key=lambda n: (clashes[n], -len(windows[n]), n), default=None)


def _scatter(windows: Mapping[int, Sequence[float]]) -> float:
    """Relative scatter of one window, pooled over sizes (median absolute deviation), or the assumed one."""
    off = [abs(x / median(rates) - 1) for rates in windows.values() if len(rates) >= 3 for x in rates]
    return max(1.4826 * median(off), 1e-3) if off else _NOISE


def _blend(known: Floats, wanted: Floats) -> Floats:
    """Weights of the measured points (rows) at each wanted size: linear in log n between, the nearest one beyond."""
    at, base = np.log2(wanted), np.log2(known)
    return np.array([np.interp(at, base, unit) for unit in np.eye(len(known))])


def _distance(known: Floats, wanted: Floats) -> Floats:
    """How far a size is from what was measured, in doublings: of a bridge between two points, or beyond the last."""
    at, base = np.log2(wanted)[:, None], np.log2(known)[None, :]
    below = np.where(base <= at, at - base, np.inf).min(axis=1)
    above = np.where(base >= at, base - at, np.inf).min(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        bridge = below * above / (below + above)
    inside = np.isfinite(below) & np.isfinite(above)
    return np.where(inside, np.where(below + above > 0, bridge, 0.0), np.minimum(below, above))
