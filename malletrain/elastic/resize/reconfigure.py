"""From one world to the next.

Each plan is prepared while training goes on (`preparing`). An ordinary one is taken between two steps, when all
members of the old world have said in one round that they are ready for it; an urgent one at once. Whoever enters a
world calls the roll and comes to the same state as the others (`handover`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.node_group import make_world_group
from malletrain.elastic.comm.peer_store import PeerStore
from malletrain.elastic.comm.step_commit import POLL_INTERVAL_S, StepCommitter, TrainingWorld
from malletrain.elastic.errors import Aborted, ElasticError, JobOver, PeerLost, Released
from malletrain.elastic.launch.worker_start import end_script
from malletrain.elastic.link.daemon_link import Link
from malletrain.elastic.link.local_group import Follower, LocalLeader
from malletrain.elastic.resize.pending_groups import PendingGroups
from malletrain.elastic.resize.quorum import Quorum, Vote
from malletrain.elastic.resize.state_recovery import MEET_PATIENCE, StateRecovery
from malletrain.elastic.state.training_state import TrainingState
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: For how long a builder waits for the other members.
BUILD_PATIENCE = timedelta(seconds=60)

#: Without a world and without a word from the daemon for so long, a worker ends.
LONELY_S = 60.0

#: When it leaves, the first process of a node waits so long for the others; or so long where they save their parts.
PEERS_PATIENCE_S, SAVE_PATIENCE_S = 1.0, 60.0

#: In a broken world and without a word from the daemon for so long, a worker saves the state and ends.
ORPHANED_S = 60.0


class Reconfigurer:
    """The worlds of one worker: implements `rounds.Watch` and what `link.Answers` needs of a world.

    Args:
        worker: this worker's name.
        host: the address at which peers reach this machine.
        save: write a checkpoint; returns where, or None when none is kept.
        load: restore the newest checkpoint; whether there was one.
        top_up: submit so many held tasks more.
        board: in the store that this worker serves.
        prepare: called by the builder of a group, to make ready what the first step with peers needs.
        place: of this process in its node.
        local_leader: the other processes of its node, at the first one.
    """

    def __init__(
        self,
        worker: str,
        host: str,
        state: TrainingState,
        *,
        save: Callable[[], str | None],
        load: Callable[[], bool],
        top_up: Callable[[int], None],
        peer_store: PeerStore | None = None,
        prepare: Callable[[], None] = lambda: None,
        local_rank: LocalRank = LocalRank(),  # noqa: B008 - it is frozen
        local_leader: LocalLeader | None = None,
    ) -> None:
        self._worker = worker
        self._host = host
        self._state = state
        self._save = save
        self._local_rank = local_rank
        self._local_leader = local_leader
        self._mending_since: float | None = None
        self.link: Link | Follower | None = None
        self.committer = StepCommitter(self)
        self.released = False
        self.finishing = False  #: this worker is in its last round
        self.ending = ""  #: why this process was told to end
        self._top_up = top_up
        self._peer_store = peer_store
        self._prepare = prepare
        #: The plan whose group this member began to build last: it meets for no older one any more.
        self._bound: messages.Plan | None = None
        self._broken = 0  #: the highest generation that does not work, as this member has found
        self._addresses: dict[str, str] = {}
        self._pending_groups = PendingGroups(self._make, lambda number, why: self.fault(number, "build", why))
        self._recovery = StateRecovery(worker, state, self.committer, local_rank, self, load, peer_store)

    # --- rounds.Watch -----------------------------------------------------------------------------------------

    def check(self, generation: int) -> None:
        link = self.link
        if link is None:
            return
        if link.end is not None:
            if self.finishing:
                raise JobOver(link.end)
            self.release(link.end)
        plan = link.plan
        if plan is not None and plan.voids(generation):
            raise Aborted(plan.reason)

    def fault(self, generation: int, how: str, detail: str) -> None:
        self._broken = max(self._broken, generation)
        if self.link is not None:
            self.link.say(messages.Fault(generation, self._state.position.step, how, detail[:400]))

    def ready_for(self) -> int:
        return self._pending_groups.ready

    def is_ending(self) -> bool:
        return bool(self.ending)

    # --- link.Answers -----------------------------------------------------------------------------------------

    def on_plan(self, plan: messages.Plan) -> None:
        """Begin to prepare a plan. Called by the link's thread."""
        if plan.generation > self.committer.world.generation:
            self._pending_groups.hear(plan, seated=self._is_seated(plan))

    def check_in(self, number: int) -> messages.CheckedIn:
        since = self.committer.waiting_since
        return messages.CheckedIn(
            answers=number,
            generation=self.committer.world.generation,
            step=self._state.position.step,
            whole=(self._local_leader is None or self._local_leader.check(self.mending_s()))
            and self._state.has_state,
            stuck_s=0.0 if since is None else max(0.0, time.monotonic() - since),
        )

    def mending_s(self) -> float:
        since = self._mending_since
        return 0.0 if since is None or self._state.mesh is None else time.monotonic() - since

    def standing(self) -> messages.Standing | None:
        world, link = self.committer.world, self.link
        if not self._state.has_state or not world.generation:
            return None
        seen = link.plan.generation if link is not None and link.plan is not None else 0
        seats = tuple(messages.Seat(name, self._addresses.get(name, "")) for name in world.workers)
        own = self._addresses.get(self._worker, "")
        return messages.Standing(world.generation, seats, self._state.position.step, own, seen)

    def on_top_up(self, tasks: int) -> None:
        self._top_up(tasks)

    def while_away(self) -> messages.Plan | None:
        world, bound, link = self.committer.world, self._bound, self.link
        if not self._state.has_state or world.nodes < 2 or bound is None or self._peer_store is None or link is None:
            return None
        seen = max(bound.generation, link.plan.generation if link.plan else 0)
        muster = Quorum(bound.generation, bound.members, world.workers, Vote(self._worker, world.generation, seen))
        if self._broken < bound.generation and not muster.called(self._peer_store):
            return None
        log.info("the daemon is away and generation %d is broken: the members meet", bound.generation)
        return muster.hold(self._peer_store, lambda address: PeerStore.at(address, MEET_PATIENCE))

    def _make(self, plan: messages.Plan) -> Group:
        node = [seat.worker for seat in plan.members].index(self._worker)
        if len(plan.members) > 1 and self.committer.world.size == 1:
            self._prepare()
        self._recovery.allocate_buffers(plan)
        return make_world_group(
            plan.store, plan.generation, node, len(plan.members), self._local_rank, self._host, BUILD_PATIENCE
        )

    # --- the training thread ----------------------------------------------------------------------------------

    def join(self, tried: int = 0) -> None:
        """Wait for the first plan after the generation `tried` that has a seat for this worker, and enter its world.

        Raises:
            Released: the job is over, or the daemon has been silent for too long.
        """
        link = self._need_link()
        while True:
            with link.changed:
                while (plan := link.plan) is None or plan.generation <= tried or not self._is_seated(plan):
                    self.check(0 if plan is None else plan.generation)
                    if time.monotonic() - link.last_contact > LONELY_S:
                        self.release(f"no word from the daemon for {LONELY_S:.0f} s")
                    if self.ending:
                        self.leave(0, None)
                    link.changed.wait(0.5)
            tried = plan.generation
            try:
                self._enter(plan, self._built(plan))
                return
            except Aborted:
                continue

    def enter_static_world(self, group: Group) -> None:
        """Enter the one world of processes that were started together, and take over the first one's state.

        Raises:
            ElasticError: a member is lost, or is not like the others.
        """
        seats = tuple(messages.Seat(f"rank{rank}", "") for rank in range(group.size // self._local_rank.size))
        self._worker = seats[group.rank // self._local_rank.size].worker
        try:
            self._enter(messages.Plan(1, seats, reason="started together"), group)
        except Aborted as aborted:
            raise ElasticError(
                f"the processes that were started together cannot train together: {aborted}"
            ) from aborted

    def take(self, generation: int) -> None:
        """Switch to the generation that all have agreed on.

        Raises:
            Aborted: it broke on the way.
            Released: it has no seat for this worker.
        """
        plan = self._pending_groups.plan(generation)
        if not self._is_seated(plan):
            self._depart(plan)
        self._enter(plan, self._built(plan))

    def recover(self) -> None:
        """After a fault: abandon the world, wait for the plan that mends it, enter that.

        Raises:
            Released: this worker is not part of it, or the daemon has been silent for too long.
        """
        self._mending_since = time.monotonic()
        try:
            self._mend()
        finally:
            self._mending_since = None

    def _mend(self) -> None:
        broken = self.committer.world
        if self.link is None and broken.size > 1:
            raise ElasticError("a process that was started with this one is lost, and without a daemon none follows")
        link = self._need_link()
        broken.group.abandon()
        if not self._state.has_state:
            self._join_again(broken)
            return
        since = time.monotonic()
        tried = broken.generation
        while True:
            with link.changed:
                while (plan := link.plan) is None or not plan.voids(tried):
                    self.check(plan.generation if plan else 0)
                    if time.monotonic() - max(since, link.last_contact) > ORPHANED_S:
                        saved = f"; state saved at {self._save()}" if self._state.has_state else ""
                        self.release(f"peers are lost and the daemon is silent{saved}")
                    link.changed.wait(POLL_INTERVAL_S)
            tried = plan.generation
            if not self._is_seated(plan):
                self._depart(plan)
            try:
                self._enter(plan, self._built(plan))
                return
            except Aborted:
                continue

    def _join_again(self, broken: TrainingWorld) -> None:
        """A newcomer's first world broke in the step in which it was given the state: it is a newcomer still."""
        if broken.local_size > 1:
            self.leave(0, None)  # another process of this node may have committed the step, and none joins alone
        epoch = self._state.position.epoch
        self.join(broken.generation)
        if self._state.position.epoch != epoch:
            self.release("the others have begun another epoch, and its script is in the middle of one")

    def announce(self, pause_s: float, before: int) -> None:
        """Tell the daemon that this world trains. `before`: the nodes of the world before."""
        world, link = self.committer.world, self._need_link()

        def in_vain() -> bool:
            plan = link.plan
            return link.end is not None or (plan is not None and plan.voids(world.generation))

        if self._local_leader is not None and not self._local_leader.wait_entered(world.generation, in_vain):
            return
        link.say(
            messages.Switched(
                world.generation,
                self._state.position.step,
                world.nodes,
                max(0.0, pause_s),
                world.nodes > before,
                self._state.size_bytes() if world.rank == 0 else 0,  # the daemon hears of it from the first
            )
        )

    def lend(self) -> None:
        """Newcomers may be given the state while others make a step: nothing of the session forbids it."""
        self._recovery.lends = True

    def taken_in(self, *, changed: bool) -> None:
        """The round is done in which newcomers were given the state; `changed`: they have something else."""
        self._recovery.taken_in(changed=changed)

    def level(self) -> None:
        """Call the roll of this world again: its newcomers do not hold what the others do.

        Raises:
            Aborted: the world broke on the way.
        """
        if self._bound is not None:
            self._call_roll(self._bound, self.committer.world.group)

    def describe(self) -> None:
        """Say once, after a step, what the state looks like, so that newcomers have the memory for it at hand."""
        self._recovery.describe()

    def give_up(self, seconds: float) -> bool:
        """Give up every group in the making; whether none is being made any more after so long."""
        return self._pending_groups.give_up(seconds)

    def stays(self, generation: int) -> bool:
        """Whether a plan has a seat for this worker."""
        return self._is_seated(self._pending_groups.plan(generation))

    def only_shrinks(self, generation: int) -> bool:
        """Whether a plan adds nobody: such a one can be taken wherever members meet."""
        return all(
            seat.worker in self.committer.world.workers for seat in self._pending_groups.plan(generation).members
        )

    # --- inside -----------------------------------------------------------------------------------------------

    def _need_link(self) -> Link | Follower:
        if self.link is None:
            raise ElasticError("no daemon: this process trains alone")
        return self.link

    def _is_seated(self, plan: messages.Plan) -> bool:
        return any(seat.worker == self._worker for seat in plan.members)

    def _built(self, plan: messages.Plan) -> Group:
        """The group of a plan, once it is made."""
        self._bound = plan
        try:
            group = self._pending_groups.group(plan, lambda: self.check_newer(plan))
        except PeerLost as lost:
            self.check_newer(plan)
            self.fault(plan.generation, "build", str(lost))
            raise Aborted(str(lost)) from lost
        if group is None:
            raise Aborted("the group was given up")
        return group

    def check_newer(self, plan: messages.Plan) -> None:
        """A member drops a plan only when that is void; a newcomer for any newer one."""
        self.check(plan.generation)
        latest = self.link.plan if self.link is not None else None
        if not self._state.has_state and latest is not None and latest.generation > plan.generation:
            raise Aborted("superseded")

    def _enter(self, plan: messages.Plan, group: Group) -> None:
        """Call the roll, bring everyone to the same state, and make the plan's world the present one."""
        names = tuple(seat.worker for seat in plan.members)
        recovering_ranks = self._call_roll(plan, group)
        world = TrainingWorld(plan.generation, names, group, plan.batch, group.size // len(names), recovering_ranks)
        self._addresses = {seat.worker: seat.address for seat in plan.members}
        old, self.committer.world = self.committer.world, world
        if old.group is not group:
            old.group.abandon()
        self._pending_groups.entered(plan.generation)

    def _call_roll(self, plan: messages.Plan, group: Group) -> frozenset[int]:
        began = time.monotonic()
        try:
            recovering_ranks = self._recovery.call_roll(plan, group)
        except PeerLost as lost:
            group.abandon()
            self.fault(plan.generation, "closed", str(lost))
            raise Aborted(str(lost)) from lost
        except Aborted:
            group.abandon()
            raise
        log.debug("generation %d: roll called and followed after %.3f s", plan.generation, time.monotonic() - began)
        return recovering_ranks

    def _depart(self, plan: messages.Plan) -> None:
        """No seat for this worker: out of the world, in order. When all leave, the first of them saves the state."""
        saved = None
        if (
            not plan.members
            and self.committer.world.writes_checkpoints(sharded=self._state.mesh is not None)
            and self._state.has_state
        ):
            saved = self._save()
        self.leave(plan.generation, saved)

    def release(self, reason: str) -> NoReturn:
        """End this process, and the script around it."""
        log.info("%s ends: %s", self._worker, reason)
        self.released = True
        if self._local_leader is not None:
            self._local_leader.close()
        if isinstance(self.link, Follower):
            self.link.close()  # the first process of the node ends the script, when it has said so
        else:
            end_script(os.environ)
        raise Released(reason)

    def leave(self, generation: int, saved: str | None) -> NoReturn:
        """Say that this worker is out, and end."""
        link = self._need_link()
        if self._local_leader is not None:
            self._local_leader.wait_gone(SAVE_PATIENCE_S if saved else PEERS_PATIENCE_S)
        link.say(messages.Left(generation, self._state.position.step, saved))
        self.committer.world.group.abandon()
        link.flush(2.0)
        self.release(link.leave or self.ending or "left")
