"""Where pilots did not start: such a job, or such a job on such a node, rests before it is tried again.

Pilots that were released and kept waiting tell of their job, or of their job on their node, as Slurm's reason says; a
node on which pilots of two jobs of several users did not start, with no start in between, rests for everybody: one
user's jobs say nothing of a node for others. Starts that Slurm refuses, and tasks that are held or cancelled before
they begin, tell of the job. A job of which nothing began is doubtful until one of its pilots does: meanwhile it takes
nothing from others (`decide.sizes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.decide.draft import DoubtfulStarts
from malletrain.decide.leaving import SET_BACK_S
from malletrain.domain import event as kinds
from malletrain.domain.decision import CancelTasks, RecyclePilot, StartPilot
from malletrain.domain.event import Event
from malletrain.domain.pilot_life import NO_DAEMON_STATUS
from malletrain.domain.snapshot import SlurmState


@dataclass(frozen=True, slots=True)
class _Rest:
    """A rest: after how many failures in a row, from when until when (Unix seconds), and why."""

    failures: int
    begun: float
    until: float
    reason: str

    def lasts(self, now: float) -> bool:
        """Whether it lasts at `now`; one that would begin later is over: the clock was set back."""
        return self.begun - SET_BACK_S <= now < self.until

    def in_words(self, now: float) -> str:
        return f"{self.reason}; to be tried again in {self.until - now:.0f} s"


#: Rests of so many seconds, then twice as long with each further failure in a row, up to so many: after a pilot that
#: did not start; and, shorter, after starts that Slurm refuses and tasks that were held or cancelled before they
#: began, since only a new try shows that the cause is mended.
UNSTARTED, REFUSED = (300.0, 3600.0), (15.0, 300.0)


def _rest_after(last: _Rest | None, at: float, reason: str, bounds_s: tuple[float, float]) -> _Rest:
    """The rest after one more failure, at `at`."""
    failures = 1 if last is None else last.failures + 1
    return _Rest(failures, at, at + min(bounds_s[1], bounds_s[0] * 2.0 ** min(10, failures - 1)), reason)


#: So many jobs must have failed to start on a node until it rests for all; and so many users' if there are others.
_JOBS_OF_A_BAD_NODE, _USERS_OF_A_BAD_NODE = 2, 2

#: So many nodes must have refused a job as unfit, with no start in between, until it rests on all.
_NODES_OF_AN_UNFIT_JOB = 2

#: Failures of a job count as in a row, and make its user's new jobs doubtful, for so long after the last rest (s).
REMEMBERED_S = 7200.0


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A job whose last starts did not begin. `rest.until` may be past already: then it may be tried. `begun`: its
    pilots that ran then, so as many may; `of_job`: whatever the node, so that only a further one shows it mended."""

    rest: _Rest
    begun: int
    of_job: bool


