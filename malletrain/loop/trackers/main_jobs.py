"""Main jobs that pilots made room for, or met, and what that cost each: noted while Slurm shows them, so that it can
be explained days later; and those that waited behind one which pilots had delayed.

A look at the queue shows those that run. One that began and ended between two looks is asked for by the nodes that
pilots left: Slurm shows ended jobs for a while (MinJobAge).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from malletrain.domain import event as kinds
from malletrain.domain.event import Event, MainJobMet
from malletrain.domain.snapshot import SlurmJob, Snapshot


class DelayCause(StrEnum):
    """Why a main job that met pilots started when it did."""

    NONE = "none"  #: its nodes were free before Slurm came to it
    LEAVING = "leaving"  #: it waited for workers to leave and for the epilog
    BACKFILL = "backfill"  #: a backfill cycle found its nodes taken; a later one started it
    PREEMPTED = "preempted"  #: Slurm took a node from a pilot for it
    BEHIND = "behind"  #: it waited behind a main job that pilots had delayed
    PUT_OFF = "put_off"  #: Slurm preempted a pilot for a part of a heterogeneous job, and put the job off


CAUSE_WORDS = {
    DelayCause.NONE: "no delay: pilots had left before Slurm came to it",
    DelayCause.LEAVING: "it waited for workers to leave and for the epilog",
    DelayCause.BACKFILL: "a backfill cycle found its nodes taken, and a later one started it",
    DelayCause.PREEMPTED: "Slurm preempted a pilot for it",
    DelayCause.PUT_OFF: "Slurm preempted a pilot for one of its parts, and put the heterogeneous job off",
}


@dataclass(frozen=True, slots=True)
class MainJobDelay:
    """A main job that pilots gave way to, or that Slurm preempted one for."""

    main_job: str
    user: str
    could_at: float  #: when it could have started without pilots (Unix seconds), as far as the daemon can tell
    started_at: float  #: when it did
    nodes: tuple[str, ...]  #: those of its nodes that pilots had
    freed_s: float | None = None  #: seconds after `could_at` until the last of these was free, where it began on them
    delay_s: float = 0.0  #: seconds by which it started later for pilots, never negative
    by_backfill: bool = False
    preempted: int = 0  #: nodes that Slurm took from pilots for it
    put_off: bool = False  #: Slurm put it off by its own two minutes, as it does with heterogeneous jobs
    behind: str = ""  #: the main job that it waited behind, which pilots had delayed: `delay_s` is a bound

    @property
    def cause(self) -> DelayCause:
        """The last thing that it waited for."""
        if self.delay_s <= 0:
            return DelayCause.NONE
        if self.behind:
            return DelayCause.BEHIND
        if self.put_off:
            return DelayCause.PUT_OFF
        if self.preempted:
            return DelayCause.PREEMPTED
        return DelayCause.BACKFILL if self.by_backfill else DelayCause.LEAVING

    def words(self) -> str:
        """One line: for how long, and why."""
        if self.delay_s <= 0:
            return CAUSE_WORDS[DelayCause.NONE]
        if self.behind:
            front = f"main job {self.behind}, which they had delayed"
            return f"at most {self.delay_s:.3g} s later for pilots: it waited behind {front}"
        where = "" if self.put_off else f" on {len(self.nodes)} of its nodes"
        return f"{self.delay_s:.3g} s later for pilots{where}: {CAUSE_WORDS[self.cause]}"


def head_of(main_job: str) -> str:
    """The number that the parts of one job share: of `12_3`, `12_[4-9]`, `12+1` and `het12`, 12."""
    return main_job.removeprefix("het").partition("_")[0].partition("+")[0]


#: A main job that takes a node so long after a pilot has left it (seconds) has to do with the pilot, perhaps: an
#: epilog and a backfill cycle or two fit in.
AFTER_S = 300.0

#: Ended jobs are asked for so often (seconds): slurmctld shows them for MinJobAge, 300 s by default.
ASK_INTERVAL_S = 30.0

#: Slurm begins a heterogeneous job so long after it put it off (seconds): cred_expire, 120 s, and a second (seen on
#: 22.05; docs/how-to/admin-rollout.md, "The reserve").
MAX_PUT_OFF_S = 122.0


@dataclass(slots=True)
class _Left:
    """A node's last pilot, there since `since`; `at`: when it was seen to be gone, `free_at`: when it was, as far as
    Slurm says."""

    pilot: str
    job: int | None
    since: float
    at: float
    preempted: bool
    free_at: float


class MainJobsMet:
    """Folds pilots that leave nodes, and says which main jobs have these nodes then."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}  # by node; no holder has been seen since
        self._started: dict[str, float] = {}  # by node: its running pilot's start
        self._noted: OrderedDict[str, None] = OrderedDict()
        self._put_off: OrderedDict[str, None] = OrderedDict()  # have not been seen to run since
        self._preempted_at = self._asked_at = float("-inf")
        self._cycle_s = 0.0  # of backfill, at the last look

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case kinds.PilotStarted(started_at=begun) if event.node:
                self._left.pop(event.node, None)
                self._started[event.node] = begun or event.at
            case kinds.PilotHeld(preempted=preempted) | kinds.PilotEnded(preempted=preempted) if (
                event.node and event.pilot
            ):
                since = self._started.pop(event.node, event.at - AFTER_S)
                if preempted:
                    self._preempted_at = event.at
                self._left[event.node] = _Left(event.pilot, event.job, since, event.at, preempted, event.free_at)
            case kinds.MainJobMet(main_job=main_job):
                if event.node:
                    self._left.pop(event.node, None)
                    self._put_off.pop(main_job, None)
                elif event.payload.put_off:
                    _note(self._put_off, main_job)
                _note(self._noted, main_job)

    def yields(self, main_jobs: Mapping[str, bool], snapshot: Snapshot, now: float) -> list[Event]:
        """Those of the main jobs that wait for pilots to leave, as in `YieldPlan.delayed`, which are not in the
        journal yet."""
        wanted = main_jobs.keys() - self._noted.keys()
        if not wanted:
            return []
        return [
            Event(now, kinds.MainJobMet(row.id, row.user, row.submit_time, behind=main_jobs[row.id]))
            for row in snapshot.pending
            if row.id in wanted
        ]

    def look(self, snapshot: Snapshot, harvest_partition: str, now: float) -> list[Event]:
        """Main jobs that have nodes which pilots left lately, each node once."""
        events = []
        self._cycle_s = snapshot.plan.cycle_s
        for node, left in sorted(self._left.items()):
            main = (row for row in snapshot.holders.get(node, ()) if row.partition != harvest_partition)
            if rows := [row for row in main if (row.start_time or now) <= left.free_at + AFTER_S]:
                events.append(self._meeting(node, min(rows, key=lambda each: each.start_time or now), now))
        self._left = {node: left for node, left in self._left.items() if now - left.at <= AFTER_S}
        return [*events, *self._look_at_put_off(snapshot, now)]

    def _meeting(self, node: str, row: SlurmJob, now: float) -> Event:
        left = self._left[node]
        times = row.submit_time, row.start_time, left.free_at
        meeting = kinds.MainJobMet(row.id, row.user, *times, left.preempted, cycle_s=self._cycle_s)
        return Event(now, meeting, left.job, left.pilot, node)

    def _look_at_put_off(self, snapshot: Snapshot, now: float) -> list[Event]:
        """Heterogeneous jobs that Slurm has put off since a pilot was preempted, and those of them that run now."""
        events: list[Event] = []
        if now - self._preempted_at <= AFTER_S:
            for row in snapshot.pending:
                if row.id in self._put_off or not _is_put_off(row):
                    continue
                parts = [each.submit_time for each in snapshot.jobs if each.het_id == row.het_id]
                submitted_at = min(at for at in parts if at is not None)
                if submitted_at <= self._preempted_at:
                    events.append(Event(now, kinds.MainJobMet(row.id, row.user, submitted_at, put_off=True)))
        if self._put_off:
            for row in snapshot.holding:
                if row.id in self._put_off and row.nodes:
                    meeting = kinds.MainJobMet(row.id, row.user, row.submit_time, row.start_time, put_off=True)
                    events.append(Event(now, meeting, node=row.nodes[0]))
        return events

    def to_ask(self, now: float) -> Collection[str]:
        """The nodes on which main jobs may have ended between two looks; none: nothing is to be asked now."""
        if not self._left or 0.0 <= now - self._asked_at < ASK_INTERVAL_S:
            return ()
        self._asked_at = now
        return sorted(self._left)

    def ended(self, jobs: Iterable[SlurmJob], now: float) -> list[Event]:
        """Of jobs that have ended on the nodes of `to_ask`, the first that had each after its pilot."""
        first: dict[str, SlurmJob] = {}
        for job in sorted(jobs, key=_begun):
            for node in self._left.keys() & set(job.nodes):
                left = self._left[node]
                if int(left.since) <= _begun(job) <= left.free_at + AFTER_S:  # Slurm's times are whole seconds
                    first.setdefault(node, job)
        return [self._meeting(node, job, now) for node, job in sorted(first.items())]


