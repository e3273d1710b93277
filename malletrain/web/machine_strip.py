"""The machine as a strip of nodes over time: rows of nodes, bins of time, run-length encoded. Pure.

A row is one node, or, on a machine of more nodes than rows, as many neighbours as are needed. Cells count nodes: of a
row of one node a cell is what that node was at the middle of the bin."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from malletrain.domain.history import HoleChange, NodeStay
from malletrain.domain.snapshot import FREE_STATES, LEAVE_STATES, NodeState

#: Keys of a cell beside job numbers: pilots of jobs that the reader may not see, of jobs that are not listed, nodes
#: without main job, such nodes that backfill keeps for a main job now (in the last bin only: the journal has no
#: earlier plans by node), nodes away, nodes that a job of the harvest partition has that is no pilot (last bin too).
HIDDEN, MORE, IDLE, PLANNED, AWAY, STRAY = "hidden", "more", "idle", "planned", "away", "stray"

#: Jobs of a cell that are listed: those with the most nodes.
MAX_LISTED_JOBS = 4

Key = int | str

#: By bin, how many nodes more than before have each key.
_Steps = dict[int, dict[Key, int]]

#: What is not at the main queue's disposal and not free either.
_AWAY_STATES = frozenset({*LEAVE_STATES, NodeState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Axis:
    """`bins` equal parts of the time from `begin` to `end` (Unix seconds)."""

    begin: float
    end: float
    bins: int

    def first(self, at: float) -> int:
        """The first bin whose middle is at `at` or later, within 0 and `bins`."""
        width = (self.end - self.begin) / self.bins
        return min(self.bins, max(0, math.ceil((at - self.begin) / width - 0.5)))


@dataclass(frozen=True, slots=True)
class StripRow:
    """Neighbouring nodes: the `first` and `last` name, how many, and runs of (bins, nodes by key); the rest of the
    nodes are the main queue's."""

    first: str
    last: str
    nodes: int
    runs: tuple[tuple[int, dict[Key, int]], ...]


def strip(
    nodes: Mapping[str, NodeState],
    stays: Iterable[NodeStay],
    holes: Iterable[HoleChange],
    axis: Axis,
    rows: int,
    seen_uid: int | None = None,
    strays: Collection[str] = (),
) -> tuple[StripRow, ...]:
    """At most `rows` rows over all `nodes`, which are given by name with their state now.

    `holes` are the changes within the axis; a node without any was all the time as it is now, or had no main job
    where a pilot was on it. `seen_uid`: the only user whose jobs are named (None: all users')."""
    names, stays = list(nodes), tuple(stays)
    each = max(1, math.ceil(len(names) / max(1, rows)))
    row_of = {name: at // each for at, name in enumerate(names)}
    count = math.ceil(len(names) / each)
    steps: list[_Steps] = [{} for _ in range(count)]

    def add(name: str, key: Key, begin: int, end: int) -> None:
        if begin < end and name in row_of:
            row = steps[row_of[name]]
            for at, delta in ((begin, 1), (end, -1)):
                step = row.setdefault(at, {})
                step[key] = step.get(key, 0) + delta

    for name, key, begin, end in _bases(nodes, holes, {stay.node for stay in stays}, axis):
        add(name, key, begin, end)
    for stay in stays:
        key = stay.job if seen_uid is None or stay.uid == seen_uid else HIDDEN
        left = axis.end if stay.ended_at is None else stay.ended_at
        add(stay.node, key, axis.first(stay.started_at), axis.first(left))
    held = {stay.node for stay in stays if stay.ended_at is None}
    for name, now in nodes.items():
        if now is NodeState.PLANNED and name not in held:
            add(name, PLANNED, axis.bins - 1, axis.bins)
    for name in strays:
        add(name, STRAY, axis.bins - 1, axis.bins)
    made = []
    for at in range(count):
        own = names[at * each : (at + 1) * each]
        made.append(StripRow(own[0], own[-1], len(own), _runs(steps[at], len(own), axis.bins)))
    return tuple(made)


def _bases(
    nodes: Mapping[str, NodeState], holes: Iterable[HoleChange], harvested: Collection[str], axis: Axis
) -> Iterable[tuple[str, Key, int, int]]:
    """When each node had no main job (`IDLE`, with or without a pilot) or was away."""
    changes: dict[str, list[HoleChange]] = {}
    for change in holes:
        for name in change.nodes:
            changes.setdefault(name, []).append(change)
    for name, now in nodes.items():
        mine = changes.get(name)
        if not mine:
            if now in FREE_STATES or name in harvested:
                yield name, IDLE, 0, axis.bins
            elif now in _AWAY_STATES:
                yield name, AWAY, 0, axis.bins
            continue
        state: Key | None = None if mine[0].opened else IDLE
        since = 0
        for change in mine:
            at = axis.first(change.at)
            if state is not None:
                yield name, state, since, at
            state, since = (IDLE if change.opened else None if change.taken else AWAY), at
        if state is not None:
            yield name, state, since, axis.bins


def _runs(steps: _Steps, size: int, bins: int) -> tuple[tuple[int, dict[Key, int]], ...]:
    """Runs of equal cells. A pilot's node is in a hole, too: it counts as the pilot's."""
    runs: list[tuple[int, dict[Key, int]]] = []
    sums: dict[Key, int] = {}
    changed = sorted({0, *(at for at in steps if at < bins)})
    for begin, end in zip(changed, [*changed[1:], bins], strict=True):
        for key, delta in steps.get(begin, {}).items():
            sums[key] = sums.get(key, 0) + delta
            if not sums[key]:
                del sums[key]
        cell = _cell(sums, size)
        if runs and runs[-1][1] == cell:
            runs[-1] = (runs[-1][0] + end - begin, cell)
        else:
            runs.append((end - begin, cell))
    return tuple(runs)


def _cell(sums: Mapping[Key, int], size: int) -> dict[Key, int]:
    """At most `size` nodes by key: listed jobs, then what others have, then planned, idle and away."""
    cell: dict[Key, int] = {}
    jobs = sorted([(-number, key) for key, number in sums.items() if isinstance(key, int)])
    wanted: list[tuple[Key, int]] = [(key, -less) for less, key in jobs[:MAX_LISTED_JOBS]]
    wanted.append((MORE, -sum([less for less, _ in jobs[MAX_LISTED_JOBS:]])))
    wanted += [(key, sums.get(key, 0)) for key in (STRAY, HIDDEN)]
    left = size
    for key, number in wanted:
        if taken := min(number, left):
            cell[key] = taken
            left -= taken
    if (free := sums.get(IDLE, 0) - (size - left)) > 0 and left:
        free = min(left, free)
        left -= free
        planned = min(free, sums.get(PLANNED, 0))
        cell |= {key: number for key, number in ((PLANNED, planned), (IDLE, free - planned)) if number}
    if AWAY in sums and left:
        cell[AWAY] = min(left, sums[AWAY])
    return cell
