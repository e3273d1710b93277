"""How long pilots' nodes take to be free again: Slurm's own end of a job and the site's epilog, measured.

No configuration says how long an epilog takes, and a pilot that leaves in time but whose epilog does not stands in
the way all the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from malletrain.domain.decision import RecyclePilot
from malletrain.domain.event import ActionIntent, DaemonStarted, Event, PilotEnded, PilotHeld, PilotStarted

#: The latest exits of each user are looked at; a site that changes its epilog is believed after so many.
KEPT, KEPT_USERS = 100, 200

#: Of those the 95th percentile counts: a few are held up by other things.
SHARE = 0.95

#: One user's exits count for the site up to so many times, and seconds more than, what is usual for most users: a
#: script may be slow to end.
MOST_TIMES, MOST_MORE_S = 2.0, 10.0

#: Longer ones tell of a node or a daemon that was away.
LONGEST_S = 600.0


class ReleaseLatency:
    """Folds the journal: from the order to requeue a pilot to the look that shows it held or gone.

    A pilot that waits in the held array again has left its node, epilog and all; before, Slurm shows it completing.
    """

    def __init__(self) -> None:
        self._ran: set[str] = set()
        self._since: dict[str, float] = {}
        self._given: dict[str, float] = {}  # requeued for a main job, their worker with them
        self._free: deque[float] = deque(maxlen=KEPT)
        self._took: dict[str, deque[float]] = {}  # by user, who was heard last at the end

    def apply(self, event: Event, user: str = "") -> None:
        """Fold one event, of whatever kind; `user`: whose job it is of."""
        if isinstance(event.payload, DaemonStarted):
            self._since.clear()
            self._given.clear()
        if event.pilot is None:
            return
        match event.payload:
            case PilotStarted():
                self._ran.add(event.pilot)
            case ActionIntent(action=RecyclePilot(main_job=job, kill=kill)) if job and not kill:
                if event.pilot in self._ran:  # its worker had not left yet, which is no matter of the node alone
                    self._given.setdefault(event.pilot, event.at)
            case ActionIntent(action=RecyclePilot()) if event.pilot in self._ran:
                self._since.setdefault(event.pilot, event.at)  # one that Slurm has not started leaves nothing behind
            case PilotHeld(left_at=left_at) | PilotEnded(left_at=left_at):
                self._ran.discard(event.pilot)
                since = self._since.pop(event.pilot, None)
                given = self._given.pop(event.pilot, since)
                if given is not None and left_at is not None and -1.0 <= left_at - given <= LONGEST_S:
                    self._free.append(max(0.0, left_at - given))  # Slurm's are whole seconds
                if since is not None and 0.0 <= event.at - since <= LONGEST_S:
                    took = self._took.pop(user, None) or deque(maxlen=KEPT)
                    took.append(event.at - since)
                    self._took[user] = took
                    while len(self._took) > KEPT_USERS:
                        del self._took[next(iter(self._took))]

    def free_s(self) -> float | None:
        """In how many seconds nodes are free again, in the median of the latest, by Slurm's own times; of pilots that
        are taken back with their worker, that included. None before the first."""
        return median(self._free) if self._free else None

    def usual_s(self) -> float | None:
        """Within how many seconds nearly every node was seen free again; None before the first.

        No more than `MOST_TIMES` what it is for most users.
        """
        if not self._took:
            return None
        by_user = sorted(map(_nearly_all, self._took.values()))
        middle = by_user[(len(by_user) - 1) // 2]
        everybodys = _nearly_all([each for took in self._took.values() for each in took])
        return min(everybodys, max(MOST_TIMES * middle, middle + MOST_MORE_S))


def _nearly_all(took: Iterable[float]) -> float:
    ordered = sorted(took)
    return ordered[math.ceil(SHARE * len(ordered)) - 1]
