"""Where a log's jobs may have run, where it does not say: they start and end as logged, a stated rule picks nodes."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.traces import JobRecords
from malletrain.sizing.values import Ints

Nodes = NDArray[np.int32]


class AssumedPlacement(StrEnum):
    """Which of the free nodes a job takes."""

    FIRST_FIT = "first-fit"  #: those of lowest number
    RANDOM = "random"  #: any, by the seed


def place_jobs(
    jobs: JobRecords, nodes: int, procs_per_node: int, rule: AssumedPlacement, seed: int
) -> tuple[Ints, Nodes]:
    """Places every record on `nodes` nodes of `procs_per_node` processors: with `first` and `node` as they are
    returned, record i holds `node[first[i]:first[i + 1]]`.

    A job of fewer processors than a node shares a node with others of its kind; larger ones take whole nodes. A job
    that finds too few free nodes takes what there is: such a log is inconsistent (`overcommitted`).
    """
    wanted, part = wanted_nodes(jobs, procs_per_node)
    machine = Machine(nodes, procs_per_node, rule, seed)
    held: list[Nodes] = [np.empty(0, np.int32)] * len(wanted)
    ends = np.where(np.isfinite(jobs.end), jobs.end, np.inf)
    by_start, by_end = np.argsort(jobs.start, kind="stable").tolist(), np.argsort(ends, kind="stable").tolist()
    start, end = jobs.start.tolist(), ends.tolist()
    want, parts = wanted.tolist(), part.tolist()
    done = 0
    for i in by_start:
        now = start[i]
        while end[by_end[done]] <= now:  # ends before starts, so that a node passes from job to job
            machine.free(held[by_end[done]], parts[by_end[done]])
            done += 1
        held[i] = machine.take(want[i], parts[i])
    counts = np.array([len(nodes_of) for nodes_of in held], dtype=np.int64)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return first, np.concatenate(held) if held else np.empty(0, np.int32)


def overcommitted(jobs: JobRecords, nodes: int, procs_per_node: int) -> tuple[float, float]:
    """The share of the log's time in which jobs need more nodes than there are, and the node-seconds beyond them."""
    wanted, part = wanted_nodes(jobs, procs_per_node)
    need = np.where(part > 0, part / max(1, procs_per_node), wanted)
    horizon = float(np.max(jobs.end[np.isfinite(jobs.end)], initial=jobs.last_seen))
    when = np.concatenate([jobs.start, np.minimum(jobs.end, horizon)])
    order = np.argsort(when, kind="stable")
    in_use = np.cumsum(np.concatenate([need, -need])[order])
    lasts = np.diff(when[order], append=horizon)
    excess = np.maximum(in_use - nodes - 1e-6, 0.0)
    span = horizon - float(jobs.start.min())
    return (float(lasts[excess > 0].sum()) / span if span > 0 else 0.0), float(excess @ lasts)


def wanted_nodes(jobs: JobRecords, procs_per_node: int) -> tuple[Ints, Ints]:
    """Nodes for each record, and for records smaller than a node their processors (0: whole nodes)."""
    procs = jobs.procs.astype(np.int64)
    whole = -(-procs // max(1, procs_per_node))
    wanted = np.where(procs > 0, whole, jobs.count.astype(np.int64))
    part = np.where((procs > 0) & (procs < procs_per_node), procs, 0)
    return np.maximum(wanted, 1), part


class Machine:
    """The nodes of a machine while its log is placed."""

    def __init__(self, nodes: int, procs_per_node: int, rule: AssumedPlacement, seed: int) -> None:
        self.is_free = np.ones(nodes, dtype=bool)
        self.used = np.zeros(nodes, dtype=np.int64)  # processors in use on shared nodes
        self.procs_per_node = procs_per_node
        self.random = np.random.default_rng(seed) if rule is AssumedPlacement.RANDOM else None

    def take(self, wanted: int, part: int) -> Nodes:
        """Nodes for a job; with `part` one node of which it uses so many processors."""
        if part:
            shared = np.flatnonzero((self.used > 0) & (self.used + part <= self.procs_per_node))
            chosen = shared[:1] if len(shared) else self._pick(1)
            self.used[chosen] += part
        else:
            chosen = self._pick(wanted)
        self.is_free[chosen] = False
        return chosen.astype(np.int32)  # a copy: a view would keep all free nodes' numbers alive

    def free(self, nodes: Nodes, part: int) -> None:
        if part:
            self.used[nodes] -= part
            nodes = nodes[self.used[nodes] == 0]
        self.is_free[nodes] = True

    def _pick(self, wanted: int) -> Ints:
        free = np.flatnonzero(self.is_free)
        if self.random is None or len(free) <= wanted:
            return free[:wanted]
        return np.sort(self.random.choice(free, wanted, replace=False))
