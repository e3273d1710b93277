"""A long replay in parts that do not wait for each other, each with a run-in that is not counted, in processes.

What one part would hand to the next in a replay without a break, the daemon itself forgets: pilots reach their limits
within an hour, and turns go round within hours. So a part begins `RUN_IN_S` before it counts. How much each job has
left is not forgotten: only endless jobs that are there from the start are replayed in parts.

Where parts begin follows from the log alone, so that the answer does not depend on the machine that replays.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.engine import Engine
from malletrain.replay.options import Options
from malletrain.replay.result import Result
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sizer import PolicyChoice, PolicySizer
from malletrain.replay.traces.trace import BUSY
from malletrain.replay.workload import TrainingJob

#: Seconds of a part, about; and of its run-in: a dozen limits of pilots and turns of waiting jobs. After three hours
#: a machine with more jobs than nodes still starts up to a fifth more pilots than without a break.
PART_S = 20 * 86_400.0
RUN_IN_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its trace begins with the run-in, and counts from `count_from` (Unix seconds)."""

    trace: ClusterTrace
    count_from: float

    def run(self, jobs: Sequence[TrainingJob], choice: PolicyChoice, options: Options) -> Result:
        """Replays it; jobs are there from the run-in on."""
        begin = self.trace.start
        here = [replace(e, job=replace(e.job, submitted_at=max(begin, e.job.submitted_at))) for e in jobs]
        sizer = PolicySizer(choice, here, options.budgets)
        return Engine(self.trace, here, sizer, options, count_from=self.count_from).run()


def divisible(trace: ClusterTrace, jobs: Sequence[TrainingJob], options: Options) -> bool:
    """Whether a replay of these can be made in parts: nothing that lasts longer than a run-in binds it."""
    endless = all(
        each.job.total_samples is None and each.job.deadline is None and each.job.submitted_at <= trace.start
        for each in jobs
    )
    return endless and not options.budgets and not options.classes and not options.by_loop


def parts_of(trace: ClusterTrace, options: Options, spans: Sequence[tuple[float, float]] = ()) -> Iterator[Part]:
    """The parts of a trace, in order: of all of it, or these `spans` of it (begin, end; Unix seconds)."""
    unit = options.tick_s or 1.0
    run_in_s = math.ceil(RUN_IN_S / unit) * unit
    if not spans:
        count = max(1, round(trace.seconds / PART_S))
        edges = [trace.start + math.floor(trace.seconds * i / count / unit) * unit for i in range(count)]
        spans = list(zip(edges, [*edges[1:], trace.end], strict=True))
    state, step = np.full(len(trace.nodes), BUSY, np.int8), 0
    for begin, end in spans:
        at = max(trace.start, trace.start + math.floor((begin - trace.start) / unit) * unit - run_in_s)
        while step < len(trace.time) and trace.time[step] < at:
            part = slice(trace.first[step], trace.first[step + 1])
            state[trace.node[part]] = trace.state[part]
            step += 1
        yield Part(_between(trace, at, end, state), begin)


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
        trace,
        start=begin,
        end=end,
        time=np.concatenate([[begin], trace.time[a:b]]),
        first=first,
        node=np.concatenate([there, trace.node[rows]]),
        state=np.concatenate([before[there], trace.state[rows]]),
    )


#: Called with the share done of each replay.
Progress = Callable[[list[float]], None]
#: Replays one part.
RunPart = Callable[[Part, PolicyChoice], Result | Score]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the replay number `of`, `share` of the whole."""

    of: int
    share: float
    part: Part
    choice: PolicyChoice


def run_pieces(
    pieces: Iterable[Piece], replays: int, run: RunPart, progress: Progress | None, processes: int
) -> list[list[Result | Score]]:
    """What comes out of each replay's pieces, in their order. `processes` of them run at a time; 1 stays in this
    process."""
    done = [0.0] * replays
    found: dict[int, tuple[int, Result | Score]] = {}
    for at, of, share, result in _here(pieces, run) if processes == 1 else _in_processes(pieces, run, processes):
        found[at] = of, result
        done[of] += share
        if progress is not None:
            progress(done)
    return [[result for _, (replay, result) in sorted(found.items()) if replay == of] for of in range(replays)]


#: Which piece is done, of which replay, what share of that it is, and what came out.
_Done = tuple[int, int, float, Result | Score]


def _here(pieces: Iterable[Piece], run: RunPart) -> Iterator[_Done]:
    for at, piece in enumerate(pieces):
        yield at, piece.of, piece.share, run(piece.part, piece.choice)


@contextmanager
def _no_modules_of_the_working_folder() -> Iterator[None]:
    """Processes that are started meanwhile import nothing from the working folder: others may write to it."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _in_processes(pieces: Iterable[Piece], run: RunPart, processes: int) -> Iterator[_Done]:
    """Few pieces are made ahead: each has a part of the trace."""
    # Fresh interpreters: forking one that runs a progress bar's thread may hang.
    context = multiprocessing.get_context("spawn")
    waiting: dict[Future[Result | Score], tuple[int, int, float]] = {}
    with _no_modules_of_the_working_folder(), ProcessPoolExecutor(processes, context) as pool:
        left = enumerate(pieces)
        while True:
            for at, piece in islice(left, processes + 1 - len(waiting)):
                waiting[pool.submit(run, piece.part, piece.choice)] = at, piece.of, piece.share
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield *waiting.pop(future), future.result()
