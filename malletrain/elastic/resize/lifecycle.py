"""The course of one worker from round to round: where worlds change, and where it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

from malletrain.elastic.comm.step_commit import StepOutcome
from malletrain.elastic.errors import Aborted, Released
from malletrain.elastic.link.local_group import LocalLeader
from malletrain.elastic.link.reports import Reports
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.elastic.state.checkpointing import Checkpointing
from malletrain.wire import messages

#: A worker told to end by SIGTERM leaves in order within this, or by itself.
LEAVE_GRACE_S = 2.0

#: A step that would go on for longer than this is given up by a worker that is told to end: Slurm kills by KillWait
#: (30 s by default), and a main job waits for the node.
LONG_STEP_S = 10.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """Into a world, at monotonic `at`, after a pause; `before`: nodes of the one before."""

    pause_s: float
    before: int
    at: float


class WorkerLifecycle:
    """What a worker does between two rounds.

    Args:
        switch: its worlds.
        saving: its part in checkpoints.
        entered: called when it trains in another world.
        reports: to the daemon.
        local_leader: the other processes of its node, at the first one.
        in_pilot: whether there is a daemon to ask when this worker is told to end.

    Attributes:
        last_commit: when the last step was committed (monotonic).
        step_began: when the step under way began (monotonic); None once it is committed, and between steps.
    """

    def __init__(
        self,
        reconfigurer: Reconfigurer,
        checkpointing: Checkpointing,
        entered: Callable[[], None],
        reports: Reports,
        local_leader: LocalLeader | None,
        *,
        in_pilot: bool,
    ) -> None:
        self._reconfigurer = reconfigurer
        self._committer = reconfigurer.committer
        self._checkpointing = checkpointing
        self._entered = entered
        self._reports = reports
        self._local_leader = local_leader
        self._in_pilot = in_pilot
        self._agreed = 0
        self._leave_all = False
        self._must_recover = False
        self._must_level = False
        self._unannounced: _Entry | None = None
        self._ending_since: float | None = None
        self._leave_now = False
        self.last_commit = time.monotonic()
        self.step_began: float | None = None

    def begin(self) -> None:
        """This worker is in its first world."""
        self.last_commit = time.monotonic()
        self._enter(0.0, self._committer.world.nodes)

    def committed(self, outcome: StepOutcome) -> None:
        """A round is done; so the one before it is done at every member."""
        self._reports.stands()
        self._checkpointing.confirm()
        if self._committer.world.recovering_ranks:
            self._take_in(changed=outcome.state_changed)
        self._agreed = max(self._agreed, outcome.agreed)
        self._leave_all = self._leave_all or (outcome.ending > 0 and outcome.ending == self._committer.world.size)
        if outcome.save_due:
            self._checkpointing.request()

    def broken(self) -> None:
        """A round was void: before the next one, the world is mended."""
        self._must_recover = True

    def between_steps(self) -> None:
        """The one place where worlds change: everything of the last step is done, and a batch follows."""
        before = self._committer.world.nodes
        while True:
            try:
                if self._leave_now:
                    self._leave()
                elif self._must_recover:
                    self._recover()
                elif self._leave_all:
                    self._leave_together()
                elif self._agreed > self._committer.world.generation:
                    began = time.monotonic()
                    self._take()
                    self._enter(time.monotonic() - began, before)
                self._level()
                self._committer.check()
                self._leave_if_told()
                return
            except Aborted:
                self._must_recover = True

    def between_rounds(self) -> None:
        """Where an evaluation may go on in a smaller world: everyone who stays is in the same place of the script."""
        while True:
            try:
                if self._must_recover:
                    self._recover()
                elif self._agreed > self._committer.world.generation and self._reconfigurer.only_shrinks(
                    self._agreed
                ):
                    before = self._committer.world.nodes
                    self._take()
                    self._enter(0.0, before)
                elif self._leave_all and not self._reconfigurer.finishing:
                    self._leave_together()
                self._level()
                self._committer.check()
                if (
                    not self._reconfigurer.finishing
                ):  # else all is done but for one round: it is quicker than to leave
                    self._leave_if_told()
                return
            except Aborted:
                self._must_recover = True

    def sum(self, table: torch.Tensor) -> torch.Tensor | None:
        """A round that sums a table over members; None when it was void."""
        try:
            sums = self._committer.take_received()
            if sums is not None:
                self.committed(self._committer.commit_received(sums))
                return sums[0]
            row = self._committer.control_vector(1)
            started = [] if self._committer.world.size == 1 else [self._committer.start(table)]
            self.committed(self._committer.finish(started, [table, row], row))
            return table
        except Aborted:
            self._must_recover = True
            return None

    def meet(self) -> None:
        """A round of its own: when it is through, every member has committed all before it."""
        while True:
            self.between_rounds()
            if self.sum(torch.zeros(1)) is not None:
                return

    def terminated(self, number: int, frame: FrameType | None) -> None:
        """This process was told to end, by the signal `number`.

        Raises:
            Aborted: the step under way would go on for too long.
        """
        name = signal.Signals(number).name
        if self._reconfigurer.link is None and self._in_pilot:
            raise Released(name)  # not begun yet
        if self._ending_since is not None or self._reconfigurer.released:
            return
        self._ending_since = time.monotonic()
        self._reconfigurer.ending = name
        self._reports.say(messages.Leaving(f"{name} from outside"))
        if self._local_leader is not None:
            self._local_leader.end()
        if self._is_long(self.step_began):
            self._leave_now = True
            raise Aborted(f"{name} in the middle of a long step")

    # --- inside -----------------------------------------------------------------------------------------------

    def _is_long(self, began: float | None) -> bool:
        """Whether a step that began then will go on for longer than may be waited for. Where nodes have several
        processes they may be in different places of it, and none gives it up alone."""
        world = self._committer.world
        if began is None or world.local_size > 1 or (world.size > 1 and self._reconfigurer.link is None):
            return False
        return began + self._committer.median_step_s() - time.monotonic() > LONG_STEP_S

    def _take(self) -> None:
        agreed, self._agreed = self._agreed, 0
        if not self._reconfigurer.stays(agreed):
            self._reports.stands()
        self._reconfigurer.take(agreed)

    def _recover(self) -> None:
        before = self._committer.world.nodes
        self._reconfigurer.recover()
        self._must_recover, self._agreed, self._leave_all = False, 0, False
        self._enter(time.monotonic() - self.last_commit, before)

    def _enter(self, pause_s: float, before: int) -> None:
        """This world trains. `before`: the nodes of the one before."""
        self._must_level = False
        self._unannounced = _Entry(pause_s, before, time.monotonic())
        if not self._committer.world.recovering_ranks:
            self._announce(0.0)
        self._entered()

    def _take_in(self, *, changed: bool) -> None:
        """The first step of newcomers is done, in which they got the state."""
        self._committer.world.recovering_ranks = frozenset()
        self._reconfigurer.taken_in(changed=changed)
        self._must_level = changed
        if self._unannounced is not None:
            self._announce(time.monotonic() - self._unannounced.at - self._committer.median_step_s())

    def _level(self) -> None:
        """Newcomers that were given something else than the others hold get the state, before anything needs it."""
        if self._must_level:
            self._must_level = False
            self._reconfigurer.level()

    def _announce(self, late_s: float) -> None:
        """Tell of this world. `late_s`: by how much its first step was longer than others."""
        entry, self._unannounced = self._unannounced, None
        if entry is not None:
            self._reconfigurer.announce(entry.pause_s + max(0.0, late_s), entry.before)

    def _leave_if_told(self) -> None:
        if self._ending_since is None:
            return
        if self._committer.world.size == 1 or time.monotonic() - self._ending_since > LEAVE_GRACE_S:
            self._leave()

    def _leave(self) -> None:
        """Without waiting for anybody; the others mend their world."""
        if self._committer.world.size == 1:
            self._leave_together()
        elif self._reconfigurer.link is not None:
            self._reports.stands()
            self._reconfigurer.leave(0, None)

    def _leave_together(self) -> None:
        """All members were told to end: the first saves the state; no daemon is needed for this."""
        saved = self._checkpointing.save() if self._checkpointing.is_writer else None
        self._reports.stands()
        if self._reconfigurer.link is None:
            raise Released(self._reconfigurer.ending)
        self._reconfigurer.leave(0, saved)
