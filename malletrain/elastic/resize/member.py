"""This process as a member of its world: its name, its connection to the daemon, and how its part ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.errors import Aborted, ElasticError, JobOver, Released
from malletrain.elastic.link.daemon_link import Link
from malletrain.elastic.link.local_group import Follower, LocalLeader
from malletrain.elastic.resize.pending_groups import PendingGroups
from malletrain.elastic.state.training_state import TrainingState
from malletrain.wire import messages

#: Characters of a message that is told the daemon.
MAX_UNSAVED_CHARACTERS = 300

log = logging.getLogger("malletrain.elastic")

#: When a node leaves, its first process waits for the others this long; longer where each of them saves a part.
PEERS_LEAVE_TIMEOUT_S, PEERS_SAVE_TIMEOUT_S = 1.0, 60.0


class Member:
    """One process of the world. Implements `step_commit.WorldMonitor`.

    Args:
        host: the address at which peers reach this machine.
        local_leader: connects the other processes of the node; at the first one only.
        record: gets the messages of a process outside a pilot; None where they are dropped.
    """

    def __init__(
        self,
        worker: str,
        host: str,
        local_rank: LocalRank,
        state: TrainingState,
        local_leader: LocalLeader | None,
        record: Callable[[messages.Message], None] | None,
        end_script: Callable[[], None],
    ) -> None:
        self.worker = worker
        self.host = host
        self.local_rank = local_rank
        self.local_leader = local_leader
        self._state = state
        self._record = record
        self._end_script = end_script
        self.link: Link | Follower | None = None  #: None outside a pilot, and before it is open
        self.committer = StepCommitter(self)  #: holds the present world
        self.pending_groups = PendingGroups(lambda generation, why: self.fault(generation, "build", why))
        self.broken = 0  #: the highest generation that has failed at this member
        self.released = False  #: whether this process is about to end
        self.finishing = False  #: whether this worker is in its last commit round
        self.ending = ""  #: name of the signal that asked this process to end
        self.said_ending = False  #: whether the others were told so in the last round, or as the present world began
        self.follows = False  #: whether its world begins the next session of the script: without a state
        self.passes = False  #: whether it passes over a session that is over: it is in no world meanwhile

    def say(self, message: messages.Message) -> None:
        """Queue a message to the daemon, or write it to the record. Does not block training."""
        if self.link is not None:
            self.link.say(message)
        elif self._record is not None:
            self._record(message)

    def need_link(self) -> Link | Follower:
        """The link. Raises `ElasticError` where there is none."""
        if self.link is None:
            raise ElasticError("no daemon: this process trains alone")
        return self.link

    def has_seat(self, plan: messages.Plan) -> bool:
        return any(seat.worker == self.worker for seat in plan.members)

    # --- step_commit.WorldMonitor ---------------------------------------------------------------------------------

    def check(self, generation: int) -> None:
        """Raise if the world of `generation` must not go on. Raises `Aborted`: an urgent plan replaces it;
        `Released`: the daemon ends this worker; `JobOver`: likewise, in its last round."""
        link = self.link
        if link is None:
            return
        if link.end is not None:
            if self.finishing:
                raise JobOver(link.end)
            self.release(link.end)
        if self.passes:
            return
        plan = link.plan
        if plan is not None and plan.voids(generation):
            raise Aborted(plan.reason)

    def check_newer(self, plan: messages.Plan) -> None:
        """Like `check`, for a world that does not train yet: a newcomer also drops it for any newer plan."""
        self.check(plan.generation)
        latest = self.link.plan if self.link is not None else None
        drops = not (self._state.has_state or self.follows)
        if drops and latest is not None and latest.generation > plan.generation:
            raise Aborted("superseded")

    def fault(self, generation: int, how: str, detail: str) -> None:
        """Report that the world of `generation` has failed."""
        self.broken = max(self.broken, generation)
        if self.link is not None:
            self.link.say(messages.Fault(generation, self._state.position.step, how, detail[:400]))

    def ready_for(self) -> int:
        """The generation that this member could switch to at once, or 0."""
        return self.pending_groups.ready

    def is_ending(self) -> bool:
        """Whether a signal asked this process to end."""
        self.said_ending = bool(self.ending)
        return self.said_ending

    # --- ends -------------------------------------------------------------------------------------------------

    def leave(self, generation: int, saved: str | None, reason: str = "", unsaved: str = "") -> NoReturn:
        """Report that this worker is out, and end the process. Raises `Released`: always.

        Args:
            generation: whose plan has no seat for this worker; 0 where it leaves for another reason.
            saved, unsaved: where it has saved the state, or why it could not.
            reason: why it leaves, where neither the daemon nor a signal has asked it to.
        """
        link = self.need_link()
        if self.local_leader is not None:
            self.local_leader.wait_gone(PEERS_SAVE_TIMEOUT_S if saved else PEERS_LEAVE_TIMEOUT_S)
        link.say(messages.Left(generation, self._state.position.step, saved, unsaved[:MAX_UNSAVED_CHARACTERS]))
        self.committer.world.group.abandon()
        link.flush(2.0)
        if unsaved:
            log.warning("%s", unsaved)
        self.release(link.leave or self.ending or reason or "left")

    def release(self, reason: str) -> NoReturn:
        """End the process and the script around it, without a report. Raises `Released`: always."""
        log.info("%s ends: %s", self.worker, reason)
        self.released = True
        if self.local_leader is not None:
            self.local_leader.close()
        if isinstance(self.link, Follower):
            self.link.close()
            # The first process ends the script once it has reported. Until then this one holds it up, so that the
            # commands after it do not run.
            self.link.wait_leader_gone(PEERS_SAVE_TIMEOUT_S)
        else:
            self._end_script()
        raise Released(reason)
