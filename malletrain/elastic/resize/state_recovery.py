"""Brings all members of a new world to the same training state.

Every member says what it holds; all compute the same `RecoveryPlan` from that, who sends what to whom. Members with
the newest state send it to those without one. A node that missed the last commit round leaves, and joins anew.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch

from malletrain.elastic.comm.authentication import Meeting
from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.group import Group, Work, table_of
from malletrain.elastic.comm.peer_store import PeerStore, StoreServer
from malletrain.elastic.comm.step_commit import POLL_INTERVAL_S, TrainingWorld
from malletrain.elastic.errors import Aborted, ElasticError, PeerLost, SessionOver
from malletrain.elastic.resize.member import Member
from malletrain.elastic.state.training_state import TrainingState
from malletrain.elastic.state.transfer import receive_state, relay_tree, send_state
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: How long a member waits for an answer of another one's store.
STORE_TIMEOUT_S = 1.0

#: Keys of a member's store: the number of processes of its node, and the number of its session in the script.
PLACES_KEY, SESSION_KEY = "places", "session"


class MemberState(NamedTuple):
    """What one process has when a world begins: whether the training state, and how many rounds are committed."""

    has_state: bool
    done: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Ranks by what they need, each list in order. A node of which some process lacks the state counts as one without
    it."""

    donors: list[int]  #: hold the newest state
    fresh: list[int]  #: hold no state
    leaving: set[int]  #: nodes that have missed a round, or whose processes are in two rounds
    newest: int  #: the round of the donors; -1 in a world that begins
    local_size: int  #: processes a node

    def receivers(self) -> dict[int, list[int]]:
        """The state's way through the world: the ranks to which each rank sends. Every fresh rank receives once, from
        a rank at the same place of another node; where training begins, those of the first node from its first."""
        ways: dict[int, list[int]] = {}
        for place in range(self.local_size):
            donors = [rank for rank in self.donors if rank % self.local_size == place]
            fresh = [rank for rank in self.fresh if rank % self.local_size == place]
            if not donors:
                ways.setdefault(self.donors[0], []).append(place)
                donors = [place]
                fresh.remove(place)
            for giver, takers in relay_tree(donors, fresh).items():
                ways.setdefault(giver, []).extend(takers)
        return ways


