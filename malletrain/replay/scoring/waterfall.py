"""Where idle node-time goes before it trains: a waterfall whose parts add up to all of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

#: What each part is, in the order in which it is taken off.
LABELS = {
    "reserve": "kept idle (pool.keep_idle)",
    "cap": "beyond the cap of pilots (pool.max_pilots)",
    "new_holes": "new holes, until the daemon's next look",
    "between_pilots": "nodes that a pilot left, until the next look",
    "starts_put_off": "beyond the starts that one look may make",
    "no_job": "no job is sized to take them",
    "lost_activation": "activation of pilots that ended before they trained",
    "activation": "activation of pilots that trained",
    "stalls": "stalls while jobs change size",
    "productive": "training",
}


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Node-seconds of each part of `LABELS`; together they are the idle node-seconds."""

    reserve: float = 0.0
    cap: float = 0.0
    new_holes: float = 0.0
    between_pilots: float = 0.0
    starts_put_off: float = 0.0
    no_job: float = 0.0
    lost_activation: float = 0.0
    activation: float = 0.0
    stalls: float = 0.0
    productive: float = 0.0

    @property
    def total(self) -> float:
        """All parts added up."""
        return sum(seconds for _, _, seconds in self.rows())

    def rows(self) -> list[tuple[str, str, float]]:
        """(name, label, node-seconds) of each part, in order."""
        return [(name, LABELS[name], seconds) for name, seconds in asdict(self).items()]


class UnheldTime:
    """Adds up the node-seconds of idle nodes without a pilot, each to the first reason that holds it back."""

    def __init__(self) -> None:
        self.node_s = dict.fromkeys(
            ("reserve", "cap", "new_holes", "between_pilots", "starts_put_off", "no_job"), 0.0
        )

    def add(self, seconds: float, unheld: int, **counts: int) -> None:
        """`unheld` nodes for so many seconds; `counts`: of how many each reason says that it holds them back. A node
        for which several do counts to the first of them; one for which none does to `no_job`."""
        for name in self.node_s:
            part = unheld if name == "no_job" else min(unheld, counts.get(name, 0))
            self.node_s[name] += part * seconds
            unheld -= part
