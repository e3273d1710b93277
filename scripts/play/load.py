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


def from_log(path: Path, nodes: int, span_s: float, most_jobs: int = 400) -> tuple[list[MainJob], float]:
    """A slice of a job log (SWF or sacct), scaled to `nodes` nodes and `span_s` seconds; and the factor of time.

    Sizes keep their share of the machine, rounded up to whole nodes; times are divided by the factor. Time limits
    are taken as one and a half times the run, since logs seldom keep them. The slice is the densest run of
    `most_jobs` jobs by submit time.

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
    width = min(most_jobs, len(order))
    spans = trace.submit[order[width - 1 :]] - trace.submit[order[: len(order) - width + 1]]
    begin = int(np.argmin(spans))
    chosen = order[begin : begin + width]
    factor = max(1.0, float(trace.submit[chosen[-1]] - trace.submit[chosen[0]]) / span_s)
    machine = int(held.max())
    first = float(trace.submit[chosen[0]])
    return [
        MainJob(
            number,
            (float(trace.submit[i]) - first) / factor,
            max(1, min(nodes, -(-int(held[i]) * nodes // machine))),
            max(1.0, float(trace.end[i] - trace.start[i]) / factor),
            max(60.0, 1.5 * float(trace.end[i] - trace.start[i]) / factor),
        )
        for number, i in enumerate(chosen)
    ], factor
