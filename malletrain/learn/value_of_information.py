"""What measuring a size is worth for the allocation: the value of information.

Jobs are weighed by their speed-up over one node, S(k) = O(k) / O(1), of which both parts may be unknown, or where the
site wants fairness by its utility U(S(k)). Nodes have a price (what one brings elsewhere), so each job alone decides
what it should have: h(k) = S(k) - price k, best where the mean of h over the scenarios of its curve is. Measuring
size m tells scenarios apart; with y its outcome,

    gain(m) = E_y[ max_k E[h(k) | y] ]  -  max_k E[h(k)]   >= 0

(Raiffa and Schlaifer, 1961; the knowledge gradient of Frazier, Powell and Dayanik, 2008). It is zero where every
outcome leads to the same size: knowing a curve better is worth nothing unless it moves nodes.

No scenario counts for more than perfect scaling, S(k) <= k. Estimates err to both sides of it, training hardly does;
where nodes are so few that each job has one, only beyond it would a second node of one be worth another's first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.learn.curve import CurveFit
from malletrain.sizing.values import Floats, alpha_fair

#: Most outcomes of a measurement that are distinguished, and from how many standard deviations on they are.
MAX_OUTCOMES = 64
MIN_SEPARATION_SIGMAS = 2.0


@dataclass(frozen=True, slots=True)
class InformationValue:
    """Of measuring `nodes`: what is gained ever after and what is lost while measuring, both in speed-up, against the
    best size by what is known."""

    nodes: int
    gain: float
    loss: float


def information_values(
    fit: CurveFit, sizes: Sequence[int], candidates: Sequence[int], price: float, windows: int, alpha: float = 0.0
) -> tuple[int, list[InformationValue]]:
    """The best size by what is known, and the worth of measuring each candidate with `windows` windows.

    `sizes` are those that the job may have, candidates among them; `price` of a node in the unit of the worth:
    speed-up, or with `alpha` above 0 its utility (`malletrain.sizing.values`).
    """
    weight, rate = fit.scenarios([1, *sizes])
    speedup, rate = rate[:, 1:] / rate[:, :1], rate[:, 1:]
    speedup = np.minimum(speedup, np.array(sizes, dtype=np.float64))
    if alpha > 0:
        speedup = alpha_fair(speedup, 1.0, np.ones(1), alpha)
    column = {n: i for i, n in enumerate(sizes)}
    net = speedup - price * np.array(sizes, dtype=np.float64)
    mean = weight @ net
    at = int(np.argmax(mean))
    best = max(float(mean[at]), 0.0)
    found = []
    for nodes in candidates:
        i = column[nodes]
        # What lies within the noise of the windows is not told apart.
        apart = max(MIN_SEPARATION_SIGMAS * fit.noise / math.sqrt(max(windows, 1)), 1e-6)
        after = _after(weight, net, np.log(rate[:, i]), apart)
        found.append(InformationValue(nodes, max(after - best, 0.0), max(best - float(mean[i]), 0.0)))
    return sizes[at], found


def _after(weight: Floats, net: Floats, outcome: Floats, apart: float) -> float:
    """Expected best net value once scenarios are distinguished by the outcome, as finely as `apart`."""
    part = np.floor((outcome - outcome.min()) / max(apart, float(np.ptp(outcome)) / MAX_OUTCOMES)).astype(np.int64)
    order = np.argsort(part, kind="stable")
    part = part[order]
    first = np.flatnonzero(np.concatenate((np.ones(1, dtype=np.bool_), part[1:] != part[:-1])))
    sums = np.add.reduceat(weight[order, None] * net[order], first, axis=0)
    return float(np.maximum(sums.max(axis=1), 0.0).sum())
