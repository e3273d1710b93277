"""Doubtful assumptions of a replay, reported beside what the log itself gives rise to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.replay.options import Options
from malletrain.replay.scoring.figures import Score
from malletrain.replay.sizer import PolicyChoice, policy_of
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import Value


def doubts(choices: Sequence[PolicyChoice], jobs: Sequence[TrainingJob]) -> tuple[str, ...]:
    """One sentence for each policy whose horizon forbids what it is there for."""
    warnings: list[str] = []
    for choice in choices:
        if choice.value is not Value.ELASTIC or not policy_of(choice).weighs_horizon:
            continue
        horizon = choice.horizon_s
        never = sum(each.costs.activate_s >= horizon for each in jobs)
        kept = sum(each.costs.activate_s < horizon <= each.costs.activate_s + each.costs.grow_s for each in jobs)
        most = max((each.costs.activate_s for each in jobs), default=0.0)
        sees = f"Policy {choice.name} looks {horizon:g} s ahead"
        remedy = "Give a longer --horizon; 120 to 600 pay best."
        if never:
            warnings.append(
                f"{sees} and so starts no node for {never:,} of {len(jobs):,} jobs: a node takes up to {most:g} s "
                f"until it trains. {remedy}"
            )
        if kept:
            warnings.append(
                f"{sees} and so never grows a world that trains of {kept:,} of {len(jobs):,} jobs: a start and a "
                f"stall take as long. {remedy}"
            )
    return tuple(warnings)


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
