"""How sure a policy's share of the ideal is: bootstrap over whole days, paired between policies.

Neighbouring hours are alike, days much less so (they have their own queue): so whole days are drawn anew, with
replacement, and each draw's share is the sum trained over the sum that was best possible (Efron and Tibshirani,
"An Introduction to the Bootstrap", 1993; blocks: Kuensch, Annals of Statistics 17, 1989). Of few days the intervals
are rough, and a week that is unlike the site's usual ones they cannot know. Of a window that was replayed in part
they say how far a replay of all its days may be (`malletrain.replay.sampling`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from malletrain.replay.result import Result
from malletrain.replay.run import Replay
from malletrain.replay.sampling import BOUNDS, DAY_S, drawn_ratios
from malletrain.sizing.values import Floats

#: Days of the window below which no interval is given.
MIN_DAYS = 4


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


def by_day(start: float, end: float, result: Result, day_s: float = DAY_S) -> tuple[Floats, Floats, Floats]:
    """Trained and best possible in each whole day from `start` (Unix seconds) on, and in what is left of the last, in
    node-seconds of speed-up; and how long each is (s)."""
    edges = np.append(np.arange(start, end - 1.0, day_s), end)
    at = np.append(result.log.time, end)
    trained = np.append(result.log.trained, result.totals.speedup)
    best = np.append(result.log.best, result.totals.ideal)
    return np.diff(np.interp(edges, at, trained)), np.diff(np.interp(edges, at, best)), np.diff(edges)


def _by_day(answer: Replay, policy: str, day_s: float) -> tuple[Floats, Floats]:
    """What the policy trained on each day that was replayed, and the best possible."""
    if answer.sampled is not None:
        return answer.sampled.found[policy]["speedup"], answer.sampled.ideal[answer.sampled.sample.drawn]
    return by_day(answer.trace.start, answer.trace.end, answer.results[policy], day_s)[:2]


def intervals(answer: Replay, day_s: float = DAY_S) -> tuple[Interval, ...]:
    """One of each policy, in their order; none where the window has too few days, or there was nothing to train.
    The same draws of days for all policies."""
    days = [_by_day(answer, name, day_s) for name in answer.results]
    count = len(days[0][0])
    if count < MIN_DAYS or any(best.sum() <= 0 for _, best in days):
        return ()
    shares = [float(trained.sum() / best.sum()) for trained, best in days]
    drawn = [drawn_ratios(trained, best) for trained, best in days]
    found = []
    for name, share, each in zip(answer.results, shares, drawn, strict=True):
        low, high = np.quantile(each, BOUNDS).tolist()
        less, more = np.quantile(each - drawn[0], BOUNDS).tolist()
        found.append(Interval(name, share, low, high, share - shares[0], less, more, count))
    return tuple(found)


def nodes_interval(answer: Replay, policy: str, day_s: float = DAY_S) -> tuple[float, float] | None:
    """95 % interval of the dedicated nodes that would have trained as much as `policy` did; None: too few days."""
    trace = answer.trace
    if answer.sampled is not None:
        found = answer.sampled.figure(policy, "speedup").over(trace.seconds)
        return found.low, found.high
    trained, _, lasts = by_day(trace.start, trace.end, answer.results[policy], day_s)
    if len(lasts) < MIN_DAYS:
        return None
    low, high = np.quantile(drawn_ratios(trained, lasts), BOUNDS).tolist()
    return low, high
