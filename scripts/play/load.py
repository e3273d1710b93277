"""A main queue to play: a committed day in miniature, or a slice of a real log compressed in time."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

DAY = Path(__file__).with_name("day.csv")


@dataclass(frozen=True, slots=True)
class MainJob:
    """A rigid job: seconds from the start of the play, whole nodes, seconds of run time and of time limit."""

    number: int
    submit_s: float
    nodes: int
    run_s: float
    limit_s: float


def day(path: Path = DAY, stretch: float = 1.0) -> list[MainJob]:
    """The day in miniature: columns submit_s, nodes, run_s, limit_s. `stretch` multiplies times."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return [
        MainJob(
            n,
            float(r["submit_s"]) * stretch,
            int(r["nodes"]),
            float(r["run_s"]) * stretch,
            float(r["limit_s"]) * stretch,
        )
        for n, r in enumerate(rows)
    ]


def from_log(path: Path, nodes: int, span_s: float, window_s: float = 12 * 3600.0) -> tuple[list[MainJob], float]:
    """Some hours of a job log (SWF or sacct), scaled to `nodes` nodes and `span_s` seconds; and the factor of time.

    Of the log's windows of `window_s` the one is taken that comes nearest to filling 70 % of the machine. Sizes keep
    their share of the machine, rounded up to whole nodes; times are divided by the factor, runs cut to the span. Time
    limits are taken as one and a half times the run, since logs seldom keep them.

    Raises:
        InvalidInput: the file is no job log, or holds no job that ran.
    """
    import numpy as np

    from malletrain.domain.errors import InvalidInput
    from malletrain.replay.traces.read import read_trace
    from malletrain.replay.traces.trace import JobRecords

    trace = read_trace(path)
    if not isinstance(trace, JobRecords):
        raise InvalidInput(str(path), "holds node events: give a job log, SWF or the output of `sacct -P`")
    held = np.where(trace.count > 0, trace.count, trace.procs)
    ran = np.flatnonzero((held > 0) & np.isfinite(trace.end) & (trace.end > trace.start))
    if not len(ran):
        raise InvalidInput(str(path), "holds no job that ran")
    order = ran[np.argsort(trace.submit[ran], kind="stable")]
    submit, run = trace.submit[order], (trace.end - trace.start)[order]
    first, last = float(submit[0]), float(submit[-1])
    window_s = max(span_s, min(window_s, last - first))
    factor = window_s / span_s
    share = held[order] / float(held.max())
    # What a job will really take here: whole nodes of a small machine, and no longer than the play.
    wanted = np.clip(np.ceil(share * nodes), 1, nodes)
    seconds = np.clip(run / factor, 1.0, span_s)
    window = ((submit - first) // window_s).astype(int)
    filled = np.bincount(window, weights=wanted * seconds) / (nodes * span_s)
    chosen = np.flatnonzero(window == int(np.argmin(np.abs(filled - 0.7))))
    start = first + window[chosen[0]] * window_s
    return [
        MainJob(
            number,
            float(submit[i] - start) / factor,
            int(wanted[i]),
            float(seconds[i]),
            max(60.0, 1.5 * float(seconds[i])),
        )
        for number, i in enumerate(chosen)
    ], factor
