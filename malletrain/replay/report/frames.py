"""The columns behind every plot, as plain tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import IdleIntervals
from malletrain.replay.report.summary import best
from malletrain.replay.result import Cause, integral
from malletrain.replay.run import Replay
from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE

#: Classes of hole lengths: upper bounds in seconds, and their names.
HOLE_BOUNDS = np.array([60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0, np.inf])
HOLE_NAMES = ("< 1 min", "1-2 min", "2-5 min", "5-10 min", "10-30 min", "30-60 min", "1-4 h", "4-24 h", "> 24 h")

#: Pilots, or changes of nodes, that are looked at together.
ROWS_AT_ONCE = 1 << 18


#: Columns of one length by name.
ColumnTable = dict[str, NDArray[Any]]


def rows_of(table: ColumnTable) -> list[tuple[Any, ...]]:
    """The rows of a table."""
    return list(zip(*(column.tolist() for column in table.values()), strict=True))


def timeline(answer: Replay, bins: int = 720) -> ColumnTable:
    """Mean idle nodes, nodes held by pilots and sum of speed-ups in equal spans of time, for each policy.

    Every row says: main = nodes - idle - down, and unused = idle - held. What pilots held is not known (nan) in spans
    of which less than half was replayed.
    """
    trace = answer.trace
    edges = np.linspace(trace.start, trace.end, bins + 1)
    idle, down = trace.counts
    columns: ColumnTable = {
        "time": edges[:-1],
        "idle": _means(trace.time, idle, edges),
        "down": _means(trace.time, down, edges),
    }
    seen = _share_replayed(answer, edges)
    for name, result in answer.results.items():
        for what, values in (("held", result.log.held), ("speedup", result.log.speed)):
            columns[f"{what}_{name}"] = _means(result.log.time, values, edges) / seen
    return columns


def _share_replayed(answer: Replay, edges: NDArray[Any]) -> NDArray[Any]:
    """The part of each span between edges that was replayed; nan where it is less than half."""
    if answer.sampled is None:
        return np.ones(len(edges) - 1)
    begin, end = (np.array(each) for each in zip(*answer.sampled.sample.spans, strict=True))
    inside = np.minimum(end[:, None], edges[None, 1:]) - np.maximum(begin[:, None], edges[None, :-1])
    share: NDArray[Any] = np.maximum(inside, 0.0).sum(axis=0) / np.diff(edges)
    share[share < 0.5] = np.nan
    return share


def _means(time: NDArray[Any], value: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    """Time-weighted means between edges of what is `value[i]` from `time[i]` on."""
    means: NDArray[Any] = np.diff(integral(time, value, edges[-1], edges)) / np.diff(edges)
    return means


def holes(answer: Replay) -> ColumnTable:
    """Holes by length: how many, their node-hours, and how many of these pilots held, for each policy. Of a sample,
    held is estimated by the holes' node-hours on the days that were replayed."""
    trace, n = answer.trace, len(HOLE_NAMES)
    count, seconds, inside = np.zeros(n, np.int64), np.zeros(n), np.zeros(n)
    used = {name: np.zeros(n) for name in answer.results}
    spans = [] if answer.sampled is None else answer.sampled.sample.spans
    # Some nodes at a time: all holes of a year of a large machine take more memory than the rest of the answer.
    for low, high, idle in trace.interval_blocks():
        length = idle.end - idle.begin
        of = np.searchsorted(HOLE_BOUNDS, length, side="right")
        count += np.bincount(of, minlength=n)[:n]
        seconds += np.bincount(of, weights=length, minlength=n)[:n]
        for first, last in spans:
            here = np.flatnonzero((idle.end > first) & (idle.begin < last))
            within = np.minimum(idle.end[here], last) - np.maximum(idle.begin[here], first)
            inside += np.bincount(of[here], weights=within, minlength=n)[:n]
        for name, result in answer.results.items():
            pilots = result.log.pilots
            mine = np.flatnonzero((pilots.node >= low) & (pilots.node < high))
            for begin in range(0, len(mine), ROWS_AT_ONCE):
                rows = pilots.rows(mine[begin : begin + ROWS_AT_ONCE])
                hole = _hole_of(idle, rows.node, rows.start, trace.start, trace.end)
                used[name] += np.bincount(of[hole], weights=rows.end - rows.start, minlength=n)[:n]
    columns: ColumnTable = {"length": np.array(HOLE_NAMES), "holes": count, "node_hours": seconds / 3600}
    scale = np.ones(n)
    if answer.sampled is not None:
        scale = np.divide(columns["node_hours"] * 3600, inside, out=np.zeros(n), where=inside > 0)
    for name, held in used.items():
        columns[f"used_{name}"] = held * scale / 3600
    return columns


