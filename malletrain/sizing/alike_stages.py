"""The core's programme where many jobs have the same choices: what groups of them use and lose, state by state.

Few jobs differ: of a hundred that share a machine most have the choices of another one, and few numbers of nodes are
within reach of the best plan. So states are kept by number of nodes used, and all jobs with the same choices are one
step. Jobs of a group may change places, so the plan that gives the most nodes to the lowest ids is known once each
group's choices are. Where two groups could share out otherwise and lose as little, or there are many states, nothing
is settled here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Ways to spread the choices over the jobs of one group, and states at one step, up to which this is tried.
MAX_OPTIONS = 512
MAX_STATES = 256

#: One job's choices: nodes above its fewest, ascending, and what each loses.
Choices = tuple[tuple[int, ...], tuple[int, ...]]
#: What was lost least, in how many ways (2: or more), and each group's choices on that way, the last first.
_Path = tuple[tuple[int, ...], "_Path | None"]
_State = tuple[int, int, "_Path | None"]
#: What a group's jobs use together and lose, in how many ways (2: or more), and their choices, the most nodes first.
_Option = tuple[int, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`places`: the choice of each job; None where none loses as little as allowed, or where it is not `settled`."""

    places: tuple[int, ...] | None
    settled: bool
    states: int = 0


UNSETTLED = GroupPlan(None, settled=False)


def least_loss_of_groups(
    jobs: Sequence[Choices], room: int, limit: int, unused_loss: Callable[[int], int]
) -> GroupPlan:
    """The plan of least loss of at most `limit`, nodes that no job uses included; of equal ones that of the fewest
    nodes, then of the most nodes for the first jobs.

    `room`: nodes that the jobs may use above their fewest; `unused_loss(n)`: what is lost if n of these are not used,
    ascending in n.
    """
    groups: dict[Choices, list[int]] = {}
    for at, choices in enumerate(jobs):
        groups.setdefault(choices, []).append(at)
    steps: list[list[_Option]] = []
    spare = limit - sum(min(choices[1]) * len(members) for choices, members in groups.items())
    for choices, members in groups.items():
        options = _options(choices, len(members), room, spare)
        if options is None:
            return UNSETTLED
        if not options:
            return GroupPlan(None, settled=True)
        steps.append(options)
    # What is lost at least, and used at most, from each step on.
    least, most = [0], [0]
    for options in reversed(steps):
        least.append(least[-1] + min(lost for _, lost, _, _ in options))
        most.append(most[-1] + options[-1][0])
    least.reverse()
    most.reverse()
    states: dict[int, _State] = {0: (0, 1, None)}
    count = 0
    for step, options in enumerate(steps):
        states = _step(states, options, room, limit - least[step + 1], room - most[step + 1], unused_loss)
        count += len(states)
        if len(states) > MAX_STATES:
            return UNSETTLED
    best = min(((lost + unused_loss(room - used), used) for used, (lost, _, _) in states.items()), default=None)
    if best is None or best[0] > limit:
        return GroupPlan(None, settled=True, states=count)
    _, ways, path = states[best[1]]
    if ways > 1:
        return UNSETTLED
    places = [0] * len(jobs)
    members_last_first = iter(reversed(groups.values()))
    while path is not None:
        chosen, path = path
        for at, place in zip(next(members_last_first), chosen, strict=True):
            places[at] = place
    return GroupPlan(tuple(places), settled=True, states=count)


def _step(
    states: dict[int, _State], options: list[_Option], room: int, limit: int, enough: int,
    unused_loss: Callable[[int], int],
) -> dict[int, _State]:  # fmt: skip
    """One more group. `limit`: what the groups so far may lose; `enough`: nodes that must be used for all to be used.
    States that lose too much by themselves, or with the nodes that must stay unused, are left out."""
    found: dict[int, _State] = {}
    for used, (lost, ways, path) in states.items():
        for more, loss, option_ways, chosen in options:
            now, least = used + more, lost + loss
            if now > room:
                break
            if least > limit or (now < enough and least + unused_loss(enough - now) > limit):
                continue
            known = found.get(now)
            if known is None or least < known[0]:
                found[now] = least, ways * option_ways, (chosen, path)
            elif least == known[0]:
                found[now] = least, 2, known[2]
    return found


def _options(choices: Choices, jobs: int, room: int, spare: int) -> list[_Option] | None:
    """What so many jobs with these choices can use together, ascending; None where that is too much to try. `spare`:
    what they may lose beyond their cheapest choices."""
    above, loss = choices
    if jobs == 1:
        return [(more, lost, 1, (place,)) for place, (more, lost) in enumerate(zip(above, loss, strict=True))]
    cheapest = min(range(len(above)), key=loss.__getitem__)
    #: By jobs that do not have the cheapest choice, and what these use: what is lost beyond it, ways, and choices.
    sharings: dict[tuple[int, int], tuple[int, int, tuple[int, ...]]] = {(0, 0): (0, 1, ())}
    for place, (more, lost) in enumerate(zip(above, loss, strict=True)):
        if place == cheapest:
            continue
        beyond = lost - loss[cheapest]
        for (others, used), (lost_by_them, ways, chosen) in list(sharings.items()):
            for count in range(1, jobs - others + 1):
                key, least = (others + count, used + count * more), lost_by_them + count * beyond
                if key[1] > room or least > spare:
                    break
                known = sharings.get(key)
                if known is None or least < known[0]:
                    sharings[key] = least, ways, (*chosen, *[place] * count)
                elif least == known[0]:
                    sharings[key] = least, 2, known[2]
        if len(sharings) > MAX_OPTIONS:
            return None
    by_use: dict[int, _Option] = {}
    for (others, used), (lost, ways, chosen) in sharings.items():
        rest = jobs - others
        now, least = used + rest * above[cheapest], lost + jobs * loss[cheapest]
        known_option = by_use.get(now)
        if now > room or (known_option is not None and known_option[1] < least):
            continue
        if known_option is not None and known_option[1] == least:
            ways = 2
        by_use[now] = now, least, ways, tuple(sorted((*chosen, *[cheapest] * rest), reverse=True))
    return [by_use[used] for used in sorted(by_use)]
