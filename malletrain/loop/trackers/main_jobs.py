"""Main jobs that pilots made room for, or met, and what that cost each: noted while Slurm shows them, so that it can
be explained days later.

A look at the queue shows those that run. One that began and ended between two looks is asked for by the nodes that
pilots left: Slurm shows ended jobs for a while (`EndedJobs`). Of those that waited behind a job that pilots had
delayed, in the queue or for nodes that it gave up later for it, the delay is not measured: it is at most that of the
job in front, and at most their own wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from malletrain.domain.event import (
    DaemonStarted,
    Event,
    MainJobMet,
    MainJobsUnseen,
    PilotEnded,
    PilotHeld,
    PilotStarted,
)
from malletrain.domain.snapshot import EndedJobs, SlurmJob, Snapshot


class DelayCause(StrEnum):
    """Why a main job that met pilots started when it did."""

    NONE = "none"  #: its nodes were free before Slurm came to it
    LEAVING = "leaving"  #: it waited for workers to leave and for the epilog
    BACKFILL = "backfill"  #: a backfill cycle found its nodes taken; a later one started it
    PREEMPTED = "preempted"  #: Slurm took a node from a pilot for it
    ELSEWHERE = "elsewhere"  #: it began on other nodes than those that pilots were asked to leave for it
    BEHIND = "behind"  #: it waited behind a main job that pilots had delayed
    PUT_OFF = "put_off"  #: Slurm preempted a pilot for a part of a heterogeneous job, and put the job off


CAUSE_WORDS = {
    DelayCause.NONE: "no delay: pilots had left before Slurm came to it",
    DelayCause.LEAVING: "it waited for workers to leave and for the epilog",
    DelayCause.BACKFILL: "a backfill cycle found its nodes taken, and a later one started it",
    DelayCause.PREEMPTED: "Slurm preempted a pilot for it",
    DelayCause.ELSEWHERE: "pilots were asked to leave for it, and it began on other nodes",
    DelayCause.BEHIND: "it waited behind another main job, which pilots had delayed",
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
    elsewhere: bool = False  #: it began on nodes that no pilot had had, so that `delay_s` is a bound
    #: The main job that it waited behind and that pilots had delayed, so that `delay_s` is a bound.
    behind: str = ""

    @property
    def cause(self) -> DelayCause:
        """The last thing that it waited for."""
        if self.delay_s <= 0:
            return DelayCause.NONE
        if self.behind:
            return DelayCause.BEHIND
        if self.put_off:
            return DelayCause.PUT_OFF
        if self.elsewhere:
            return DelayCause.ELSEWHERE
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
        if self.elsewhere:
            return f"at most {self.delay_s:.3g} s later for pilots: {CAUSE_WORDS[self.cause]}"
        where = "" if self.put_off else f" on {len(self.nodes)} of its nodes"
        return f"{self.delay_s:.3g} s later for pilots{where}: {CAUSE_WORDS[self.cause]}"


def head_of(main_job: str) -> str:
    """The number that the parts of one job share: of `12_3`, `12_[4-9]`, `12+1` and `het12`, 12."""
    return main_job.removeprefix("het").partition("_")[0].partition("+")[0]


#: A main job that takes a node so long after a pilot has left it (seconds) has to do with the pilot, perhaps: an
#: epilog and a backfill cycle or two fit in.
AFTER_S = 300.0

#: Ended jobs are asked for no more often (seconds): slurmctld shows them for MinJobAge, 300 s by default.
MAX_ASK_INTERVAL_S = 30.0

#: Slurm begins a heterogeneous job so long after it put it off (seconds): cred_expire, 120 s, and a second (seen on
#: 22.05; docs/how-to/admin-rollout.md, "The reserve").
MAX_PUT_OFF_S = 122.0

#: So many main jobs are remembered as noted already.
_MAX_NOTED = 10_000

#: So many nodes that pilots left are kept until they have been asked about, while the journal is folded.
_MAX_LEFT = 50_000


@dataclass(slots=True)
class _Left:
    """A node's last pilot, there since `since`; `at`: when it was seen to be gone, `free_at`: when it was, as far as
    Slurm says. `until`: when the node had its next holder."""

    node: str
    pilot: str
    job: int | None
    since: float | None
    at: float
    preempted: bool
    free_at: float
    until: float | None = None

    def had(self, started_at: float | None, ended_at: float) -> bool:
        """Whether a main job of these times had the node after the pilot, and before whoever came next. Slurm's
        times are whole seconds."""
        begun = ended_at if started_at is None else started_at
        after = self.at - AFTER_S if self.since is None else self.since
        before = self.at + AFTER_S if self.until is None else self.until
        return ended_at >= int(after) and int(after) <= begun <= before


class MainJobsMet:
    """Folds pilots that leave nodes, and says which main jobs have these nodes then."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}  # by node; no holder has been seen since
        self._unasked: deque[_Left] = deque(maxlen=_MAX_LEFT)
        self._started: dict[str, float] = {}  # by node: its running pilot's start
        self._noted: OrderedDict[str, None] = OrderedDict()
        self._noted_on: OrderedDict[tuple[str, str], None] = OrderedDict()  # with a node
        self._put_off: OrderedDict[str, None] = OrderedDict()  # have not been seen to run since
        self._asked: OrderedDict[str, float] = OrderedDict()  # by head: pilots were asked at; not seen to run since
        self._preempted_at = float("-inf")
        self._last_at = float("-inf")
        self._interval_s = MAX_ASK_INTERVAL_S
        self._asked_at: float | None = None  #: ended jobs are known up to here

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case DaemonStarted():
                self._restart(event.at)
            case PilotStarted(started_at=begun) if event.node:
                self._close(event.node, event.at)
                self._started[event.node] = begun or event.at
            case (
                PilotHeld(preempted=preempted, left_at=left_at) | PilotEnded(preempted=preempted, left_at=left_at)
            ) if event.node and event.pilot:
                self._close(event.node, event.at)
                since = self._started.pop(event.node, None)
                if preempted:
                    self._preempted_at = event.at
                free_at = event.at if left_at is None else min(left_at, event.at)
                left = _Left(event.node, event.pilot, event.job, since, event.at, preempted, free_at)
                self._left[event.node] = left
                self._unasked.append(left)
            case MainJobMet(main_job=main_job):
                if event.node:
                    if event.payload.ended_at is None:
                        self._close(event.node, event.payload.started_at or event.at)
                    _note(self._noted_on, (main_job, event.node))
                    self._put_off.pop(main_job, None)
                elif event.payload.put_off:
                    _note(self._put_off, main_job)
                if event.node or event.payload.put_off:
                    self._asked.pop(head_of(main_job), None)
                else:
                    self._asked[head_of(main_job)] = event.at
                _note(self._noted, main_job)
        self._last_at = event.at

    def yields(self, main_jobs: Mapping[str, bool], snapshot: Snapshot, now: float) -> list[Event]:
        """Those of the main jobs that wait for pilots to leave, as in `YieldPlan.delayed`, which are not in the
        journal yet."""
        wanted = main_jobs.keys() - self._noted.keys()
        if not wanted:
            return []
        return [
            Event(now, MainJobMet(row.id, row.user, row.submit_time, behind=main_jobs[row.id]))
            for row in snapshot.pending
            if row.id in wanted
        ]

    def look(self, snapshot: Snapshot, harvest_partition: str, now: float) -> list[Event]:
        """Main jobs that have nodes which pilots left lately, each node once."""
        events: list[Event] = []
        for node, left in sorted(self._left.items()):
            rows = [row for row in snapshot.holders.get(node, ()) if row.partition != harvest_partition]
            if rows:
                row = min(rows, key=lambda each: each.start_time or now)
                met = MainJobMet(row.id, row.user, row.submit_time, row.start_time, left.free_at, left.preempted)
                events.append(Event(now, met, left.job, left.pilot, node))
        for node in [name for name, left in self._left.items() if now - left.at > AFTER_S]:
            del self._left[node]
        seen = {head_of(event.payload.main_job) for event in events if isinstance(event.payload, MainJobMet)}
        return [
            *events,
            *self._look_elsewhere(snapshot, harvest_partition, seen, now),
            *self._look_at_put_off(snapshot, now),
        ]

    def _look_elsewhere(
        self, snapshot: Snapshot, harvest_partition: str, noted: Collection[str], now: float
    ) -> Iterator[Event]:
        """Main jobs that pilots were asked to leave for, and that run on nodes which none had had."""
        for head in [head for head, at in self._asked.items() if now - at > AFTER_S]:
            del self._asked[head]
        seen = set(noted)
        for row in snapshot.holding if self._asked else ():
            head = head_of(row.id)
            if head in self._asked and head not in seen and row.nodes and row.partition != harvest_partition:
                seen.add(head)
                payload = MainJobMet(row.id, row.user, row.submit_time, row.start_time or now, elsewhere=True)
                yield Event(now, payload, node=row.nodes[0])

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
                    events.append(Event(now, MainJobMet(row.id, row.user, submitted_at, put_off=True)))
        if self._put_off:
            for row in snapshot.holding:
                if row.id in self._put_off and row.nodes:
                    met = MainJobMet(row.id, row.user, row.submit_time, row.start_time, put_off=True)
                    events.append(Event(now, met, node=row.nodes[0]))
        return events

    def to_ask(self, now: float) -> tuple[tuple[str, ...], float] | None:
        """The nodes on which main jobs may have ended unseen, and from when on; None: nothing is to be asked now."""
        if not self._unasked:
            self._asked_at = now  # no pilot has left: nothing is missed
            return None
        since = min(left.at if left.since is None else left.since for left in self._unasked)
        since = since if self._asked_at is None else max(since, self._asked_at)
        if now - max(since, min(left.at for left in self._unasked)) < min(self._interval_s, MAX_ASK_INTERVAL_S):
            return None
        return tuple(sorted({left.node for left in self._unasked})), since

    def ended(self, answer: EndedJobs, since: float, now: float) -> list[Event]:
        """What follows from the answer to `to_ask`: the main jobs that had a node after its pilot, each with each
        node once, and the time that Slurm could say nothing of."""
        events: list[Event] = []
        for left in self._unasked:
            for job in answer.jobs:
                key = (job.id, left.node)
                if job.end_time is None or left.node not in job.nodes or key in self._noted_on:
                    continue
                if left.had(job.start_time, job.end_time):
                    met = MainJobMet(
                        job.id, job.user, job.submit_time, job.start_time, left.free_at, left.preempted, job.end_time
                    )
                    _note(self._noted_on, key)
                    events.append(Event(now, met, left.job, left.pilot, left.node))
        if answer.since > since + 1.0:
            events.append(Event(now, MainJobsUnseen(since, answer.since)))
        self._asked_at = now
        self._interval_s = max(0.0, (now - answer.since) / 2) if answer.since > since else MAX_ASK_INTERVAL_S
        kept = [left for left in self._unasked if left.until is None and now - left.at <= AFTER_S]
        self._unasked = deque(kept, maxlen=_MAX_LEFT)
        return events

    def _restart(self, now: float) -> None:
        """A daemon begins: what its predecessor asked about is not asked again; what it had no time for, is."""
        known = self._last_at - MAX_ASK_INTERVAL_S
        kept = [left for left in self._unasked if left.until is None or left.until > known]
        kept = [left for left in kept if left.at > known - AFTER_S]
        self._unasked = deque(kept, maxlen=_MAX_LEFT)
        self._asked_at = min(known, now)

    def _close(self, node: str, at: float) -> None:
        left = self._left.pop(node, None)
        if left is not None:
            left.until = at


