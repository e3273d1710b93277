"""Time that a log shows as idle, and that probably was none: the machine stood still, or a node was not there.

A job log says when jobs ran, not which nodes were up. Two signs are looked for on machines of which less than half is
idle at most times: nearly all nodes idle at once for half an hour or more (a maintenance, a power cut), and a node
without a job for days on end while the others work (it was drained, came later, or left).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import numpy as np

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.traces.trace import DOWN, IDLE
from malletrain.sizing.values import Bools, Floats

#: From this share of the nodes on the machine counts as standing still, for so long at least (seconds).
STANDSTILL_SHARE = 0.9
MIN_STANDSTILL_S = 1800.0
#: A node that ran no job for so long, while most others worked, was probably not there (seconds).
MIN_ABSENCE_S = 3 * 86_400.0
#: Fewer nodes than this are idle together by chance.
MIN_NODES = 16
#: On a machine of which more is idle at most times, long idle times are usual: none is called an outage.
MAX_USUAL_IDLE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class LikelyOutage:
    """From `start` to `end` (Unix seconds) `nodes` nodes were probably not to be had; `node_seconds` of it look idle.
    `whole`: the machine stood still; else one node was away."""

    whole: bool
    start: float
    end: float
    nodes: int
    node_seconds: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class SuspectedOutages:
    """Idle time of the log that probably was none: what was found, and whether it was `left_out` of the replay."""

    found: tuple[LikelyOutage, ...]
    left_out: bool

    def sentence(self) -> str:
        """What was found, for people."""
        hours = sum(each.node_seconds for each in self.found) / 3600
        still = sum(each.whole for each in self.found)
        away = len(self.found) - still
        parts = [f"the machine stood still {_times(still)}"] if still else []
        parts += [f"{_times(away)} a node ran no job for days"] if away else []
        largest = self.found[0]
        when = datetime.fromtimestamp(largest.start, UTC).strftime("%Y-%m-%dT%H:%M UTC")
        lasts = (largest.end - largest.start) / 3600
        here = "were left out" if self.left_out else "count as idle"
        return (
            f"Likely outages look like {hours:,.0f} idle node-hours ({', '.join(parts)}; the largest from {when}, "
            f"{lasts:,.1f} h). They {here}; --outages says what was so, and replay.likely_outages chooses."
        )

    def as_json(self) -> dict[str, object]:
        """As in the JSON answer."""
        return {
            "left_out": self.left_out,
            "node_seconds": sum(each.node_seconds for each in self.found),
            "found": [asdict(each) for each in self.found[:100]],
        }


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def likely_outages(trace: ClusterTrace) -> tuple[LikelyOutage, ...]:
    """What was probably no idle time, the largest first. Nodes that were away are looked for only where the log says
    which nodes jobs ran on."""
    idle, down = trace.counts
    lasts = np.diff(np.append(trace.time, trace.end))
    up = len(trace.nodes) - down
    share = idle / np.maximum(up, 1)
    if len(trace.nodes) < MIN_NODES or _usual(share, lasts) > MAX_USUAL_IDLE_SHARE:
        return ()
    found = [
        LikelyOutage(True, begin, end, int(idle[part].max()), float(idle[part] @ lasts[part]))
        for begin, end, part in _spans(trace, (share >= STANDSTILL_SHARE) & (up > 0))
        if end - begin >= MIN_STANDSTILL_S
    ]
    if trace.names_are_real:
        still = [(each.start, each.end) for each in found]
        for _, _, holes in trace.interval_blocks():
            for i in np.flatnonzero(holes.end - holes.begin >= MIN_ABSENCE_S).tolist():
                begin, end = float(holes.begin[i]), float(holes.end[i])
                alone = end - begin - sum(max(0.0, min(end, e) - max(begin, b)) for b, e in still)
                if alone >= MIN_ABSENCE_S:
                    found.append(LikelyOutage(False, begin, end, 1, alone, trace.nodes[holes.node[i]]))
    return tuple(sorted(found, key=lambda each: (-each.node_seconds, each.start, each.name)))


def without_outages(trace: ClusterTrace, outages: tuple[LikelyOutage, ...]) -> ClusterTrace:
    """The same machine with those nodes down."""
    if not outages:
        return trace
    away = {(each.name, each.start) for each in outages if not each.whole}
    still = [(each.start, each.end) for each in outages if each.whole]
    state = trace.state.copy()
    # Where the state becomes another one without a row: before which row, of which step and node, and what.
    rows: list[tuple[int, int, int, int]] = []
    for _, _, holes in trace.interval_blocks():
        inside = np.zeros(len(holes.node), np.bool_)
        for begin, end in (*still, *((start, start) for _, start in away)):
            inside |= (holes.begin <= end) & (holes.end > begin)
        columns = (column[inside].tolist() for column in (holes.node, holes.begin, holes.end))
        for node, since, until in zip(*columns, strict=True):
            spans = [(since, until)] if (trace.nodes[node], since) in away else still
            for begin, end in spans:
                for at, becomes in ((max(since, begin), DOWN), (min(until, end), IDLE)):
                    if not since <= at < until or min(until, end) <= max(since, begin):
                        continue  # (the row that ends a hole stands)
                    step = int(np.searchsorted(trace.time, at))
                    first, last = trace.first[step : step + 2].tolist()
                    row = first + int(np.searchsorted(trace.node[first:last], node))
                    if at == since:
                        state[row] = becomes
                    else:
                        rows.append((row, step, node, becomes))
    places, steps, nodes, states = np.array(sorted(rows), np.int64).reshape(-1, 4).T
    more = np.bincount(steps, minlength=len(trace.time))
    return replace(
        trace,
        first=trace.first + np.append(0, np.cumsum(more)),
        node=np.insert(trace.node, places, nodes),
        state=np.insert(state, places, states),
    )


def _usual(share: Floats, lasts: Floats) -> float:
    """The median over time."""
    order = np.argsort(share)
    passed = np.cumsum(lasts[order])
    return float(share[order][np.searchsorted(passed, passed[-1] / 2)]) if len(passed) else 0.0


def _spans(trace: ClusterTrace, holds: Bools) -> list[tuple[float, float, slice]]:
    """Times during which something holds without a break, and their steps."""
    edge = np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8))
    times = np.append(trace.time, trace.end)
    return [
        (float(times[a]), float(times[b]), slice(a, b))
        for a, b in zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True)
    ]
