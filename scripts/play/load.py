"""A main queue to play: a committed day in miniature, or a slice of a real log compressed in time."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

DAY = Path(__file__).with_name("day.csv")


class Kind(StrEnum):
    """How a main job is submitted."""

    PLAIN = "plain"
    HETJOB = "hetjob"  #: its first node and the others are two components
    ARRAY = "array"  #: one task a node
    IMMEDIATE = "immediate"  #: `srun -I`: now, or not at all
    SWITCHES = "switches"  #: --switches=1


@dataclass(frozen=True, slots=True)
class MainJob:
    """A rigid job: seconds from the start of the play, whole nodes, seconds of run time and of time limit."""

    number: int
    submit_s: float
    nodes: int
    run_s: float
    limit_s: float
    kind: Kind = Kind.PLAIN


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


def of_all_kinds(jobs: Sequence[MainJob]) -> list[MainJob]:
    """The same jobs, a third of those of several nodes submitted in the other ways, in turn."""
    others = (Kind.HETJOB, Kind.ARRAY, Kind.SWITCHES, Kind.IMMEDIATE)
    wide = [job.number for job in jobs if job.nodes > 1]
    kinds = {number: others[i // 3 % len(others)] for i, number in enumerate(wide) if i % 3 == 0}
    # Seldom is much of a machine free at once: whoever asks for it at once asks for a little.
    return [
        replace(job, kind=kind, nodes=min(job.nodes, 4) if kind is Kind.IMMEDIATE else job.nodes)
        for job in jobs
        for kind in (kinds.get(job.number, Kind.PLAIN),)
    ]


def from_log(
    path: Path,
    nodes: int,
    span_s: float,
    window_s: float = 12 * 3600.0,
    choice: int = 0,
    fill: float = 0.7,
    *,
    around_s: float = 0.0,
    least_jobs: int = 0,
) -> tuple[list[MainJob], float]:
    """Some hours of a job log (SWF or sacct), scaled to `nodes` nodes and `span_s` seconds; and the factor of time.

    Of the log's windows of `window_s` the one is taken that comes nearest to filling the share `fill` of the machine,
    or with `choice` the next nearest ones; of those with `least_jobs` jobs, where there are any. `around_s`: seconds
    of prolog and epilog that each job keeps its nodes besides, which do not shrink with the log's time. Sizes keep
    their share of the machine, rounded up to whole nodes; times are divided by the factor, runs cut to the span.
    Limits are the log's, or one and a half times the run.

    Raises:
        InvalidInput: the file is no job log, or holds no job that ran.
    """
    import numpy as np

    from malletrain.domain.errors import InvalidInput
    from malletrain.replay.traces import read_trace
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
    filled = np.bincount(window, weights=wanted * (seconds + around_s)) / (nodes * span_s)
    too_few = np.bincount(window) < least_jobs
    nearest = np.lexsort((np.abs(filled - fill), too_few))
    chosen = np.flatnonzero(window == int(nearest[min(choice, len(nearest) - 1)]))
    start = first + window[chosen[0]] * window_s
    limit = np.where(np.isfinite(trace.limit[order]), trace.limit[order] / factor, 1.5 * seconds)
    return [
        MainJob(
            number,
            float(submit[i] - start) / factor,
            int(wanted[i]),
            float(seconds[i]),
            max(60.0, float(seconds[i]), float(limit[i])),
        )
        for number, i in enumerate(chosen)
    ], factor
