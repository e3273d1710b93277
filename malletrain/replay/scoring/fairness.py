"""Finish-time fairness: did sharing serve each job as well as its own share of the idle nodes would have?

rho = T_shared / T_alone (Mahajan et al., Themis, NSDI 2020): T_shared is the job's completion time as replayed,
T_alone the one that it would have had with a share of its own, idle nodes over jobs there at each instant, at no
cost. At most 1: sharing did the job no harm. A share below its least size counts as that part of its rate
there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.result import Result
from malletrain.replay.sizer import rate_of_one, speedups
from malletrain.replay.workload import TrainingJob


def finish_time_fairness(result: Result, jobs: Sequence[TrainingJob], end: float) -> NDArray[np.float64]:
    """rho of every job; nan where the job did not finish, or where its own share had not finished it by `end`."""
    log = result.log
    rho = np.full(len(jobs), np.nan)
    if not len(log.time):
        return rho
    edges = np.append(log.time, end)
    share = log.idle / np.maximum(log.jobs, 1)
    for j, each in enumerate(jobs):
        total = each.job.total_samples
        if total is None or not np.isfinite(result.finished[j]):
            continue
        gain, least = speedups(each, each.job.max_nodes), max(1, each.job.min_nodes)
        top = len(gain) - 1
        rate = np.interp(np.minimum(share, top), np.arange(top + 1), gain)
        rate = np.where(share < least, share / least * gain[least], rate)
        here = np.maximum(edges, result.submitted[j])
        trained = np.concatenate([[0.0], np.cumsum(rate * np.diff(here))])
        work = total / rate_of_one(each)
        if trained[-1] >= work > 0:
            alone = float(np.interp(work, trained, here)) - result.submitted[j]
            rho[j] = (result.finished[j] - result.submitted[j]) / max(alone, 1e-9)
    return rho
