"""Which main jobs pilots made room for, or met: noted while Slurm shows them, so that it can be told days later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from malletrain.domain.event import Event, MainJobMet, PilotEnded, PilotHeld, PilotStarted
from malletrain.domain.snapshot import Snapshot

#: A main job that takes a node so long after a pilot has left it (seconds) has to do with the pilot, perhaps: an
#: epilog and a backfill cycle or two fit in.
AFTER_S = 300.0

#: So many main jobs are remembered as noted already.
_MAX_NOTED = 10_000


@dataclass(frozen=True, slots=True)
class _Left:
    """A node's last pilot; `at`: when it was seen to be gone."""

    pilot: str
    job: int | None
    at: float
    preempted: bool


class MainJobsMet:
    """Folds pilots that leave nodes, and says which main jobs have these nodes then."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}  # by node
        self._noted: OrderedDict[str, None] = OrderedDict()

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case PilotStarted() if event.node:
                self._left.pop(event.node, None)
            case PilotHeld(preempted=preempted) | PilotEnded(preempted=preempted) if event.node and event.pilot:
                self._left[event.node] = _Left(event.pilot, event.job, event.at, preempted)
            case MainJobMet(main_job=main_job):
                if event.node:
                    self._left.pop(event.node, None)
                self._noted[main_job] = None
                if len(self._noted) > _MAX_NOTED:
                    self._noted.popitem(last=False)

    def given(self, main_jobs: Collection[str], snapshot: Snapshot, now: float) -> list[Event]:
        """Those of the main jobs that pilots leave for which are not in the journal yet."""
        wanted = set(main_jobs) - self._noted.keys()
        if not wanted:
            return []
        return [
            Event(now, MainJobMet(row.id, row.user, row.submit_time))
            for row in snapshot.pending
            if row.id in wanted or (row.het_id and f"het{row.het_id}" in wanted)
        ]

    def look(self, snapshot: Snapshot, harvest_partition: str, now: float) -> list[Event]:
        """Main jobs that have nodes which pilots left lately, each node once."""
        events: list[Event] = []
        for node, left in sorted(self._left.items()):
            rows = [row for row in snapshot.holders.get(node, ()) if row.partition != harvest_partition]
            if rows:
                row = min(rows, key=lambda each: each.start_time or now)
                met = MainJobMet(row.id, row.user, row.submit_time, row.start_time, left.at, left.preempted)
                events.append(Event(now, met, left.job, left.pilot, node))
        for node in [name for name, left in self._left.items() if now - left.at > AFTER_S]:
            del self._left[node]
        return events
