"""One resize, in the order in which it happens.

1. A plan arrives on the link's thread (`on_plan`).
2. A builder thread makes the group of its world, while training goes on (`_make_group`).
3. Members vote: each control vector names the generation for which its member is ready. When all name the same one,
   the round that carried it is the last one of the present world (`vote`).
4. Between two steps, every member switches to the new group (`switch`).
5. Members say what they hold, and compute the recovery plan (`_recover_state`, `state_recovery`).
6. They send and receive the training state; the new world is the present one (`_enter`).
7. The switch is reported to the daemon (`begin_world`).

A worker that joins (`join`) and one whose world has failed (`recover`) wait for a plan, then go on at step 4. An
urgent plan needs no vote: it replaces the present world at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.carrier import DeviceCarrier
from malletrain.elastic.comm.device_group import PairedGroup
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.peer_store import PeerStore, StoreServer
from malletrain.elastic.comm.step_commit import POLL_INTERVAL_S, StepOutcome, TrainingWorld
from malletrain.elastic.comm.world_group import make_world_group
from malletrain.elastic.errors import Aborted, ElasticError, PeerLost, SessionOver
from malletrain.elastic.link.training_reports import Reports
from malletrain.elastic.resize.member import Member
from malletrain.elastic.resize.quorum import Quorum, Vote
from malletrain.elastic.resize.state_recovery import STORE_TIMEOUT_S, StateRecovery
from malletrain.elastic.state.checkpoint_store import Checkpointing
from malletrain.elastic.state.training_state import TrainingState
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: How long a builder thread waits for the other members.
BUILD_PATIENCE = timedelta(seconds=60)

#: A worker without a world ends when the daemon is silent for this long.
JOIN_SILENCE_LIMIT_S = 60.0

#: A worker in a failed world saves the state and ends when the daemon is silent for this long.
RECOVERY_SILENCE_LIMIT_S = 60.0

#: One that was asked to end does so when it has waited for a world this long, whether the daemon is heard or not:
#: none of the others may be there any more, and Slurm kills after KillWait (30 s by default).
ENDING_PATIENCE_S = 5.0


#: Why a plan is not entered that another daemon may have shown.
FORGONE = "this worker has said meanwhile that it is in no world"


class Reconfigurer:
    """Takes one worker from world to world. Implements `LinkHandler`, the callbacks of the link. `entered`: called
    when training begins in a world. `top_up`: submits more held tasks. `tries`: see `SizeTrial.begins`."""

    def __init__(
        self,
        member: Member,
        state: TrainingState,
        recovery: StateRecovery,
        checkpointing: Checkpointing,
        reports: Reports,
        *,
        entered: Callable[[], None],
        top_up: Callable[[int], None],
        store_server: StoreServer | None,
        carrier: DeviceCarrier | None,
        tries: Callable[[int, int], bool],
    ) -> None:
        self._member = member
        self._carrier = carrier
        self._committer = member.committer
        self._pending_groups = member.pending_groups
        self._state = state
        self.recovery = recovery
        self._checkpointing = checkpointing
        self._reports = reports
        self._entered = entered
        self.on_top_up = top_up
        self._store_server = store_server
        self._tries = tries
        self._plan: messages.Plan | None = None  #: of the present world
        self._entering = threading.Lock()
        #: The plan whose group this member waited for last: it votes for no older world (see `quorum`).
        self._bound: messages.Plan | None = None
        self._agreed = 0  #: the generation on which all members have agreed
        self._recovering_since: float | None = None

    # --- 1. a plan arrives ------------------------------------------------------------------------------------

    def on_plan(self, plan: messages.Plan) -> None:
        """Begin to prepare a plan. Runs on the link's thread."""
        if self._store_server is not None:
            self._store_server.trust(Meeting.of(plan))
        if plan.generation > self._committer.world.generation and not self._member.passes:
            self._pending_groups.hear(plan, self._make_group if self._member.has_seat(plan) else None)

    # --- 2. its group is made beside training -----------------------------------------------------------------

    def _make_group(self, plan: messages.Plan) -> Group:
        """Make the group of a plan. Runs on a builder thread."""
        member = self._member
        if not plan.secret and len(plan.members) * member.local_rank.size > 1:
            # Without, any process on the network could take part.
            raise ElasticError(
                "the daemon gives the workers no secret to know each other by, so they do not connect to each other: "
                "it is older than this release of malletrain. Have it upgraded, or install its release for this job"
            )
        node = [seat.worker for seat in plan.members].index(member.worker)
        self.recovery.compare(plan)
        nodes = len(plan.members)
        return make_world_group(
            Meeting.of(plan), node, nodes, member.local_rank, member.host, BUILD_PATIENCE, self._carrier
        )

    # --- 3. members vote at each step boundary ----------------------------------------------------------------

    def vote(self, outcome: StepOutcome) -> None:
        """Note on which generation the members have agreed in a committed round."""
        self._agreed = max(self._agreed, outcome.agreed)

    def may_switch(self, *, in_evaluation: bool) -> bool:
        """Whether all members have agreed on another world, and can enter it here. An evaluation admits no newcomers;
        and where a plan asks for it, the next step is made in the present world first, and again in the new one."""
        world = self._committer.world
        if self._agreed <= world.generation:
            return False
        plan = self._pending_groups.plan(self._agreed)
        if in_evaluation:
            return all(seat.worker in world.workers for seat in plan.members)
        return not (plan.tried and self._tries(world.generation, plan.generation))

    # --- 4. the switch ----------------------------------------------------------------------------------------

    def switch(self, *, in_evaluation: bool = False) -> None:
        """Enter the world on which all members have agreed. Only training, not an evaluation, counts as paused.
        Raises `Aborted`: it failed on the way; `Released`: it has no seat for this worker."""
        began, before = time.monotonic(), self._committer.world.nodes
        plan, self._agreed = self._pending_groups.plan(self._agreed), 0
        if not self._member.has_seat(plan):
            self._reports.send_held()
            self._leave(plan.generation, saves=self._checkpointing.is_writer and self._ends_world(plan))
        self._enter(plan, self._wait_for_group(plan))
        self.begin_world(0.0 if in_evaluation else time.monotonic() - began, before)

    def _ends_world(self, plan: messages.Plan) -> bool:
        """Whether nobody of the present world goes on in a plan: newcomers have no state but a saved one."""
        return not any(seat.worker in self._committer.world.workers for seat in plan.members)

    def _wait_for_group(self, plan: messages.Plan) -> Group:
        self._bound = plan
        group: Group | None = None

        def check() -> None:
            self._member.check_newer(plan)
            if self._must_end():
                raise Aborted("the time is up")

        try:
            group = self._pending_groups.group(plan, self._make_group, check)
            if isinstance(group, PairedGroup):
                group.connect_now(BUILD_PATIENCE, check)
        except (PeerLost, Aborted) as error:
            if group is not None:
                group.abandon()
            if isinstance(error, Aborted):
                raise
            self._member.check_newer(plan)
            self._member.fault(plan.generation, "build", str(error))
            raise Aborted(str(error)) from error
        if group is None:
            raise Aborted("the group was given up")
        return group

    def _leave(self, generation: int, *, saves: bool, why: str = "") -> NoReturn:
        saved, unsaved = self._checkpointing.save_if_possible() if saves else (None, "")
        self._member.leave(generation, saved, why, unsaved)

    # --- 5., 6. members recover the same state, and the new world is the present one ---------------------------

    def _enter(self, plan: messages.Plan, group: Group) -> None:
        names = tuple(seat.worker for seat in plan.members)
        self._recover_state(plan, group)
        world = TrainingWorld(plan.generation, names, group, plan.batch, group.size // len(names))
        with self._entering:
            link = self._member.link
            forgone = link is not None and plan.generation <= link.forgone
            if not forgone:
                self._plan = plan
                old, self._committer.world = self._committer.world, world
        if forgone:
            self._state.has_state = False
            group.abandon()
            self._member.fault(plan.generation, "build", FORGONE)
            raise Aborted(FORGONE)
        if old.group is not group:
            old.group.abandon()
        self._pending_groups.entered(plan.generation)

    def _recover_state(self, plan: messages.Plan, group: Group) -> None:
        try:
            self.recovery.recover(plan, group)
        except PeerLost as lost:
            group.abandon()
            self._member.fault(plan.generation, "closed", str(lost))
            raise Aborted(str(lost)) from lost
        except (Aborted, SessionOver):
            group.abandon()
            if self.recovery.missed:
                self._reports.send_held()
                why = "it missed a round that others have committed, and joins anew"
                self._leave(0, saves=self.recovery.is_last and self._checkpointing.can_write, why=why)
            raise

    # --- 7. the report ----------------------------------------------------------------------------------------

    def begin_world(self, pause_s: float, before: int) -> None:
        """Train in the world just entered, after a pause, from one of `before` nodes; and report it to the daemon."""
        world = self._committer.world
        grew, step = world.nodes > before, self._state.position.step
        self._member.need_link().say(messages.Switched(world.generation, step, world.nodes, max(0.0, pause_s), grew))
        self._entered()

    # --- other ways into a world ------------------------------------------------------------------------------

    def join(self, tried: int = 0) -> None:
        """Wait for the first plan after generation `tried` that has a seat for this worker, and enter its world.
        Raises `Released`: the job is over, or the daemon has been silent for too long."""
        self._enter_next(self._next_plan, tried)

    def _enter_next(self, next_plan: Callable[[int], messages.Plan], tried: int) -> None:
        """Enter the world of the first plan after generation `tried` for which that succeeds."""
        while True:
            plan = next_plan(tried)
            tried = plan.generation
            with contextlib.suppress(Aborted):
                self._enter(plan, self._wait_for_group(plan))
                return

    def _next_plan(self, tried: int) -> messages.Plan:
        """Wait for a plan after generation `tried` with a seat for this worker."""
        member, link = self._member, self._member.need_link()
        with link.changed:
            while (plan := link.plan) is None or plan.generation <= tried or not member.has_seat(plan):
                member.check(0 if plan is None else plan.generation)
                if time.monotonic() - link.last_contact > JOIN_SILENCE_LIMIT_S:
                    member.release(f"no word from the daemon for {JOIN_SILENCE_LIMIT_S:.0f} s")
                if member.ending:
                    member.leave(0, None)
                link.changed.wait(0.5)
        return plan

    def follow(self, before: Reconfigurer) -> bool:
        """Enter the present world of a session that has ended, for the one after it, with the main worker's state.
        Returns whether it is that world still. Raises `Released`: as `join`; `SessionOver`: the others are in a
        later one."""
        (self._plan, self._bound, self._agreed), self._committer.world = before.agreed_so_far()
        plan, world = self._plan, self._committer.world
        if plan is None:
            raise ElasticError("a session that has ended had no world: a fault of malletrain")
        self._member.follows = True
        try:
            self._enter(plan, world.group)
            return True
        except Aborted:
            self.join(plan.generation)
            return False
        finally:
            self._member.follows = False

    def agreed_so_far(self) -> tuple[tuple[messages.Plan | None, messages.Plan | None, int], TrainingWorld]:
        """What the next session goes on from: the plan of the present world, one that is bound, the generation on
        which all have agreed; and that world."""
        return (self._plan, self._bound, self._agreed), self._committer.world

    def wait_seat(self) -> None:
        """Wait for a plan that has a seat for this worker, which passes over a session and enters no world. Raises
        `Released`: the job is over, or the daemon has been silent for too long."""
        self._member.passes = True
        self._next_plan(0)

    def is_first(self) -> bool:
        """Whether the newest plan has this worker in its first seat."""
        plan = self._member.need_link().plan
        return plan is not None and bool(plan.members) and plan.members[0].worker == self._member.worker

    def enter_static_world(self, group: Group) -> None:
        """Enter the only world of processes that were started together, with the state of the first one. Raises
        `ElasticError`: a member is lost, or differs from the others in its script."""
        local_size = self._member.local_rank.size
        seats = tuple(messages.Seat(f"rank{rank}", "") for rank in range(group.size // local_size))
        self._member.worker = seats[group.rank // local_size].worker
        try:
            self._enter(messages.Plan(1, seats, reason="started together"), group)
        except Aborted as aborted:
            raise ElasticError(
                f"the processes that were started together cannot train together: {aborted}"
            ) from aborted

    def recover(self) -> None:
        """After a fault, abandon the world, wait for the plan that replaces it, and enter that one's world. Raises
        `Released`: it has no seat for this worker, or the daemon has been silent for too long."""
        failed = self._committer.world
        if self._member.link is None and failed.size > 1:
            raise ElasticError("a process that was started with this one is lost, and without a daemon none follows")
        failed.group.abandon()
        self._recovering_since = time.monotonic()
        try:
            self._enter_next(self._urgent_plan, failed.generation)
        finally:
            self._recovering_since = None
        self._agreed = 0

    def _urgent_plan(self, tried: int) -> messages.Plan:
        """Wait for the plan that replaces the world of generation `tried`, and has a seat for this worker."""
        member, link, since = self._member, self._member.need_link(), self._recovering_since or 0.0
        with link.changed:
            while (plan := link.plan) is None or not plan.voids(tried):
                member.check(plan.generation if plan else 0)
                if self._must_end():
                    break
                if time.monotonic() - max(since, link.last_contact) > RECOVERY_SILENCE_LIMIT_S:
                    saved, why = self._checkpointing.save_if_possible()
                    kept = f"; state saved at {saved}" if saved else f"; {why}" if why else ""
                    member.release(f"peers are lost and the daemon is silent{kept}")
                link.changed.wait(POLL_INTERVAL_S)
        if plan is not None and plan.voids(tried) and not member.has_seat(plan):
            self._leave(plan.generation, saves=self._checkpointing.can_write and self._ends_world(plan))
        if plan is None or self._must_end():
            self._leave(0, saves=self._checkpointing.can_write)
        return plan

    def _must_end(self) -> bool:
        """Whether this worker was asked to end, and has waited for another world as long as it may."""
        since = self._recovering_since
        return since is not None and bool(self._member.ending) and time.monotonic() - since > ENDING_PATIENCE_S

    # --- called by the link -----------------------------------------------------------------------------------

    def check_in(self, number: int) -> messages.CheckedIn:
        """The answer to the daemon's check-in `number`."""
        leader, since = self._member.local_leader, self._committer.waiting_since
        return messages.CheckedIn(
            answers=number,
            generation=self._committer.world.generation,
            step=self._state.position.step,
            whole=(leader is None or leader.check()) and self._state.has_state,
            stuck_s=0.0 if since is None else max(0.0, time.monotonic() - since),
        )

    def standing(self) -> messages.Standing | None:
        """The world in which this worker trains, for a daemon that has lost it; None without one: then it enters no
        world of the plans that it has seen so far."""
        link = self._member.link
        seen = link.plan.generation if link is not None and link.plan is not None else 0
        with self._entering:
            world = self._committer.world
            if not self._state.has_state or not world.generation:
                if link is not None:
                    link.forgo()
                return None
        addresses = {seat.worker: seat.address for seat in self._plan.members} if self._plan is not None else {}
        seats = tuple(messages.Seat(name, addresses.get(name, "")) for name in world.workers)
        own = addresses.get(self._member.worker, "")
        return messages.Standing(world.generation, seats, self._state.position.step, own, seen)

    def while_away(self) -> messages.Plan | None:
        """While the daemon is unreachable: the plan of a quorum, if this world has failed and one is reached."""
        member, world, bound = self._member, self._committer.world, self._bound
        link, store = member.link, self._store_server
        if not self._state.has_state or world.nodes < 2 or bound is None or store is None or link is None:
            return None
        seen = max(bound.generation, link.plan.generation if link.plan else 0)
        vote = Vote(member.worker, world.generation, seen)
        quorum = Quorum(bound.generation, bound.members, world.workers, vote, bound.secret)
        if member.broken < bound.generation and not quorum.called(store):
            return None
        log.info("the daemon is away and generation %d is broken: the members meet", bound.generation)
        return quorum.hold(
            store, lambda address: PeerStore.at(Meeting(address, bound.generation, bound.secret), STORE_TIMEOUT_S)
        )
