"""The rule that names the members of a job's next world, and why. Pure.

A world changes only by a new generation. An ordinary generation is prepared while the old world trains, so the rule
can wait for several newcomers to gather. One ordinary plan is outstanding at a time, and is superseded only when one
of its members is gone or must leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.domain import event as kinds
from malletrain.domain.event import Event
from malletrain.wire.messages import Seat


@dataclass(frozen=True, slots=True)
class JobTerms:
    """The sizes that a job may have."""

    min_nodes: int = 1  #: inclusive, as `max_nodes`
    max_nodes: int = 2**31
    sizes: tuple[int, ...] = ()  #: the only permitted ones; empty for all within the bounds
    #: The launcher is the member, and not the script: the job resizes by checkpoint and relaunch, or is of `items`.
    restarts: bool = False
    batches: tuple[tuple[int, int], ...] = ()  #: (nodes, samples of a step) from so many nodes on; rising
    items: bool = False  #: the job's nodes work on independent items
    #: No worker may join or leave a world that trains: it ends as soon as it would change, and one of the same size
    #: begins with the state that it saved (`malletrain.decide.limits`).
    fixed: bool = False
    trusted: bool = False  #: the script's owner answers for it
    checked: str = ""  #: the digest of the script that was checked last
    undecided: bool = False  #: that check could not tell how it trains

    def batch(self, nodes: int) -> int:
        """Samples of a step on `nodes` nodes; 0 where the script chooses."""
        return next((batch for least, batch in reversed(self.batches) if least <= nodes), 0)

    def permits(self, nodes: int) -> bool:
        return self.min_nodes <= nodes <= self.max_nodes and (not self.sizes or nodes in self.sizes)


@dataclass(frozen=True, slots=True)
class WorkerCandidate:
    """A worker that could be a member of the next world. Times are of a clock that never jumps.

    `warm_at`: when it became ready to join, None while it warms up; `leaving_since`: when it was asked to leave.
    """

    seat: Seat
    warm_at: float | None
    leaving_since: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The members of the next world, or None for no change, with the reason.

    `look_again_at`: when the answer may change without any further fact.
    """

    seats: tuple[Seat, ...] | None
    reason: str
    look_again_at: float | None = None


def next_world(
    world: Sequence[str],
    pending: Sequence[str] | None,
    candidates: Sequence[WorkerCandidate],
    terms: JobTerms,
    now: float,
    gather_s: float,
    most: int | None = None,
) -> Verdict:
    """Names the members of the next generation.

    Args:
        world: workers that train now, in rank order; empty when the job has no world.
        pending: workers of the outstanding ordinary plan, None when there is none.
        candidates: every living worker, oldest first.
        gather_s: how long a newcomer waits for others that warm up, and a leaver for other leavers (a tenth of it).
        most: largest size for now, while the job is measured on its way up; None for no limit.
    """
    alive = {each.seat.worker: each for each in candidates}
    staying = [alive[name].seat for name in world if name in alive and alive[name].leaving_since is None]
    leaving = [alive[name] for name in world if name in alive and alive[name].leaving_since is not None]
    gone = [name for name in world if name not in alive]
    newcomers = [
        each
        for each in candidates
        if each.seat.worker not in world and each.warm_at is not None and each.leaving_since is None
    ]
    if terms.fixed and world and not pending:
        whole = len(staying) == len(world) and terms.permits(len(world))
        if pending is not None or whole:
            return Verdict(None, f"stays as it is, {terms.min_nodes} nodes")
        return Verdict((), why_it_ends(terms, _why([], leaving, gone)))
    if most is not None:
        newcomers = newcomers[: max(0, most - len(staying))]
    if pending is not None:
        return _while_pending(pending, alive, staying, newcomers, terms, leaving)
    if not leaving and not gone:
        if not newcomers:
            return Verdict(None, "no node to add" if most is None else f"is measured on {len(staying)} nodes first")
        if most is not None and len(staying) + len(newcomers) >= most:
            why = f"{_why(newcomers, [], [])}, to be measured on {most} nodes"
            return _size(staying, leaving, newcomers, terms, bool(world), why)
        gathered_at = min(each.warm_at for each in newcomers if each.warm_at is not None) + gather_s
        if any(each.warm_at is None and each.leaving_since is None for each in candidates) and now < gathered_at:
            return Verdict(None, "waits for others that are warming up", gathered_at)
    elif leaving and not gone:
        settled_at = min(each.leaving_since or now for each in leaving) + gather_s / 10
        if now < settled_at:
            return Verdict(None, "waits for others that leave", settled_at)
    return _size(staying, leaving, newcomers, terms, bool(world), _why(newcomers, leaving, gone))


