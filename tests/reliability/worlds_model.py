"""All states of the rule that one job never has two worlds: `python -m tests.reliability.worlds_model`.

A small model of `malletrain.loop.membership` and `malletrain.elastic.resize.quorum`, searched exhaustively: workers
move between the daemon's side of the network and the other at any moment, die, train, and bind themselves to plans
one by one; the daemon gives up who does not answer, fences a silent majority, and names the next world of the others;
members on the other side vote. Newcomers hold no state: they take a plan, to which the members of the present world
switch together, or begin when nobody else can. A daemon that starts again has what the journal has (plans, the newest
world that trained, whose nodes are taken back), and learns of worlds from members that say hello.

- Safety: once a later world has trained, an earlier one trains no more.
- Liveness: whatever happened, as long as a worker lives that was not given up, a world can come to train, or all end.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: A quorum's number exceeds every one that its members have seen by this much (500 there).
QUORUM_GAP = 10
#: A daemon that has started again, or has adopted a world, goes on so far beyond (1000 there).
RESTART_GAP = 20


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
        newcomers: workers besides those of the first world.
        restarts: how often the daemon starts again.
        awaits: after a restart no world begins before all that may train are heard, or have lost their nodes.
        suspects: after a restart, later worlds that the journal has as published may have been taken.
        refuses: one that the newest world in the journal left behind does not bring an older world back.
        leavers: how many members of the first world, the last ones, are to leave: a check leaves them out.
        keeps: but not if they and the silent are more than half of a world.
    """

    fences: bool = True
    strict: bool = True
    numbers: bool = True
    renames: bool = True
    plans: int = 3
    deaths: int = 1
    newcomers: int = 0
    restarts: int = 0
    awaits: bool = True
    suspects: bool = True
    refuses: bool = True
    leavers: int = 0
    keeps: bool = True


class Plan(NamedTuple):
    """A plan; `votes_bound_to`: the plan to which its voters were bound, 0 for one of the daemon's.

    A member takes the plan of its vote as the vote's outcome, so not after it has bound itself to another. To one
    `with_newcomers` the members of a world switch together, once the newcomers have taken it.
    """

    number: int
    members: frozenset[int]
    votes_bound_to: int = 0
    with_newcomers: bool = False


class Worker(NamedTuple):
    """One worker.

    Attributes:
        lives, hears: whether it lives, and is on the daemon's side.
        at: the number of the plan in which it trained last; 0 for a newcomer.
        bound: that of the last plan whose group it began to make.
    """

    lives: bool = True
    hears: bool = True
    at: int = 1
    bound: int = 1


class State(NamedTuple):
    """Everything that counts.

    Attributes:
        world, pending: numbers of the daemon's plans; 0 for none, or none that it has heard of.
        given_up: whom it does not take back.
        fenced: whose node it takes back.
        trained: plans that have trained, the last at the end.
        taken: the newest that the journal has as trained.
        least: the daemon's next plan has a higher number.
    """

    workers: tuple[Worker, ...]
    plans: tuple[Plan, ...]
    world: int = 1
    pending: int = 0
    given_up: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    trained: tuple[int, ...] = (1,)
    deaths: int = 0
    taken: int = 1
    least: int = 0
    restarts: int = 0

    def plan(self, number: int) -> Plan:
        return next(each for each in self.plans if each.number == number)

    def change(self, which: int, **changes: object) -> State:
        """With one worker changed."""
        workers = list(self.workers)
        workers[which] = workers[which]._replace(**changes)  # type: ignore[arg-type]
        return self._replace(workers=tuple(workers))


def begin(workers: int, newcomers: int = 0) -> State:
    """A world of all but the newcomers, which trains."""
    members = (Worker(),) * workers
    return State(members + (Worker(at=0, bound=0),) * newcomers, (Plan(1, frozenset(range(workers))),))


