"""What a harvest was worth, in the words of the JSON answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.result import Result, Totals
from malletrain.replay.scoring.main_delay import MainDelay, Reaction, modelled


@dataclass(frozen=True, slots=True)
class Score:
    """One policy's figures. Node-seconds, seconds and counts.

    occupied: a pilot holds the node. productive: occupied less activation and stalls. speedup: integral of
    sum_j O_j/O_j(1). ideal_speedup: the same with no cost at all and the best sizes at every instant, for the jobs
    then there. share_of_ideal: their ratio. equivalent_nodes: dedicated nodes, one to a job, that would have trained
    as much. jain: Jain's index of the jobs' occupied node-seconds (1: all the same). wait: submission to the first
    pilot, of jobs that had one. deadlines: those that fall within the
    window. beyond_cap: idle nodes for which the daemon's cap allowed no pilot; reserve: those that it kept idle; both
    and the waterfall (all idle node-seconds by what became of them) are None of a journal. starts_per_minute: nodes
    on which pilots started, in the mean; busiest_minute_starts: most of them within one minute of the clock. Means
    over no job are None.
    """

    idle_node_seconds: float
    occupied_node_seconds: float
    productive_node_seconds: float
    speedup_node_seconds: float
    ideal_speedup_node_seconds: float
    share_of_ideal: float | None
    samples: float
    jobs_completed: int
    mean_jct_s: float | None
    rescales: int
    activations: int
    preemptions: int
    solve_s: dict[str, float] | None
    wall_s: float
    activation_node_seconds: float
    stall_node_seconds: float
    equivalent_nodes: float
    jain: float | None
    median_jct_s: float | None
    p95_jct_s: float | None
    jobs_started: int = 0
    mean_wait_s: float | None = None
    median_wait_s: float | None = None
    p95_wait_s: float | None = None
    main_delay: MainDelay | None = None
    deadlines: int = 0
    deadlines_met: int = 0
    beyond_cap_node_seconds: float | None = None
    reserve_node_seconds: float | None = None
    starts_per_minute: float | None = None
    busiest_minute_starts: int | None = None
    waterfall: dict[str, float] | None = None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def score(
    result: Result, seconds: float, reaction: Reaction | None = None, due: NDArray[np.float64] | None = None
) -> Score:
    """The figures of a replay over `seconds`; `due`: each job's deadline if that falls within the window, else
    nan."""
    t = result.totals
    waits = (result.first_start - result.submitted)[np.isfinite(result.first_start)]
    jct = (result.finished - result.submitted)[np.isfinite(result.finished)]
    return replace(
        score_of(t, seconds, float(result.samples.sum()), waits, jct),
        solve_s=solve_times(result.log.solve_s),
        wall_s=result.wall_s,
        main_delay=None if reaction is None else modelled(t.main_starts, t.main_starts_on_pilots, reaction),
        deadlines=0 if due is None else int(np.isfinite(due).sum()),
        deadlines_met=0 if due is None else int((result.finished <= due).sum()),
        beyond_cap_node_seconds=t.beyond_cap,
        reserve_node_seconds=t.reserve,
        busiest_minute_starts=busiest_minute(result.log.pilots.start, result.log.pilots.count),
        waterfall=t.waterfall(),
    )


def score_of(
    t: Totals, seconds: float, samples: float, waits: NDArray[np.float64], jct: NDArray[np.float64]
) -> Score:
    """What replays and journals have in common. `waits`: of jobs that have started; `jct`: completion times of those
    that have ended (s)."""
    return Score(
        idle_node_seconds=t.idle,
        occupied_node_seconds=t.occupied,
        productive_node_seconds=t.productive,
        speedup_node_seconds=t.speedup,
        ideal_speedup_node_seconds=t.ideal,
        share_of_ideal=t.speedup / t.ideal if t.ideal > 0 else None,
        samples=samples,
        jobs_completed=t.completed,
        rescales=t.rescales,
        activations=t.activations,
        preemptions=t.preemptions,
        solve_s=None,
        wall_s=0.0,
        activation_node_seconds=t.activating,
        stall_node_seconds=t.stalled,
        equivalent_nodes=t.speedup / seconds if seconds > 0 else 0.0,
        jain=jain(t.by_job.tolist()),
        **_spread("jct_s", jct),
        jobs_started=len(waits),
        **_spread("wait_s", waits),
        starts_per_minute=60 * t.activations / seconds if seconds > 0 else None,
    )


def _spread(name: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """The fields of `Score` on these times."""
    if not len(values):
        return dict.fromkeys((f"mean_{name}", f"median_{name}", f"p95_{name}"))
    found = float(values.mean()), float(np.median(values)), float(np.quantile(values, 0.95))
    return dict(zip((f"mean_{name}", f"median_{name}", f"p95_{name}"), found, strict=True))


def solve_times(seconds: NDArray[np.float64]) -> dict[str, float] | None:
    """Wall seconds of single decisions."""
    if not len(seconds):
        return None
    return dict(zip(("median", "p99", "max"), np.quantile(seconds, (0.5, 0.99, 1.0)).tolist(), strict=True))


def busiest_minute(started: NDArray[np.float64], times: NDArray[np.int32] | None = None) -> int:
    """Most of these moments (Unix seconds), each so many `times` (default: once), within one minute of the clock."""
    if not len(started):
        return 0
    _, minute = np.unique((started // 60.0).astype(np.int64), return_inverse=True)
    return int(np.bincount(minute, weights=times).max())


def jain(shares: Sequence[float]) -> float | None:
    """Jain's fairness index (sum x)^2 / (n sum x^2) (DEC-TR-301, 1984)."""
    squares = math.fsum(x * x for x in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares > 0 else None
