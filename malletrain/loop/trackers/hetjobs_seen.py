"""Which heterogeneous jobs the main queue has had lately, and what reserve does them no harm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from malletrain.decide.reserve import HetjobWidth, harmless_reserve
from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import Snapshot

#: A site that has had none for so long (seconds) is taken for one that has none.
REMEMBERED_S = 7 * 86_400.0

#: So many are remembered, the newest.
MAX_HETJOBS = 1_000


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    width: HetjobWidth


class HetjobsSeen:
    """Takes in whole looks, since the daemon began."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by number of the first component, the newest last

    def look(self, snapshot: Snapshot, harvest_partition: str, now: float) -> None:
        """Take in the heterogeneous jobs that wait or run. Components that have ended are shown no more, so the
        widest that was seen counts."""
        parts: dict[int, list[int]] = {}
        for job in snapshot.jobs:
            if job.het_id and job.partition != harvest_partition:
                parts.setdefault(job.het_id, []).append(job.node_count)
        for number, nodes in parts.items():
            width = HetjobWidth(min(nodes), sum(nodes))
            before = self._seen.pop(number, None)
            if before is not None:
                width = HetjobWidth(min(width.least, before.width.least), max(width.all, before.width.all))
            self._seen[number] = _Seen(now, width)
        for number in list(self._seen):  # the oldest first
            if now - self._seen[number].at <= REMEMBERED_S and len(self._seen) <= MAX_HETJOBS:
                break
            del self._seen[number]

    def rules(self, rules: Rules) -> Rules:
        """`rules` with a reserve that does them no harm. That of a site with a promise stays: it grows when jobs that
        were put off break the promise."""
        promised = rules.promise is not None and rules.promise.holds_nodes
        if not rules.keep_idle or promised or rules.keep_leaves or not rules.spare_hetjobs:
            return rules
        nodes, why = harmless_reserve(rules.keep_idle, [each.width for each in self._seen.values()])
        return replace(rules, keep_idle=nodes, keep_why=why) if why else rules
