"""Doubtful assumptions of a replay, reported beside what the log itself gives rise to."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.replay.sizer import ONE_NODE, PolicyChoice, demand
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import Problem, Value
from malletrain.sizing.registry import policy


def _settles_early(each: TrainingJob) -> bool:
    """Whether policy `efficiency` would leave the job below its most nodes."""
    most = each.job.max_nodes
    alone = policy("efficiency").size(Problem(300.0, most, (demand(each, 0),)))
    return alone.sizes[each.job.id] < most


def doubts(choices: Sequence[PolicyChoice], jobs: Sequence[TrainingJob]) -> tuple[str, ...]:
    """One sentence for each policy whose horizon, or whose jobs, forbid what it is there for."""
    warnings: list[str] = []
    for choice in choices:
        if choice.policy == "efficiency" and not any(_settles_early(each) for each in jobs):
            warnings.append(
                f"Policy {choice.name} sizes as equal does: every job's scaling efficiency is above its threshold at "
                "every size. Replay jobs that scale less well, such as --mix pollux."
            )
        if choice.policy == ONE_NODE or choice.value is not Value.ELASTIC or not policy(choice.policy).weighs_horizon:
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