def _is_put_off(row: SlurmJob) -> bool:
    """Whether Slurm has put a heterogeneous job off: it requeued the part that had nodes, so that its submission is
    that moment, and gave it a time before which it does not begin, which squeue shows as its start. (The other parts
    show other reasons.)"""
    if row.het_id is None or row.reason != "BeginTime" or row.submit_time is None or row.start_time is None:
        return False
    return 0 < row.start_time - row.submit_time <= MAX_PUT_OFF_S


def _note(noted: OrderedDict[Any, None], key: object) -> None:
    noted[key] = None
    trim(noted, _MAX_NOTED)


def trim(kept: OrderedDict[Any, Any], most: int) -> None:
    """Forget the oldest beyond the `most` newest."""
    while len(kept) > most:
        kept.popitem(last=False)


#: Shorter ones are not passed on (seconds): Slurm's times are whole seconds.
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
        self._had = {node: had for node, had in self._had.items() if now - had[1] <= PASSED_ON_S}
        return events

    def waits(self, snapshot: Snapshot, main_jobs: Mapping[str, bool]) -> None:
        """Take in the ranks of main jobs that wait for pilots to leave."""
        for row in snapshot.pending if main_jobs else ():
            if row.id in main_jobs:
                self._ranks[head_of(row.id)] = (-row.priority, row.raw_id)
                self._ranks.move_to_end(head_of(row.id))
        trim(self._ranks, _MAX_RANKS)

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
