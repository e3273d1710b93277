"""All states of the rule that one job never has two worlds: `python -m scripts.simulation.worlds_model`.

A small model of `malletrain.loop.membership` and `malletrain.elastic.resize.quorum`, searched exhaustively: workers
move between the daemon's side of the network and the other at any moment, die, train, and bind themselves to plans
one by one; the daemon gives up who does not answer, fences a silent majority, and names the next world of the others;
members on the other side vote. No newcomers, and no daemon that starts again: `scripts.simulation` has these.

- Safety: once a later world has trained, an earlier one trains no more.
- Liveness: whatever happened, as long as a worker lives that was not given up, a world can come to train, or all end.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scripts.simulation.shortest_history import shortest_history

#: A quorum's number exceeds every one that its members have seen by this much (500 there).
QUORUM_GAP = 10


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules under test; the model must find out each that is missing.

    Attributes:
        fences: the daemon takes the nodes of a silent majority back before the others go on.
        strict: a quorum is more than half of its world, not half.
        numbers: the daemon's next plan has a higher number than any that those who answer have seen.
        renames: a plan whose number a member has passed by, as it does when it votes, is named anew.
        plans: the most plans after the first.
        deaths: the most workers that die by themselves.
    """

    fences: bool = True
    strict: bool = True
    numbers: bool = True
    renames: bool = True
    plans: int = 3
    deaths: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan; `votes_bound_to`: the plan to which its voters were bound, 0 for one of the daemon's.

    A member takes the plan of its vote as the vote's outcome, so not after it has bound itself to another.
    """

    number: int
    members: frozenset[int]
    votes_bound_to: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker.

    Attributes:
        lives, hears: whether it lives, and is on the daemon's side.
        at: the number of the plan in which it trained last.
        bound: that of the last plan whose group it began to make.
    """

    lives: bool = True
    hears: bool = True
    at: int = 1
    bound: int = 1


@dataclass(frozen=True, slots=True)
class State:
    """Everything that counts.

    Attributes:
        world, pending: numbers of the daemon's plans; 0 for none.
        given_up: whom it does not take back.
        fenced: whose node it takes back.
        trained: plans that have trained, the last at the end.
    """

    workers: tuple[Worker, ...]
    plans: tuple[Plan, ...]
    world: int = 1
    pending: int = 0
    given_up: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    trained: tuple[int, ...] = (1,)
    deaths: int = 0

    def plan(self, number: int) -> Plan:
        return next(each for each in self.plans if each.number == number)

    def change(self, which: int, **changes: object) -> State:
        """With one worker changed."""
        workers = list(self.workers)
        workers[which] = replace(workers[which], **changes)  # type: ignore[arg-type]
        return replace(self, workers=tuple(workers))


def begin(workers: int) -> State:
    """A world of all, which trains."""
    return State((Worker(),) * workers, (Plan(1, frozenset(range(workers))),))