def _while_pending(
    pending: Sequence[str],
    alive: dict[str, WorkerCandidate],
    staying: list[Seat],
    newcomers: list[WorkerCandidate],
    terms: JobTerms,
    leaving: list[WorkerCandidate],
) -> Verdict:
    # Without a world the members begin by themselves, and may have begun: another plan would make a second world.
    may_begin = not staying and not leaving
    withdrawn = [
        name for name in pending if name not in alive or (alive[name].leaving_since is not None and not may_begin)
    ]
    hands_over = not staying and newcomers and withdrawn == [each.seat.worker for each in leaving[:1]]
    if not withdrawn or hands_over:
        return Verdict(None, "the last plan is not taken yet")
    if terms.fixed and (staying or leaving):
        return Verdict((), why_it_ends(terms, f"without {', '.join(withdrawn)}"))
    return _size(
        staying, leaving, newcomers, terms, bool(staying or leaving), f"without {', '.join(withdrawn)}", True
    )


def _size(
    staying: list[Seat],
    leaving: list[WorkerCandidate],
    newcomers: list[WorkerCandidate],
    terms: JobTerms,
    has_world: bool,
    why: str,
    supersedes: bool = False,
) -> Verdict:
    """`supersedes`: the outstanding plan cannot be taken any more, so another follows even if it adds no member."""
    if leaving and newcomers and not staying:
        # Someone must hand the state over: the oldest stays for one generation more.
        staying, why = [leaving[0].seat], f"{why}; {leaving[0].seat.worker} hands over first"
    seats = [*staying, *(each.seat for each in newcomers)]
    if not has_world and not any(terms.permits(n) for n in range(1, min(len(seats), terms.max_nodes) + 1)):
        return Verdict(None, f"waits for at least {terms.min_nodes} warm workers, {len(seats)} so far")
    size = len(seats)
    # A world that shrank to a size the job does not want trains on all the same: sizing mends it, not this rule.
    while size > len(staying) and not terms.permits(size):
        size -= 1
    if size == len(staying) and newcomers and not supersedes:
        return Verdict(None, f"no permitted size takes in the {len(newcomers)} warm workers")
    return Verdict(tuple(seats[:size]), why)


def why_it_ends(terms: JobTerms, why: str) -> str:
    """Why the world of a job that keeps its size ends: what would have changed it, and the rule."""
    return "; ".join(filter(None, (why, f"its script trains on {terms.min_nodes} nodes only: it begins anew there")))


def _why(newcomers: list[WorkerCandidate], leaving: list[WorkerCandidate], gone: list[str]) -> str:
    parts = []
    if newcomers:
        parts.append("joining: " + ", ".join(each.seat.worker for each in newcomers))
    if leaving:
        parts.append("leaving: " + ", ".join(each.seat.worker for each in leaving))
    if gone:
        parts.append("lost: " + ", ".join(gone))
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class TakenWorld:
    """The newest world that a member has taken: an older one has been given up by its members."""

    generation: int
    pilots: frozenset[str]


#: A daemon reserves the numbers of a job's next worlds in blocks of this size. The first block of a job is reserved
#: by its announcement.
GENERATION_BLOCK = 1000

#: After a restart, generation numbers continue this far beyond the last one on record, so that none is reused.
GENERATION_GAP = 1000


@dataclass(slots=True)
class LastWorlds:
    """What the journal has of one job's worlds."""

    published: int = 0  #: the highest generation that it has as published
    reserved: int = 0  #: that a daemon may have published, journalled or not
    taken: TakenWorld | None = None  #: the newest that trained, of those whose members the journal names
    #: The pilots of later worlds, by number: their members may have taken them without a word.
    untaken: Mapping[int, frozenset[str]] = field(default_factory=dict)


def last_worlds(events: Iterable[Event]) -> dict[int, LastWorlds]:
    """Folds events, in order, by job."""
    found: dict[int, LastWorlds] = {}
    for event in events:
        if event.job is None:
            continue
        match event.payload:
            case kinds.JobAnnounced():
                of_job = found.setdefault(event.job, LastWorlds())
                of_job.reserved = max(of_job.reserved, GENERATION_BLOCK)
            case kinds.GenerationsReserved(until=until):
                of_job = found.setdefault(event.job, LastWorlds())
                of_job.reserved = max(of_job.reserved, until)
            case kinds.GenerationPublished(generation=number, members=members):
                of_job = found.setdefault(event.job, LastWorlds())
                of_job.published = max(of_job.published, number)
                of_job.untaken = {**of_job.untaken, number: frozenset(members)}
            case kinds.GenerationSwitched(generation=number):
                of_job = found.setdefault(event.job, LastWorlds())
                if number in of_job.untaken:
                    of_job.taken = TakenWorld(number, of_job.untaken[number])
                    of_job.untaken = {later: pilots for later, pilots in of_job.untaken.items() if later > number}
    return found
