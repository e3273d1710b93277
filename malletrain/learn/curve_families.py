"""Families of scalability curves: what throughput over nodes can look like, and how likely that is beforehand.

A shape is the logarithm of the throughput on n nodes over that on one. Every family is laid out as a grid of shapes
with prior probabilities: all of them are weighed against the samples at once, without an optimiser that could fail.

- `power`    n^p
- `log`      n / (1 + b log2 n), the time of a step grows with the depth of a tree of messages
- `amdahl`   n / (1 + s (n - 1)) (Amdahl, 1967)
- `bending`  n / (1 + s (n - 1) + k n (n - 1)) (Gunther's universal scalability law, 1993): falls again at large n
- `pollux`   n / (1 + [n > 1] (a + b (n - 2))): the first node boundary costs a step of its own, and each node beyond
             two some more (Qiao et al., OSDI 2021, eq. 11, with synchronisation not overlapped)
- `strong`   n / (1 + [n > 1] n (a + b (n - 2))): the total batch is fixed, so each node computes 1/n of a step while
             synchronising takes the same time, and some more for each node: it peaks (strong scaling)
- `tree`     n / (1 + [n > 1] n (a + b log2(n / 2))): the same where synchronising grows with the depth of a tree
- `peak`     n up to m, then m (m / n)^q: something else than the nodes is the limit (storage, a shared link), and
             more nodes get in each other's way; q = 0 is a plateau

Priors are wide, centred where published measurements lie: seven ImageNet models on 1-64 nodes, Pollux's six models on
1-16, with the batch a GPU fixed and with the total batch fixed, Gavel's on 1-8 GPUs. They decide only where there are
too few samples to. How near they come: docs/figures.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

import numpy as np

from malletrain.sizing.values import Floats, Ints


class Scaling(StrEnum):
    """What stays as it is when nodes are added."""

    STRONG = "strong"  #: the total batch: a node computes less of each step
    WEAK = "weak"  #: the batch a node


#: Families of strong scaling: only there do nodes compute less of each step.
STRONG_FAMILIES = ("strong", "tree")
#: Where the windows' batches say which scaling it is, families of the other are so many times less likely: not
#: impossible, since batches may be counted otherwise than they are computed.
OTHER_SCALING_RATIO = 1 / 30


@dataclass(frozen=True)
class Grid:
    """All shapes of all families: family and parameters of each, and its prior probability."""

    names: tuple[str, ...]
    family: Ints
    prior: Floats
    _parts: tuple[tuple[Callable[[Floats, Floats, Floats], Floats], Floats, Floats], ...]

    def prior_with(self, scaling: Scaling | None) -> Floats:
        """`prior` where the scaling is known; None: it is not."""
        if scaling is None:
            return self.prior
        strong = np.isin(self.family, [self.names.index(name) for name in STRONG_FAMILIES])
        prior = np.where(strong == (scaling is Scaling.STRONG), self.prior, OTHER_SCALING_RATIO * self.prior)
        return np.asarray(prior / prior.sum())

    def log_shape(self, nodes: Floats) -> Floats:
        """Logarithm of the speed-up over one node: one row a shape, one column for each of `nodes`."""
        return _on(tuple(np.asarray(nodes, dtype=np.float64).tolist()))

    def rows(self, nodes: Floats) -> Floats:
        """As `log_shape`, computed anew."""
        return np.concatenate([shape(a[:, None], b[:, None], nodes[None, :]) for shape, a, b in self._parts])


def _near(value: Floats, centre: float, factor: float) -> Floats:
    """Log-normal prior: `factor` is one standard deviation as a ratio. Zero counts as the smallest positive value."""
    positive = np.maximum(value, value[value > 0].min())
    out: Floats = np.exp(-0.5 * (np.log(positive / centre) / np.log(factor)) ** 2)
    return out


def _with_zero(low: float, high: float, count: int) -> Floats:
    return np.concatenate((np.zeros(1), np.geomspace(low, high, count)))


def _power(p: Floats, _: Floats, n: Floats) -> Floats:
    return p * np.log(n)


def _log(b: Floats, _: Floats, n: Floats) -> Floats:
    return np.asarray(np.log(n) - np.log1p(b * np.log2(n)))


def _bending(s: Floats, k: Floats, n: Floats) -> Floats:
    return np.asarray(np.log(n) - np.log1p(s * (n - 1) + k * n * (n - 1)))


def _pollux(a: Floats, b: Floats, n: Floats) -> Floats:
    return np.asarray(np.log(n) - np.log1p((n > 1) * (a + b * (n - 2))))


def _strong(a: Floats, b: Floats, n: Floats) -> Floats:
    return np.asarray(np.log(n) - np.log1p((n > 1) * n * (a + b * (n - 2))))


def _tree(a: Floats, b: Floats, n: Floats) -> Floats:
    return np.asarray(np.log(n) - np.log1p((n > 1) * n * (a + b * np.log2(np.maximum(n / 2, 1)))))


def _peak(m: Floats, q: Floats, n: Floats) -> Floats:
    return np.asarray(np.log(np.minimum(n, m)) - q * np.log(np.maximum(n / m, 1)))


@lru_cache(maxsize=64)
def _on(nodes: tuple[float, ...]) -> Floats:
    """The same sizes are asked for again and again. About 8 kB a size."""
    table = grid().rows(np.array(nodes))
    table.flags.writeable = False
    return table


@cache
def grid() -> Grid:
    """The shapes, laid out once."""
    exponent = np.arange(0.0, 1.06, 0.02)
    slope = _with_zero(1e-3, 3, 40)
    serial = _with_zero(1e-4, 1, 40)
    s, k = (x.ravel() for x in np.meshgrid(_with_zero(1e-3, 1, 14), np.geomspace(1e-5, 0.3, 16), indexing="ij"))
    a, b = (x.ravel() for x in np.meshgrid(np.geomspace(0.02, 4, 16), _with_zero(1e-3, 0.5, 12), indexing="ij"))
    m, q = (x.ravel() for x in np.meshgrid(np.geomspace(1, 64, 13), np.array([0.0, 0.25, 0.5, 1.0]), indexing="ij"))
    c, d = (x.ravel() for x in np.meshgrid(np.geomspace(0.01, 4, 16), _with_zero(1e-3, 1, 10), indexing="ij"))
    families = (
        ("power", 1.5, _power, exponent, np.exp(-0.5 * ((exponent - 0.92) / 0.1) ** 2), exponent),
        ("log", 0.4, _log, slope, _near(slope, 0.08, 3.3), slope),
        ("amdahl", 0.1, _bending, serial, _near(serial, 0.02, 4.5), np.zeros_like(serial)),
        ("bending", 0.05, _bending, s, _near(s, 0.03, 4.5) * _near(k, 1e-4, 7.4), k),
        ("pollux", 1.1, _pollux, a, _near(a, 0.6, 3.3) * _near(b, 0.01, 4.5), b),
        ("strong", 0.7, _strong, c, _near(c, 0.08, 4.5) * _near(d, 0.13, 2.5), d),
        ("tree", 0.2, _tree, c, _near(c, 0.08, 4.5) * _near(d, 0.2, 2.6), d),
        ("peak", 0.03, _peak, m, np.ones_like(m), q),
    )
    share = np.concatenate([np.full(len(x), weight) * prior / prior.sum() for _, weight, _, x, prior, _ in families])
    return Grid(
        tuple(name for name, *_ in families),
        np.repeat(np.arange(len(families)), [len(x) for _, _, _, x, _, _ in families]),
        share / share.sum(),
        tuple((shape, x, y) for _, _, shape, x, _, y in families),
    )


#: Width of the band where the batch a node is fixed: so many times the part that is lost, and the least of it.
WIDTH_OVER_LOSS, MIN_LOSS = 2.2, 0.08
#: Width of the band where the total batch is fixed: the largest that holds no more than .95 of the only such set.
STRONG_WIDTH = 0.85


def width_factor(scaling: Scaling | None, efficiency: float) -> float:
    """What the mixture's band is multiplied by, over log throughput, on a size larger than any that was measured.
    `efficiency`: the expected throughput a node over that of one node, which was measured.

    With a fixed batch a node, throughput is n / (1 + c), and d log(n / (1 + c)) = -(1 - efficiency) d log c: an
    overhead that turns out another moves it in proportion to what is lost, of which the mixture knows little."""
    if scaling is Scaling.WEAK:
        return WIDTH_OVER_LOSS * (max(1.0 - efficiency, 0.0) + MIN_LOSS)
    return STRONG_WIDTH if scaling is Scaling.STRONG else 1.0