def steps(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """What may happen next."""
    for which, worker in enumerate(now.workers):
        if not worker.lives:
            continue
        yield f"{which} changes sides", now.change(which, hears=not worker.hears)
        if now.deaths < rules.deaths:
            yield f"{which} dies", replace(now.change(which, lives=False), deaths=now.deaths + 1)
        if which in now.fenced:
            yield f"Slurm ends {which}", now.change(which, lives=False)
        if worker.hears and which in now.given_up:
            yield f"{which} is refused and ends", now.change(which, lives=False)
        for plan in now.plans:
            shown = worker.hears and plan.number == now.pending
            if plan.votes_bound_to:
                shown = worker.bound == plan.votes_bound_to
            if which in plan.members and shown and plan.number > worker.bound:
                yield f"{which} takes {plan.number}", now.change(which, bound=plan.number)
    for plan in now.plans:
        yield from _trains(now, plan)
    yield from _daemon(now, rules)
    yield from _vote(now, rules)


def _trains(now: State, plan: Plan) -> Iterator[tuple[str, State]]:
    members = [now.workers[which] for which in plan.members]
    if not all(each.lives and each.bound == plan.number for each in members):
        return
    if len({each.hears for each in members}) > 1:
        return
    after = now
    for which in plan.members:
        after = after.change(which, at=plan.number)
    if now.trained[-1] != plan.number:
        after = replace(after, trained=(*now.trained, plan.number))
    if members[0].hears and not plan.members & now.given_up and plan.number > now.world:  # reported, or adopted
        after = replace(after, world=plan.number, pending=0)
    if after != now:
        yield f"{plan.number} trains", after


def _daemon(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """A check of the present world, and of the plan that follows it."""
    asked = now.plan(now.pending or now.world).members | now.plan(now.world).members
    answer = frozenset(w for w in asked - now.given_up if now.workers[w].lives and now.workers[w].hears)
    silent = asked - answer
    # A member that has begun to make a later group takes no plan of an earlier number.
    overtaken = rules.renames and any(now.workers[w].bound > (now.pending or now.world) for w in answer)
    if not answer or not (silent - now.given_up or now.fenced or (now.pending and silent) or overtaken):
        return
    after = replace(now, given_up=now.given_up | silent)
    away: frozenset[int] = frozenset()
    for number in {now.world, now.pending} - {0}:
        members = now.plan(number).members
        # One that has ended on this side of the network is known to have.
        unknown = frozenset(w for w in members & silent if now.workers[w].lives or not now.workers[w].hears)
        unknown -= frozenset(w for w in now.fenced if not now.workers[w].lives)
        if 2 * len(unknown) > len(members):
            away |= unknown
    if away and rules.fences:
        if after != now or not away <= now.fenced:
            yield f"the daemon fences {sorted(away)}", replace(after, fenced=now.fenced | away)
        return
    outstanding = now.pending and now.plan(now.pending).members == answer and not overtaken
    if len(now.plans) <= rules.plans and not outstanding:
        highest = max(plan.number for plan in now.plans if not plan.votes_bound_to or plan.number == now.world)
        if rules.numbers:
            highest = max(highest, *(now.workers[w].bound for w in answer))
        plan = Plan(highest + 1, answer)
        if all(plan.number != each.number for each in now.plans):
            after = replace(after, plans=(*now.plans, plan), pending=plan.number)
            yield f"the daemon names {sorted(answer)} as {plan.number}", after


def _vote(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Members on the other side that are bound alike, and trained in one world last."""
    if len(now.plans) > rules.plans:
        return
    for world in now.plans:
        away = [w for w in sorted(world.members) if now.workers[w].lives and not now.workers[w].hears]
        alike = [w for w in away if now.workers[w].at == world.number]
        for bound in {now.workers[w].bound for w in alike}:
            voters = frozenset(w for w in alike if now.workers[w].bound == bound)
            least = len(world.members) + 1 if rules.strict else len(world.members)
            if len(world.members) < 2 or not voters or 2 * len(voters) < least:
                continue
            seen = max(max(now.workers[w].bound, now.workers[w].at) for w in voters)
            plan = Plan(seen + QUORUM_GAP, voters, bound)
            if all(plan.number != each.number for each in now.plans):
                yield f"{sorted(voters)} make {plan.number}", replace(now, plans=(*now.plans, plan))


@dataclass(frozen=True, slots=True)
class Found:
    """What the search came to: the number of states, the shortest history that breaks safety (empty for none), and a
    state from which nothing can come to train though it should (None for none)."""

    states: int
    broken: tuple[str, ...] = ()
    stuck: State | None = None


def is_broken(state: State) -> bool:
    """Whether a world has trained again after a later one."""
    return len(set(state.trained)) < len(state.trained)


def search(workers: int, rules: Rules) -> Found:
    """Every state that can be reached, in the order of the steps to it."""
    first = begin(workers)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    before: dict[State, list[State]] = {first: []}
    trains = deque[State]()
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        good = not any(w.lives for which, w in enumerate(state.workers) if which not in state.given_up)
        for what, after in steps(state, rules):
            if after not in came_from:
                came_from[after] = state, what
                before[after] = []
                if is_broken(after):
                    return Found(len(came_from), shortest_history(after, came_from))
                waiting.append(after)
            before[after].append(state)
        if good or _some_world_trains(state) or len(state.plans) > rules.plans:
            trains.append(state)  # (where the model has no more plans, nothing can be said)
    can = set(trains)
    while trains:
        for earlier in before[trains.popleft()]:
            if earlier not in can:
                can.add(earlier)
                trains.append(earlier)
    stuck = next((state for state in came_from if state not in can), None)
    return Found(len(came_from), (), stuck)


def _some_world_trains(state: State) -> bool:
    last = state.plan(state.trained[-1])
    members = [state.workers[w] for w in last.members]
    return all(w.lives and w.at == w.bound == last.number for w in members) and len({w.hears for w in members}) == 1


def main() -> int:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--plans", type=int, default=3)
    parser.add_argument("--deaths", type=int, default=1)
    asked = parser.parse_args()
    found = search(asked.workers, Rules(plans=asked.plans, deaths=asked.deaths))
    print(f"states: {found.states}")
    print("safety:", "holds" if not found.broken else "broken by " + "; ".join(found.broken))
    print("liveness:", "holds" if found.stuck is None else f"nothing follows from {found.stuck}")
    return 1 if found.broken or found.stuck is not None else 0


if __name__ == "__main__":
    sys.exit(main())
