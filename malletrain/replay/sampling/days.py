"""Which days of a long window are replayed: drawn by the seed, before anything is replayed.

The window is cut into days. Those with idle nodes are divided into strata of neighbours in time, since a season, or a
change of the machine or of its queue, touches days that follow one another. In each stratum as many days are drawn as
in the others, without replacement, each as likely as any other of its stratum (Cochran, Sampling Techniques, 3rd ed.,
1977, ch. 5). Which are drawn follows from the log and the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.scoring.integral import integral_between

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY_S = 86_400.0
#: Days that are drawn of a stratum. Two would follow the seasons most closely; of four the variance within a stratum
#: is known well enough for its interval.
DAYS_PER_STRATUM = 4
#: Seconds replayed before each day and not counted, as before a part of a long log. After three hours a machine with
#: more jobs than nodes still starts up to a fifth more pilots than without a break.
RUN_IN_S = 12 * 3600.0
#: Spans of at most a day that are replayed of likely outages, which are counted the other way.
OUTAGE_SPANS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """Span i of the window lasts from `begin[i]` to `end[i]` (Unix seconds), about a day, and is of stratum
    `stratum[i]`; it is replayed where `drawn[i]`. Spans are in order of time; between them no node is idle."""

    begin: Floats
    end: Floats
    stratum: Ints
    drawn: NDArray[np.bool_]
    seed: int

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of those that are replayed."""
        return list(zip(self.begin[self.drawn].tolist(), self.end[self.drawn].tolist(), strict=True))

    def sentence(self) -> str:
        """What is replayed, for people who wait for it."""
        days = ", ".join(datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d") for begin, _ in self.spans)
        return (
            f"{self.size:,} of {len(self):,} days are replayed, drawn at random (seed {self.seed}), each after "
            f"{RUN_IN_S / 3600:g} hours that do not count; what is idle is counted of all days. --sample all replays "
            f"all. Days from {days} (UTC)"
        )

    @property
    def size(self) -> int:
        """How many are replayed."""
        return int(self.drawn.sum())

    def __len__(self) -> int:
        """How many there are."""
        return len(self.begin)


def drawn_days(trace: ClusterTrace, days: int, seed: int, tick_s: float) -> Sample:
    """`days` of the window's days with idle nodes, or all of them where there are no more. Days begin at a multiple
    of `tick_s` from the window's begin; what is left at its end belongs to the last."""
    count = max(1, round(trace.seconds / DAY_S))
    unit = tick_s or 1.0
    edges = trace.start + np.floor(np.arange(count) * DAY_S / unit) * unit
    return _drawn(trace, edges, np.append(edges[1:], trace.end), days, seed)


def drawn_of_outages(trace: ClusterTrace, outages: Sequence[tuple[float, float]], count: int, seed: int) -> Sample:
    """`count` spans of at most a day of these times (begin, end; Unix seconds)."""
    begins, ends = [], []
    for begin, end in outages:
        edges = np.linspace(begin, end, math.ceil((end - begin) / DAY_S) + 1)
        begins.append(edges[:-1])
        ends.append(edges[1:])
    return _drawn(trace, np.concatenate(begins), np.concatenate(ends), count, seed)


def _drawn(trace: ClusterTrace, begin: Floats, end: Floats, count: int, seed: int) -> Sample:
    some_idle = idle_node_seconds(trace, begin, end) > 0
    begin, end = begin[some_idle], end[some_idle]
    count = min(count, len(begin))
    strata = max(1, count // DAYS_PER_STRATUM)
    stratum = np.arange(len(begin)) * strata // max(1, len(begin))
    random, drawn = np.random.default_rng(seed), np.zeros(len(begin), bool)
    for of in range(strata):
        mine = np.flatnonzero(stratum == of)
        wanted = (of + 1) * count // strata - of * count // strata
        drawn[random.choice(mine, min(wanted, len(mine)), replace=False)] = True
    return Sample(begin, end, stratum, drawn, seed)


def idle_node_seconds(trace: ClusterTrace, begin: Floats, end: Floats) -> Floats:
    """Idle node-seconds of the trace from each `begin` to the `end` of the same place."""
    idle, _ = trace.counts()
    return integral_between(trace.time, idle, trace.end, begin, end)