def _begun(job: SlurmJob) -> float:
    return job.start_time or job.end_time or 0.0


def _is_put_off(row: SlurmJob) -> bool:
    """Whether Slurm has put a heterogeneous job off: it requeued the part that had nodes, so that its submission is
    that moment, and gave it a time before which it does not begin, which squeue shows as its start. (The other parts
    show other reasons.)"""
    if row.het_id is None or row.reason != "BeginTime" or row.submit_time is None or row.start_time is None:
        return False
    return 0 < row.start_time - row.submit_time <= MAX_PUT_OFF_S


def _note(noted: OrderedDict[Any, None], key: object) -> None:
    noted[key] = None
    trim(noted, 10_000)


def trim(kept: OrderedDict[Any, Any], most: int) -> None:
    """Forget the oldest beyond the `most` newest."""
    while len(kept) > most:
        kept.popitem(last=False)


class JobsBehind:
    """Main jobs that waited behind one which pilots had delayed, in the queue or for nodes that it gave up later for
    it. What a look finds stands in the journal as `MainJobMet.waited_for`. Their delay is not measured: it is at most
    that of the job in front, and at most their own wait."""

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
        trim(self._ranks, 10_000)

    def look(self, snapshot: Snapshot, delays: Mapping[str, MainJobDelay], partition: str, now: float) -> list[Event]:
        """Main jobs that have begun since the last look and waited behind one of `delays`, which are by head."""
        rows = [row for row in snapshot.holding if row.partition != partition and row.nodes]
        known, self._running = self._running, frozenset(row.id for row in rows)
        # Slurm's times are whole seconds: shorter delays are not passed on.
        late = {head: each for head, each in delays.items() if each.delay_s >= 1.0}
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
        # A job that begins two minutes after a node was given up did not wait for it.
        self._had = {node: had for node, had in self._had.items() if now - had[1] <= 120.0}
        return [Event(now, found[row.id], node=row.nodes[0]) for row in fresh if row.id in found]

    def _behind(self, row: SlurmJob, late: Mapping[str, MainJobDelay], now: float) -> MainJobMet | None:
        """What is noted of a job that has begun, behind the one that was delayed most."""
        began = row.start_time or now
        if row.submit_time is None or began <= row.submit_time:
            return None
        before = (self._had[node] for node in row.nodes if node in self._had)  # had its nodes, the last time at
        ahead = {head for head, at in before if row.submit_time < at}
        rank = -row.priority, row.raw_id
        for head, front in late.items():  # or stood before it in the queue while it waited
            if self._ranks.get(head, rank) < rank and row.submit_time < front.started_at <= began + 1.0:
                ahead.add(head)
        found = [late[head] for head in sorted(ahead - {head_of(row.id)}) if head in late]
        if not found:
            return None
        most = max(found, key=lambda each: each.delay_s)
        return MainJobMet(row.id, row.user, row.submit_time, began, waited_for=head_of(most.main_job))
