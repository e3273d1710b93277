"""Pilots of several nodes: one Slurm task holds nodes that become idle together and leave together.

slurmctld tries a blocked main job once for each pilot, however many nodes that holds (`_run_now` in
src/plugins/select/cons_common/job_test.c of Slurm 22.05, in cons_tres since): wider pilots are what a cap on their
number leaves. The price is that the nodes come and go as one, so only nodes are put together that are alike and whose
holes end at the same time; sizing is offered no size that would break a task up (`malletrain.sizing.whole_tasks`);
and a main job that wants one of the nodes is weighed against the loss of all.

A pilot holds as few nodes as let the pilots that there may be hold all that can be harvested, since narrow ones
follow the main queue more closely. Jobs grow by whole pilots: by single nodes, each step would take a pilot of the
cap, which would leave most nodes idle (docs/figures.md, "Caps on pilots").
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, Hole, LeavePilot, RecyclePilot
from malletrain.domain.job import JobView, Pilot, PilotPhase, task_of
from malletrain.domain.snapshot import Snapshot

#: Nodes and tasks go by name in decisions, by number in replay.
Name = TypeVar("Name", int, str)

#: Widths that pilots have, in nodes. Few, and at most a quarter apart: a width that follows each node that comes or
#: goes would move the sizes of all jobs with it.
WIDTHS = (*range(1, 9), *(base * step // 4 for base in (8, 16, 32, 64, 128) for step in (5, 6, 7, 8)))

#: Below this part of the cap there are pilots to spare for fewer free nodes than a whole width.
SPARE_SHARE = 0.75

#: Pilots are at most so many times as wide as would do if all were alike: a main job empties the whole of one.
MOST_TIMES_ALIKE = 2

#: A pilot gives its place under the cap to one that holds so many times as many nodes: what its job loses until it
#: has nodes again is little beside that, and a place changes hands a few times at most. It has been there for so long
#: (seconds) then: a wider one may not come all the same, and the job would lose its nodes at each look.
WIDER_TIMES, LEAST_STAY_S = 2, 300.0

#: Where a look may start only so many pilots, all free nodes are to be held within so many: a minute of usual looks.
LOOKS_TO_HOLD_ALL = 6


def pilot_width(held: int, free: int, pilots: int, widest_job: int, rules: Rules) -> int:
    """How many nodes a pilot that starts now holds, where there are enough that are alike.

    `held`: nodes that `pilots` pilots hold, each counted once however wide; `free`: nodes that could be held besides;
    `widest_job`: most nodes of any. Narrow pilots that are there already leave fewer, and so wider ones to come;
    while a quarter of all may still start, what is free may be held by one that is narrower.
    """
    max_nodes, max_pilots = min(rules.max_nodes, widest_job), rules.max_pilots
    if max_nodes <= 1:
        return 1
    alike = math.ceil((held + free) / max(1, max_pilots))
    least = max(alike, min(MOST_TIMES_ALIKE * alike, math.ceil(free / max(1, max_pilots - pilots))))
    if rules.max_starts:
        least = max(least, math.ceil(free / (LOOKS_TO_HOLD_ALL * rules.max_starts)))
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
    narrowest first, then those that are there longest; none that is new, or not less than half as wide.

    `pilots`: of each its nodes, since when it is there (Unix seconds), its first node and its task; `free`: nodes of
    each pilot that could start on what is free, were there no cap; `lacking`: how many nodes more each job can have;
    `room`: how many pilots may start as it is; `width`: of a pilot that starts now.
    """
    whole = sum(most // width for most in lacking if most >= width)
    wanted = [width] * min(whole, len(free))
    if len(wanted) < len(free):
        wanted += sorted((most for most in lacking if most < width), reverse=True)
    starts = [min(pair) for pair in zip(sorted(free, reverse=True), wanted, strict=False)]
    staid = sorted(pilot for pilot in pilots if now - pilot[1] >= LEAST_STAY_S)
    pairs = zip(staid, starts[max(0, room) :], strict=False)
    going = [pilot[3] for pilot, _ in takewhile(lambda pair: pair[1] >= WIDER_TIMES * pair[0][0], pairs)]
    # The places that there are go to the widest. A pilot that made room would otherwise be followed by one as narrow,
    # of a job that lacks few nodes, and the next would make room at the next look.
    return starts[max(1, room) - 1] if len(starts) > room else 1, going


def count_tasks(pilots: Mapping[int, Sequence[Pilot]]) -> int:
    """How many Slurm tasks these pilots are."""
    return len({pilot.task for each in pilots.values() for pilot in each})


def startable(free: Sequence[Hole], tasks: int, width: int, snapshot: Snapshot) -> list[Hole]:
    """Of `free`, best first, those that so many more tasks of `width` nodes can hold."""
    held = {hole.node for group in task_groups(free, width, snapshot)[: max(0, tasks)] for hole in group}
    return [hole for hole in free if hole.node in held]


def task_groups(holes: Sequence[Hole], most: int, snapshot: Snapshot) -> list[tuple[Hole, ...]]:
    """`holes`, each once and in groups of at most `most`, in the order of each group's first: nodes of the same
    hardware and features whose holes end at the same time. Those that became idle together stand side by side."""
    if most <= 1:
        return [(hole,) for hole in holes]
    groups: list[list[Hole]] = []
    open_to: dict[Hashable, list[Hole]] = {}
    for hole in holes:
        node = snapshot.node[hole.node]
        alike = hole.until, node.cpus, node.memory_mib, node.gres, node.features
        if len(open_to.get(alike, ())) in (0, most):
            open_to[alike] = []
            groups.append(open_to[alike])
        open_to[alike].append(hole)
    return [tuple(group) for group in groups]


def with_co_allocated(actions: Iterable[Action], views: Mapping[int, JobView]) -> list[Action]:
    """`actions`, and for each pilot that leaves those of its task that do not yet."""
    found = list(actions)
    leaves = [action for action in found if isinstance(action, LeavePilot | RecyclePilot)]
    going = {action.pilot for action in leaves}
    for action in leaves:
        for other in co_allocated(action.pilot, views[action.job_id]):
            asked = other.phase in (PilotPhase.LEAVING, PilotPhase.RECYCLING) and isinstance(action, LeavePilot)
            if other.id not in going and not asked:
                going.add(other.id)
                reason = f"{action.reason}; with {action.pilot}"
                same = replace(action, pilot=other.id, node=other.node, reason=reason)
                found.append(replace(same, unstarted="") if isinstance(same, RecyclePilot) else same)
    return found


def co_allocated(pilot: str, view: JobView) -> tuple[Pilot, ...]:
    """The other active pilots of its task; none for a pilot by itself."""
    if not view.co_allocated:
        return ()
    return tuple(each for each in view.co_allocated.get(task_of(pilot), ()) if each.id != pilot)
