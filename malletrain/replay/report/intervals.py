"""How sure a policy's share of the ideal is: bootstrap over whole days, paired between policies.

Neighbouring hours are alike, days much less so (they have their own queue): so whole days are drawn anew, with
replacement, and each draw's share is the sum trained over the sum that was best possible (Efron and Tibshirani,
"An Introduction to the Bootstrap", 1993; blocks: Kuensch, Annals of Statistics 17, 1989). Of few days the intervals
are rough, and a week that is unlike the site's usual ones they cannot know.

Of a window that was replayed in part (`malletrain.replay.sampling`) intervals say how far a replay of all its days
may be from the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.result import Result
from malletrain.replay.run import Replay
from malletrain.replay.sampling import SampledReplay

Floats = NDArray[np.float64]

DAY_S = 86_400.0
#: Days of the window below which no interval is given.
MIN_DAYS = 4
BOOTSTRAP_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Of one policy: share of the ideal, and what it has more than the first policy, with 95 % intervals."""

    policy: str
    share: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    days: int


def by_day(start: float, end: float, result: Result, day_s: float = DAY_S) -> tuple[Floats, Floats]:
    """Trained and best possible in each whole day from `start` (Unix seconds) on, and in what is left of the last, in
    node-seconds of speed-up."""
    edges = np.append(np.arange(start, end - 1.0, day_s), end)
    at = np.append(result.log.time, end)
    trained = np.append(result.log.trained, result.totals.speedup)
    best = np.append(result.log.best, result.totals.ideal)
    return np.diff(np.interp(edges, at, trained)), np.diff(np.interp(edges, at, best))


def intervals(answer: Replay, day_s: float = DAY_S) -> tuple[Interval, ...]:
    """One of each policy, in their order; none where the window has too few days, or there was nothing to train.
    The same draws of days for all policies."""
    if answer.sampled is not None:
        return tuple(_estimated(answer.sampled, name, next(iter(answer.results))) for name in answer.results)
    trace = answer.trace
    days = [by_day(trace.start, trace.end, result, day_s) for result in answer.results.values()]
    count = len(days[0][0])
    if count < MIN_DAYS or any(best.sum() <= 0 for _, best in days):
        return ()
    drawn = np.random.default_rng(1).integers(0, count, (BOOTSTRAP_DRAWS, count))
    found, first, first_share = [], np.zeros(BOOTSTRAP_DRAWS), 0.0
    for i, (name, (trained, best)) in enumerate(zip(answer.results, days, strict=True)):
        possible = best[drawn].sum(axis=1)
        shares = np.divide(trained[drawn].sum(axis=1), possible, out=np.ones(BOOTSTRAP_DRAWS), where=possible > 0)
        share = float(trained.sum() / best.sum())
        if i == 0:
            first, first_share = shares, share
        low, high = np.quantile(shares, [0.025, 0.975])
        less, more = np.quantile(shares - first, [0.025, 0.975])
        found.append(
            Interval(name, share, float(low), float(high), share - first_share, float(less), float(more), count)
        )
    return tuple(found)


def _estimated(sampled: SampledReplay, policy: str, first: str) -> Interval:
    """By the days that were replayed: how far a replay of all days may be."""
    ideal = float(sampled.known.ideal.sum()) or 1.0
    share = sampled.figure(policy, "speedup").over(ideal)
    more = sampled.more_trained(policy, first).over(ideal)
    return Interval(policy, share.value, share.low, share.high, more.value, more.low, more.high, sampled.sample.size)


def nodes_interval(answer: Replay, policy: str, day_s: float = DAY_S) -> tuple[float, float] | None:
    """95 % interval of the dedicated nodes that would have trained as much as `policy` did; None: too few days. By
    drawing the window's days anew, as for shares; of a sample, where a replay of all its days would be."""
    trace = answer.trace
    if answer.sampled is not None:
        found = answer.sampled.figure(policy, "speedup").over(trace.seconds)
        return found.low, found.high
    edges = np.append(np.arange(trace.start, trace.end - 1.0, day_s), trace.end)
    lasts = np.diff(edges)
    if len(lasts) < MIN_DAYS:
        return None
    trained, _ = by_day(trace.start, trace.end, answer.results[policy], day_s)
    drawn = np.random.default_rng(1).integers(0, len(lasts), (BOOTSTRAP_DRAWS, len(lasts)))
    low, high = np.quantile(trained[drawn].sum(axis=1) / lasts[drawn].sum(axis=1), [0.025, 0.975])
    return float(low), float(high)
