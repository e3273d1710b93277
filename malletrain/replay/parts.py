"""A long replay in parts that do not wait for each other, each with a run-in that is not counted.

What one part hands to the next in a replay without a break: which nodes pilots hold and since when, who waits for a
turn, and what was learnt of holes. The last follows from the log alone and is handed over exactly
(`HoleRecords`). The others are forgotten by the daemon itself: pilots reach their limits within an hour, and turns go
round within hours. So a part begins `RUN_IN_S` before it counts. Which jobs have how much left is not forgotten: only
endless jobs that are there from the start are replayed in parts.

Where parts begin follows from the log alone, so that the answer does not depend on the machine that replays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.looks import HoleRecords
from malletrain.replay.options import EngineKind, Options
from malletrain.replay.result import Result
from malletrain.replay.sizer import PolicyChoice, PolicySizer
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.replay.workload import TrainingJob

#: Seconds of a part, about; and of its run-in: a dozen limits of pilots and turns of waiting jobs. After three hours
#: a machine with more jobs than nodes still starts up to a fifth more pilots than without a break.
PART_S = 20 * 86_400.0
RUN_IN_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its trace begins with the run-in, and counts from `count_from` (Unix seconds); `holes`: what the
    daemon has seen of holes by the trace's start."""

    trace: ClusterTrace
    count_from: float
    holes: HoleRecords | None

    def run(
        self, jobs: Sequence[TrainingJob], choice: PolicyChoice, options: Options,
        tell: Callable[[float], None] | None = None,
    ) -> Result:  # fmt: skip
        """Replays it; jobs are there from the run-in on."""
        begin = self.trace.start
        here = [replace(e, job=replace(e.job, submitted_at=max(begin, e.job.submitted_at))) for e in jobs]
        sizer = PolicySizer(choice, here, options.budgets)
        return Engine(self.trace, here, sizer, options, tell, count_from=self.count_from, holes=self.holes).run()


def divisible(trace: ClusterTrace, jobs: Sequence[TrainingJob], options: Options) -> bool:
    """Whether a replay of these can be made in parts: nothing that lasts longer than a run-in binds it."""
    endless = all(
        each.job.total_samples is None and each.job.deadline is None and each.job.submitted_at <= trace.start
        for each in jobs
    )
    return endless and not options.budgets and not options.classes and options.engine is EngineKind.FAST


def parts_of(trace: ClusterTrace, options: Options, spans: Sequence[tuple[float, float]] = ()) -> Iterator[Part]:
    """The parts of a trace, in order: of all of it, or these `spans` of it (begin, end; Unix seconds)."""
    unit = options.tick_s or 1.0
    run_in_s = math.ceil(RUN_IN_S / unit) * unit
    if not spans:
        count = max(1, round(trace.seconds / PART_S))
        edges = [trace.start + math.floor(trace.seconds * i / count / unit) * unit for i in range(count)]
        spans = list(zip(edges, [*edges[1:], trace.end], strict=True))
    holes = HoleRecords(len(trace.nodes)) if options.rules.max_nodes > 1 else None
    state, step = np.full(len(trace.nodes), BUSY, np.int8), 0
    for begin, end in spans:
        at = max(trace.start, trace.start + math.floor((begin - trace.start) / unit) * unit - run_in_s)
        while step < len(trace.time) and trace.time[step] < at:
            step = _sweep(trace, step, state, holes, unit)
        yield Part(_between(trace, at, end, state), begin, holes and holes.until(state == IDLE, at))


def _sweep(trace: ClusterTrace, step: int, state: NDArray[np.int8], holes: HoleRecords | None, tick_s: float) -> int:
    """One step of the trace, as the daemon sees it."""
    now = float(trace.time[step])
    if holes is not None:
        holes.change(now, state == IDLE, trace.start + math.ceil((now - trace.start) / tick_s - 1e-9) * tick_s)
    part = slice(trace.first[step], trace.first[step + 1])
    state[trace.node[part]] = trace.state[part]
    return step + 1


def _between(trace: ClusterTrace, begin: float, end: float, state: NDArray[np.int8]) -> ClusterTrace:
    """The trace from `begin` to `end`, whose nodes were as `state` says just before."""
    a, b = np.searchsorted(trace.time, [begin, end]).tolist()
    before = state.copy()
    if a < b and trace.time[a] == begin:
        here = slice(trace.first[a], trace.first[a + 1])
        before[trace.node[here]] = trace.state[here]
        a += 1
    there = np.flatnonzero(before != BUSY).astype(np.int32)
    rows = slice(int(trace.first[a]), int(trace.first[b]))
    first = np.concatenate([[0], trace.first[a : b + 1] - trace.first[a] + len(there)])
    return replace(
        trace, start=begin, end=end, time=np.concatenate([[begin], trace.time[a:b]]), first=first,
        node=np.concatenate([there, trace.node[rows]]), state=np.concatenate([before[there], trace.state[rows]]),
    )  # fmt: skip
