"""Where pilots did not start: such a node, or such a job, rests before it is tried again.

Pilots that were released and kept waiting tell of their node or job; starts that Slurm refuses tell of the job.
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


class StartBackoff:
    """Folds recycled pilots that never started, and refused starts.

    A start on the node, or of the job, ends the rest of the first kind; an accepted one that of the second.
    """

    def __init__(self) -> None:
        #: Node name or `job 7` -> how many in a row, until when it rests, why.
        self._resting: dict[str, tuple[int, float, str]] = {}
        self._refused: dict[str, tuple[int, float, str]] = {}

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        match event.payload:
            case StartsRefused(refused=refused):
                self._fold_refusal(event, refused)
            case PilotStarted():
                self._resting.pop(event.node or "", None)
                self._resting.pop(f"job {event.job}", None)
            case ActionIntent(action=RecyclePilot(unstarted=subject)) if subject:
                count = self._resting.get(subject, (0, 0.0, ""))[0] + 1
                rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(10, count - 1))
                self._resting[subject] = (count, event.at + rest_s, event.reason)

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
        return {
            subject: f"{why}; to be tried again in {until - now:.0f} s"
            for subject, (_, until, why) in (*self._resting.items(), *self._refused.items())
            if until > now
        }
