"""How many nodes there were to harvest, and for how long: what deadlines are promised by."""

from __future__ import annotations

from malletrain.decide.rules import Rules
from malletrain.domain.event import DaemonStarted, DaemonStopped, Event, PoolCounted
from malletrain.sizing.deadlines import supply_quantiles

#: What was seen counts half after so long.
HALF_LIFE_S = 14 * 86400.0
FADE_EVERY_S = 3600.0
#: A daemon that died says nothing of what came after: its last level counts for so long at most.
LONGEST_S = 6 * 3600.0


class SupplyHistory:
    """Folds the counts of nodes by use. Seconds at each number of nodes without a main job, old ones fading."""

    def __init__(self) -> None:
        self.seen_s = 0.0
        self._levels: dict[int, float] = {}
        self._level: int | None = None
        self._since = 0.0
        self._faded = 0.0

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case DaemonStarted() | DaemonStopped():
                self._until(event.at)
                self._level = None
            case PoolCounted() as pool:
                self._until(event.at)
                self._level, self._since = pool.without_main, event.at

    def supply(self, rules: Rules) -> tuple[int, ...]:
        """Equally likely numbers of nodes that pilots may hold, ascending; empty before anything was seen."""
        found = supply_quantiles(list(self._levels), list(self._levels.values()))
        return tuple(max(0, min(n - rules.keep_idle, rules.max_pilots)) for n in found)

    def _until(self, at: float) -> None:
        """The level lasted until `at`."""
        if self._level is None:
            return
        lasted = min(max(0.0, at - self._since), LONGEST_S)
        self._levels[self._level] = self._levels.get(self._level, 0.0) + lasted
        self.seen_s += lasted
        if at - self._faded > FADE_EVERY_S:
            keep = 0.5 ** ((at - self._faded) / HALF_LIFE_S) if self._faded else 1.0
            self._levels = {level: keep * seconds for level, seconds in self._levels.items() if keep * seconds > 1.0}
            self._faded = at
