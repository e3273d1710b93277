"""What the promise to the main queue is reckoned from: main jobs that arrive, how long nodes take to be free for
them, how much later they started, and slurmctld's cycles.

Arrivals come from accounting when the daemon starts, and from each look; they and yields are in the journal, so that
they are there again after a restart. Cycles are counted since the daemon began.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import nodes_of_pilots
from malletrain.domain.decision import LeavePilot, RecyclePilot
from malletrain.domain.event import ActionIntent, Event, MainJobMet, MainJobsArrived
from malletrain.domain.snapshot import SlurmJob, Snapshot
from malletrain.loop.queue_promise import (
    UNKNOWN_YIELD_S,
    ControllerBudget,
    HourDemands,
    MainArrival,
    PromisedReserve,
    PromiseKept,
    YieldTimes,
    demands,
    harmless_cycle_s,
    next_step,
    of_hour,
    promised_reserve,
    reserve_curve,
    with_trial_pilot,
)
from malletrain.loop.trackers.main_jobs import MainJobDelay, head_of, trim

#: So many arrivals are kept: the newest.
MAX_ARRIVALS = 20_000

#: So many arrivals stand in one event of the journal.
MAX_IN_ONE_EVENT = 500

#: Of so many of the newest jobs that pilots gave way to, the times say how long nodes take to be free.
MAX_YIELDS = 500

#: So many jobs that pilots gave way to are kept, to be reported on.
MAX_DELAYS = 5_000

#: A curve is reckoned for so many numbers of nodes without a main job, evenly chosen from those of the latest looks.
MAX_CURVE_LEVELS, CURVE_LOOKS = 24, 10_000

#: A job that was seen so long after its submission (seconds) waited for other things before: until then it could not
#: have started, and what counts is from the look that asked pilots to leave, and one look before.
LONGEST_LEAD_S = 5.0

#: Slurm's times are whole seconds, rounded down: what they say happened half a second later, in the mean.
HALF_SECOND_S = 0.5

#: A job that starts within this of the node's being free was started by Slurm's quick scheduler; a later one by
#: backfill.
QUICK_START_S = 2.0

#: A job that starts so long after pilots were asked to leave for it (seconds) waited for other things.
LONGEST_WAIT_S = 300.0

#: What follows for a job that arrived is known after so long.
SETTLED_S = 180.0

#: The time of one day counts in how the promise was kept.
KEPT_WINDOW_S = 86_400.0

#: Arrivals are sorted into hours anew so often, in seconds.
SORTED_EVERY_S = 60.0

#: Seconds from one look to the next, until the site's `loop.tick_s` is said, and for a worker to leave.
USUAL_LOOK_S, LEAVE_S = 10.0, 2.0

#: Until an epilog has been measured (seconds).
UNKNOWN_EXIT_S = 60.0


@dataclass(slots=True)
class _Waiting:
    """A main job that pilots are asked to leave for."""

    submitted_at: float | None = None
    could_at: float = -math.inf  #: when it could have started without pilots, as far as the daemon can tell
    behind: bool = False  #: only backfill could start it
    put_off: bool = False


class PromiseTracker:
    """Folds events and looks; says what the promise asks for now."""

    def __init__(self) -> None:
        self.budget: ControllerBudget | None = None
        self.steps_back = 0
        self.stepped_for = ""
        self.held: PromisedReserve | None = None
        #: Seconds from one look to the next: a reserve is filled again at a look.
        self.look_s = USUAL_LOOK_S
        self._exits_s: float | None = None  # in which nodes are free again, once that is known
        self._cycle_s = 30.0  # from one backfill cycle to the next, until a look says it
        self._arrivals: list[MainArrival] = []
        self._noted: OrderedDict[str, None] = OrderedDict()
        self._unwritten: deque[SlurmJob] = deque(maxlen=MAX_ARRIVALS)  # the journal lacks their arrival
        self._delays: OrderedDict[str, MainJobDelay] = OrderedDict()  # by main job
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()  # by head of the main job's id
        self._levels: deque[int] = deque(maxlen=CURVE_LOOKS)  # nodes without a main job
        self._hour: tuple[float, int, HourDemands] | None = None
        self._first_at = math.inf  # the journal's first event that was folded
        self._counts_from = math.inf  # none that arrived since then is missing
        self._begins = False  # the journal lacks the first look
        self._stepped_at: float | None = None  # or this daemon's first look

    # -- what is learnt ----------------------------------------------------------------------------------------

    def learn(self, arrivals: Iterable[tuple[str, float, int]]) -> int:
        """Take in main jobs that arrived before: id (of each task of an array), submission (Unix seconds), nodes;
        returns how many are new. None since the first of them is missing."""
        new = 0
        known = frozenset(self._noted)  # from the journal: an array is one there, and accounting has its tasks
        for identity, at, width in arrivals:
            whole = f"{identity.partition('_')[0]} {at:.0f}"
            if width > 0 and whole not in known and not self._is_noted(f"{identity} {at:.0f}"):
                new += 1
                self._add(at, width)
                self._is_noted(whole)
                self._counts_from = min(self._counts_from, at)
        self._hour = None
        return new

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        self._first_at = min(self._first_at, event.at)
        match event.payload:
            case ActionIntent(action=LeavePilot(main_job=main_job) | RecyclePilot(main_job=main_job)) if main_job:
                self._ask(self._of(main_job), event.at)
            case MainJobsArrived() as arrived:
                self._restore(arrived, event.at)
            case MainJobMet(main_job=main_job) as meeting:
                waiting = self._of(main_job)
                waiting.submitted_at = waiting.submitted_at if meeting.submitted_at is None else meeting.submitted_at
                if not event.node:
                    self._ask(waiting, event.at)
                    waiting.put_off = waiting.put_off or meeting.put_off
                    waiting.behind = waiting.behind or meeting.behind
                elif meeting.waited_for:
                    self._note_behind(event.node, meeting)
                elif event.pilot or meeting.put_off:  # others are bounds, which earlier releases wrote
                    self._note_meeting(waiting, event.node, meeting)

    def _of(self, main_job: str) -> _Waiting:
        waiting = self._waiting.setdefault(head_of(main_job), _Waiting())
        trim(self._waiting, MAX_YIELDS)
        return waiting

    def take_arrived(self) -> MainJobsArrived | None:
        """What the journal lacks of the arrivals that looks have shown, at most `MAX_IN_ONE_EVENT`; None: nothing.
        The first look is told without any, too: from then on none is missing."""
        if not self._unwritten and not self._begins:
            return None
        self._begins = False
        jobs = [self._unwritten.popleft() for _ in range(min(MAX_IN_ONE_EVENT, len(self._unwritten)))]
        return MainJobsArrived(
            tuple(_identity(job) for job in jobs),
            tuple(job.submit_time or 0.0 for job in jobs),
            tuple(job.node_count for job in jobs),
            tuple(job.task_count for job in jobs),
        )

    def look(self, snapshot: Snapshot, pilots: int, exits_s: float | None, now: float, rules: Rules) -> None:
        """Take in one whole look; without a promise, too, since what one would cost is known then.

        `pilots`: tasks that run; `exits_s`: in which nodes are free again (seconds).
        """
        if self._stepped_at is None:
            self._stepped_at, self._begins = now, self._counts_from == math.inf
        plan = snapshot.plan
        self._cycle_s = plan.cycle_s
        self._exits_s = exits_s
        self._take_arrivals(snapshot, rules)
        self._levels.append(at_hand(snapshot, rules))
        if rules.promise is None:
            return
        if rules.promise.cycle_ratio is not None:
            budget = self.budget or ControllerBudget(min(rules.max_pilots, rules.promise.most_pilots))
            harmless_s = harmless_cycle_s(plan.main_cycles_per_minute) if rules.promise.harmless_cycles else 0.0
            self.budget = budget.after(
                plan.main_cycle_s, pilots, rules.promise.cycle_ratio, rules.promise.most_pilots, harmless_s
            )
        _, kept = self.kept_since(max(now - KEPT_WINDOW_S, self._stepped_at), now)
        steps, why = next_step(rules.promise.p95_s, kept, self.steps_back)
        if why:
            self.steps_back, self.stepped_for, self._stepped_at = steps, why, now

    # -- what follows ------------------------------------------------------------------------------------------

    def rules(self, rules: Rules, snapshot: Snapshot, now: float) -> Rules:
        """`rules` with the reserve and the number of pilots that keep the promise now."""
        promise = rules.promise
        if promise is None:
            return rules
        if promise.p95_s is not None:
            times, nodes = self.times(), at_hand(snapshot, rules)
            least = promised_reserve(promise.p95_s, self.hour(now), times, nodes, self.steps_back)
            day = now - KEPT_WINDOW_S  # those that accounting knows count too, and the latest
            met = PromiseKept(self._arrived(day), tuple(d.delay_s for d in self.delays(day) if not d.behind))
            self.held = held = with_trial_pilot(least, promise.p95_s, times, nodes, met)
            if held.nodes > rules.keep_idle:
                rules = replace(rules, keep_idle=held.nodes, keep_why=held.reason)
        if self.budget is not None:
            rules = replace(rules, max_pilots=self.budget.cap, cap_why=f"[promise] {self.budget.reason}")
        return rules

    def hour(self, now: float) -> HourDemands:
        """What is known of main jobs at this hour."""
        if self._hour is None or not 0 <= now - self._hour[0] < SORTED_EVERY_S or self._hour[1] != int(now // 3600):
            self._hour = (now, int(now // 3600), of_hour(demands(self._arrivals, self._refill_s), now))
        return self._hour[2]

    def times(self) -> YieldTimes:
        """How long nodes took to be free."""
        took = tuple(each.freed_s for each in self._delays.values() if each.freed_s is not None)[-MAX_YIELDS:]
        # Pilots that left for other reasons say what an epilog takes here, before a main job has met one.
        expected_s = UNKNOWN_YIELD_S if self._exits_s is None else min(UNKNOWN_YIELD_S, self._refill_s)
        return YieldTimes(took, self._cycle_s, expected_s)

    def _arrived(self, begin: float, end: float = math.inf) -> int:
        """How many jobs came then."""
        first = bisect_left(self._arrivals, begin, key=lambda each: each.at)
        return max(0, bisect_right(self._arrivals, end, key=lambda each: each.at) - first)

    def delays(self, since: float) -> tuple[MainJobDelay, ...]:
        """The main jobs that pilots gave way to and that could have started from `since` on (Unix seconds), in that
        order; by the journal, so that they are there again after a restart."""
        return tuple(sorted((d for d in self._delays.values() if d.could_at >= since), key=lambda d: d.could_at))

    def delayed(self) -> Mapping[str, MainJobDelay]:
        """The main jobs that started later for pilots, by head; of parts and tasks the one that was delayed most."""
        late = (each for each in self._delays.values() if each.delay_s > 0)
        return {head_of(each.main_job): each for each in sorted(late, key=lambda each: each.delay_s)}

    def kept_since(self, since: float, now: float) -> tuple[float, PromiseKept]:
        """What the main jobs that arrived from `since` on have met, and the moment that counts for it: all that
        arrived since then are known, by this daemon's looks or by accounting, and what they met, by the journal. The
        latest are left out: nothing is known of them yet."""
        begin, end = max(since, min(now, max(self._first_at, self._counts_from))), now - SETTLED_S
        delays = tuple(each.delay_s for each in self.delays(begin) if not each.behind and each.could_at <= end)
        return begin, PromiseKept(max(self._arrived(begin, end), len(delays)), delays)

    def curve(self, now: float, bounds_s: Sequence[float]) -> list[tuple[float, float, float]]:
        """What each bound of the 95th percentile costs, or would (`reserve_curve`), at this hour, by the numbers of
        nodes without a main job that the latest looks have shown; nothing until the first look."""
        looks = sorted(self._levels)
        few = min(len(looks), MAX_CURVE_LEVELS)
        middles = [looks[(2 * part + 1) * len(looks) // (2 * few)] for part in range(few)]
        return reserve_curve(self.hour(now), self.times(), middles, bounds_s)

    @property
    def arrivals(self) -> int:
        """How many main jobs are known to have arrived."""
        return len(self._arrivals)

    @property
    def _refill_s(self) -> float:
        """In which a reserve is full again: a look, the worker's leaving, and the node's own time."""
        return self.look_s + LEAVE_S + (UNKNOWN_EXIT_S if self._exits_s is None else self._exits_s)

    # -- parts -------------------------------------------------------------------------------------------------

    def _take_arrivals(self, snapshot: Snapshot, rules: Rules) -> None:
        for job in snapshot.jobs:
            if job.partition == rules.harvest_partition or job.submit_time is None or job.node_count < 1:
                continue
            if not self._is_noted(f"{_identity(job)} {job.submit_time:.0f}"):
                self._add(job.submit_time, job.node_count, job.task_count)
                self._unwritten.append(job)

    def _restore(self, arrived: MainJobsArrived, at: float) -> None:
        """Take in what a look of this daemon or of one before showed. What came while none ran is missing."""
        rows = zip(arrived.main_jobs, arrived.submitted_at, arrived.nodes, arrived.tasks, strict=False)
        for identity, submitted, nodes, tasks in rows:
            if not self._is_noted(f"{identity} {submitted:.0f}"):
                self._add(submitted, nodes, tasks)
                self._hour = None
        self._counts_from = min(at, self._counts_from)

    def _add(self, at: float, nodes: int, tasks: int = 1) -> None:
        """Take in so many jobs of an arrival; the oldest beyond `MAX_ARRIVALS` are forgotten."""
        place = bisect_right(self._arrivals, at, key=lambda each: each.at)
        self._arrivals[place:place] = [MainArrival(at, nodes)] * min(tasks, MAX_ARRIVALS)
        del self._arrivals[:-MAX_ARRIVALS]

    def _is_noted(self, key: str) -> bool:
        """Whether the job is known; it is from now on."""
        known = key in self._noted
        self._noted[key] = None
        trim(self._noted, 2 * MAX_ARRIVALS)
        return known

    def _ask(self, waiting: _Waiting, at: float) -> None:
        """Pilots are asked to leave for it. The waiting rest of an array is one row; its tasks start one by one."""
        if at - waiting.could_at > SETTLED_S:
            submitted = waiting.submitted_at
            lead = LONGEST_LEAD_S if submitted is None else at - (submitted + HALF_SECOND_S)
            waiting.could_at = at - min(LONGEST_LEAD_S, max(0.0, lead))

    def _note_meeting(self, waiting: _Waiting, node: str, meeting: MainJobMet) -> None:
        """A main job has a node that a pilot left: how long that took, and how much later it started for it."""
        if meeting.started_at is None:
            return
        known, cycle_s = self._delays.get(meeting.main_job), meeting.cycle_s or self._cycle_s
        if known is None:
            could_at = waiting.could_at
            if meeting.started_at - could_at > LONGEST_WAIT_S:  # it was another task, or no pilot had been asked
                submitted = -math.inf if meeting.submitted_at is None else meeting.submitted_at
                # The pilot was still there when the job came, though no look in between showed it waiting.
                came_before = meeting.submitted_at is not None and (meeting.left_at or 0.0) > submitted + 1.0
                if not (meeting.preempted or meeting.put_off or came_before):
                    return
                longest_s = LONGEST_WAIT_S if meeting.put_off else max(LONGEST_LEAD_S, cycle_s)
                could_at = max(submitted, meeting.started_at - longest_s) + HALF_SECOND_S
            known = MainJobDelay(meeting.main_job, meeting.user, could_at, meeting.started_at, ())
        left = meeting.started_at if meeting.left_at is None else min(meeting.left_at, meeting.started_at)
        wait = max(0.0, meeting.started_at + HALF_SECOND_S - known.could_at)
        put_off = meeting.put_off or waiting.put_off
        by_backfill = not put_off and meeting.started_at - left > QUICK_START_S and cycle_s > 0
        # Where only backfill could start the job, one of its cycles would have done so without pilots, too.
        cycles = by_backfill and waiting.behind
        self._delays[meeting.main_job] = replace(
            known,
            nodes=known.nodes if node in known.nodes else (*known.nodes, node),
            freed_s=max(known.freed_s or 0.0, min(wait, left + HALF_SECOND_S - known.could_at)),
            delay_s=max(known.delay_s, cycle_s * math.floor(wait / cycle_s) if cycles else wait),
            by_backfill=known.by_backfill or by_backfill,
            preempted=known.preempted + meeting.preempted,
            put_off=known.put_off or put_off,
        )
        trim(self._delays, MAX_DELAYS)

    def _note_behind(self, node: str, meeting: MainJobMet) -> None:
        """It waited behind a main job that pilots delayed: it is later by that at most, or by its own wait."""
        name, began = meeting.main_job, meeting.started_at
        if began is None or meeting.submitted_at is None:
            return
        ahead = (each.delay_s for other, each in self._delays.items() if head_of(other) == meeting.waited_for)
        delay = min(max(ahead, default=0.0), began - meeting.submitted_at)
        known = self._delays.get(name) or MainJobDelay(name, meeting.user, began, began, (node,))
        if delay > known.delay_s:
            could_at = began + HALF_SECOND_S - delay
            behind = replace(known, could_at=could_at, started_at=began, delay_s=delay, behind=meeting.waited_for)
            self._delays[name] = behind
            trim(self._delays, MAX_DELAYS)


def _identity(job: SlurmJob) -> str:
    """An array is one arrival of so many jobs, whatever has become of its tasks since."""
    return job.id.partition("_")[0]


def at_hand(snapshot: Snapshot, rules: Rules) -> int:
    """How many nodes have no main job, of those that may be harvested."""
    return sum(rules.may_harvest(name) for name in snapshot.free_names | nodes_of_pilots(snapshot, rules))