class StartBackoff:
    """Folds recycled pilots that never started, those that no daemon took, and refused starts.

    A start on the node ends the node's rest, one of the job its doubt; an accepted one that of a refusal.
    """

    def __init__(self) -> None:
        self._on_node: dict[str, dict[int, _Rest]] = {}  # by node and job
        self._unfit: dict[int, dict[str, _Rest]] = {}  # by job and node
        self._refused: dict[int, _Rest] = {}
        self._doubts: dict[int, _Doubt] = {}
        self._last_rest: dict[int, _Rest] = {}  # of jobs whose doubt may be over
        self._users: dict[int, str] = {}
        self._released: dict[str, float] = {}  # pilots that have not begun, and since when
        self._running: dict[int, set[str]] = {}
        self._began: dict[int, float] = {}  # when a pilot of the job began last

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case kinds.JobAnnounced(job=job):
                self._users[job.id] = job.user
            case kinds.StartsRefused(refused=refused):
                self._fold_refusal(event, refused)
            case kinds.PilotStarted():
                self._fold_start(event)
            case kinds.ActionOutcome(action=StartPilot(pilot=pilot), done=True):
                self._released[pilot] = event.at  # an intent alone may be of a daemon that died before it acted
            case kinds.ActionIntent(action=RecyclePilot() as recycled):
                self._fold_recycled(event, recycled)
            case kinds.ActionIntent(action=CancelTasks(pilots=pilots)):
                for pilot in pilots:
                    self._released.pop(pilot, None)
            case kinds.WorkerJoined():
                self._released.pop(event.pilot or "", None)
            case kinds.PilotHeld() | kinds.PilotEnded() | kinds.PilotSetAside() | kinds.PilotWaits():
                self._fold_end(event)

    def _fold_start(self, event: Event) -> None:
        job = event.job or 0
        self._on_node.pop(event.node or "", None)
        self._unfit.get(job, {}).pop(event.node or "", None)
        self._released.pop(event.pilot or "", None)
        running = self._running.setdefault(job, set())
        running.add(event.pilot or "")
        self._began[job] = event.at
        doubt = self._doubts.get(job)
        if doubt is not None and (not doubt.of_job or len(running) > doubt.begun):
            del self._doubts[job]

    def _fold_recycled(self, event: Event, recycled: RecyclePilot) -> None:
        released = self._released.pop(recycled.pilot, event.at)
        job, node = event.job or 0, event.node or ""
        if not recycled.unstarted:
            return
        if recycled.unstarted != node:
            self._doubt(job, event.at, event.reason, UNSTARTED)
            return
        if recycled.unfit:
            last = self._unfit.setdefault(job, {}).get(node)
            self._unfit[job][node] = _rest_after(last, event.at, event.reason, UNSTARTED)
        else:
            self._rest_on(node, job, event.at, event.reason)
        if self._began.get(job, -1.0) >= released:
            return  # others that were released with it began
        if recycled.unfit and len(self._unfit[job]) >= _NODES_OF_AN_UNFIT_JOB:
            self._doubt(job, event.at, event.reason, UNSTARTED)
        elif job not in self._doubts:
            self._doubts[job] = _Doubt(_Rest(0, event.at, event.at, event.reason), self._runs(job), of_job=False)

    def _fold_end(self, event: Event) -> None:
        """A pilot that the daemon released and did not take back is held or gone, and was not seen to run."""
        job, pilot = event.job or 0, event.pilot or ""
        self._running.get(job, set()).discard(pilot)
        lost = self._released.pop(pilot, None) is not None
        match event.payload:
            case kinds.PilotHeld(preempted=False) if lost:
                self._doubt(job, event.at, f"{pilot} was held again before it began, and not by the daemon", REFUSED)
            case kinds.PilotEnded(state=SlurmState.CANCELLED, preempted=False) if lost:
                self._doubt(job, event.at, f"{pilot} was cancelled before it began, and not by the daemon", REFUSED)
            case kinds.PilotEnded(exit_code=status, preempted=False) if status == NO_DAEMON_STATUS and event.node:
                why = f"{pilot} reached no daemon from {event.node}, or was refused (its output says why)"
                self._rest_on(event.node, job, event.at, why)

    def _rest_on(self, node: str, job: int, at: float, reason: str) -> None:
        rests = self._on_node.setdefault(node, {})
        rests[job] = _rest_after(rests.get(job), at, reason, UNSTARTED)

    def _doubt(self, job: int, at: float, reason: str, bounds_s: tuple[float, float]) -> None:
        """The job's starts do not begin, whatever the node. All that fail until its rest is over are one failure."""
        doubt, last = self._doubts.get(job), self._last_rest.get(job)
        if doubt is not None and doubt.of_job and doubt.rest.lasts(at):
            return
        if last is not None and at > last.until + REMEMBERED_S:
            last = None
        rest = self._last_rest[job] = _rest_after(last, at, reason, bounds_s)
        self._doubts[job] = _Doubt(rest, self._runs(job), of_job=True)

    def _runs(self, job: int) -> int:
        return len(self._running.get(job, ()))

    def _fold_refusal(self, event: Event, refused: bool) -> None:
        job = event.job or 0
        last = self._refused.pop(job, None)
        if refused:
            self._refused[job] = _rest_after(last, event.at, f"Slurm refuses its pilots: {event.reason}", REFUSED)

    def forget(self, job: int) -> None:
        """The job is long over."""
        known = self._doubts, self._last_rest, self._users, self._running, self._began, self._unfit, self._refused
        for of_job in known:
            of_job.pop(job, None)
        for node, of_node in list(self._on_node.items()):
            if of_node.pop(job, None) is not None and not of_node:
                del self._on_node[node]

    def is_refused(self, job: int) -> bool:
        """Whether Slurm refused the last starts of this job."""
        return job in self._refused

    def resting(self, now: float) -> Mapping[str, str]:
        """What is not to be tried at `now` (Unix seconds): node name or `job 7` -> why."""
        nodes = {
            node: max(of_node.values(), key=lambda rest: rest.until)
            for node, of_node in self._on_node.items()
            if self._is_bad(of_node)
        }
        refused = {f"job {job}": rest for job, rest in self._refused.items()}
        return {subject: rest.in_words(now) for subject, rest in (nodes | refused).items() if rest.lasts(now)}

    def _is_bad(self, of_node: Mapping[int, _Rest]) -> bool:
        users = {self._users.get(job, f"job {job}") for job in of_node}
        everybody = set(self._users.values())
        of_several = len(users) >= min(_USERS_OF_A_BAD_NODE, max(1, len(everybody)))
        return len(of_node) >= _JOBS_OF_A_BAD_NODE and of_several

    def doubtful(self, now: float) -> Mapping[int, DoubtfulStarts]:
        """The jobs whose last starts did not begin, and new ones of users who have such jobs."""
        found = {
            job: DoubtfulStarts(doubt.begun, doubt.rest.in_words(now), rests=True)
            if doubt.rest.lasts(now)
            else DoubtfulStarts(doubt.begun, f"its last start did not begin ({doubt.rest.reason})")
            for job, doubt in self._doubts.items()
        }
        for job, rest in self._refused.items():
            rests = rest.lasts(now)
            found[job] = DoubtfulStarts(self._runs(job), rest.in_words(now) if rests else rest.reason, rests)
        failing = {
            self._users[job]: job
            for job, rest in self._last_rest.items()
            if job in self._users and now <= rest.until + REMEMBERED_S
        }
        for job, user in self._users.items() if failing else ():
            if user in failing and job not in self._began and job not in found:
                why = f"none of its pilots has begun yet, and those of its owner's job {failing[user]} did not lately"
                found[job] = DoubtfulStarts(0, why)
        return found

    def resting_on(self, now: float) -> Mapping[int, Mapping[str, str]]:
        """On which nodes each job is not to be tried at `now`: job -> node -> why."""
        found: dict[int, dict[str, str]] = {}
        by_job = ((job, node, rest) for node, of_node in self._on_node.items() for job, rest in of_node.items())
        unfit = ((job, node, rest) for job, of_job in self._unfit.items() for node, rest in of_job.items())
        for job, node, rest in (*by_job, *unfit):
            if rest.lasts(now):
                found.setdefault(job, {})[node] = rest.in_words(now)
        return found