def _hole_of(
    intervals: IdleIntervals, node: NDArray[np.int32], start: NDArray[np.float64], begin: float, end: float
) -> NDArray[np.int64]:
    """The hole in which each pilot ran."""
    span = end - begin + 1.0
    keys = intervals.node * span + (intervals.begin - begin)
    return np.searchsorted(keys, node * span + (start - begin), side="right") - 1


def jobs(answer: Replay) -> ColumnTable:
    """One row a job and policy."""
    results = answer.results.values()
    submitted = np.array([each.job.submitted_at for each in answer.jobs])
    return {
        "policy": np.repeat(list(answer.results), len(answer.jobs)),
        "job": np.tile([each.job.name for each in answer.jobs], len(results)),
        "submitted": np.tile(submitted, len(results)),
        "finished": np.concatenate([result.finished for result in results]),
        "jct_s": np.concatenate([result.finished - submitted for result in results]),
        "samples": np.concatenate([result.samples for result in results]),
        "node_hours": np.concatenate([result.totals.by_job for result in results]) / 3600,
    }


def pilots(answer: Replay, name: str, at_once: int) -> Iterator[tuple[str, int, int, str, str]]:
    """Every pilot of a policy: node, start (Unix seconds), how long (seconds), job, why it ended. Made `at_once` rows
    at a time."""
    nodes = answer.trace.nodes
    causes = [cause.name.lower() for cause in Cause]
    titles = [each.job.name for each in answer.jobs]
    for part in answer.results[name].log.pilots.parts(at_once):
        start = np.rint(part.start).astype(np.int64)
        lasts = np.rint(part.end).astype(np.int64) - start
        rows = (part.node, start, lasts, part.job, part.cause)
        for node, at, seconds, job, cause in zip(*(column.tolist() for column in rows), strict=True):
            yield nodes[node], at, seconds, titles[job], causes[cause]


def node_map(
    answer: Replay, name: str, nodes: int = 120, bins: int = 480
) -> tuple[list[str], NDArray[np.float64], NDArray[np.int8]]:
    """Some nodes, spread evenly over the machine, spans of time by their begins, and what each node (row) did most of
    in each: 0 main jobs, 1 idle, 2 training, 3 down."""
    trace, log = answer.trace, answer.results[name].log
    chosen = np.unique(np.linspace(0, len(trace.nodes) - 1, min(nodes, len(trace.nodes))).astype(np.int64))
    edges = np.linspace(trace.start, trace.end, bins + 1)
    seconds = np.zeros((4, len(chosen), bins))
    drawn = np.zeros(len(trace.nodes), np.bool_)
    drawn[chosen] = True
    changes = _rows_of(trace.node, drawn)
    idle, down = (trace.intervals(changes, kind) for kind in (IDLE, DOWN))
    pilots = log.pilots.rows(_rows_of(log.pilots.node, drawn))
    for row, node in enumerate(chosen.tolist()):
        seconds[1, row] = _covered(idle.begin[idle.node == node], idle.end[idle.node == node], edges)
        seconds[2, row] = _covered(pilots.start[pilots.node == node], pilots.end[pilots.node == node], edges)
        seconds[3, row] = _covered(down.begin[down.node == node], down.end[down.node == node], edges)
    seconds[1] -= seconds[2]
    seconds[BUSY] = (edges[1] - edges[0]) - seconds[1:].sum(axis=0)
    return [trace.nodes[i] for i in chosen], edges[:-1], seconds.argmax(axis=0).astype(np.int8)