def plan_recovery(states: Sequence[MemberState], local_size: int) -> RecoveryPlan:
    """The plan for a world. `states`: of its processes, by rank. `local_size`: processes a node."""
    nodes = [range(n, n + local_size) for n in range(0, len(states), local_size)]
    holders = [node for node in nodes if all(states[rank].has_state for rank in node)]
    whole = {node: states[node[0]].done for node in holders if len({states[rank].done for rank in node}) == 1}
    newest = max(whole.values(), default=-1)
    # Where no process holds the state, training begins at the oldest member.
    donors = [rank for node, done in whole.items() if done == newest for rank in node] or [0]
    held = {rank for node in holders for rank in node}
    return RecoveryPlan(
        donors,
        [rank for rank in range(len(states)) if rank not in held and rank not in donors],
        {node[0] // local_size for node in holders if whole.get(node) != newest},
        newest,
        local_size,
    )


class StateRecovery:
    """One member's part in state recoveries. `load`: restores the newest checkpoint; returns whether there was one.
    `is_over`: whether the present session of the script has ended, and its final state is saved."""

    def __init__(
        self,
        member: Member,
        state: TrainingState,
        load: Callable[[], bool],
        is_over: Callable[[], bool],
        store_server: StoreServer | None,
    ) -> None:
        self._member = member
        self._state = state
        self._committer = member.committer
        self._load, self._is_over = load, is_over
        self._store_server = store_server
        self.all_end = False  #: whether all members of the world entered last had been asked to end as they met
        self.missed = False  #: whether its node missed a round that others have committed, and has to join anew
        self.is_last = False  #: whether no node that stays holds the state
        if store_server is not None:
            store_server.set(PLACES_KEY, str(member.local_rank.size))

    def begin_session(self) -> None:
        """Publish in which session of the script this worker trains."""
        if self._store_server is not None:
            self._store_server.set(SESSION_KEY, str(self._state.session))

    def compare(self, plan: messages.Plan) -> None:
        """At a newcomer, compare its node and its session with those of the first member of a plan. Raises
        `ElasticError`: its node has another number of processes than the others; `SessionOver`: the others are in a
        later session."""
        if self._state.has_state or plan.members[0].worker == self._member.worker:
            return
        try:
            with contextlib.closing(PeerStore.at(Meeting.of(plan), STORE_TIMEOUT_S)) as peer_store:
                processes, session = peer_store.look(PLACES_KEY), int(peer_store.look(SESSION_KEY) or 0)
        except (PeerLost, ValueError) as error:  # making the group says the same
            log.info("the first member is not asked what it has: %s", error)
            return
        mine = str(self._member.local_rank.size)
        if processes not in (None, mine):
            raise ElasticError(
                f"this node has {mine} training processes and the others have {processes}: start as many on each"
            )
        if session > self._state.session:
            raise SessionOver(plan.generation - 1)

    def recover(self, plan: messages.Plan, group: Group) -> None:
        """Bring this member and the others of a plan's group to the same state. Raises `Aborted`: the plan was
        dropped, or a member has `missed` a round; `PeerLost`; `ElasticError`: this worker differs from the others in
        its script; `Released`: nobody has a state that can be confirmed; `SessionOver`: the others are in a later
        one."""
        committer, state, local_size = self._committer, self._state, self._member.local_rank.size
        recovery, odd = self._exchange(plan, group)
        if recovery.leaving:
            self.missed, self.is_last = group.rank // local_size in recovery.leaving, recovery.newest < 0
            self._give_up(plan, "a worker missed a round that others have committed, and leaves")
        if recovery.newest < 0 and self._is_over():
            self._member.fault(plan.generation, "closed", "the session is over, and all that were in it are lost")
            raise SessionOver(plan.generation)
        if recovery.newest < 0 and group.rank in recovery.donors:
            # Training begins, or resumes from a checkpoint.
            if not self._load() and state.position.rounds:
                self._member.release(
                    "the worker that sent the state is lost, so that its correctness cannot be confirmed"
                )
            committer.rounds_done = state.position.rounds
            state.has_state = True
        if odd:
            world = TrainingWorld(0, tuple(seat.worker for seat in plan.members), local_size=local_size)
            this, model = (world.worker_of(rank) for rank in (group.rank, recovery.donors[0]))
            raise ElasticError(
                f"{this} is not like {model} in its {', '.join(odd)}: every worker must run the same script, with "
                "the same arguments and releases"
            )
        self._transfer(plan, group, recovery)

    def _exchange(self, plan: messages.Plan, group: Group) -> tuple[RecoveryPlan, list[str]]:
        """Gather what every process holds; returns the plan, and in what this worker's script differs."""
        committer, signatures = self._committer, self._state.signatures()
        ending, session = int(self._member.is_ending()), self._state.session
        holds = [int(self._state.has_state), committer.rounds_done, ending, session]
        began = time.monotonic()
        table = table_of(group, [*holds, *signatures.values()])
        self._wait(group.all_reduce(table), plan)
        log.debug("generation %d: members met after %.3f s", plan.generation, time.monotonic() - began)
        rows: list[list[int]] = table.tolist()
        sessions = {row[3] for row in rows}
        if session < max(sessions):
            raise SessionOver(plan.generation)
        if len(sessions) > 1:  # no world has members in different ones: those in an earlier one pass over it
            self._give_up(plan, "a worker was still in a session that is over")
        self.all_end = all(row[2] for row in rows)
        states = [MemberState(bool(row[0]), row[1]) for row in rows]
        recovery = plan_recovery(states, self._member.local_rank.size)
        theirs = rows[recovery.donors[0]][len(holds) :]
        return recovery, [name for (name, own), other in zip(signatures.items(), theirs, strict=True) if own != other]

    def _give_up(self, plan: messages.Plan, why: str) -> NoReturn:
        self._member.fault(plan.generation, "closed", why)
        raise Aborted(why)

    def _transfer(self, plan: messages.Plan, group: Group, recovery: RecoveryPlan) -> None:
        """Pass the state down a tree to fresh ranks."""
        began = time.monotonic()
        got: list[tuple[bytes, list[torch.Tensor]]] = []
        receivers = recovery.receivers()
        source = {taker: giver for giver, takers in receivers.items() for taker in takers}
        onward = receivers.get(group.rank, [])
        if group.rank in recovery.donors and onward:
            self._state.position.rounds = self._committer.rounds_done
            state = self._state.capture()
            self._wait(Background(lambda: send_state(group, onward, *state), "give"), plan, all_joined=True)
        elif group.rank in source:
            taking = Background(lambda: got.append(receive_state(group, source[group.rank], onward)), "take")
            self._wait(taking, plan, all_joined=True)
        if not got:
            return
        size = sum(tensor.numel() * tensor.element_size() for tensor in got[0][1])
        log.info("the training state has come: %.1f MB in %.3f s", size / 1e6, time.monotonic() - began)
        self._state.restore(*got[0])
        self._committer.rounds_done = self._state.position.rounds
        self._state.has_state = True

    def _wait(self, operation: Work, plan: messages.Plan, *, all_joined: bool = False) -> None:
        """Wait for an operation. Once `all_joined`, members leave the plan only if its world fails."""
        limit = time.monotonic() + self._committer.stall_timeout_s()
        while not operation.wait(POLL_INTERVAL_S):
            if all_joined:
                self._member.check(plan.generation)
            else:
                self._member.check_newer(plan)
            if time.monotonic() > limit:
                self._member.fault(plan.generation, "stalled", "in state recovery")
                limit = time.monotonic() + self._committer.stall_timeout_s()
