"""The machine as the trace shows it: every change of every node between busy, idle and down, ready to be swept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.errors import InvalidInput
from malletrain.replay.assumed_placement import AssumedPlacement, overcommitted, place_jobs, wanted_nodes
from malletrain.replay.changes import Changes, Outages, from_events, from_holdings, windowed
from malletrain.replay.traces import Account, JobRecords, NodeChanges, Trace
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE

#: Rows of nodes' changes that are put in order at a time: a year of a large machine has tens of millions.
ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """What part of a trace is replayed. None: as the trace says. `start_after` and `end_after` are seconds after the
    trace's begin, where `start` and `end` (Unix seconds) are not given. `first_node` and `node_count` choose nodes by
    name order; for logs without node lists `node_count` and `procs_per_node` are the machine's size. `machine`: names
    of all its nodes, where they are known: others do not count, and those that ran no job are idle. `include`,
    `exclude`: of nodes with names only these, never those; empty: all, none."""

    start: float | None = None
    end: float | None = None
    start_after: float | None = None
    end_after: float | None = None
    first_node: int = 0
    node_count: int | None = None
    procs_per_node: int | None = None
    placement: AssumedPlacement = AssumedPlacement.FIRST_FIT
    seed: int = 0
    machine: frozenset[str] = frozenset()
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()

    def takes(self, name: str) -> bool:
        """Whether the node counts."""
        known = not self.machine or name in self.machine
        return known and name not in self.exclude and (not self.include or name in self.include)


@dataclass(frozen=True)
class ClusterTrace:
    """Changes of node states from `start` to `end` (Unix seconds), in steps of equal time.

    Step i happens at `time[i]`; its changes are `node[first[i]:first[i + 1]]` with their new `state` (BUSY, IDLE or
    DOWN). Step 0 is at `start` and holds the nodes that are not busy then; every node is busy before it.
    `names_are_real`: the log says where jobs ran.
    """

    account: Account
    nodes: tuple[str, ...]
    start: float
    end: float
    time: NDArray[np.float64]
    first: NDArray[np.int64]
    node: NDArray[np.int32]
    state: NDArray[np.int8]
    warnings: tuple[str, ...] = ()
    names_are_real: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @cached_property
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Idle and down nodes after each step: read-only arrays."""
        state = np.full(len(self.nodes), BUSY, np.int8)
        idle = np.zeros(len(self.time), np.int64)
        down = np.zeros(len(self.time), np.int64)
        n_idle = n_down = 0
        for i in range(len(self.time)):
            part = slice(self.first[i], self.first[i + 1])
            nodes, new = self.node[part], self.state[part]
            old = state[nodes]
            n_idle += int((new == IDLE).sum()) - int((old == IDLE).sum())
            n_down += int((new == DOWN).sum()) - int((old == DOWN).sum())
            state[nodes] = new
            idle[i], down[i] = n_idle, n_down
        idle.flags.writeable = down.flags.writeable = False
        return idle, down

    def interval_blocks(self) -> Iterator[tuple[int, int, IdleIntervals]]:
        """Every idle interval of every node, by node and time, in blocks (first node, one past the last, intervals).
        All of a year of a large machine take more memory than the trace."""
        blocks = max(1, len(self.node) // ROWS_AT_ONCE)
        edges = np.linspace(0, len(self.nodes), blocks + 1).astype(np.int32).tolist()
        for low, high in pairwise(edges):
            yield low, high, self.intervals(np.flatnonzero((self.node >= low) & (self.node < high)))

    def intervals(self, rows: NDArray[np.int64], kind: int = IDLE) -> IdleIntervals:
        """When nodes are IDLE, or of another `kind`, by all their rows of changes."""
        rows = rows[np.argsort(self.node[rows], kind="stable")]  # within a node by time
        node, step = self.node[rows], np.searchsorted(self.first, rows, side="right") - 1
        mine = np.flatnonzero(self.state[rows] == kind)
        last = np.append(node[1:] != node[:-1], True) if len(node) else np.empty(0, bool)
        cut = last[mine]
        begin = self.time[step[mine]]
        following = step[np.minimum(mine + 1, max(len(step) - 1, 0))]
        end = np.where(cut, self.end, self.time[following])
        return IdleIntervals(node[mine], begin, end, cut | (begin == self.start))


@dataclass(frozen=True, slots=True)
class IdleIntervals:
    """Idle intervals: `node[i]` from `begin[i]` to `end[i]`; `cut[i]`: it touches the edge of the window."""

    node: NDArray[np.int32]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    cut: NDArray[np.bool_]


def cluster_trace(trace: Trace, window: Window, outages: NodeChanges | None = None) -> ClusterTrace:
    """The machine of `trace` within `window`; nodes are down where `outages` say so.
    Raises InvalidInput: the window is empty, or outside the trace."""
    if isinstance(trace, NodeChanges):
        names, changes, bounds, warnings = _from_events(trace, window)
    else:
        names, changes, bounds, warnings = _from_jobs(trace, window, outages)
    start = _edge(window.start, window.start_after, bounds[0], bounds[0])
    end = _edge(window.end, window.end_after, bounds[0], bounds[1])
    if not start < end:
        raise InvalidInput("--start/--end", f"the window {_iso(start)} to {_iso(end)} is empty")
    if end <= bounds[0] or start >= bounds[1]:
        raise InvalidInput(
            "--start/--end",
            f"the window lies outside the trace, which runs from {_iso(bounds[0])} to {_iso(bounds[1])}",
        )
    if start < bounds[0] or end > bounds[1]:
        warnings.append("The window is wider than the trace: nodes keep their last known state outside it.")
    time, first, node, state = windowed(changes, start, end)
    return ClusterTrace(
        trace.account,
        names,
        start,
        end,
        time,
        first,
        node,
        state,
        tuple(warnings),
        names_are_real=isinstance(trace, JobRecords) and trace.has_node_lists,
    )


def _edge(asked: float | None, after: float | None, begin: float, otherwise: float) -> float:
    if asked is not None:
        return asked
    return otherwise if after is None else begin + after


#: Names of the nodes, their changes, for which span the log shows what ran, and warnings.
_Machine = tuple[tuple[str, ...], Changes, tuple[float, float], list[str]]


def _from_events(trace: NodeChanges, window: Window) -> _Machine:
    order = sorted(range(len(trace.nodes)), key=lambda i: trace.nodes[i])
    chosen = _chosen([i for i in order if window.takes(trace.nodes[i])], window)
    rank = _ranks(chosen, len(trace.nodes))
    keep = rank[trace.node] >= 0
    changes = from_events(rank[trace.node[keep]], trace.time[keep], trace.state[keep], len(chosen))
    return tuple(trace.nodes[i] for i in chosen), changes, (float(trace.time[0]), float(trace.time[-1])), []


def _ranks(chosen: Sequence[int], nodes: int) -> NDArray[np.int32]:
    """The number of each node among those chosen, -1 where it is not."""
    rank = np.full(nodes, -1, np.int32)
    rank[chosen] = np.arange(len(chosen), dtype=np.int32)
    return rank


def _chosen(order: list[int], window: Window) -> list[int]:
    last = len(order) if window.node_count is None else window.first_node + window.node_count
    if last > len(order) or window.first_node >= last:
        raise InvalidInput("--nodes", f"the trace has {len(order):,} nodes")
    return order[window.first_node : last]


def _from_jobs(jobs: JobRecords, window: Window, outages: NodeChanges | None) -> _Machine:
    warnings: list[str] = []
    if jobs.has_node_lists:
        names, first, node = _with_unused(jobs, window, warnings), jobs.first, jobs.node
        order = sorted(range(len(names)), key=lambda i: names[i])
        chosen = _chosen([i for i in order if i >= len(jobs.nodes) or window.takes(names[i])], window)
    else:
        if window.machine:
            raise InvalidInput("--machine", "the log does not say where jobs ran: give --nodes N, the machine's size")
        names, first, node = _placed(jobs, window, warnings)
        chosen = list(range(len(names)))
    mine = tuple(names[i] for i in chosen)
    rank = _ranks(chosen, len(names))
    changes = from_holdings(jobs, first, node, rank, len(chosen), _outages(outages, mine))
    return mine, changes, _complete_part(jobs, warnings), warnings


def _with_unused(jobs: JobRecords, window: Window, warnings: list[str]) -> list[str]:
    """The nodes of the log, then those of the machine that ran no job in it."""
    names, known = list(jobs.nodes), set(jobs.nodes)
    unused = sorted(name for name in window.machine - known if window.takes(name))
    gone = len(known - window.machine) if window.machine else 0
    there = sum(map(window.takes, names)) + len(unused)
    if window.node_count is not None and window.first_node == 0 and not window.machine:
        unused += [f"unnamed-{i:06d}" for i in range(max(0, window.node_count - there))]
    if unused:
        warnings.append(f"{len(unused):,} nodes of the machine ran no job in the log: they are idle all the time.")
    if gone:
        warnings.append(f"{gone:,} nodes of the log are not of the machine (--machine): they were left out.")
    return names + unused


def _placed(
    jobs: JobRecords, window: Window, warnings: list[str]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int32]]:
    nodes, per_node = _machine_size(jobs, window, warnings)
    first, node = place_jobs(jobs, nodes, per_node, window.placement, window.seed)
    warnings.append(
        f"The log does not say where jobs ran: the rule {window.placement.value} placed them on {nodes:,} nodes."
    )
    share, lacking = overcommitted(jobs, nodes, per_node)
    if share > 0:
        word = "INCONSISTENT LOG" if share > 0.01 else "A little inconsistent"
        warnings.append(
            f"{word}: for {share:.2%} of the time the running jobs need more nodes than the "
            f"{nodes:,} there are ({lacking / 3600:,.0f} node-hours found no node). The answer is too low by "
            "what they hide, or --nodes is wrong."
        )
    return [f"n{i:06d}" for i in range(nodes)], first, node


