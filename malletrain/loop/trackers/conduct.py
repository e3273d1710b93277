"""The breaker by job and by user: whose pilots were at fault too often within an hour gets no nodes for a while.

A job's comes before its user's, and that before the site's (`malletrain.loop.breaker`), which leaves out what follows
from a job that is set aside: one job's or user's conduct never stops the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.decide.rules import Rules
from malletrain.domain.decision import LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.event import ActionIntent, Event, JobAnnounced, NodeAils
from malletrain.domain.job import JobView, part_of

HOUR_S = 3600.0

#: A user may have so many times the faults of one job.
USER_FACTOR = 2

#: Each further time lasts twice as long, up to this; after as long without one it is the first again.
LONGEST_S = 86400.0

#: Faults that are kept.
_KEPT = 10_000


class Misconduct(StrEnum):
    """What a job is to blame for; the words of the reason."""

    LATE = "was killed, still there after its time to leave for the main queue"
    NO_WORKER = "held a node on which no worker joined"
    IDLE = "held nodes and committed no step"
    AILING = "left a node that Slurm then took out of service"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A job (`job 7`) or a user (`user ann`) gets no nodes from `since` to `until` (Unix seconds)."""

    subject: str
    since: float
    until: float
    reason: str


@dataclass(slots=True)
class _Record:
    """Of one job or user: the faults that count, by when; until when it is set aside, and how often it was."""

    faults: deque[float] = field(default_factory=deque)
    ailing: deque[float] = field(default_factory=deque)
    until: float = float("-inf")
    times: int = 0


class Conduct:
    """Folds what pilots were at fault for. Of faults at one moment only one counts, but for workers that never join:
    a main job may want all nodes of a job at once."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._faults: deque[tuple[float, int, Misconduct]] = deque(maxlen=_KEPT)
        self._periods: tuple[tuple[int, Rules], tuple[SetAside, ...]] | None = None
        self._seen = 0

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case JobAnnounced(job=job):
                self._users[job.id] = job.user
            case ActionIntent(action=RecyclePilot(kill=True)):
                self._at_fault(event, Misconduct.LATE)
            case ActionIntent(action=LeavePilot(cause=LeaveCause.NO_WORKER)):
                self._at_fault(event, Misconduct.NO_WORKER)
            case ActionIntent(action=LeavePilot(cause=LeaveCause.IDLE)):
                self._at_fault(event, Misconduct.IDLE)
            case NodeAils():
                self._at_fault(event, Misconduct.AILING)

    def _at_fault(self, event: Event, fault: Misconduct) -> None:
        if event.job is None or event.job not in self._users or part_of(event.pilot or ""):
            return
        entry = (event.at, event.job, fault)
        if fault is Misconduct.NO_WORKER or not self._faults or self._faults[-1] != entry:
            self._faults.append(entry)
            self._seen += 1

    def forget(self, job: int) -> None:
        """A job that is long over: its faults still count for its user."""
        if all(job != other for _, other, _ in self._faults):
            self._users.pop(job, None)

    def set_aside(self, views: Mapping[int, JobView], now: float, rules: Rules) -> dict[int, str]:
        """The jobs that get no nodes at `now` (Unix seconds), each with the reason."""
        if not self._faults:
            return {}
        held = {each.subject: each for each in self.periods(rules) if each.since <= now < each.until}
        found = {}
        for job, view in views.items():
            period = held.get(f"job {job}") or held.get(f"user {view.job.user}")
            if period is not None:
                found[job] = f"{period.reason}; no nodes for {period.until - now:.0f} s (breaker.faults_of_job)"
        return found

    def excuses(self, job: int | None, at: float, rules: Rules) -> bool:
        """Whether something that a pilot of the job did at `at` follows from the job's being set aside: the site's
        breaker leaves it out."""
        if job is None:
            return False
        subjects = (f"job {job}", f"user {self._users.get(job, '')}")
        return any(each.subject in subjects and each.since <= at < each.until for each in self.periods(rules))

    def periods(self, rules: Rules) -> tuple[SetAside, ...]:
        """When which jobs and users were set aside, and are."""
        if self._periods is None or self._periods[0] != (self._seen, rules):
            self._periods = (self._seen, rules), self._replayed(rules)
        return self._periods[1]

    def _replayed(self, rules: Rules) -> tuple[SetAside, ...]:
        records: dict[str, _Record] = {}
        found = []
        for at, job, fault in self._faults:
            subjects = (f"job {job}", 1), (f"user {self._users[job]}", USER_FACTOR)
            mine = [(name, factor, records.setdefault(name, _Record())) for name, factor in subjects]
            if any(at < record.until for _, _, record in mine):
                continue  # it follows from that
            for name, factor, record in mine:
                most = max(1, rules.max_faults // 3) if fault is Misconduct.AILING else rules.max_faults * factor
                if fault is Misconduct.IDLE and factor == 1:
                    most = 0
                if _count(record.ailing if fault is Misconduct.AILING else record.faults, at) <= most:
                    continue
                record.times = record.times + 1 if at < record.until + LONGEST_S else 1
                record.until = at + min(LONGEST_S, rules.set_aside_s * 2.0 ** min(20, record.times - 1))
                record.faults.clear()
                record.ailing.clear()
                who = name if factor == 1 else "one of its owner's jobs"
                often = "" if most == 0 else f", more than {most} times in an hour"
                found.append(SetAside(name, at, record.until, f"{who} {fault.value}{often}"))
        return tuple(found)


def _count(times: deque[float], at: float) -> int:
    """How many there were within the hour, the one at `at` included."""
    times.append(at)
    while times[0] <= at - HOUR_S:
        times.popleft()
    return len(times)
