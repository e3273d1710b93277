"""Which heterogeneous jobs the main queue has had lately, and what reserve does them no harm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from malletrain.decide.reserve import HetjobWidth, harmless_reserve
from malletrain.decide.rules import Rules
from malletrain.domain.event import Event, MainJobsArrived
from malletrain.domain.snapshot import Snapshot

#: A site that has had none for so many days is taken for one that has none.
REMEMBERED_DAYS = 7
REMEMBERED_S = REMEMBERED_DAYS * 86_400.0

#: So many are remembered, the newest.
MAX_HETJOBS = 1_000


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    width: HetjobWidth


class HetjobsSeen:
    """Takes in whole looks, and what accounting and the journal show of the time before the daemon began."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by number of the first component, the newest last

    def look(self, snapshot: Snapshot, harvest_partition: str, now: float) -> None:
        """Take in the heterogeneous jobs that wait or run. Components that have ended are shown no more, so the
        widest that was seen counts."""
        parts: dict[int, list[int]] = {}
        for job in snapshot.jobs:
            if job.het_id and job.partition != harvest_partition:
                parts.setdefault(job.het_id, []).append(job.node_count)
        self._take(parts, dict.fromkeys(parts, now), now)

    def apply(self, event: Event) -> None:
        """Take in one event of the journal: what looks before this daemon's have shown."""
        if isinstance(arrived := event.payload, MainJobsArrived):
            self.learn(zip(arrived.main_jobs, arrived.submitted_at, arrived.nodes, strict=False), event.at)

    def learn(self, arrivals: Iterable[tuple[str, float, int]], now: float) -> int:
        """Take in the heterogeneous jobs among main jobs that arrived before: id (`12+0` of a component), submission
        (Unix seconds), nodes; returns how many of them are of late."""
        parts: dict[int, list[int]] = {}
        at: dict[int, float] = {}
        for identity, submitted, nodes in sorted(arrivals, key=lambda row: row[1]):
            number, plus, _ = identity.partition("+")
            if plus and number.isdigit() and now - submitted <= REMEMBERED_S:
                parts.setdefault(int(number), []).append(nodes)
                at[int(number)] = submitted
        self._take(parts, at, now)
        return len(parts)

    @staticmethod
    def matter(rules: Rules) -> bool:
        """Whether these rules have a reserve that is made smaller for them. That of a site with a promise stays: it
        grows when jobs that were put off break the promise."""
        promised = rules.promise is not None and rules.promise.holds_nodes
        return bool(rules.keep_idle) and rules.spare_hetjobs and not promised and not rules.keep_leaves

    def rules(self, rules: Rules) -> Rules:
        """`rules` with a reserve that does them no harm."""
        nodes, why = self._harmless(rules)
        return replace(rules, keep_idle=nodes, keep_why=why) if why else rules

    def notice(self, rules: Rules) -> str:
        """What people should know of a reserve that is smaller than `rules` have it, or ''."""
        nodes, why = self._harmless(rules)
        if not why:
            return ""
        split = [
            seen.at for seen in list(self._seen.values()) if seen.width.least <= rules.keep_idle < seen.width.all
        ]
        until = datetime.fromtimestamp(max(split) + REMEMBERED_S, UTC)
        when = f"until {until:%Y-%m-%d %H:%M} UTC, {REMEMBERED_DAYS} days after the last of them"
        return f"{nodes} nodes stay idle {when}: {why} (pool.spare_hetjobs)"

    def _harmless(self, rules: Rules) -> tuple[int, str]:
        if not self.matter(rules):
            return rules.keep_idle, ""
        return harmless_reserve(rules.keep_idle, [each.width for each in list(self._seen.values())])

    def _take(self, parts: Mapping[int, Sequence[int]], at: Mapping[int, float], now: float) -> None:
        """Take in nodes of components by job; `at`: when each was seen, not before any that is known. Old ones go."""
        for number, nodes in parts.items():
            width = HetjobWidth(min(nodes), sum(nodes))
            before = self._seen.pop(number, None)
            if before is not None:
                width = HetjobWidth(min(width.least, before.width.least), max(width.all, before.width.all))
            self._seen[number] = _Seen(at[number], width)
        for number in list(self._seen):  # the oldest first
            if now - self._seen[number].at <= REMEMBERED_S and len(self._seen) <= MAX_HETJOBS:
                break
            del self._seen[number]
