"""Whether main jobs can be preempted by other main jobs.

A partition without a PreemptMode of its own has the global one (slurm.conf(5)). So a site that turns preemption on
for its harvest partition turns it on for every partition that does not say `PreemptMode=OFF`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from malletrain.slurm.site.site_config import Finding, Level, PartitionFacts, SiteFacts

#: What Slurm does to a preempted job. GANG alone is time slicing within a partition; OFF is neither.
_EFFECTS = {"CANCEL": "killed", "REQUEUE": "killed and requeued", "SUSPEND": "suspended"}


@dataclass(frozen=True, slots=True)
class Preemptible:
    """A main partition whose jobs can be preempted, and the main partitions whose jobs can do so."""

    victim: PartitionFacts
    preemptors: tuple[PartitionFacts, ...]

    @property
    def effect(self) -> str:
        """What becomes of a preempted job."""
        return _effect(self.victim)


def preemptible_partitions(facts: SiteFacts, harvest: str) -> tuple[Preemptible, ...]:
    """Main partitions that another main partition of a higher PriorityTier preempts on nodes that both have.

    Preemption by QOS concerns no partition: there are none then.
    """
    if not facts.preempt_type.endswith("/partition_prio"):
        return ()
    main = facts.main_partitions(harvest)
    found = (
        Preemptible(victim, tuple(p for p in main if p.tier > victim.tier and p.nodes & victim.nodes))
        for victim in main
        if _effect(victim)
    )
    return tuple(each for each in found if each.preemptors)


def check_main_partitions(facts: SiteFacts, harvest: str, deliberate: Collection[str] = ()) -> Iterator[Finding]:
    """Findings about every pair of main partitions of which one preempts the other's jobs.

    Slurm does not say whether that was so before there was a harvest partition. `deliberate` names the partitions
    whose jobs are meant to be preempted.
    """
    found = preemptible_partitions(facts, harvest)
    for each in found:
        name = each.victim.name
        preemptors = ", ".join(f"{p.name} (tier {p.tier})" for p in each.preemptors)
        if name in deliberate:
            yield Finding(
                Level.OK,
                f"jobs of main partition {name} are {each.effect} for jobs of {preemptors}: "
                "slurm.preemptible_partitions says that they may be",
            )
        else:
            yield Finding(
                Level.ERROR,
                f"main jobs preempt each other: jobs of {name} (tier {each.victim.tier}, PreemptMode="
                f"{each.victim.preempt_mode}) are {each.effect} for jobs of {preemptors}",
                f"set PreemptMode=OFF on partition {name} in slurm.conf and run `scontrol reconfigure`; where that "
                "is meant, as on a site that had it before, name it in slurm.preemptible_partitions",
            )
    if unknown := sorted(set(deliberate) - {p.name for p in facts.main_partitions(harvest)}):
        yield Finding(
            Level.WARNING,
            f"slurm.preemptible_partitions names {', '.join(unknown)}: no main partition",
            "take it out, or correct its name",
        )
    if not found and facts.preempt_type.endswith("/partition_prio"):
        yield Finding(Level.OK, "no main job preempts another")


def _effect(partition: PartitionFacts) -> str:
    # Words beside the mode, such as GANG, do not preempt.
    return next((_EFFECTS[word] for word in partition.preempt_mode.split(",") if word in _EFFECTS), "")
