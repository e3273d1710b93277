"""Where pilots did not start: such a job, or such a job on such a node, rests before it is tried again.

Pilots that were released and kept waiting tell of their job, or of their job on their node; a node on which pilots of
two jobs of several users did not start, with no start in between, rests for everybody: one user's jobs say nothing of
a node for others. Starts that Slurm refuses tell of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.domain.decision import RecyclePilot
from malletrain.domain.event import ActionIntent, Event, JobAnnounced, PilotStarted, StartsRefused


@dataclass(frozen=True, slots=True)
class _Rest:
    """A rest: after how many failures in a row, until when (Unix seconds), and why."""

    failures: int
    until: float
    reason: str

    def in_words(self, now: float) -> str:
        return f"{self.reason}; to be tried again in {self.until - now:.0f} s"


@dataclass(frozen=True, slots=True)
class _Doubling:
    """Rests of `first_s` seconds, then twice as long with each further failure in a row, up to `longest_s`."""

    first_s: float
    longest_s: float

    def after(self, last: _Rest | None, at: float, reason: str) -> _Rest:
        """The rest after one more failure, at `at`."""
        failures = 1 if last is None else last.failures + 1
        rest_s = min(self.longest_s, self.first_s * 2.0 ** min(10, failures - 1))
        return _Rest(failures, at + rest_s, reason)


#: After a pilot that did not start.
UNSTARTED = _Doubling(300.0, 3600.0)

#: After starts that Slurm refuses: shorter, since only a new try shows that the cause is mended.
REFUSED = _Doubling(15.0, 300.0)

#: So many jobs must have failed to start on a node until it rests for all; and so many users' if there are others.
_JOBS_OF_A_BAD_NODE, _USERS_OF_A_BAD_NODE = 2, 2


class StartBackoff:
    """Folds recycled pilots that never started, and refused starts.

    A start on the node, or of the job, ends the rest of the first kind; an accepted one that of the second.
    """

    def __init__(self) -> None:
        self._resting: dict[str, _Rest] = {}  # by `job 7`
        self._on_node: dict[str, dict[int, _Rest]] = {}  # by node and job
        self._unfit: dict[int, dict[str, _Rest]] = {}  # by job and node
        self._refused: dict[str, _Rest] = {}
        self._user: dict[int, str] = {}  # by job

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case JobAnnounced(job=announced) if event.job is not None:
                self._user[event.job] = announced.user
            case StartsRefused(refused=refused):
                self._fold_refusal(event, refused)
            case PilotStarted():
                self._on_node.pop(event.node or "", None)
                self._unfit.get(event.job or 0, {}).pop(event.node or "", None)
                self._resting.pop(f"job {event.job}", None)
            case ActionIntent(action=RecyclePilot(unstarted=subject, unfit=unfit)) if subject:
                job, node = event.job or 0, event.node or ""
                if subject != node:
                    self._resting[subject] = UNSTARTED.after(self._resting.get(subject), event.at, event.reason)
                elif unfit:
                    of_job = self._unfit.setdefault(job, {})
                    of_job[node] = UNSTARTED.after(of_job.get(node), event.at, event.reason)
                else:
                    of_node = self._on_node.setdefault(node, {})
                    of_node[job] = UNSTARTED.after(of_node.get(job), event.at, event.reason)

    def _fold_refusal(self, event: Event, refused: bool) -> None:
        subject = f"job {event.job}"
        if not refused:
            self._refused.pop(subject, None)
            return
        why = f"Slurm refuses its pilots: {event.reason}"
        self._refused[subject] = REFUSED.after(self._refused.get(subject), event.at, why)

    def forget(self, job: int) -> None:
        """The job is long over."""
        self._user.pop(job, None)
        self._resting.pop(f"job {job}", None)
        self._refused.pop(f"job {job}", None)
        self._unfit.pop(job, None)
        for node, of_node in list(self._on_node.items()):
            if of_node.pop(job, None) is not None and not of_node:
                del self._on_node[node]

    def is_refused(self, job: int) -> bool:
        """Whether Slurm refused the last starts of this job."""
        return f"job {job}" in self._refused

    def resting(self, now: float) -> Mapping[str, str]:
        """What is not to be tried at `now` (Unix seconds): node name or `job 7` -> why."""
        nodes = {
            node: max(of_node.values(), key=lambda rest: rest.until)
            for node, of_node in self._on_node.items()
            if self._is_bad(of_node)
        }
        return {
            subject: rest.in_words(now)
            for subject, rest in (*nodes.items(), *self._resting.items(), *self._refused.items())
            if rest.until > now
        }

    def _is_bad(self, of_node: Mapping[int, _Rest]) -> bool:
        users = {self._user.get(job, f"job {job}") for job in of_node}
        everybody = set(self._user.values())
        told = len(users) >= min(_USERS_OF_A_BAD_NODE, max(1, len(everybody)))
        return len(of_node) >= _JOBS_OF_A_BAD_NODE and told

    def resting_on(self, now: float) -> Mapping[int, Mapping[str, str]]:
        """On which nodes each job is not to be tried at `now`: job -> node -> why."""
        found: dict[int, dict[str, str]] = {}
        by_job = ((job, node, rest) for node, of_node in self._on_node.items() for job, rest in of_node.items())
        unfit = ((job, node, rest) for job, of_job in self._unfit.items() for node, rest in of_job.items())
        for job, node, rest in (*by_job, *unfit):
            if rest.until > now:
                found.setdefault(job, {})[node] = rest.in_words(now)
        return found
