"""Doubtful assumptions of a replay, told beside what the log itself gives rise to."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.replay.sizer import ONE_NODE, PolicyChoice
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.problem import Value
from malletrain.sizing.registry import policy


def doubts(choices: Sequence[PolicyChoice], jobs: Sequence[TrainingJob]) -> tuple[str, ...]:
    """One sentence for each policy whose horizon forbids what it is there for."""
    warnings: list[str] = []
    for choice in choices:
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
