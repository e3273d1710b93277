"""Every node's changes between busy, idle and down, from events or from jobs that held it, in bounded memory.

A year of a large machine has tens of millions of changes. Jobs are turned into changes some nodes at a time, and only
real changes are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.traces.trace import BUSY, DOWN, IDLE, JobRecords
from malletrain.sizing.values import Bools, Floats, Ints

Nodes = NDArray[np.int32]
States = NDArray[np.int8]

#: Rows processed at a time.
CHUNK_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows (node, time, state): from then on the node is in that state. Within a part sorted by node, then time, one
    row a moment; no node is in two parts, and each part has higher nodes than the one before. Parts are made as they
    are asked for, once. `initial`: the state of every node before its first row."""

    parts: Iterator[tuple[Nodes, Floats, States]]
    initial: States


#: Of each begin (1) and end (-1) of an outage its node, when it is, and which of the two; by node, then time.
Outages = tuple[Nodes, Floats, Nodes]


def from_events(node: Nodes, time: Floats, state: States, nodes: int) -> Changes:
    """Events in order of time; before its first event a node counts as busy."""
    order = np.argsort(node, kind="stable")
    node, time, state = node[order], time[order], state[order]
    stands = _last_of_each(node, time)
    return Changes(iter([(node[stands], time[stands], state[stands])]), np.full(nodes, BUSY, np.int8))


def from_holdings(jobs: JobRecords, first: Ints, held: Nodes, rank: Nodes, nodes: int, outages: Outages) -> Changes:
    """Down wherever an outage is, else busy wherever a job is, else idle: a log would have shown a job there.

    Record i of `jobs` held `held[first[i]:first[i + 1]]`; `rank` gives the number of each of these among the `nodes`
    chosen, -1 where it is not; `outages` are of those chosen.
    """
    return Changes(_parts(jobs, first, rank[held], nodes, outages), np.full(nodes, IDLE, np.int8))


def _parts(
    jobs: JobRecords, first: Ints, node: Nodes, nodes: int, outages: Outages
) -> Iterator[tuple[Nodes, Floats, States]]:
    counts = np.diff(first)
    record = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    chosen = node >= 0
    if not chosen.all():
        node, record = node[chosen], record[chosen]
    order = np.argsort(node, kind="stable")
    node, record = node[order], record[order]
    del order, chosen
    out_node, out_time, out_delta = outages
    low = 0
    while low < nodes:
        # As many nodes as have a chunk of rows, at least one.
        begin = int(np.searchsorted(node, low))
        high = int(node[min(begin + CHUNK_ROWS, len(node) - 1)]) if begin < len(node) else nodes
        high = nodes if begin + CHUNK_ROWS >= len(node) else max(high, low + 1)
        part = slice(begin, int(np.searchsorted(node, high)))
        down = slice(*np.searchsorted(out_node, [low, high]))
        yield _states(
            node[part],
            jobs.start[record[part]],
            jobs.end[record[part]],
            out_node[down],
            out_time[down],
            out_delta[down],
        )
        low = high


def windowed(changes: Changes, start: float, end: float) -> tuple[Floats, Ints, Nodes, States]:
    """Steps of equal time from `start` to `end`: step i is at `time[i]`, its rows are `first[i]` to `first[i + 1]` of
    nodes and their new states. Step 0 holds the nodes that are not busy at `start`. Uses `changes.parts` up."""
    then = changes.initial.copy()
    moments: list[Floats] = []  # of each part, once each
    rows: list[tuple[Nodes, Nodes, States]] = []  # node, which of its part's moments, state
    for node, time, state in changes.parts:
        known = time <= start
        then[node[known]] = state[known]  # later rows overwrite earlier ones
        inside = (time > start) & (time < end)
        node, time, state = node[inside], time[inside], state[inside]
        real = state != np.where(_first_of_each(node), then[node], np.append(BUSY, state[:-1]))
        own, inverse = np.unique(time[real], return_inverse=True)
        moments.append(own)
        rows.append((node[real], inverse.astype(np.int32), state[real]))
    begin = np.flatnonzero(then != BUSY).astype(np.int32)
    steps = np.unique(np.concatenate([np.empty(0), *moments]))
    step_of = [np.searchsorted(steps, own).astype(np.int32) for own in moments]
    sizes = np.zeros(len(steps), np.int64)
    for of, (_, moment, _) in zip(step_of, rows, strict=True):
        sizes += np.bincount(of[moment], minlength=len(steps))
    first = np.concatenate([[0], len(begin) + np.cumsum(np.append(0, sizes))]).astype(np.int64)
    all_nodes, all_states = np.empty(first[-1], np.int32), np.empty(first[-1], np.int8)
    all_nodes[: len(begin)], all_states[: len(begin)] = begin, then[begin]
    free = first[1:-1].copy()  # where the next row of each step goes: within a moment by node, as parts are
    rows.reverse()
    for of in step_of:
        node, moment, state = rows.pop()  # from the first on, letting go of each
        step = of[moment]
        order = np.argsort(step, kind="stable")
        step = step[order]
        news = np.flatnonzero(_first_of_each(step))
        counts = np.diff(np.append(news, len(step)))
        place = free[step] + np.arange(len(step)) - np.repeat(news, counts)
        all_nodes[place], all_states[place] = node[order], state[order]
        free[step[news]] += counts
    return np.append(start, steps), first, all_nodes, all_states


def _states(
    node: Nodes, start: Floats, end: Floats, out_node: Nodes, out_time: Floats, out_delta: Nodes
) -> tuple[Nodes, Floats, States]:
    """Changes of some nodes, from their jobs and outages."""
    who = np.concatenate([node, node, out_node])
    when = np.concatenate([start, end, out_time])
    main = np.concatenate([np.ones(len(node), np.int32), -np.ones(len(node), np.int32), np.zeros_like(out_delta)])
    down = np.concatenate([np.zeros(2 * len(node), np.int32), out_delta])
    keep = np.flatnonzero(np.isfinite(when))
    order = keep[np.lexsort((when[keep], who[keep]))]
    who, when, main, down = who[order], when[order], main[order], down[order]
    begins = np.flatnonzero(_first_of_each(who))
    sizes = np.diff(np.append(begins, len(who)))
    in_use, out = (_running_sum(delta, begins, sizes) for delta in (main, down))
    state = np.where(out > 0, DOWN, np.where(in_use > 0, BUSY, IDLE)).astype(np.int8)
    stands = _last_of_each(who, when)
    who, when, state = who[stands], when[stands], state[stands]
    real = state != np.where(_first_of_each(who), IDLE, np.append(IDLE, state[:-1])) if len(who) else stands
    return who[real], when[real], state[real]


def _running_sum(delta: Nodes, begins: Ints, sizes: Ints) -> Ints:
    """Sums of each node's own deltas, which may not add up to 0."""
    total: Ints = np.cumsum(delta)
    if len(begins):
        total -= np.repeat(total[begins] - delta[begins], sizes)
    return total


def _first_of_each(node: Nodes) -> Bools:
    return np.append(True, node[1:] != node[:-1]) if len(node) else np.empty(0, np.bool_)


def _last_of_each(node: Nodes, time: Floats) -> Bools:
    """Of several rows of a node at one moment the last."""
    if not len(node):
        return np.empty(0, np.bool_)
    return np.append((node[1:] != node[:-1]) | (time[1:] != time[:-1]), True)