def _machine_size(jobs: JobRecords, window: Window, warnings: list[str]) -> tuple[int, int]:
    """Nodes, and processors of each."""
    per_node = window.procs_per_node or jobs.procs_per_node or 1
    if window.node_count is not None:
        return window.node_count, per_node
    if window.procs_per_node and jobs.node_count and jobs.procs_per_node:
        return -(-jobs.node_count * jobs.procs_per_node // per_node), per_node
    if jobs.node_count:
        return jobs.node_count, per_node
    nodes = _peak(jobs, per_node)
    warnings.append(
        f"The log does not say how many nodes the machine has: {nodes:,} are taken, the most in use at any time; "
        "say it with --nodes."
    )
    return nodes, per_node


def _peak(jobs: JobRecords, per_node: int) -> int:
    """The most nodes in use at any time."""
    need, _ = wanted_nodes(jobs, per_node)
    when = np.concatenate([jobs.end, jobs.start])
    delta = np.concatenate([-need, need])
    order = np.argsort(when, kind="stable")  # ends stand first, so they come first at equal times
    return int(np.cumsum(delta[order]).max(initial=1))


def _outages(outages: NodeChanges | None, names: Sequence[str]) -> Outages:
    """Those of the nodes of these names."""
    if outages is None:
        return np.empty(0, np.int32), np.empty(0), np.empty(0, np.int32)
    index = {name: i for i, name in enumerate(names)}
    node = np.array([index.get(name, -1) for name in outages.nodes], np.int32)[outages.node]
    order = np.argsort(node, kind="stable")
    order = order[node[order] >= 0]
    return node[order], outages.time[order], np.where(outages.state[order] == DOWN, 1, -1).astype(np.int32)


def _complete_part(jobs: JobRecords, warnings: list[str]) -> tuple[float, float]:
    """The span for which the log can tell what ran: before its first end and after its last moment it cannot."""
    finite = jobs.end[np.isfinite(jobs.end)]
    if not len(finite):
        return float(jobs.start.min()), max(jobs.last_seen, float(jobs.start.max()) + 1.0)
    first_end, last = (
        float(finite.min()),
        max(float(finite.max()), jobs.last_seen if len(finite) < len(jobs.end) else 0),
    )
    long_runs = int((jobs.start < first_end).sum())
    spread = float(finite.max()) - first_end
    if len(finite) == len(jobs.end) and spread < 3 * 86_400 and long_runs:
        warnings.append(
            "The log holds ended jobs only, of a short time: nodes whose jobs still ran at its end count as idle "
            "there. Ask sacct for running jobs too (`malletrain replay --how`), or set --end earlier."
        )
    return first_end, last


def _iso(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") if math.isfinite(seconds) else str(seconds)
    )