def steps(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """What may happen next."""
    for which, worker in enumerate(now.workers):
        if not worker.lives:
            continue
        yield f"{which} changes sides", now.change(which, hears=not worker.hears)
        if now.deaths < rules.deaths:
            yield f"{which} dies", now.change(which, lives=False)._replace(deaths=now.deaths + 1)
        if which in now.fenced:
            yield f"Slurm ends {which}", now.change(which, lives=False)
        if worker.hears and which in now.given_up:
            yield f"{which} is refused and ends", now.change(which, lives=False)
        for plan in now.plans:
            shown = worker.hears and plan.number == now.pending and not (plan.with_newcomers and worker.at)
            if plan.votes_bound_to:
                shown = worker.bound == plan.votes_bound_to
            if which in plan.members and shown and plan.number > worker.bound:
                yield f"{which} takes {plan.number}", now.change(which, bound=plan.number)
    for plan in now.plans:
        yield from _trains(now, plan)
        if plan.with_newcomers:
            yield from _switch(now, plan)
    if now.restarts < rules.restarts:
        highest = max(plan.number for plan in now.plans if not plan.votes_bound_to)
        least = max(now.least, highest) + RESTART_GAP
        again = now._replace(world=0, pending=0, given_up=now.fenced, least=least, restarts=now.restarts + 1)
        yield "the daemon starts again", again
    yield from _daemon(now, rules) if now.world else _restarted(now, rules)
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
        after = after._replace(trained=(*now.trained, plan.number))
    known = now.world or now.pending == plan.number
    if known and members[0].hears and not plan.members & now.given_up and plan.number > now.world:
        # Reported, or adopted.
        after = after._replace(world=plan.number, pending=0, taken=max(now.taken, plan.number))
    if after != now:
        yield f"{plan.number} trains", after


def _switch(now: State, plan: Plan) -> Iterator[tuple[str, State]]:
    """The members of a world take a plan in the same step, in which its newcomers are already."""
    old = [which for which in sorted(plan.members) if now.workers[which].at]
    ready = all(
        each.lives and each.bound == plan.number for each in map(now.workers.__getitem__, plan.members - set(old))
    )
    members = [now.workers[which] for which in plan.members]
    together = all(each.lives for each in members) and len({each.hears for each in members}) == 1
    in_one = len({(now.workers[which].at, now.workers[which].bound) for which in old}) == 1
    if ready and together and in_one and all(now.workers[w].at == now.workers[w].bound < plan.number for w in old):
        after = now
        for which in old:
            after = after.change(which, bound=plan.number)
        yield f"{old} switch to {plan.number}", after


def _daemon(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """A check of the present world, and of the plan that follows it; or newcomers for a world that is whole."""
    asked = now.plan(now.pending or now.world).members | now.plan(now.world).members
    answer = frozenset(w for w in asked - now.given_up if now.workers[w].lives and now.workers[w].hears)
    silent = asked - answer
    # A member that has begun to make a later group takes no plan of an earlier number.
    overtaken = rules.renames and any(now.workers[w].bound > (now.pending or now.world) for w in answer)
    if not (silent - now.given_up or now.fenced or (now.pending and silent) or overtaken):
        yield from _with_newcomers(now, rules)
        return
    if not answer:
        if rules.newcomers or rules.restarts:  # nobody is heard: the world is dropped
            yield "the daemon drops the world", now._replace(world=0, pending=0)
        return
    after = now._replace(given_up=now.given_up | silent)
    away: frozenset[int] = frozenset()
    unknown_of: list[tuple[frozenset[int], frozenset[int]]] = []  # of each world that may train
    later = {p.number for p in now.plans if p.number > max(now.world, now.taken) and not p.votes_bound_to}
    suspected = later if now.restarts and rules.suspects else set[int]()
    for number in ({now.world, now.pending} | suspected) - {0}:
        members = now.plan(number).members
        # One that has ended on this side of the network is known to have.
        unheard = members - answer if number in suspected else members & silent
        unknown = frozenset(w for w in unheard if now.workers[w].lives or not now.workers[w].hears)
        unknown -= frozenset(w for w in now.fenced if not now.workers[w].lives)
        unknown_of.append((members, unknown))
        if 2 * len(unknown) > len(members):
            away |= unknown
    if away and rules.fences:
        if after != now or not away <= now.fenced:
            yield f"the daemon fences {sorted(away)}", after._replace(fenced=now.fenced | away)
        return
    whole = frozenset(which for which in answer if now.workers[which].at)
    if not whole:
        yield "the daemon drops the world", after._replace(world=0, pending=0)
        return
    leavers = now.plan(1).members & frozenset(range(len(now.workers))[::-1][: rules.leavers])
    staying = (whole - leavers) or frozenset(sorted(whole)[:1])
    out = whole - staying
    if rules.keeps and any(2 * len(unknown | (members & out)) > len(members) for members, unknown in unknown_of):
        staying = whole
    outstanding = now.pending and now.plan(now.pending).members == staying and not overtaken
    if not outstanding:
        yield from _named(after, rules, staying)


def _named(
    now: State, rules: Rules, members: frozenset[int], *, with_newcomers: bool = False
) -> Iterator[tuple[str, State]]:
    if len(now.plans) > rules.plans:
        return
    highest = max(plan.number for plan in now.plans if not plan.votes_bound_to or plan.number == now.world)
    if rules.numbers:
        highest = max(highest, now.least, *(now.workers[w].bound for w in members))
    plan = Plan(highest + 1, members, with_newcomers=with_newcomers)
    if all(plan.number != each.number for each in now.plans):
        after = now._replace(plans=(*now.plans, plan), pending=plan.number)
        yield f"the daemon names {sorted(members)} as {plan.number}", after


def _newcomers(now: State) -> frozenset[int]:
    heard = (which for which, each in enumerate(now.workers) if each.lives and each.hears and not each.at)
    return frozenset(heard) - now.given_up


def _with_newcomers(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    more = _newcomers(now) - now.plan(now.world).members
    if more and not now.pending:
        yield from _named(now, rules, now.plan(now.world).members | more, with_newcomers=True)


def _restarted(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """A daemon without a world: it adopts one that a member brings, or begins another when none can train."""
    heard = [w for w, each in enumerate(now.workers) if each.lives and each.hears and w not in now.given_up]
    for which in heard:
        number = now.workers[which].at
        if number and rules.refuses and number < now.taken and which not in now.plan(now.taken).members:
            yield f"{which} was left behind and ends", now.change(which, lives=False)
        elif number >= max(1, now.taken if rules.refuses else 1):
            least = max(now.least, number + RESTART_GAP)
            taken = max(now.taken, number)
            yield f"{which} brings {number}", now._replace(world=number, pending=0, taken=taken, least=least)
    if any(now.workers[which].at for which in heard):
        return
    unheard = frozenset(
        which for which, each in enumerate(now.workers)
        if each.at and (each.lives or not each.hears) and not (which in now.fenced and not each.lives)
    )  # fmt: skip
    if unheard and rules.awaits:
        if not unheard <= now.fenced:
            given_up, fenced = now.given_up | unheard, now.fenced | unheard
            yield f"the daemon fences {sorted(unheard)}", now._replace(given_up=given_up, fenced=fenced)
        return
    members = _newcomers(now)
    if members and (not now.pending or now.plan(now.pending).members != members):
        yield from _named(now, rules, members)


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
                yield f"{sorted(voters)} make {plan.number}", now._replace(plans=(*now.plans, plan))


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
    first = begin(workers, rules.newcomers)
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
                    return Found(len(came_from), _history(after, came_from))
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


def _history(state: State, came_from: dict[State, tuple[State, str] | None]) -> tuple[str, ...]:
    """The steps to `state` from the first one."""
    found = []
    while (at := came_from[state]) is not None:
        state, what = at
        found.append(what)
    return tuple(reversed(found))


def _some_world_trains(state: State) -> bool:
    last = state.plan(state.trained[-1])
    members = [state.workers[w] for w in last.members]
    return all(w.lives and w.at == w.bound == last.number for w in members) and len({w.hears for w in members}) == 1


def main() -> int:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    for name in ("plans", "deaths", "newcomers", "restarts", "leavers"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Rules(), name))
    given = vars(parser.parse_args())
    found = search(given.pop("workers"), Rules(**given))
    print(f"states: {found.states}")
    print("safety:", "holds" if not found.broken else "broken by " + "; ".join(found.broken))
    print("liveness:", "holds" if found.stuck is None else f"nothing follows from {found.stuck}")
    return 1 if found.broken or found.stuck is not None else 0


if __name__ == "__main__":
    sys.exit(main())
