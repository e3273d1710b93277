"""What a promise to the main queue would cost on a site's own log, and how it would have been kept there.

By the functions that the daemon decides with (`malletrain.decide.queue_promise`), as it would have used them: the
reserve of an hour comes from the main jobs of the four weeks before it, never from those that it is judged by. The
hours that are judged begin after that time, or after half of a shorter log. A main job that finds its nodes in the
reserve is not delayed; of the others the share G(b) of `promised_reserve` starts within b, by the modelled reaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.queue_promise import (
    CHANCE,
    ArrivalDemand,
    MainArrival,
    YieldTimes,
    demands,
    of_hour,
    promised_reserve,
    reserve_curve,
)
from malletrain.decide.rules import MainPromise
from malletrain.domain.errors import InvalidInput
from malletrain.loop.trackers.main_promise import MAX_ARRIVALS, REFILL_LOOK_S, thinned
from malletrain.replay.assumed_placement import wanted_nodes
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.scoring.main_delay import Reaction
from malletrain.replay.traces import JobRecords, Trace

#: Main jobs of so many seconds before an hour say what it needs: what the daemon asks accounting for.
LEARNT_S = 28 * 86_400.0

#: Hours that are judged, at most: spread evenly over those that there are.
MAX_HOURS = 336

#: Numbers of idle nodes by which an hour is judged, and main jobs of it, at most.
MAX_LEVELS_PER_HOUR = 4
MAX_JOBS_PER_HOUR = 40

#: Bounds on the delay of 95 % of main jobs (seconds), beside the one that the site states.
CURVE_BOUNDS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class PromisePoint:
    """For one bound on the delay of 95 % of main jobs: nodes in reserve in the mean over the hours judged, the share
    of idle node-time that is left to harvest, and the share of main jobs that would have started within the bound."""

    delay_s: float
    reserve_nodes: float
    harvest_share: float
    kept_share: float


@dataclass(frozen=True, slots=True)
class PromiseCurve:
    """Harvest against delay. `arrivals`: main jobs that the reserves were learnt from; `jobs`: those that they were
    judged by, in `hours` hours; `chance`: with which a promise is kept; `freed_s`, `cycle_s`: the reaction, from
    `source`."""

    chance: float
    arrivals: int
    hours: int
    jobs: int
    freed_s: float
    cycle_s: float
    source: str
    points: tuple[PromisePoint, ...]

    def as_json(self) -> dict[str, object]:
        """The fields; the points as a list of objects."""
        return asdict(self) | {"points": [asdict(point) for point in self.points]}


def promise_curve(
    log: Trace,
    trace: ClusterTrace,
    procs_per_node: int | None,
    promise: MainPromise,
    reaction: Reaction,
    bounds_s: Sequence[float] = CURVE_BOUNDS_S,
) -> PromiseCurve:
    """Harvest against delay for the log and the machine that it was made into. `procs_per_node`: as the machine was
    told, where the log counts processors.

    Raises:
        InvalidInput: the log has no jobs (node events), or none in the part that reserves are learnt from.
    """
    if not isinstance(log, JobRecords):
        raise InvalidInput("replay.promise", "a log of node events has no main jobs: give one of sacct, or SWF")
    refill_s = REFILL_LOOK_S + reaction.epilog_s
    every = demands(_arrivals(log, procs_per_node), refill_s)
    at = [each.at for each in every]
    times = YieldTimes((reaction.react_s,), reaction.cycle_s)
    bounds = sorted({*bounds_s, *(() if promise.p95_s is None else (promise.p95_s,))})
    begin = trace.start + min(LEARNT_S, trace.seconds / 2)
    if not bisect_left(at, begin):
        raise InvalidInput("replay.promise", "no job was submitted where the log teaches reserves")
    idle, _ = trace.counts()
    hours = np.unique(np.linspace(begin, max(begin, trace.end - 3600.0), MAX_HOURS) // 3600 * 3600.0).tolist()
    reserve, left, weight = [0.0] * len(bounds), [0.0] * len(bounds), [0.0, 0.0]
    kept, jobs = [0.0] * len(bounds), 0
    for hour in hours:
        last = bisect_left(at, max(hour, begin))
        first = max(bisect_left(at, hour - LEARNT_S), last - MAX_ARRIVALS)
        known = of_hour(every[first:last], hour)
        levels = thinned(_levels(trace, idle, hour), MAX_LEVELS_PER_HOUR)
        seconds = sum(count for _, count in levels)
        nodes = sum(number * count for number, count in levels)
        for k, (_, held, share) in enumerate(reserve_curve(known, times, levels, bounds)):
            reserve[k] += held * seconds
            left[k] += share * nodes
        weight[0] += seconds
        weight[1] += nodes
        came = [each for each in every[last : bisect_left(at, hour + 3600.0)] if each.at >= begin]
        came = came[:: -(-len(came) // MAX_JOBS_PER_HOUR)] if came else []
        for each, at_hand in _that_fit(came, trace, idle):
            jobs += 1
            for k, bound in enumerate(bounds):
                spared = min(each.nodes, at_hand) <= promised_reserve(bound, known, times, at_hand).nodes
                kept[k] += 1.0 if spared else times.within(bound)
    points = tuple(
        PromisePoint(
            bound, reserve[k] / weight[0] if weight[0] else 0.0, left[k] / weight[1] if weight[1] else 0.0,
            kept[k] / jobs if jobs else 1.0,
        )
        for k, bound in enumerate(bounds)
    )  # fmt: skip
    return PromiseCurve(
        CHANCE, bisect_left(at, trace.end), len(hours), jobs, reaction.react_s, reaction.cycle_s,
        reaction.source, points,
    )  # fmt: skip


def _arrivals(log: JobRecords, procs_per_node: int | None) -> list[MainArrival]:
    wanted, _ = wanted_nodes(log, procs_per_node or log.procs_per_node or 1)
    return [MainArrival(at, width) for at, width in zip(log.submit.tolist(), wanted.tolist(), strict=True)]


def _levels(trace: ClusterTrace, idle: NDArray[np.int64], hour: float) -> Counter[int]:
    """Seconds of the hour by the number of nodes without a main job."""
    begin, end = max(hour, trace.start), min(hour + 3600.0, trace.end)
    first = max(0, int(np.searchsorted(trace.time, begin, side="right")) - 1)
    last = int(np.searchsorted(trace.time, end, side="left"))
    edges = np.append(np.maximum(trace.time[first:last], begin), end)
    found: Counter[int] = Counter()
    for number, seconds in zip(idle[first:last].tolist(), np.diff(edges).tolist(), strict=True):
        if seconds > 0:
            found[number] += max(1, round(seconds))
    return found


def _that_fit(
    came: Sequence[ArrivalDemand], trace: ClusterTrace, idle: NDArray[np.int64]
) -> list[tuple[ArrivalDemand, int]]:
    """Those that the nodes without a main job would have done for just before they came, with that number: others
    wait for main jobs, with pilots or without."""
    found = []
    for each in came:
        step = int(np.searchsorted(trace.time, each.at, side="left")) - 1
        at_hand = int(idle[step]) if step >= 0 else 0
        if each.width <= at_hand:
            found.append((each, at_hand))
    return found
