"""Workers that hold up the others: each step of synchronous training waits for the slowest.

After Or, Zhang, Freedman (MLSys 2020): a worker whose smoothed throughput falls below a share of its peers' median is
replaced, and leaves only once its replacement has joined. Throughput here is of a worker's own work (samples per
second of computing), since all end a step at the same time.

Unlike there a worker is compared with those on nodes of its own class alone, and several that are slow alike count as
a class that Slurm has no name for: replacing one by another of them gains nothing.
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
#: Stragglers are few: where more than this part of a class is slow, that is its pace.
MAX_SLOW_PART = 0.25
#: Two or more slow workers whose paces differ by no more than this ratio are a class of nodes, not stragglers.
ALIKE_RATIO = 1.1


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


def stragglers(paces: Mapping[str, WorkerSpeed], classes: Mapping[str, str] | None = None) -> tuple[Straggler, ...]:
    """The slow workers of one world, the slowest first; `paces` and `classes` of their nodes by pilot.

    A worker is held against the others of its class, without itself. None are found in a class of which more than
    `MAX_SLOW_PART` is slow, nor where several are slow alike: then there is no usual pace.
    """
    by_class: dict[str, dict[str, float]] = {}
    for pilot, pace in paces.items():
        if pace.windows >= MIN_WINDOWS:
            by_class.setdefault((classes or {}).get(pilot, ""), {})[pilot] = pace.rate
    found = [each for _, known in sorted(by_class.items()) for each in _slow_in(known)]
    return tuple(sorted(found, key=lambda each: (each.share, each.pilot)))


def _slow_in(known: Mapping[str, float]) -> list[Straggler]:
    """The stragglers of one class, by their rates."""
    if min(known.values()) >= SLOW_SHARE * max(known.values()):
        return []  # as in most windows: no need to hold each against its peers
    found = []
    for pilot, rate in known.items():
        peers = [other for name, other in known.items() if name != pilot]
        if len(peers) >= MIN_PEERS and rate < SLOW_SHARE * median(peers):
            found.append(Straggler(pilot, rate / median(peers)))
    rates = [known[each.pilot] for each in found]
    alike = len(rates) > 1 and max(rates) <= ALIKE_RATIO * min(rates)
    return [] if alike or len(found) > max(1, MAX_SLOW_PART * len(known)) else found
