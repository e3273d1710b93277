"""The machine as the trace shows it: every change of every node between busy, idle and down, ready to be swept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.errors import InvalidInput
from malletrain.replay.placement import Placed, Placement, place_jobs
from malletrain.replay.plans import PlanChanges
from malletrain.replay.queue import Schedule, simulate
from malletrain.replay.traces import Account, JobRecords, NodeChanges, Trace
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE


@dataclass(frozen=True, slots=True)
class Window:
    """What part of a trace is replayed. None: as the trace says. `start_after` and `end_after` are seconds after the
    trace's begin, where `start` and `end` (Unix seconds) are not given. `first_node` and `node_count` choose nodes by
    name order; for logs without node lists `node_count` and `procs_per_node` are the machine's size."""

    start: float | None = None
    end: float | None = None
    start_after: float | None = None
    end_after: float | None = None
    first_node: int = 0
    node_count: int | None = None
    procs_per_node: int | None = None
    placement: Placement = Placement.FIRST_FIT
    seed: int = 0
    schedule: Schedule = Schedule.LOGGED


@dataclass(frozen=True, slots=True)
class ClusterTrace:
    """Changes of node states from `start` to `end` (Unix seconds), in steps of equal time.

    Step i happens at `time[i]`; its changes are `node[first[i]:first[i + 1]]` with their new `state` (BUSY, IDLE or
    DOWN). Step 0 is at `start` and holds the nodes that are not busy then; every node is busy before it. `plans`:
    when nodes are next wanted, where the main queue was simulated.
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
    plans: PlanChanges | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Idle and down nodes after each step."""
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
        return idle, down

    def intervals(self) -> IdleIntervals:
        """Every idle interval of every node, by node and time."""
        order = np.lexsort((np.arange(len(self.node)), self.node))
        at = np.repeat(self.time, np.diff(self.first))[order]
        node, state = self.node[order], self.state[order]
        last = np.append(node[1:] != node[:-1], True) if len(node) else np.empty(0, bool)
        until = np.where(last, self.end, np.append(at[1:], self.end))
        idle = state == IDLE
        starts_first = np.append(True, node[1:] != node[:-1]) if len(node) else np.empty(0, bool)
        cut = (starts_first & (at == self.start)) | last
        return IdleIntervals(node[idle], at[idle], until[idle], cut[idle])


@dataclass(frozen=True, slots=True)
class IdleIntervals:
    """Idle intervals: `node[i]` from `begin[i]` to `end[i]`; `cut[i]`: it touches the edge of the window."""

    node: NDArray[np.int32]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    cut: NDArray[np.bool_]


def cluster_trace(trace: Trace, window: Window, outages: NodeChanges | None = None) -> ClusterTrace:
    """The machine of `trace` within `window`; nodes are down where `outages` say so.

    Raises:
        InvalidInput: the window is empty, or outside the trace.
    """
    plans: PlanChanges | None = None
    if window.schedule is not Schedule.LOGGED:
        names, number, time, state, bounds, warnings, plans = _from_queue(trace, window, outages)
    elif isinstance(trace, NodeChanges):
        names, number, time, state, bounds, warnings = _from_events(trace, window)
    else:
        names, number, time, state, bounds, warnings = _from_jobs(trace, window, outages)
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
        warnings = [*warnings, "The window is wider than the trace: nodes keep their last known state outside it."]
    return _windowed(trace.account, names, number, time, state, start, end, tuple(warnings), plans)


def _edge(given: float | None, after: float | None, begin: float, otherwise: float) -> float:
    if given is not None:
        return given
    return otherwise if after is None else begin + after


_Changes = tuple[
    tuple[str, ...], NDArray[np.int32], NDArray[np.float64], NDArray[np.int8], tuple[float, float], list[str]
]


def _from_events(trace: NodeChanges, window: Window) -> _Changes:
    order = sorted(range(len(trace.nodes)), key=lambda i: trace.nodes[i])
    chosen = _chosen(order, window)
    rank = np.full(len(trace.nodes), -1, np.int32)
    rank[chosen] = np.arange(len(chosen), dtype=np.int32)
    keep = rank[trace.node] >= 0
    names = tuple(trace.nodes[i] for i in chosen)
    bounds = (float(trace.time[0]), float(trace.time[-1]))
    return names, rank[trace.node[keep]], trace.time[keep], trace.state[keep], bounds, []


