"""Main jobs that waited behind one that pilots had delayed: in the queue, or for nodes that it gave up later for it.

Their delay is not measured. It is at most that of the job in front, and at most their own wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from malletrain.decide.promise.main_job_delay import MainJobDelay, head_of
from malletrain.domain.event import Event, MainJobMet
from malletrain.domain.snapshot import SlurmJob, Snapshot

#: Shorter ones are not passed on (seconds): Slurm's times are whole seconds.
LEAST_DELAY_S = 1.0

#: A job that begins so long (seconds) after a node was given up did not wait for it.
AFTER_S = 120.0

#: Of so many main jobs the rank is remembered.
_MAX_RANKS = 10_000


class JobsBehind:
    """Looks at the main queue; what it finds stands in the journal as `MainJobMet.waited_for`."""

    def __init__(self) -> None:
        self._running: frozenset[str] | None = None  # ids at the last look; None: before the first
        self._ranks: OrderedDict[str, tuple[int, int]] = OrderedDict()  # of delayed jobs while they waited, by head
        self._had: dict[str, tuple[str, float]] = {}  # node -> the delayed job that has or had it, and when last

    def look(self, snapshot: Snapshot, delays: Mapping[str, MainJobDelay], partition: str, now: float) -> list[Event]:
        """Main jobs that have begun since the last look and waited behind one of `delays`, which are by head."""
        rows = [row for row in snapshot.holding if row.partition != partition and row.nodes]
        known, self._running = self._running, frozenset(row.id for row in rows)
        late = {head: each for head, each in delays.items() if each.delay_s >= LEAST_DELAY_S}
        if not late and not self._had:
            return []
        fresh = [row for row in rows if known is not None and row.id not in known]
        events = [event for row in fresh for event in self._behind(row, late, now)]
        passed_on = {head_of(e.payload.main_job) for e in events if isinstance(e.payload, MainJobMet)}
        for row in rows:
            head = head_of(row.id)
            if head in late or head in passed_on:
                self._had.update(dict.fromkeys(row.nodes, (head, now)))
            else:
                for node in row.nodes:
                    self._had.pop(node, None)
        self._had = {node: had for node, had in self._had.items() if now - had[1] <= AFTER_S}
        return events

    def waits(self, snapshot: Snapshot, main_jobs: Mapping[str, bool]) -> None:
        """Take in the ranks of main jobs that wait for pilots to leave."""
        for row in snapshot.pending if main_jobs else ():
            if row.id in main_jobs:
                self._ranks[head_of(row.id)] = (-row.priority, row.raw_id)
                self._ranks.move_to_end(head_of(row.id))
        while len(self._ranks) > _MAX_RANKS:
            self._ranks.popitem(last=False)

    def _behind(self, row: SlurmJob, late: Mapping[str, MainJobDelay], now: float) -> Iterator[Event]:
        """The event of a job that has begun, behind the one that was delayed most."""
        began, own = row.start_time or now, head_of(row.id)
        if row.submit_time is None or began <= row.submit_time:
            return
        ahead = {head for node in row.nodes for head in self._before(node, row.submit_time)}
        for head, rank in self._ranks.items():
            front = late.get(head)
            if front and rank < (-row.priority, row.raw_id) and row.submit_time < front.started_at <= began + 1.0:
                ahead.add(head)
        found = [late[head] for head in sorted(ahead - {own}) if head in late]
        if found:
            most = max(found, key=lambda each: each.delay_s)
            met = MainJobMet(row.id, row.user, row.submit_time, began, waited_for=head_of(most.main_job))
            yield Event(now, met, node=row.nodes[0])

    def _before(self, node: str, submitted_at: float) -> Iterator[str]:
        """The delayed job that had the node while this one waited."""
        head, at = self._had.get(node, ("", 0.0))
        if head and submitted_at < at:
            yield head
