"""Signs of harm, folded from the journal and from what Slurm shows, at which the daemon steps back by itself and says
why; and whose pilots were at fault too often within an hour, and get no nodes for a while.

A job's breaker comes before its user's, and that before the site's, which leaves out what follows from a job that is
set aside: one job's or user's conduct never stops the others.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from malletrain.decide.rules import Rules
from malletrain.domain import event as kinds
from malletrain.domain.decision import LeaveCause, LeavePilot, RecyclePilot
from malletrain.domain.event import Event
from malletrain.domain.job import JobView, part_of
from malletrain.domain.snapshot import NodeState, Snapshot

#: A node that Slurm itself takes out of service so soon after a pilot ended there ails because of it, perhaps.
AFTER_S = 900.0

#: Words of Slurm's own (slurmctld, slurmd), not of staff, for a node that is taken out of service.
_OWN_WORDS = (
    "kill task failed",
    "prolog",
    "epilog",
    "batch job complete failure",
    "not responding",
    "duplicate jobid",
    "unexpectedly rebooted",
)

#: What Slurm preempts within so many seconds counts once: a main job of many nodes ends as many pilots, whose grace
#: time (GraceTime, KillWait) they use in part.
ONE_PREEMPTION_S = 60.0

#: A pilot that was asked to leave and is still seen after so many seconds was slow.
SLOW_EXIT_S = 60.0

#: Main cycles count as slow above this factor over those without pilots, and above so many seconds.
SLOW_FACTOR = 2.0
SLOW_CYCLE_S = 0.5

#: Signs of a kind, and faults, that are kept.
_KEPT = 10_000

#: Signs that a job or user may be to blame for.
_ONES_OWN = ("slow_exits", "ailing_nodes")

#: So many looks at slow cycles within an hour are too many on any machine; for how long starts pause then (seconds).
SLOW_CYCLES_PER_HOUR, PAUSE_S = 30, 1800.0


@dataclass(frozen=True, slots=True)
class HarmSignals:
    """Signs of harm, as the times (Unix seconds, rising) at which each was seen; `unsound`: what is wrong with the
    harvest partition by now. Where the site promises by how much main jobs may be later, `late_main_jobs`, those that
    were later and that Slurm preempted pilots for, stands for `preempted`."""

    preempted: Sequence[float] = ()
    late_main_jobs: Sequence[float] = ()
    slow_exits: Sequence[float] = ()
    ailing_nodes: Sequence[float] = ()
    slow_cycles: Sequence[float] = ()
    unsound: str = ""


def why_to_pause(harm: HarmSignals, now: float, preemptions_per_hour: int) -> str:
    """Why nothing new may start now; empty when all is well. The gravest sign speaks. Half as many pilots may be slow
    to leave as are preempted, and a tenth as many nodes ail."""
    if harm.unsound:
        return f"the harvest partition no longer gives way: {harm.unsound}"
    for seen, per_hour, words in (
        (harm.ailing_nodes, max(1, preemptions_per_hour // 10), "nodes ailed after pilots"),
        (harm.preempted, preemptions_per_hour, "times pilots were preempted, so yielding comes too late"),
        (
            harm.late_main_jobs,
            preemptions_per_hour,
            "main jobs that Slurm preempted pilots for were later than promised",
        ),
        (harm.slow_exits, preemptions_per_hour // 2, "pilots were slow to leave"),
        (harm.slow_cycles, SLOW_CYCLES_PER_HOUR, "looks found slurmctld's cycles longer than without pilots"),
    ):
        left = _left_s(seen, now, per_hour)
        if left > 0:
            return f"within an hour more than {per_hour} {words}: nothing new starts for {left:.0f} s (see [breaker])"
    return ""


def _left_s(at: Sequence[float], now: float, per_hour: int) -> float:
    """For how long starts still pause: until `PAUSE_S` after the last one that made more than `per_hour`."""
    for last in range(len(at) - 1, per_hour - 1, -1):
        if now - at[last] >= PAUSE_S:
            return 0.0
        if at[last] - at[last - per_hour] <= 3600.0:
            return PAUSE_S - (now - at[last])
    return 0.0


class HarmSignalTracker:
    """Folds what pilots did, and keeps what looks showed."""

    def __init__(self) -> None:
        self._times: dict[str, deque[tuple[float, int | None]]] = {  #: when, and by a pilot of which job
            name: deque(maxlen=_KEPT) for name in ("preempted", "slow_exits", "ailing_nodes", "slow_cycles")
        }
        self._asked: dict[str, float] = {}  #: pilot -> when it was asked to leave
        #: node -> its last pilot, when that ended (inf: runs), and its job
        self._left: dict[str, tuple[str, float, int | None]] = {}
        self._ailing: set[str] = set()
        self._cycles_without: deque[float] = deque(maxlen=60)
        self._cycles_with_pilots: deque[float] = deque(maxlen=12)

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case kinds.ActionIntent(action=LeavePilot() | RecyclePilot(unstarted="")) if event.pilot:
                self._asked.setdefault(event.pilot, event.at)
            case kinds.PilotStarted() if event.node and event.pilot:
                self._left[event.node] = (event.pilot, math.inf, event.job)
            case kinds.PilotHeld(preempted=preempted) | kinds.PilotEnded(preempted=preempted):
                self._ended(event)
                if preempted and event.pilot is not None:
                    self._count("preempted", event, apart_s=ONE_PREEMPTION_S)
            case kinds.NodeAils():
                if event.node:
                    self._ailing.add(event.node)
                self._count("ailing_nodes", event)

    def seen(
        self, unsound: str = "", excused: Callable[[int | None, float], bool] = lambda _job, _at: False
    ) -> HarmSignals:
        """All signs, for the breaker, but for those `excused` by job and time: what follows from a job's or user's
        own breaker. Preemptions and slow cycles belong to no job."""
        found = {
            name: tuple(at for at, job in times if name not in _ONES_OWN or not excused(job, at))
            for name, times in self._times.items()
        }
        return HarmSignals(**found, unsound=unsound)

    def look(self, snapshot: Snapshot, pilots: int, now: float) -> list[Event]:
        """What a snapshot says: nodes that Slurm took out of service after pilots, as events; cycle times are kept.

        `pilots`: how many run now.
        """
        self._mind_cycles(snapshot.plan.main_cycle_s, pilots, now)
        events = []
        for name, (pilot, ended, job) in sorted(self._left.items()):
            node = snapshot.node.get(name)
            out = node is not None and node.state in (NodeState.DRAINED, NodeState.DOWN)
            if node is None or not out:
                self._ailing.discard(name)
                if now - ended > AFTER_S:
                    del self._left[name]
                continue
            why = node.reason.lower()
            if name not in self._ailing and now - ended <= AFTER_S and any(words in why for words in _OWN_WORDS):
                reason = f"{node.state.value} ({node.reason}) after pilot {pilot}"
                events.append(Event(now, kinds.NodeAils(), job, pilot, name, reason))
        return events

    def _mind_cycles(self, cycle_s: float | None, pilots: int, now: float) -> None:
        if cycle_s is None:
            return
        (self._cycles_with_pilots if pilots else self._cycles_without).append(cycle_s)
        if pilots and len(self._cycles_with_pilots) == self._cycles_with_pilots.maxlen:
            usual = median(self._cycles_without) if len(self._cycles_without) >= 6 else 0.0
            slowest_good = max(SLOW_CYCLE_S, SLOW_FACTOR * usual)
            if median(self._cycles_with_pilots) > slowest_good:
                self._times["slow_cycles"].append((now, None))

    def _count(self, name: str, event: Event, apart_s: float = 0.0) -> None:
        """Those within `apart_s` count once."""
        times = self._times[name]
        if not times or not 0.0 <= event.at - times[-1][0] < apart_s:
            times.append((event.at, event.job))

    def _ended(self, event: Event) -> None:
        if event.pilot is None:
            return
        pilot, ended, job = self._left.get(event.node or "", ("", 0.0, None))
        if event.node and pilot == event.pilot:
            self._left[event.node] = (pilot, min(ended, event.at), job)
        asked = self._asked.pop(event.pilot, None)
        if asked is not None and event.at - asked > SLOW_EXIT_S and not part_of(event.pilot):
            self._count("slow_exits", event)


HOUR_S = 3600.0

#: Each further time lasts twice as long, up to this; after as long without one it is the first again.
LONGEST_S = 86400.0


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
            case kinds.JobAnnounced(job=job):
                self._users[job.id] = job.user
            case kinds.ActionIntent(action=RecyclePilot(kill=True)):
                self._at_fault(event, Misconduct.LATE)
            case kinds.ActionIntent(action=LeavePilot(cause=LeaveCause.NO_WORKER)):
                self._at_fault(event, Misconduct.NO_WORKER)
            case kinds.ActionIntent(action=LeavePilot(cause=LeaveCause.IDLE)):
                self._at_fault(event, Misconduct.IDLE)
            case kinds.NodeAils():
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
                found[job] = f"{period.reason}; no nodes for {period.until - now:.0f} s (see [breaker])"
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
        counted: dict[str, tuple[list[float], list[float]]] = {}  # of each job and user: faults, and nodes that ailed
        until: dict[str, float] = {}
        times: Counter[str] = Counter()
        found = []
        for at, job, fault in self._faults:
            subjects = (f"job {job}", 1), (f"user {self._users[job]}", 2)  # a user may have twice a job's
            if any(at < until.get(name, -math.inf) for name, _ in subjects):
                continue  # it follows from that
            ails = fault is Misconduct.AILING
            for name, factor in subjects:
                most = max(1, rules.max_faults // 3) if ails else rules.max_faults * factor
                if fault is Misconduct.IDLE and factor == 1:
                    most = 0
                count = counted.setdefault(name, ([], []))[ails]
                count[:] = [*(each for each in count if each > at - HOUR_S), at]
                if len(count) <= most:
                    continue
                times[name] = times[name] + 1 if at < until.get(name, -math.inf) + LONGEST_S else 1
                until[name] = at + min(LONGEST_S, rules.set_aside_s * 2.0 ** min(20, times[name] - 1))
                del counted[name]
                who = name if factor == 1 else "one of its owner's jobs"
                often = "" if most == 0 else f", more than {most} times in an hour"
                found.append(SetAside(name, at, until[name], f"{who} {fault.value}{often}"))
        return tuple(found)
