"""How long pilots' nodes take to be free again: Slurm's own end of a job and the site's epilog, measured.

No configuration says how long an epilog takes, and a pilot that leaves in time but whose epilog does not stands in
the way all the same.
"""

from __future__ import annotations

import math
from collections import deque

from malletrain.domain.decision import RecyclePilot
from malletrain.domain.event import ActionIntent, DaemonStarted, Event, PilotEnded, PilotHeld, PilotStarted

#: The latest exits are looked at; a site that changes its epilog is believed after so many.
KEPT = 100

#: Of those the 95th percentile counts: a few are held up by other things.
SHARE = 0.95

#: Longer ones tell of a node or a daemon that was away.
LONGEST_S = 600.0


class ReleaseLatency:
    """Folds the journal: from the order to requeue a pilot to the look that shows it held or gone.

    A pilot that waits in the held array again has left its node, epilog and all; before, Slurm shows it completing.
    """

    def __init__(self) -> None:
        self._ran: set[str] = set()
        self._since: dict[str, float] = {}
        self._took: deque[float] = deque(maxlen=KEPT)

    def apply(self, event: Event) -> None:
        """Fold one event, of whatever kind."""
        if isinstance(event.payload, DaemonStarted):
            self._since.clear()
        if event.pilot is None:
            return
        match event.payload:
            case PilotStarted():
                self._ran.add(event.pilot)
            case ActionIntent(action=RecyclePilot(main_job=job, kill=kill)) if job and not kill:
                pass  # its worker had not left yet: how long that takes is no matter of the node
            case ActionIntent(action=RecyclePilot()) if event.pilot in self._ran:
                self._since.setdefault(event.pilot, event.at)  # one that Slurm has not started leaves nothing behind
            case PilotHeld() | PilotEnded():
                self._ran.discard(event.pilot)
                since = self._since.pop(event.pilot, None)
                if since is not None and 0.0 <= event.at - since <= LONGEST_S:
                    self._took.append(event.at - since)

    def usual_s(self) -> float | None:
        """Within how many seconds nearly every node was seen free again; None before the first."""
        if not self._took:
            return None
        ordered = sorted(self._took)
        return ordered[min(len(ordered) - 1, math.ceil(SHARE * len(ordered)) - 1)]
