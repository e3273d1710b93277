"""The launcher's mode for independent items (`mtbatch --elastic=tasks`): the script runs from the pilot's start to
its end, and no change of size touches it.

The launcher is the member of the world, which has no rendezvous: it is what the daemon counts nodes by. The pilot is
warm once the script has opened its `Items`; the first member reports how many items are committed. Standard library
only.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from malletrain.elastic.data.item_folder import committed_items
from malletrain.elastic.errors import ItemsError
from malletrain.elastic.launch import kill_group
from malletrain.elastic.launch.restart import MAX_FAILURES, Restarter
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: Seconds between two reports of what is committed: the folder is listed for each.
REPORT_S = 10.0

#: Seconds until a script that failed is started again.
AGAIN_S = 1.0


class ItemWorker(Restarter):
    """One pilot of a job of independent items. Arguments and errors are those of `Restarter`."""

    _warm = False
    _again_at: float | None = None
    #: Items that were committed when the script failed last.
    _done_at_failure = -1
    #: When this member last reported or began, the items committed by then, and the generation.
    _reported: tuple[float, int, int] | None = None

    def _begin(self) -> None:
        self._start()

    def _variables(self) -> dict[str, str]:
        return {}

    def _start(self) -> None:
        self._ready.unlink(missing_ok=True)
        super()._start()

    def _tend(self) -> None:
        if self._process is None and self._again_at is not None and time.monotonic() >= self._again_at:
            self._start()
        if not self._warm and self._ready.exists():
            self._warm = True
            self._say_warm()
        if self._reported is None or self._seat(self._plan) == 0:
            self._report(REPORT_S)

    @property
    def _is_member(self) -> bool:
        return bool(self._plan.generation)

    def _take(self, plan: messages.Plan) -> None:
        """Become a member of a world; the script works on."""
        grew = len(plan.members) > len(self._plan.members)
        self._plan = plan
        self._say_switched(0.0, grew=grew)

    def _report(self, after_s: float) -> None:
        """Report what is committed by all members, if this one's last report is `after_s` old."""
        now = time.monotonic()
        if self._reported is not None and now - self._reported[0] < after_s:
            return
        total, batches = self._committed()
        if total < 0:
            return
        if self._reported is not None:
            at, before, generation = self._reported
            if total <= before:
                return  # a batch takes longer than this: the window becomes longer
            nodes, steady = len(self._plan.members), generation == self._plan.generation
            self._link.say(messages.Samples(batches, nodes, total - before, now - at, 1, total, steady=steady))
        self._reported = now, total, self._plan.generation

    def _committed(self) -> tuple[int, int]:
        """The items and batches that are committed; -1 where the script has opened no `Items` yet."""
        try:
            return committed_items(Path(self._ready.read_text()))
        except (OSError, ItemsError):
            return -1, 0

    def _ended(self, status: int) -> int | None:
        """Handle the end of the script; returns the exit status for this process, or None to go on."""
        kill_group(self._process)
        self._process = None
        total, batches = self._committed()
        if status == 0:
            self._report(0.0)  # whichever member this is: the first one may be lost
            self._link.say(messages.Finished({"items": max(0, total)}))
            delivered = self._link.deliver_end(self._must_end)
            # (Where another worker has told it, the job is over, and the daemon has no use for this one.)
            return 0 if delivered or self._link.end is not None else 1
        # Others may be at work: only failures between which nobody has committed anything count.
        self._failures = self._failures + 1 if total <= self._done_at_failure or self._failures == 0 else 1
        self._done_at_failure = total
        if self._failures >= MAX_FAILURES:
            return self._fail(batches, status, ", and no item was committed")
        log.warning("the script ended with status %d: it is started again", status)
        self._again_at = time.monotonic() + AGAIN_S
        return None
