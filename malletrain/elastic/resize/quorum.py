"""A broken world that mends itself while the daemon is away: a strict majority goes on, a minority stops.

Members meet at the store that the lowest rank still there serves; who meets there says which world it trained in last
and the highest generation that it has heard of. If they are more than half of the world that trained last, the lowest
makes a plan of them, which is taken like an urgent one of the daemon's.

Two such plans never both come to train: to train, every member must take part, two majorities share a member, and a
member is bound to the last plan whose group it began to build: it meets for no older world any more.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.elastic.errors import PeerLost
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: Own numbers are so far beyond the daemon's that none can be given twice; the daemon goes on beyond them (it adds
#: `loop.membership.GENERATION_GAP` to what it is told).
OWN_GAP = 500

#: For how long the lowest rank waits for the others. They look every `link.LAST_RETRY_S` whether they are called.
COLLECT_S = 4.0

#: A member that called another waits for its plan.
PLAN_S = 3 * COLLECT_S

PAUSE_S = 0.1


class Board(Protocol):
    """A store that a member serves, seen from another. Every call raises `PeerLost` when it does not answer."""

    def put(self, key: str, text: str) -> None: ...

    def get(self, key: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Vote:
    """What a member says: the generation that it trained in last, and the highest that it has heard of."""

    worker: str
    entered: int
    seen: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """One meeting: of the seats of the plan that its members are bound to.

    Attributes:
        bound: the generation of that plan.
        seats: its members, in rank order.
        base: workers of the world that this member trained in last.
        mine: what this member says.
    """

    bound: int
    seats: tuple[messages.Seat, ...]
    base: tuple[str, ...]
    mine: Vote

    def called(self, own: Board) -> bool:
        """Whether another member waits for this one here."""
        return own.get(f"muster-{self.bound}") is not None

    def hold(self, own: Board, connect: Callable[[str], Board]) -> messages.Plan | None:
        """Meet the others. Blocks for seconds.

        Args:
            own: the store that this member serves.
            connect: to the store at an address; raises `PeerLost`.

        Returns:
            The plan of a majority, or None: too few came, or this member came too late.
        """
        for seat in self.seats:
            if seat.worker == self.mine.worker:
                return self._lead(own, connect)
            try:
                there = connect(seat.address)
                there.put(self._key(self.mine.worker), _say(self.mine))
                there.put(f"muster-{self.bound}", self.mine.worker)
                plan = self._await_plan(there)
            except PeerLost as lost:
                log.info("%s does not answer: %s", seat.worker, lost)
                continue
            seated = plan is not None and any(each.worker == self.mine.worker for each in plan.members)
            return plan if seated else None
        return None

    def _lead(self, own: Board, connect: Callable[[str], Board]) -> messages.Plan | None:
        """Collect the others, decide, tell them."""
        stands = {self.mine.worker: self.mine}
        missing = [seat for seat in self.seats if seat.worker != self.mine.worker]
        reached = []
        for seat in missing:
            try:
                there = connect(seat.address)
                there.put(f"muster-{self.bound}", self.mine.worker)
                reached.append(seat)
            except PeerLost as lost:
                log.info("%s does not answer: %s", seat.worker, lost)
        end = time.monotonic() + COLLECT_S
        while len(stands) <= len(reached) and time.monotonic() < end:
            for seat in missing:
                if seat.worker not in stands and (said := own.get(self._key(seat.worker))) is not None:
                    stands[seat.worker] = _heard(said)
            time.sleep(PAUSE_S)
        address = next(seat.address for seat in self.seats if seat.worker == self.mine.worker)
        plan = decide(self.bound, self.seats, self.base, list(stands.values()), address)
        own.put(f"{self._key('')}plan", "" if plan is None else json.dumps(messages.to_json(plan)))
        return plan

    def _await_plan(self, there: Board) -> messages.Plan | None:
        """None when too few came. Raises `PeerLost` when it does not say."""
        end = time.monotonic() + PLAN_S
        while time.monotonic() < end:
            text = there.get(f"{self._key('')}plan")
            if text == "":
                return None
            if text is not None:
                try:
                    return messages.parse(messages.Plan, json.loads(text))
                except (ValueError, messages.MessageError) as error:
                    raise PeerLost(f"its plan cannot be read: {error}") from error
            time.sleep(PAUSE_S)
        raise PeerLost(f"no plan within {PLAN_S:.0f} s")

    def _key(self, worker: str) -> str:
        return f"muster-{self.bound}/{worker}"


def decide(
    bound: int, seats: Sequence[messages.Seat], base: Sequence[str], stands: Sequence[Vote], store: str
) -> messages.Plan | None:
    """The plan of those who came, or None when they are too few.

    They must be more than half of the world that trained last: of `bound`'s if any of them has trained in it (then
    all of its members were bound to it), else of the one before, `base`.
    """
    there = {stand.worker for stand in stands}
    electorate = [seat.worker for seat in seats] if any(s.entered == bound for s in stands) else list(base)
    voters = [worker for worker in electorate if worker in there]
    if 2 * len(voters) <= len(electorate):
        log.warning("the daemon is away, and %d of %d are too few to go on", len(voters), len(electorate))
        return None
    members = tuple(seat for seat in seats if seat.worker in there)
    reason = f"the daemon is away; {len(members)} of {len(electorate)} go on"
    number = max(bound, *(stand.seen for stand in stands)) + OWN_GAP
    return messages.Plan(number, members, store, reason, urgent=True)


def _say(stand: Vote) -> str:
    return json.dumps([stand.worker, stand.entered, stand.seen])


def _heard(text: str) -> Vote:
    try:
        worker, entered, seen = json.loads(text)
        return Vote(str(worker), int(entered), int(seen))
    except (ValueError, TypeError) as error:
        raise PeerLost(f"a member says {text[:100]!r}") from error
