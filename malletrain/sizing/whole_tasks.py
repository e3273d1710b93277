"""Slurm tasks of several nodes come and go as one: which sizes a job can take without breaking one up, and which it
keeps then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from malletrain.domain.job import Pilot

#: Tasks go by name in decisions, by number in replay.
Task = TypeVar("Task", bound=Hashable)


def tasks_kept(tasks: Iterable[Task], size: int) -> set[Task]:
    """Of the tasks of a job's nodes, best first, those that it keeps to hold at most `size` nodes, as many as can be,
    without breaking one up."""
    reached: dict[int, tuple[Task, ...]] = {0: ()}
    for task, width in Counter(tasks).items():
        for nodes in sorted(reached, reverse=True):
            if nodes + width <= size and nodes + width not in reached:
                reached[nodes + width] = (*reached[nodes], task)
    return set(reached[max(reached)])


def unbroken_sizes(
    widths: Sequence[int], least: int, most: int, width: int, sizes: tuple[int, ...] = (), narrowest: int = 1
) -> tuple[int, ...]:
    """The sizes, ascending, that a job with tasks of these `widths` can take without breaking one up: sums of some of
    them, and all of them and more pilots of `width` nodes.

    `least` to `most`: its bounds, where the most is also what it has tasks for; `sizes`: those that its script
    allows, where not all; `narrowest`: the fewest nodes of a pilot of a job that has some. A job that no whole pilot
    fits into may have its most, or of `sizes` any, unless that takes a pilot that is too narrow.
    """
    sums, held = {0}, sum(widths)
    for own in widths:
        sums |= {size + own for size in sums}
    below = tuple(n for n in sorted(sums) if least <= n <= min(held, most) and (not sizes or n in sizes))
    if held and most - held < narrowest:
        return below
    step = max(1, min(width, most - held))
    if sizes:
        larger = tuple(size for size in sizes if held < size <= most and size >= least)
        return below + (tuple(size for size in larger if size - held >= step) or larger)
    grown = tuple(size for size in range(held + step, most + 1, step) if size >= least)
    return below + (grown or ((most,) if most > held and most >= least else ()))


def whole_sizes(
    pilots: Sequence[Pilot], least: int, most: int, sizes: tuple[int, ...], width: int = 1, narrowest: int = 1
) -> tuple[int, ...]:
    """The sizes that a job on `pilots` can take without breaking up a task, of those that it may have (`least` to
    `most`, in `sizes` unless that is empty), and growing by tasks of `width` nodes, or of `narrowest` at least;
    `sizes` as it is where no task holds several nodes and none is to."""
    if width <= 1 and not any(pilot.is_part for pilot in pilots):
        return sizes
    widths = Counter(pilot.task for pilot in pilots)
    # An empty tuple would mean any size: this one is no size at all.
    return unbroken_sizes(tuple(widths.values()), least, most, width, sizes, narrowest) or (0,)


def keep_whole_tasks(ranked: Sequence[Pilot], size: int) -> tuple[Pilot, ...]:
    """Of `ranked`, best first, pilots for at most `size` nodes, as many as can be without breaking up a task."""
    if not any(pilot.is_part for pilot in ranked):
        return tuple(ranked[:size])
    kept = tasks_kept((pilot.task for pilot in ranked), size)
    return tuple(pilot for pilot in ranked if pilot.task in kept)
