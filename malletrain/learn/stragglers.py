"""Workers that hold up the others: each step of synchronous training waits for the slowest.

After Or, Zhang, Freedman (MLSys 2020): a worker whose smoothed throughput falls below a share of its peers' median is
replaced, and leaves only once its replacement has joined. Throughput here is of a worker's own work (samples per
second of computing), since all end a step at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

#: Weight of a new window in the moving average (Or et al.).
EMA_WEIGHT = 0.1
#: A worker below this share of its peers' median is a straggler (Or et al.).
SLOW_SHARE = 0.8
#: A worker is judged after so many windows: one bad window is noise.
MIN_WINDOWS = 5
#: Fewer peers do not say what is usual.
MIN_PEERS = 2


@dataclass(frozen=True, slots=True)
class WorkerSpeed:
    """How fast one worker computes: the moving average of its windows (samples/s), and how many there were."""

    rate: float = 0.0
    windows: int = 0

    def after(self, rate: float) -> WorkerSpeed:
        """The pace once a window of `rate` samples/s is in. A rate that is no positive number is left out."""
        if not 0.0 < rate < float("inf"):
            return self
        if not self.windows:
            return WorkerSpeed(rate, 1)
        return WorkerSpeed((1.0 - EMA_WEIGHT) * self.rate + EMA_WEIGHT * rate, self.windows + 1)


@dataclass(frozen=True, slots=True)
class Straggler:
    """A slow worker's pilot, and its pace as a share of its peers' median."""

    pilot: str
    share: float

    @property
    def reason(self) -> str:
        return f"its worker computes at {self.share:.0%} of its peers' median pace (below {SLOW_SHARE:.0%})"


def stragglers(paces: Mapping[str, WorkerSpeed]) -> tuple[Straggler, ...]:
    """The slow workers of one world, the slowest first; `paces` by pilot.

    A worker is held against the others, without itself. Never half of the world or more: then there is no usual pace.
    """
    known = {pilot: pace.rate for pilot, pace in paces.items() if pace.windows >= MIN_WINDOWS}
    found: list[Straggler] = []
    for pilot, rate in known.items():
        peers = [other for name, other in known.items() if name != pilot]
        if len(peers) >= MIN_PEERS and rate < SLOW_SHARE * median(peers):
            found.append(Straggler(pilot, rate / median(peers)))
    found.sort(key=lambda each: (each.share, each.pilot))
    return tuple(found) if 2 * len(found) < len(known) else ()