def _rows_of(node: NDArray[np.int32], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rows of the wanted nodes: of a year of a large machine a small part."""
    begins = range(0, len(node), ROWS_AT_ONCE)
    parts = [begin + np.flatnonzero(wanted[node[begin : begin + ROWS_AT_ONCE]]) for begin in begins]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _covered(begin: NDArray[np.float64], end: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many seconds of each span between edges lie in some intervals, which follow one another."""
    time, value = np.ravel([begin, end], "F"), np.tile([1, 0], len(begin))
    return np.diff(integral(time, value, edges[-1], edges))


def months(answer: Replay, zone: tzinfo) -> ColumnTable:
    """One row a calendar month of the window: days, idle and held node-hours, and those that the training was worth.
    Of a sample, held and worth are estimated by the month's days that were replayed."""
    trace, (name, _) = answer.trace, best(answer)
    edges = _month_edges(trace.start, trace.end, zone)
    idle, _ = trace.counts
    log = answer.results[name].log
    at = np.array(edges)
    idle_h = np.diff(integral(trace.time, idle, trace.end, at)) / 3600
    if answer.sampled is None:
        held_h = np.diff(integral(log.time, log.held, trace.end, at)) / 3600
        trained = np.append(log.trained, answer.results[name].totals.speedup)
        worth_h = np.diff(np.interp(at, np.append(log.time, trace.end), trained)) / 3600
    else:
        spans = list(pairwise(edges))
        best_possible = Ideal.of_all(answer.jobs, idle, len(trace.nodes))
        best_h = np.diff(integral(trace.time, best_possible, trace.end, at)) / 3600
        held_h = idle_h * [answer.sampled.ratio(name, "occupied", *span) for span in spans]
        worth_h = best_h * [answer.sampled.ratio(name, "speedup", *span) for span in spans]
    columns: ColumnTable = {
        "month": np.array([datetime.fromtimestamp(edge, zone).strftime("%Y-%m") for edge in edges[:-1]]),
        "days": np.diff(at) / 86_400,
        "idle_node_hours": idle_h,
        "held_node_hours": held_h,
        "worth_node_hours": worth_h,
    }
    return columns


def hours_of_week(answer: Replay, zone: tzinfo) -> NDArray[np.float64]:
    """Mean idle nodes by weekday (from Monday) and hour in the site's zone; nan where the window has none of them."""
    trace = answer.trace
    idle, _ = trace.counts
    first = math.floor(trace.start / 3600) * 3600.0
    edges = np.clip(np.arange(first, trace.end + 3600.0, 3600.0), trace.start, trace.end)
    seconds = np.diff(edges)
    node_seconds = np.diff(integral(trace.time, idle, trace.end, edges))
    total, lasted = np.zeros((7, 24)), np.zeros((7, 24))
    for edge, lasts, sum_ in zip(edges.tolist(), seconds.tolist(), node_seconds.tolist(), strict=False):
        if lasts > 0:
            when = datetime.fromtimestamp(edge, zone)
            total[when.weekday(), when.hour] += sum_
            lasted[when.weekday(), when.hour] += lasts
    means: NDArray[np.float64] = np.divide(total, lasted, out=np.full((7, 24), np.nan), where=lasted > 0)
    return means


def _month_edges(start: float, end: float, zone: tzinfo) -> list[float]:
    """Start, the begins of months between, end."""
    edges = [start]
    month = datetime.fromtimestamp(start, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while True:
        month = (month + timedelta(days=32)).replace(day=1)
        if month.timestamp() >= end:
            return [*edges, end]
        edges.append(month.timestamp())
