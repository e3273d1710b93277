"""Live workers that are asked to end (SIGTERM): who leaves when, and who saves what is trained.

This follows `malletrain.elastic.resize.lifecycle` and `reconfigure`: members say in each round, and as a world meets,
whether they are to end. Where all are, one that holds the newest state saves it; one leaves by itself only while
others stay; one that is left without a world saves what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scripts.simulation.process import JobProgress, Process

#: As in `malletrain.elastic.resize.lifecycle` and `reconfigure`.
LEAVE_GRACE_S, ENDING_PATIENCE_S = 2.0, 5.0


class Departures:
    """What each does that was asked to end.

    Args:
        progress: of each job.
        leave: called with a worker that leaves by itself.
    """

    def __init__(self, progress: dict[int, JobProgress], leave: Callable[[Process], None]) -> None:
        self._progress, self._leave = progress, leave

    def is_gone(self, me: Process, now: float) -> bool:
        """Whether one that is in no world, or whose world is broken, has left by now."""
        if me.ending_at is None or me.entering is me.at is None:
            if me.ending_at is not None:
                self._leave(me)
            return me.left_at is not None
        if me.at is not None and me.broken_at is not None and self._has_waited(me, now):
            self._save_and_leave([me])
        return me.left_at is not None

    def committed(self, peers: Sequence[Process]) -> bool:
        """Whether all members of a world have left, after a step of it: they have said that all are to end."""
        if any(each.ending_at is None for each in peers):
            return False
        self._save_and_leave(peers)
        return True

    def between_steps(self, peers: Sequence[Process], now: float) -> None:
        """Those leave by themselves that have waited for a plan, while others stay."""
        for me in peers:
            stays = me.ending_at is None or now - me.ending_at <= LEAVE_GRACE_S
            if not stays and me.left_at is None and me.entering is None:
                self._leave(me)

    def met(self, seats: Sequence[Process]) -> None:
        """A world is entered: if all of it are to end, they do."""
        if all(each.ending_at is not None for each in seats):
            self._save_and_leave(seats)

    # --- inside -----------------------------------------------------------------------------------------------

    def _has_waited(self, me: Process, now: float) -> bool:
        alone = me.at is not None and len(me.at.members) == 1
        return alone or (me.broken_at is not None and now - me.broken_at > ENDING_PATIENCE_S)

    def _save_and_leave(self, members: Sequence[Process]) -> None:
        self._progress[members[0].job].keep(members[0].step)
        for each in members:
            self._leave(each)