def _from_queue(trace: Trace, window: Window, outages: NodeChanges | None) -> tuple[*_Changes, PlanChanges]:
    """The machine under a simulated queue, from its first submission to its last."""
    if isinstance(trace, NodeChanges):
        raise InvalidInput("--schedule", "a log of node events has no jobs to schedule")
    if outages is not None or window.first_node:
        raise InvalidInput("--schedule", "a simulated queue knows no --outages, and takes --nodes as a count only")
    warnings: list[str] = []
    if trace.has_node_lists:
        trace = replace(trace, nodes=(), first=np.empty(0, np.int64), node=np.empty(0, np.int32),
                        node_count=len(trace.nodes))  # fmt: skip
    nodes, per_node = _machine_size(trace, window, warnings)
    done = simulate(trace, nodes, per_node, window.schedule, window.placement, window.seed)
    if not len(done.jobs.start):
        raise InvalidInput("--nodes", f"no job of the log fits on {nodes:,} nodes")
    logged, now = (float((jobs.start - jobs.submit).mean()) / 3600 for jobs in (trace, done.jobs))
    unlimited = int(np.isnan(trace.limit).sum())
    warnings.append(
        f"The queue was simulated ({window.schedule}, {nodes:,} nodes): jobs wait {now:.2f} h in the mean, in the "
        f"log {logged:.2f} h. The machine is empty at the begin; let the window begin later."
    )
    if unlimited:
        warnings.append(f"{unlimited:,} jobs have no time limit in the log: they are planned by how long they ran.")
    if done.too_wide:
        warnings.append(f"{done.too_wide:,} jobs are wider than the machine and were left out.")
    names, who, when, state, _, _ = _from_jobs(done.jobs, replace(window, node_count=nodes), None, done.placed)
    begin = float(done.jobs.start.min())
    bounds = (begin, max(float(done.jobs.submit.max()), begin + 1.0))
    return names, who, when, state, bounds, warnings, done.plans


def _chosen(order: list[int], window: Window) -> list[int]:
    last = len(order) if window.node_count is None else window.first_node + window.node_count
    if last > len(order) or window.first_node >= last:
        raise InvalidInput("--nodes", f"the trace has {len(order):,} nodes")
    return order[window.first_node : last]


def _from_jobs(
    jobs: JobRecords, window: Window, outages: NodeChanges | None, placed: Placed | None = None
) -> _Changes:
    warnings: list[str] = []
    if jobs.has_node_lists:
        all_names, first, node = list(jobs.nodes), jobs.first, jobs.node
        if outages is not None:
            known = set(all_names)
            all_names += [name for name in outages.nodes if name not in known]
    elif placed is not None:
        all_names, first, node = _numbered(window.node_count or 0), placed.first, placed.node
    else:
        all_names, first, node = _placed(jobs, window, warnings)
    counts = np.diff(first)
    begin, end = np.repeat(jobs.start, counts), np.repeat(jobs.end, counts)
    names = tuple(all_names)
    events = [(node, begin, np.ones(len(node), np.int32), BUSY), (node, end, -np.ones(len(node), np.int32), BUSY)]
    down_node, down_time, down_delta = _outage_deltas(outages, names)
    who = np.concatenate([node, node, down_node])
    when = np.concatenate([begin, end, down_time])
    main = np.concatenate([events[0][2], events[1][2], np.zeros(len(down_node), np.int32)])
    down = np.concatenate([np.zeros(2 * len(node), np.int32), down_delta])
    keep = np.isfinite(when)
    who, when, state = _states(who[keep], when[keep], main[keep], down[keep])
    # Every node is idle before its first job: the log would have shown a job there.
    begin_of_all = float(jobs.start.min())
    who = np.concatenate([np.arange(len(names), dtype=np.int32), who])
    when = np.concatenate([np.full(len(names), begin_of_all - 1.0), when])
    state = np.concatenate([np.full(len(names), IDLE, np.int8), state])
    if jobs.has_node_lists:
        order = sorted(range(len(names)), key=lambda i: names[i])
        chosen = _chosen(order, window)
    else:
        chosen = list(range(len(names)))
    rank = np.full(len(names), -1, np.int32)
    rank[chosen] = np.arange(len(chosen), dtype=np.int32)
    keep = rank[who] >= 0
    who, when, state = rank[who[keep]], when[keep], state[keep]
    by_time = np.argsort(when, kind="stable")
    bounds = _complete_part(jobs, warnings)
    return tuple(names[i] for i in chosen), who[by_time], when[by_time], state[by_time], bounds, warnings


