"""Where pilots did not start: such a job, or such a job on such a node, rests before it is tried again.

Pilots that were released and kept waiting tell of their job, or of their job on their node; a node on which pilots of
two jobs did not start, with no start in between, rests for everybody. Starts that Slurm refuses tell of the job.
"""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.domain.decision import RecyclePilot
from malletrain.domain.event import ActionIntent, Event, PilotStarted, StartsRefused

#: The first rest in seconds; each further failure in a row doubles it.
FIRST_REST_S = 300.0
LONGEST_REST_S = 3600.0

#: The same for a job whose starts Slurm refuses: shorter, since only a new try shows that the cause is mended.
FIRST_REFUSED_REST_S = 15.0
LONGEST_REFUSED_REST_S = 300.0


#: How many in a row, until when it rests, why.
_Rest = tuple[int, float, str]

#: So many jobs must have failed to start on a node until it rests for all.
_JOBS_OF_A_BAD_NODE = 2


class StartBackoff:
    """Folds recycled pilots that never started, and refused starts.

    A start on the node, or of the job, ends the rest of the first kind; an accepted one that of the second.
    """

    def __init__(self) -> None:
        self._resting: dict[str, _Rest] = {}  # by `job 7`
        self._on_node: dict[str, dict[int, _Rest]] = {}  # by node and job
        self._unfit: dict[int, dict[str, _Rest]] = {}  # by job and node
        self._refused: dict[str, _Rest] = {}

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case StartsRefused(refused=refused):
                self._fold_refusal(event, refused)
            case PilotStarted():
                self._on_node.pop(event.node or "", None)
                self._unfit.get(event.job or 0, {}).pop(event.node or "", None)
                self._resting.pop(f"job {event.job}", None)
            case ActionIntent(action=RecyclePilot(unstarted=subject, unfit=unfit)) if subject:
                job, node = event.job or 0, event.node or ""
                if subject != node:
                    self._resting[subject] = _longer(self._resting.get(subject), event)
                elif unfit:
                    of_job = self._unfit.setdefault(job, {})
                    of_job[node] = _longer(of_job.get(node), event)
                else:
                    of_node = self._on_node.setdefault(node, {})
                    of_node[job] = _longer(of_node.get(job), event)

    def _fold_refusal(self, event: Event, refused: bool) -> None:
        subject = f"job {event.job}"
        if not refused:
            self._refused.pop(subject, None)
            return
        count = self._refused.get(subject, (0, 0.0, ""))[0] + 1
        rest_s = min(LONGEST_REFUSED_REST_S, FIRST_REFUSED_REST_S * 2.0 ** min(10, count - 1))
        self._refused[subject] = (count, event.at + rest_s, f"Slurm refuses its pilots: {event.reason}")

    def is_refused(self, job: int) -> bool:
        """Whether Slurm refused the last starts of this job."""
        return f"job {job}" in self._refused

    def resting(self, now: float) -> Mapping[str, str]:
        """What is not to be tried at `now` (Unix seconds): node name or `job 7` -> why."""
        nodes = {
            node: max(of_node.values(), key=lambda rest: rest[1])
            for node, of_node in self._on_node.items()
            if len(of_node) >= _JOBS_OF_A_BAD_NODE
        }
        return {
            subject: _words(rest, now)
            for subject, rest in (*nodes.items(), *self._resting.items(), *self._refused.items())
            if rest[1] > now
        }

    def resting_on(self, now: float) -> Mapping[int, Mapping[str, str]]:
        """On which nodes each job is not to be tried at `now`: job -> node -> why."""
        found: dict[int, dict[str, str]] = {}
        by_job = ((job, node, rest) for node, of_node in self._on_node.items() for job, rest in of_node.items())
        unfit = ((job, node, rest) for job, of_job in self._unfit.items() for node, rest in of_job.items())
        for job, node, rest in (*by_job, *unfit):
            if rest[1] > now:
                found.setdefault(job, {})[node] = _words(rest, now)
        return found


def _longer(last: _Rest | None, event: Event) -> _Rest:
    """The rest after one more failure."""
    count = 1 if last is None else last[0] + 1
    rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(10, count - 1))
    return count, event.at + rest_s, event.reason


def _words(rest: _Rest, now: float) -> str:
    return f"{rest[2]}; to be tried again in {rest[1] - now:.0f} s"
