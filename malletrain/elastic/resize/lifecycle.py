"""What a worker does at each step boundary: it trains on, switches, recovers from a fault, or leaves."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable
from types import FrameType

import torch

from malletrain.elastic.comm.step_commit import StepOutcome
from malletrain.elastic.errors import Aborted, Released
from malletrain.elastic.invariants.agreement import Agreement, RoundKind
from malletrain.elastic.link.training_reports import Reports
from malletrain.elastic.resize.member import Member
from malletrain.elastic.resize.reconfigure import Reconfigurer
from malletrain.elastic.state.checkpoint_store import Checkpointing
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: After SIGTERM a worker waits this long for a plan without it, then leaves by itself if others hold the state.
LEAVE_GRACE_S = 2.0

#: After SIGTERM a step that would last longer than this is abandoned: Slurm kills after KillWait (30 s by default),
#: and a main job waits for the node.
LONG_STEP_S = 10.0

#: Seconds for which further signals are passed over that ask for what the first has begun: one that raised while
#: Python left a lock would leave it broken.
UNHEARD_S = 5.0


class WorkerLifecycle:
    """Drives one worker from step to step. `in_pilot`: whether a daemon decides when it leaves."""

    def __init__(
        self,
        member: Member,
        reconfigurer: Reconfigurer,
        checkpointing: Checkpointing,
        reports: Reports,
        agreement: Agreement,
        *,
        in_pilot: bool,
    ) -> None:
        self._member = member
        self._committer = member.committer
        self._reconfigurer = reconfigurer
        self._checkpointing = checkpointing
        self._reports = reports
        self._agreement = agreement
        self._in_pilot = in_pilot
        self._leave_all = False
        self._must_recover = False
        self._ending_since: float | None = None
        self._released_at = -math.inf  #: by a signal before it trained (monotonic)
        self.gives_up = False  #: a long step, and the world with it
        self._others_stay = False  #: by what members said when this one had said that it ends
        self.last_commit = time.monotonic()
        self.step_began: float | None = None  #: the step under way; None between steps, and once it is committed

    def committed(self, outcome: StepOutcome) -> None:
        """Process a committed round. The round before it is now committed at every member."""
        self._reports.round_committed()
        self._checkpointing.confirm()
        self._reconfigurer.vote(outcome)
        self._leave_all = self._leave_all or (outcome.ending > 0 and outcome.ending == self._committer.world.size)
        self._others_stay = self._member.said_ending and 0 < outcome.ending < self._committer.world.size
        if self._agreement.may_save(due=outcome.save_due):
            self._checkpointing.request()

    def broken(self) -> None:
        """The round under way was aborted: recover before the next one."""
        self._must_recover = True

    def between_steps(self, *, in_evaluation: bool = False) -> None:
        """Switch, recover or leave, whichever is due. Call it before each batch, and before each round of an
        evaluation: there only worlds without newcomers are entered, which would not be at this place of the script.
        Raises `Released`: this worker's part is over."""
        finishing = self._member.finishing  # the last round is quicker than leaving
        while True:
            try:
                if self._must_recover:
                    self._recover()
                elif self._leave_all and not finishing:
                    self._leave_together()
                elif self._reconfigurer.may_switch(in_evaluation=in_evaluation):
                    self._reconfigurer.switch(in_evaluation=in_evaluation)
                    self._world_entered()
                self._committer.check()
                if not finishing:
                    self._leave_if_asked()
                return
            except Aborted:
                self._must_recover = True

    def sum(self, table: torch.Tensor, kind: RoundKind, place: int = 0) -> torch.Tensor | None:
        """Sum a table over members in a commit round of its own, which is number `place` of its kind at this step.
        Returns None when it was aborted. Raises `ElasticError`: another member makes another round."""
        try:
            control = self._committer.control_vector(1)
            self._agreement.open(kind, place)
            self._committer.meet()
            started = [] if self._committer.world.size == 1 else [self._committer.start(table)]
            self._committer.sum_pass(started, control)
            self.committed(self._committer.commit(control))
            return table
        except Aborted:
            self._must_recover = True
            return None

    def sum_of_all(self, make_table: Callable[[], torch.Tensor], kind: RoundKind, place: int = 0) -> torch.Tensor:
        """Like `sum`, again in the next world when a round is aborted. `make_table`: makes this member's table for
        the present world."""
        while True:
            self.between_steps(in_evaluation=True)
            summed = self.sum(make_table(), kind, place)
            if summed is not None:
                return summed

    def terminated(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that asks this process to end. Raises `Released`: it does not train yet, or the step under
        way would last for too long, and is undone as the process ends."""
        name = signal.Signals(number).name
        if self._member.link is None and self._in_pilot:
            now = time.monotonic()
            if now - self._released_at < UNHEARD_S:
                return
            self._released_at = now
            raise Released(name)
        if self._ending_since is not None or self._member.released:
            return
        self._ending_since = time.monotonic()
        self._member.ending = name
        self._member.say(messages.Leaving(f"{name} from outside"))
        if self._member.local_leader is not None:
            self._member.local_leader.end()
        if self._is_long(self.step_began):
            self.gives_up = self._must_recover = True
            raise Released(name)

    def _is_long(self, began: float | None) -> bool:
        """Whether a step that began at `began` is to be abandoned. With several processes a node it never is, because
        they may be at different points of it."""
        world = self._committer.world
        if began is None or world.local_size > 1 or (world.size > 1 and self._member.link is None):
            return False
        return began + self._committer.median_step_s() - time.monotonic() > LONG_STEP_S

    def _recover(self) -> None:
        world = self._committer.world
        if world.size == 1 and self._ending_since is not None:
            self._leave_together()
        if self.gives_up:
            self.gives_up = False
            self._member.fault(world.generation, "closed", "a long step is given up")
        self._reconfigurer.recover()
        self._must_recover, self._leave_all = False, False
        self._reconfigurer.begin_world(time.monotonic() - self.last_commit, world.nodes)
        self._world_entered()

    def _world_entered(self) -> None:
        """A world is entered, in which members have said who of them ends: if all do, none makes another step."""
        if self._reconfigurer.recovery.all_end and not self._member.finishing:
            self._leave_together()
        self._others_stay = self._member.said_ending

    def _leave_if_asked(self) -> None:
        if self._ending_since is None:
            return
        if self._committer.world.size == 1:
            self._leave_together()
        in_time = time.monotonic() - self._ending_since <= LEAVE_GRACE_S
        if self._others_stay and not in_time and self._member.link is not None:
            # Without waiting for a plan: the others hold the state, and recover as from a fault.
            self._reports.send_held()
            self._member.leave(0, None)
        if self._is_long(time.monotonic()):
            self.gives_up = True
            raise Aborted("the next step would be a long one")

    def _leave_together(self) -> None:
        """All members were asked to end: the one that writes checkpoints saves the state. This needs no daemon."""
        saved, unsaved = self._checkpointing.save_if_possible() if self._checkpointing.is_writer else (None, "")
        self._reports.send_held()
        if self._member.link is None:
            if unsaved:
                log.warning("%s", unsaved)
            raise Released(self._member.ending)
        self._member.leave(0, saved, unsaved=unsaved)
