"""Main jobs that waited behind one which pilots had delayed, in the queue or for nodes that it gave up later for it.

Their delay is not measured: it is at most that of the job in front, and at most their own wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from malletrain.domain.event import Event, MainJobMet
from malletrain.domain.snapshot import SlurmJob, Snapshot
from malletrain.loop.trackers.main_jobs import MainJobDelay, head_of, trim

#: Shorter delays are not passed on (seconds): Slurm's times are whole seconds.
LEAST_DELAY_S = 1.0

#: A job that begins so long (seconds) after a node was given up did not wait for it.
PASSED_ON_S = 120.0

#: Of so many main jobs the rank is remembered.
_MAX_RANKS = 10_000


class JobsBehind:
    """Looks at the main queue; what it finds stands in the journal as `MainJobMet.waited_for`."""

    def __init__(self) -> None:
        self._running: frozenset[str] | None = None  # ids at the last look; None: before the first
        self._ranks: OrderedDict[str, tuple[int, int]] = OrderedDict()  # of delayed jobs while they waited, by head
        self._had: dict[str, tuple[str, float]] = {}  # node -> the delayed job that has or had it, and when last

    def waits(self, snapshot: Snapshot, main_jobs: Mapping[str, bool]) -> None:
        """Take in the ranks of main jobs that wait for pilots to leave."""
        for row in snapshot.pending if main_jobs else ():
            if row.id in main_jobs:
                self._ranks[head_of(row.id)] = (-row.priority, row.raw_id)
                self._ranks.move_to_end(head_of(row.id))
        trim(self._ranks, _MAX_RANKS)

    def look(self, snapshot: Snapshot, delays: Mapping[str, MainJobDelay], partition: str, now: float) -> list[Event]:
        """Main jobs that have begun since the last look and waited behind one of `delays`, which are by head."""
        rows = [row for row in snapshot.holding if row.partition != partition and row.nodes]
        known, self._running = self._running, frozenset(row.id for row in rows)
        late = {head: each for head, each in delays.items() if each.delay_s >= LEAST_DELAY_S}
        if not late and not self._had:
            return []
        fresh = [row for row in rows if known is not None and row.id not in known]
        found = {row.id: meeting for row in fresh if (meeting := self._behind(row, late, now)) is not None}
        passed_on = late.keys() | {head_of(name) for name in found}
        for row in rows:
            for node in row.nodes:
                if head_of(row.id) in passed_on:
                    self._had[node] = (head_of(row.id), now)
                else:
                    self._had.pop(node, None)
        self._had = {node: had for node, had in self._had.items() if now - had[1] <= PASSED_ON_S}
        return [Event(now, found[row.id], node=row.nodes[0]) for row in fresh if row.id in found]

    def _behind(self, row: SlurmJob, late: Mapping[str, MainJobDelay], now: float) -> MainJobMet | None:
        """What is noted of a job that has begun, behind the one that was delayed most."""
        began = row.start_time or now
        if row.submit_time is None or began <= row.submit_time:
            return None
        ahead = {*self._before(row, row.submit_time), *self._in_front(row, row.submit_time, began, late)}
        found = [late[head] for head in sorted(ahead - {head_of(row.id)}) if head in late]
        if not found:
            return None
        most = max(found, key=lambda each: each.delay_s)
        return MainJobMet(row.id, row.user, row.submit_time, began, waited_for=head_of(most.main_job))

    def _before(self, row: SlurmJob, submitted_at: float) -> Iterator[str]:
        """The delayed jobs that had one of its nodes while it waited."""
        for node in row.nodes:
            head, at = self._had.get(node, ("", 0.0))
            if submitted_at < at:
                yield head

    def _in_front(
        self, row: SlurmJob, submitted_at: float, began: float, late: Mapping[str, MainJobDelay]
    ) -> Iterator[str]:
        """The delayed jobs that stood before it in the queue while it waited."""
        for head, rank in self._ranks.items():
            front = late.get(head)
            if front and rank < (-row.priority, row.raw_id) and submitted_at < front.started_at <= began + 1.0:
                yield head
