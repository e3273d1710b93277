"""How many nodes one pilot holds: as few as let the pilots that there may be hold all nodes that can be harvested.

slurmctld tries a blocked main job once for each pilot, however many nodes that holds (`_run_now` in
src/plugins/select/cons_common/job_test.c of Slurm 22.05, in cons_tres since), so wider pilots are what a cap on their
number leaves. Narrow ones follow the main queue more closely: a pilot gives its nodes back together. So while there
are fewer nodes than pilots may be, each holds one; beyond that all are equally wide, and jobs grow by whole pilots.
Were jobs to grow by single nodes, each step would take a pilot of the cap, and the cap would leave most nodes idle
(docs/figures.md, "Caps on pilots").

All here is over plain values: decisions and the fast engine of replay call the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile
from typing import TypeVar

#: Nodes and tasks go by name in decisions, by number in replay.
Name = TypeVar("Name", int, str)
Task = TypeVar("Task", bound=Hashable)

#: Widths that pilots have, in nodes. Few, and at most a quarter apart: a width that follows each node that comes or
#: goes would move the sizes of all jobs with it.
WIDTHS = (*range(1, 9), *(base * step // 4 for base in (8, 16, 32, 64, 128) for step in (5, 6, 7, 8)))

#: Below this part of the cap there are pilots to spare for fewer free nodes than a whole width.
SPARE_SHARE = 0.75

#: Pilots are at most so many times as wide as would do if all were alike: a main job empties the whole of one.
MOST_TIMES_ALIKE = 2

#: A pilot gives its place under the cap to one that holds so many times as many nodes: what its job loses until it
#: has nodes again is little beside that, and a place changes hands a few times at most.
WIDER_TIMES = 2

#: A pilot does not make room before it has been there for so long (seconds): a wider one may not come all the same,
#: for a limit of the site, say, and the job would lose its nodes at each look.
LEAST_STAY_S = 300.0

#: Where a look may start only so many pilots, all free nodes are to be held within so many: a minute of usual looks.
LOOKS_TO_HOLD_ALL = 6


def pilot_width(held: int, free: int, pilots: int, *, max_pilots: int, max_starts: int, max_nodes: int) -> int:
    """How many nodes a pilot that starts now holds, where there are enough that are alike.

    `held`: nodes that `pilots` pilots hold, each counted once however wide; `free`: nodes that could be held besides.
    `max_pilots`, `max_starts`, `max_nodes`: as in `Rules`. Narrow pilots that are there already leave fewer, and so
    wider ones to come; while a quarter of all may still start, what is free may be held by one that is narrower.
    """
    if max_nodes <= 1:
        return 1
    alike = math.ceil((held + free) / max(1, max_pilots))
    least = max(alike, min(MOST_TIMES_ALIKE * alike, math.ceil(free / max(1, max_pilots - pilots))))
    if max_starts:
        least = max(least, math.ceil(free / (LOOKS_TO_HOLD_ALL * max_starts)))
    if pilots < SPARE_SHARE * max_pilots:
        least = min(least, max(1, free))
    return min(max_nodes, next((width for width in WIDTHS if width >= least), max_nodes))


def make_room(
    pilots: Iterable[tuple[int, float, Name, Name]],
    free: Sequence[int],
    lacking: Sequence[int],
    room: int,
    width: int,
    now: float,
) -> tuple[int, list[Name]]:
    """The fewest nodes of a pilot that starts now, and the tasks that leave so that wider ones can start: the
    narrowest first, then those that are there longest; none that is new.

    `pilots`: of each its nodes, since when it is there (Unix seconds), its first node and its task; the rest as in
    `outgrown`.
    """
    staid = sorted(pilot for pilot in pilots if now - pilot[1] >= LEAST_STAY_S)
    going = outgrown([held for held, *_ in staid], free, lacking, room, width)
    return narrowest_start(free, lacking, room, width), [task for *_, task in staid[:going]]


def task_numbers(alike: Iterable[Hashable], most: int) -> list[int]:
    """For each node, best first, the number of its task-to-be, in the order of each one's first node: nodes that are
    `alike` come together, `most` of them at most."""
    open_at: dict[Hashable, tuple[int, int]] = {}
    found: list[int] = []
    tasks = 0
    for key in alike:
        at, held = open_at.get(key, (-1, most))
        if held >= most:
            at, held, tasks = tasks, 0, tasks + 1
        open_at[key] = at, held + 1
        found.append(at)
    return found


def tasks_kept(tasks: Iterable[Task], size: int) -> set[Task]:
    """Of the tasks of a job's nodes, best first, those that it keeps to hold at most `size` nodes, as many as can be,
    without breaking one up."""
    reached: dict[int, tuple[Task, ...]] = {0: ()}
    for task, width in widths_of(tasks).items():
        for nodes in sorted(reached, reverse=True):
            if nodes + width <= size and nodes + width not in reached:
                reached[nodes + width] = (*reached[nodes], task)
    return set(reached[max(reached)])


def widths_of(tasks: Iterable[Task]) -> dict[Task, int]:
    """How many nodes each task holds, of the tasks of some nodes; in their order."""
    widths: dict[Task, int] = {}
    for task in tasks:
        widths[task] = widths.get(task, 0) + 1
    return widths


def outgrown(widths: Sequence[int], free: Sequence[int], lacking: Sequence[int], room: int, width: int) -> int:
    """How many pilots, the narrowest first, leave so that wider ones can start in their places.

    `widths`: nodes of each pilot that may leave; `free`: nodes of each pilot that could start on what is free, were
    there no cap; `lacking`: how many nodes more each job can have; `room`: how many pilots may start as it is;
    `width`: of a pilot that starts now. A pilot makes room only for one that holds `WIDER_TIMES` as many nodes.
    """
    pairs = zip(sorted(widths), _widest_starts(free, lacking, width)[max(0, room) :], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[1] >= WIDER_TIMES * pair[0], pairs))


def narrowest_start(free: Sequence[int], lacking: Sequence[int], room: int, width: int) -> int:
    """The fewest nodes of a pilot that starts now; arguments as in `outgrown`.

    Where the cap keeps some from starting, the places that there are go to the widest. A pilot that made room would
    otherwise be followed by one as narrow, of a job that lacks few nodes, and the next would make room at the next
    look.
    """
    starts = _widest_starts(free, lacking, width)
    return starts[max(1, room) - 1] if len(starts) > room else 1


def _widest_starts(free: Sequence[int], lacking: Sequence[int], width: int) -> list[int]:
    """Nodes of each pilot that could start were there no cap, the widest first."""
    whole = sum(most // width for most in lacking if most >= width)
    wanted = [width] * min(whole, len(free))
    if len(wanted) < len(free):
        wanted += sorted((most for most in lacking if most < width), reverse=True)
    return [min(pair) for pair in zip(sorted(free, reverse=True), wanted, strict=False)]


def unbroken_sizes(
    widths: Sequence[int], least: int, most: int, width: int, sizes: tuple[int, ...] = (), narrowest: int = 1
) -> tuple[int, ...]:
    """The sizes, ascending, that a job with tasks of these `widths` can take without breaking one up: sums of some of
    them, and all of them and more tasks; the rest as in `growth_sizes`."""
    sums = {0}
    for own in widths:
        sums |= {size + own for size in sums}
    held = sum(widths)
    below = (size for size in sorted(sums) if least <= size <= min(held, most) and (not sizes or size in sizes))
    return (*below, *growth_sizes(held, least, most, width, sizes, narrowest))


def growth_sizes(
    held: int, least: int, most: int, width: int, sizes: tuple[int, ...] = (), narrowest: int = 1
) -> tuple[int, ...]:
    """The sizes above `held` nodes that a job grows to by whole pilots of `width` nodes, ascending.

    `least` to `most`: its bounds, where the most is also what it has tasks for; `sizes`: those that its script
    allows, where not all; `narrowest`: the fewest nodes of a pilot of a job that has some. A job that no whole pilot
    fits into may have its most, or of `sizes` any, unless that takes a pilot that is too narrow.
    """
    step = max(1, min(width, most - held))
    if held and most - held < narrowest:
        return ()
    if sizes:
        larger = tuple(size for size in sizes if held < size <= most and size >= least)
        return tuple(size for size in larger if size - held >= step) or larger
    grown = tuple(size for size in range(held + step, most + 1, step) if size >= least)
    return grown or ((most,) if most > held and most >= least else ())
