"""All members of a new world come to the same state: the roll call, and what it makes them give and take.

Who holds the training state, as of which round, and is everyone like the others? Members that hold the newest give it
to those that hold none, and their last sums to those that missed the last round.

Where it can be, the state is lent: who gives it makes the next step meanwhile, in which newcomers have an empty part
that they add when the state is there. A newcomer counts as one that holds it when that round is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn, Protocol

import torch

from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.group import Group, Work
from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.comm.peer_store import PeerStore
from malletrain.elastic.comm.step_commit import POLL_INTERVAL_S, StepCommitter
from malletrain.elastic.errors import ElasticError, PeerLost
from malletrain.elastic.resize.recovery_plan import Entry, RecoveryPlan, read
from malletrain.elastic.state.buffer_pool import BufferPool, specs_from_text, specs_to_text
from malletrain.elastic.state.overlapped_recovery import OverlappedSnapshot
from malletrain.elastic.state.training_state import TrainingState, pack, unpack
from malletrain.elastic.state.transfer import receive_state, send_state
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: For how long a member waits for another's store, when it asks for what is written there.
MEET_PATIENCE = timedelta(seconds=1)

#: Where on its board a member says what the state looks like, and how many processes its node has.
STATE_KEY, PLACES_KEY = "state", "places"


class Watch(Protocol):
    """What a member looks at while others let it wait, and whom it tells."""

    def check(self, generation: int) -> None:
        """Raise `Aborted` when the world of `generation` was given up, `Released` when this worker has to go."""
        ...

    def check_newer(self, plan: messages.Plan) -> None:
        """The same, before the roll was called: others may have dropped the plan for another."""
        ...

    def fault(self, generation: int, how: str, detail: str) -> None:
        """Tell the daemon that the world of `generation` does not work."""
        ...

    def release(self, reason: str) -> NoReturn:
        """End this process."""
        ...


class StateRecovery:
    """One member's part in roll calls.

    Args:
        worker: this worker's name.
        state: what is handed over; `state.has_state` tells whether this member holds it.
        committer: of this member.
        place: of this process in its node.
        watch: what may end the waiting.
        load: restore the newest checkpoint; whether there was one.
        board: in the store that this worker serves.
    """

    def __init__(
        self,
        worker: str,
        state: TrainingState,
        committer: StepCommitter,
        local_rank: LocalRank,
        watch: Watch,
        load: Callable[[], bool],
        peer_store: PeerStore | None,
    ) -> None:
        self._worker = worker
        self._state = state
        self._committer = committer
        self._local_rank = local_rank
        self._watch = watch
        self._load = load
        self._peer_store = peer_store
        self._described = False
        self._buffer_pool: BufferPool | None = None
        self._lent: OverlappedSnapshot | None = None
        #: Whether this member's script leaves the state alone between one step and the next gradients.
        self.lends = False
        committer.overlapped_state_changed = lambda: self._lent is not None and self._lent.changed()
        if peer_store is not None:
            peer_store.put(PLACES_KEY, str(local_rank.size))

    def describe(self) -> None:
        """Say once, after a step, what the state looks like, so that newcomers have the memory for it at hand."""
        if self._described or self._peer_store is None:
            return
        self._described, peer_store, text = True, self._peer_store, specs_to_text(self._state.specs())

        def put() -> None:
            try:
                peer_store.put(STATE_KEY, text)
            except PeerLost as lost:
                log.info("newcomers will not know what the state looks like: %s", lost)

        Background(put, "describe")

    def allocate_buffers(self, plan: messages.Plan) -> None:
        """A newcomer gets the memory for the state that the members of `plan` will give it.

        Raises:
            ElasticError: its node has another number of processes than theirs.
        """
        if not self._state.has_state and self._buffer_pool is None and plan.members[0].worker != self._worker:
            self._buffer_pool = _make_buffer_pool(plan.store, self._local_rank)

    def call_roll(self, plan: messages.Plan, group: Group) -> frozenset[int]:
        """Call the roll in a plan's group, and give and take; the ranks whose state comes during the next round (see
        `taken_in`).

        Raises:
            Aborted: the plan was dropped.
            PeerLost: a member is lost.
            ElasticError: this worker is not like the others.
            Released: nobody can bring this worker to the others' state.
        """
        committer, local_size = self._committer, self._local_rank.size
        self._lent = None
        signatures = self._state.signatures()
        control = committer.last_sums[-1].numel() if committer.last_sums else 0
        says = [int(self._state.has_state), committer.rounds_done, control, int(self.lends)]
        mine = torch.tensor([*says, *signatures.values()], dtype=torch.int64)
        table = [torch.zeros_like(mine) for _ in range(group.size)]
        began = time.monotonic()
        self._wait(group.all_gather(table, mine), plan)
        log.debug("generation %d: roll called after %.3f s", plan.generation, time.monotonic() - began)
        said = [row.tolist() for row in table]
        entries = [Entry(bool(row[0]), row[1], row[2], bool(row[3])) for row in said]
        roll = read(entries, local_size, sharded=self._state.mesh is not None)
        if roll.newest < 0 and group.rank in roll.donors:
            # A world that begins, or begins again: its oldest member knows where.
            if not self._load() and self._state.position.rounds:
                self._watch.release("who gave it the state is lost, and nobody can say whether it is right")
            committer.rounds_done = self._state.position.rounds
            self._state.has_state = True
        theirs = said[roll.donors[0]][len(says) :]
        odd = [name for (name, own), other in zip(signatures.items(), theirs, strict=True) if own != other]
        if odd:
            this, model = (plan.members[rank // local_size].worker for rank in (group.rank, roll.donors[0]))
            raise ElasticError(
                f"{this} is not like {model} in its {', '.join(odd)}: every worker must run the same script, with "
                "the same arguments and releases"
            )
        if group.rank in roll.behind and committer.rounds_done < roll.newest - 1:
            self._watch.release("fell behind: the others are more than one round ahead")
        if group.rank // local_size in roll.apart():
            self._watch.release("the processes of this node are in two steps of a model that is sharded over them")
        if group.rank // local_size in roll.stranded():
            self._watch.release("nobody can give the training state in the middle of a step that some have committed")
        if roll.behind and local_size > 1:
            self._hear_words(plan, group, roll)
        lent = roll.lends and not plan.urgent
        self._move(plan, group, roll, lent=lent)
        if not roll.behind:
            committer.last_sums = []  # all are in the same round: nobody will ask for the sums of the one before
            committer.complete_sums = []
        return frozenset(roll.fresh) if lent else frozenset()

    def taken_in(self, *, changed: bool) -> None:
        """The round is done in which newcomers were given the state. `changed`: it was not the others' state any more
        when they had it; so the roll has to be called again, and nothing is lent from now on."""
        if changed:
            log.info("the script changes its state within a step: from now on all wait while newcomers are given it")
            self.lends = False
        else:
            self._state.has_state = True
        self._lent = None

    def _hear_words(self, plan: messages.Plan, group: Group, roll: RecoveryPlan) -> None:
        """Whoever lacks the last round has its sums already: of the words, the donors tell all."""
        control = torch.zeros(roll.control_length, dtype=torch.int64)
        if group.rank == roll.donors[0]:
            control.copy_(self._committer.last_sums[-1])
        self._wait(group.all_reduce(control), plan, firm=True)
        if group.rank in roll.behind:
            if not self._committer.complete_sums:
                self._watch.release("the sums of a round that others have committed are not here")
            self._committer.received_sums = [*self._committer.complete_sums[:-1], control]

    def _move(self, plan: messages.Plan, group: Group, roll: RecoveryPlan, *, lent: bool) -> None:
        """Give and take, all at once: the state down a tree to newcomers, the last sums to those that lack them. What
        is `lent` nobody waits for but the newcomers."""
        work: list[Background] = []
        got: list[tuple[bytes, list[torch.Tensor]]] = []
        givers, donors = roll.givers(), roll.donors
        source = {taker: giver for giver, takers in givers.items() for taker in takers}
        behind = roll.behind if self._local_rank.size == 1 else []
        source |= {taker: donors[n % len(donors)] for n, taker in enumerate(behind)}
        late = [taker for taker in behind if source[taker] == group.rank]
        on = givers.get(group.rank, [])
        if group.rank in donors and on:
            self._state.position.rounds = self._committer.rounds_done
            self._lent = OverlappedSnapshot(self._state) if lent else None
            whole = (self._lent.skeleton, self._lent.tensors) if self._lent else self._state.capture()
            giving = Background(lambda: send_state(group, on, *whole), "give")
            if not lent:  # else who takes it tells of a fault
                work.append(giving)
        if late:
            sums = pack(self._committer.last_sums)
            work.append(Background(lambda: send_state(group, late, *sums), "give"))
        if group.rank in source:
            work.append(
                Background(
                    lambda: got.append(receive_state(group, source[group.rank], on, self._buffer_pool)), "take"
                )
            )
        for each in work:
            self._wait(each, plan, firm=True)
        if not got:
            return
        if group.rank in roll.fresh:
            self._state.restore(*got[0])
            self._committer.rounds_done = self._state.position.rounds
            self._state.has_state, self._buffer_pool = not lent, None
        else:
            self._committer.received_sums = list(unpack(*got[0]))

    def _wait(self, operation: Work, plan: messages.Plan, *, firm: bool = False) -> None:
        """`firm`: the roll has been called, so the others have come, and go on unless the world breaks."""
        limit = time.monotonic() + self._committer.stall_timeout_s()
        while not operation.wait(POLL_INTERVAL_S):
            if firm:
                self._watch.check(plan.generation)
            else:
                self._watch.check_newer(plan)
            if time.monotonic() > limit:
                self._watch.fault(plan.generation, "stalled", "in the roll call")
                limit = time.monotonic() + self._committer.stall_timeout_s()


def _make_buffer_pool(store: str, local_rank: LocalRank) -> BufferPool | None:
    """Memory for the state that the member at `store` described; without a description there is none, and the
    transfer takes a little longer.

    Raises:
        ElasticError: its node has another number of processes.
    """
    try:
        peer_store = PeerStore.at(store, MEET_PATIENCE)
        local_size = peer_store.get(PLACES_KEY)
        if local_size is not None and local_size != str(local_rank.size):
            raise ElasticError(
                f"this node has {local_rank.size} training processes and the others have {local_size}: "
                "start as many on each"
            )
        text = peer_store.get(STATE_KEY)
        return BufferPool(specs_from_text(text)) if text is not None else None
    except (PeerLost, ValueError, RuntimeError) as error:  # the last: there is not so much memory
        log.info("no room is made for the state beforehand: %s", error)
        return None
