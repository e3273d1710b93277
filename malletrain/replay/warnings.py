"""Rules of the daemon that leave much unused, as warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.replay.options import Options
from malletrain.replay.scoring.figures import Score
from malletrain.replay.workload import TrainingJob

#: A limit of the daemon that costs less than this part of the idle time is not worth a sentence.
MIN_SHARE_LOST = 0.05


def limits_that_bind(
    options: Options, scores: Mapping[str, Score], jobs: Sequence[TrainingJob] = ()
) -> tuple[str, ...]:
    """One sentence for each rule of the daemon that leaves much idle time unused, whatever policy sizes.

    `jobs`: those replayed; a pilot is of one job, and so no wider than the widest of them takes.
    """
    if not options.daemon:
        return ()
    found = [score for score in scores.values() if score.idle_node_seconds > 0]
    warnings: list[str] = []
    capped = max(((s.beyond_cap_node_seconds or 0.0) / s.idle_node_seconds for s in found), default=0.0)
    if capped >= MIN_SHARE_LOST:
        most = options.rules.max_nodes
        widest = min(most, max((each.job.max_nodes for each in jobs), default=most))
        width = f"{widest} nodes" if widest > 1 else "one node"
        wider = "Wider pilots (pilot.max_nodes) hold"
        if widest < most:
            wider = f"A pilot is of one job, and no job here takes more than {width}: jobs that take more hold"
        warnings.append(
            f"The daemon's cap binds: pool.max_pilots = {options.rules.max_pilots:,} pilots of at most {width} leave "
            f"{capped:.0%} of the idle node-hours unused. {wider} more with as many "
            "jobs for slurmctld; a higher cap costs it time in every cycle while jobs are blocked (see sdiag)."
        )
    kept = max(((s.reserve_node_seconds or 0.0) / s.idle_node_seconds for s in found), default=0.0)
    if kept >= MIN_SHARE_LOST:
        warnings.append(
            f"The reserve is {kept:.0%} of the idle node-hours: pool.keep_idle = {options.rules.keep_idle:,} nodes."
        )
    return tuple(warnings)
