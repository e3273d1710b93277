"""How members recover from a fault while the daemon is away: a strict majority trains on, a minority stops.

Members vote at the store of the lowest-ranked one still alive. A vote names the world in which the member trained
last and the highest generation it has seen. If the voters are more than half of the world that trained last, the
lowest-ranked makes a plan of them, which is entered like an urgent plan of the daemon.

Two such plans never both come to train. To train, every member of a plan must take part; two majorities share a
member; and a member is bound to the last plan whose group it began to make, so it votes for no older world.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from malletrain.elastic.comm.authentication import derived_secret
from malletrain.elastic.errors import PeerLost
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: A quorum's generation exceeds every one seen by this much, so that the daemon cannot have given the same number.
#: The daemon goes on beyond it (`loop.membership.next_world.GENERATION_GAP`).
QUORUM_GENERATION_GAP = 500

#: How long the lowest rank collects votes. The others look for a call every `daemon_link.LAST_RETRY_S`.
COLLECT_TIMEOUT_S = 4.0

#: How long a member that has voted waits for the plan.
PLAN_TIMEOUT_S = 3 * COLLECT_TIMEOUT_S

VOTE_POLL_S = 0.1


class VoteStore(Protocol):
    """The store of a member, its own or another's, which raises `PeerLost` when that does not answer."""

    def set(self, key: str, text: str) -> None: ...

    def look(self, key: str) -> str | None: ...


class Vote(NamedTuple):
    """A member that is alive, the generation in which it trained last, and the highest one it has seen."""

    worker: str
    entered: int
    seen: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """One vote among the members of the plan to which this member is bound."""

    bound: int  #: its generation
    seats: tuple[messages.Seat, ...]  #: its seats, by rank
    base: tuple[str, ...]  #: workers of the world in which this member trained last
    mine: Vote
    #: Of that plan. The members derive that of the next one from it, so that it is never sent.
    secret: str = field(default="", repr=False)

    def called(self, own: VoteStore) -> bool:
        """Whether another member has called this one to vote."""
        return own.look(f"muster-{self.bound}") is not None

    def hold(self, own: VoteStore, connect: Callable[[str], VoteStore]) -> messages.Plan | None:
        """Vote by the `own` store and those that `connect` returns, and wait for the result. Blocks for seconds.
        Returns the plan of a majority; None when too few voted, or this member voted too late."""
        for seat in self.seats:
            if seat.worker == self.mine.worker:
                return self._lead(own, connect)
            try:
                there = connect(seat.address)
                there.set(self._key(self.mine.worker), json.dumps(self.mine))
                there.set(f"muster-{self.bound}", self.mine.worker)
                plan = self._await_plan(there)
            except PeerLost as lost:
                log.info("%s does not answer: %s", seat.worker, lost)
                continue
            seated = plan is not None and any(each.worker == self.mine.worker for each in plan.members)
            return plan if seated else None
        return None

    def _lead(self, own: VoteStore, connect: Callable[[str], VoteStore]) -> messages.Plan | None:
        """Call the others, collect their votes, decide, and publish the plan."""
        votes = {self.mine.worker: self.mine}
        missing = [seat for seat in self.seats if seat.worker != self.mine.worker]
        reached = []
        for seat in missing:
            try:
                there = connect(seat.address)
                there.set(f"muster-{self.bound}", self.mine.worker)
                reached.append(seat)
            except PeerLost as lost:
                log.info("%s does not answer: %s", seat.worker, lost)
        end = time.monotonic() + COLLECT_TIMEOUT_S
        while len(votes) <= len(reached) and time.monotonic() < end:
            for seat in missing:
                if seat.worker not in votes and (text := own.look(self._key(seat.worker))) is not None:
                    votes[seat.worker] = _decode(text)
            time.sleep(VOTE_POLL_S)
        address = next(seat.address for seat in self.seats if seat.worker == self.mine.worker)
        plan = decide(self.bound, self.seats, self.base, list(votes.values()), address)
        own.set(f"{self._key('')}plan", "" if plan is None else json.dumps(messages.to_json(plan)))
        return plan and self._with_secret(plan)

    def _await_plan(self, there: VoteStore) -> messages.Plan | None:
        """The published plan, or None when too few voted. Raises `PeerLost` when none is published in time."""
        end = time.monotonic() + PLAN_TIMEOUT_S
        while time.monotonic() < end:
            text = there.look(f"{self._key('')}plan")
            if text == "":
                return None
            if text is not None:
                try:
                    return self._with_secret(messages.parse(messages.Plan, json.loads(text)))
                except (ValueError, messages.MessageError) as error:
                    raise PeerLost(f"its plan cannot be read: {error}") from error
            time.sleep(VOTE_POLL_S)
        raise PeerLost(f"no plan within {PLAN_TIMEOUT_S:.0f} s")

    def _with_secret(self, plan: messages.Plan) -> messages.Plan:
        return replace(plan, secret=derived_secret(self.secret, "generation", plan.generation))

    def _key(self, worker: str) -> str:
        return f"muster-{self.bound}/{worker}"


def decide(
    bound: int, seats: Sequence[messages.Seat], base: Sequence[str], votes: Sequence[Vote], store: str
) -> messages.Plan | None:
    """The plan of the voters, who meet at `store`; None when they are too few. They must be more than half of the
    world that trained last: that of `bound` if any voter has trained in it (then all of its members were bound to
    it), else `base`, the one before."""
    there = {vote.worker for vote in votes}
    electorate = [seat.worker for seat in seats] if any(v.entered == bound for v in votes) else list(base)
    voters = [worker for worker in electorate if worker in there]
    if 2 * len(voters) <= len(electorate):
        log.warning("the daemon is away, and %d of %d are too few to go on", len(voters), len(electorate))
        return None
    members = tuple(seat for seat in seats if seat.worker in there)
    reason = f"the daemon is away; {len(members)} of {len(electorate)} go on"
    number = max(bound, *(vote.seen for vote in votes)) + QUORUM_GENERATION_GAP
    return messages.Plan(number, members, store, reason, urgent=True)


def _decode(text: str) -> Vote:
    try:
        worker, entered, seen = json.loads(text)
        return Vote(str(worker), int(entered), int(seen))
    except (ValueError, TypeError) as error:
        raise PeerLost(f"a vote cannot be read: {text[:100]!r}") from error