def _placed(
    jobs: JobRecords, window: Window, warnings: list[str]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int32]]:
    nodes, per_node = _machine_size(jobs, window, warnings)
    placed = place_jobs(jobs, nodes, per_node, window.placement, window.seed)
    warnings.append(
        f"The log does not say where jobs ran: the rule {window.placement.value} placed them on {nodes:,} nodes."
    )
    if placed.overcommitted > 0:
        word = "INCONSISTENT LOG" if placed.overcommitted > 0.01 else "A little inconsistent"
        warnings.append(
            f"{word}: for {placed.overcommitted:.2%} of the time the running jobs need more nodes than the "
            f"{nodes:,} there are ({placed.lacking / 3600:,.0f} node-hours found no node). The answer is too low by "
            "what they hide, or --nodes is wrong."
        )
    return _numbered(nodes), placed.first, placed.node


def _numbered(nodes: int) -> list[str]:
    return [f"n{i:06d}" for i in range(nodes)]


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
    need = np.maximum(np.where(jobs.procs > 0, -(-jobs.procs // per_node), jobs.count), 1).astype(np.int64)
    when = np.concatenate([jobs.end, jobs.start])
    delta = np.concatenate([-need, need])
    order = np.argsort(when, kind="stable")  # ends stand first, so they come first at equal times
    return int(np.cumsum(delta[order]).max(initial=1))


def _outage_deltas(
    outages: NodeChanges | None, names: tuple[str, ...]
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]:
    if outages is None:
        return np.empty(0, np.int32), np.empty(0), np.empty(0, np.int32)
    index = {name: i for i, name in enumerate(names)}
    number = np.array([index.get(name, -1) for name in outages.nodes], np.int32)
    keep = number[outages.node] >= 0
    delta = np.where(outages.state == DOWN, 1, -1).astype(np.int32)
    return number[outages.node[keep]], outages.time[keep], delta[keep]


def _states(
    who: NDArray[np.int32], when: NDArray[np.float64], main: NDArray[np.int32], down: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int8]]:
    """States from overlapping intervals: down wherever an outage is, else busy wherever a job is, else idle."""
    order = np.lexsort((when, who))
    who, when, main, down = who[order], when[order], main[order], down[order]
    if not len(who):
        return who, when, np.empty(0, np.int8)
    in_use, out = np.cumsum(main), np.cumsum(down)  # each node's own deltas may not sum to 0: take its start off
    begins = np.flatnonzero(np.append(True, who[1:] != who[:-1]))
    sizes = np.diff(np.append(begins, len(who)))
    in_use = in_use - np.repeat(in_use[begins] - main[begins], sizes)
    out = out - np.repeat(out[begins] - down[begins], sizes)
    state = np.where(out > 0, DOWN, np.where(in_use > 0, BUSY, IDLE)).astype(np.int8)
    final = np.append((who[1:] != who[:-1]) | (when[1:] != when[:-1]), True)  # the last word at each moment
    return who[final], when[final], state[final]


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


def _windowed(
    account: Account, names: tuple[str, ...], node: NDArray[np.int32], time: NDArray[np.float64],
    state: NDArray[np.int8], start: float, end: float, warnings: tuple[str, ...], plans: PlanChanges | None,
) -> ClusterTrace:  # fmt: skip
    """Cuts the changes to the window, leaves out those that change nothing, groups them by time."""
    begin = np.full(len(names), BUSY, np.int8)
    cut = int(np.searchsorted(time, start, side="right"))
    begin[node[:cut]] = state[:cut]  # later rows overwrite earlier ones
    stop = int(np.searchsorted(time, end, side="left"))
    not_busy = np.flatnonzero(begin != BUSY).astype(np.int32)
    node = np.concatenate([not_busy, node[cut:stop]])
    time = np.concatenate([np.full(len(not_busy), start), time[cut:stop]])
    state = np.concatenate([begin[not_busy], state[cut:stop]])
    order = np.lexsort((np.arange(len(node)), time, node))
    n, t, s = node[order], time[order], state[order]
    same_node = np.append(False, n[1:] == n[:-1]) if len(n) else np.empty(0, bool)
    # Of several changes of a node at one moment the last stands.
    stands = np.append((n[1:] != n[:-1]) | (t[1:] != t[:-1]), True) if len(n) else np.empty(0, bool)
    n, t, s, order = n[stands], t[stands], s[stands], order[stands]
    same_node = np.append(False, n[1:] == n[:-1]) if len(n) else np.empty(0, bool)
    before = np.where(same_node, np.append(BUSY, s[:-1]), BUSY)
    real = s != before
    n, t, s = n[real], t[real], s[real]
    by_time = np.lexsort((n, t))
    n, t, s = n[by_time], t[by_time], s[by_time]
    times = np.unique(np.append(t, start))
    first = np.append(np.searchsorted(t, times, side="left"), len(t)).astype(np.int64)
    return ClusterTrace(account, names, start, end, times, first, n, s, warnings, plans)


def _iso(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") if math.isfinite(seconds) else str(seconds)
    )
