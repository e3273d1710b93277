"""Whether Slurm itself gives a pilot's node to a main job, also with the daemon dead: what slurm.conf(5) and
sacctmgr(1) say of preemption, and what switches it off for a time or for some jobs."""

from __future__ import annotations

from collections.abc import Iterator

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import scalars
from malletrain.slurm.site.site_config import Finding, Harvest, Level, PartitionFacts, QosFacts, SiteFacts, parameters

#: A pilot that Slurm may not preempt until so many seconds after its start costs a main job little.
MAX_EXEMPT_S = 30.0

#: Modes that free the node. A suspended pilot keeps its memory and its GPUs.
_FREES = frozenset({"REQUEUE", "CANCEL"})


def check_preemption(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """What keeps Slurm from preempting pilots for every other job; the partition is there."""
    mine = facts.partitions[harvest.partition]
    if facts.preempt_type.endswith("/qos"):
        yield from _by_qos(facts, harvest)
    elif facts.preempt_type.endswith("/partition_prio") and facts.preempt_mode != "OFF":
        yield from _by_partition(facts, mine)
    else:
        yield Finding(
            Level.ERROR,
            f"Slurm preempts nothing (PreemptType {facts.preempt_type or 'not set'}, PreemptMode "
            f"{facts.preempt_mode or 'not set'})",
            _how_to_preempt(facts, harvest.partition),
        )
        return
    yield from _exempt_time(facts, harvest, mine)
    yield from _exempt_priority(facts)


def sharing(facts: SiteFacts, mine: PartitionFacts) -> list[PartitionFacts]:
    """The other partitions on nodes of this one."""
    return [p for p in facts.partitions.values() if p.name != mine.name and p.nodes & mine.nodes]


def _by_partition(facts: SiteFacts, mine: PartitionFacts) -> Iterator[Finding]:
    if mine.preempt_mode not in _FREES:
        yield Finding(
            Level.ERROR,
            f"jobs of partition {mine.name} are not preempted (PreemptMode={mine.preempt_mode or 'OFF'})",
            f"set PreemptMode=REQUEUE (or CANCEL) on partition {mine.name} in slurm.conf, "
            "and leave the global PreemptMode as it is",
        )
    equal = sorted(p.name for p in sharing(facts, mine) if p.tier <= mine.tier)
    if equal:
        yield Finding(
            Level.ERROR,
            f"partition {', '.join(equal)} shares nodes with {mine.name} and does not go before it "
            f"(PriorityTier not above {mine.tier})",
            f"give {mine.name} a lower PriorityTier than every partition on its nodes (0: below the default)",
        )


def _by_qos(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """A partition's PreemptMode has no effect then, and the QOS's own goes before the cluster's."""
    own = _own_qos(facts, harvest)
    mode = (own.preempt_mode if own is not None else "") or facts.preempt_mode
    name = harvest.qos or "harvest"
    if not _FREES & set(mode.upper().split(",")):
        yield Finding(
            Level.ERROR,
            f"preemption is by QOS, and frees no node of a pilot (PreemptMode={mode or 'OFF'})",
            f"sacctmgr modify qos {name} set PreemptMode=requeue",
        )
    elif "GANG" in facts.preempt_mode.split(","):
        yield Finding(
            Level.WARNING,
            f"PreemptMode={facts.preempt_mode}: jobs share nodes in turns, which is not tested with pilots",
            "take GANG out of PreemptMode, or try pilots on a test system first",
        )
    if facts.qos is None:
        yield Finding(
            Level.WARNING,
            "preemption is by QOS",
            f"check that the QOS {harvest.qos or 'of the pilots'} is in Preempt= of every other QOS (sacctmgr)",
        )
        return
    lacking = [qos.name for qos in facts.qos.values() if qos.name != harvest.qos and harvest.qos not in qos.preempts]
    names = ",".join(lacking)
    if not harvest.qos or lacking:
        yield Finding(
            Level.ERROR,
            f"preemption is by QOS, and {names or 'every QOS'} does not preempt {harvest.qos or 'the pilots'}",
            f"sacctmgr modify qos {names or 'NAME'} set preempt+={name}",
        )
    else:
        yield Finding(Level.OK, f"every other QOS preempts {harvest.qos}")


def _exempt_time(facts: SiteFacts, harvest: Harvest, mine: PartitionFacts) -> Iterator[Finding]:
    """Jobs are not preempted in their first PreemptExemptTime; a QOS's goes before the global one, also a 0, and that
    of the partition's QOS before that of the pilots'."""
    qos = next((qos for qos in facts.qos_of_pilots(mine.name, harvest.qos) if qos.exempt_s is not None), None)
    if qos is not None:
        exempt, where = qos.exempt_s, f"QOS {qos.name}"
    else:
        here = mine.words.get("PreemptExemptTime", "")
        exempt = seconds(here) or seconds(facts.words.get("PreemptExemptTime", ""))
        where = f"partition {mine.name}" if seconds(here) else "slurm.conf"
    if not exempt:
        return
    yield Finding(
        Level.ERROR if exempt > MAX_EXEMPT_S else Level.WARNING,
        f"PreemptExemptTime of {where}: Slurm preempts no pilot in its first {exempt:g} s",
        f"sacctmgr modify qos {qos.name if qos else harvest.qos} set PreemptExemptTime=0 (a QOS's goes before the "
        "global one)"
        if qos or harvest.qos
        else f"set PreemptExemptTime=0 in {where}, and run `scontrol reconfigure`",
    )


def _exempt_priority(facts: SiteFacts) -> Iterator[Finding]:
    """PreemptParameters=min_exempt_priority (23.11 and later): jobs of that priority and more are not preempted."""
    least = parameters(facts.words.get("PreemptParameters", "")).get("min_exempt_priority")
    if least is None or scalars.number(least) > _highest_priority(facts):
        return
    yield Finding(
        Level.ERROR,
        f"min_exempt_priority={least}: Slurm preempts no pilot of that priority and more",
        "take min_exempt_priority out of PreemptParameters, or set it above the sum of all PriorityWeight*",
    )


def _highest_priority(facts: SiteFacts) -> float:
    """What no pilot's priority exceeds: the sum of PriorityWeight*, each the most that its term is (slurm.conf(5));
    endless where Slurm does not reckon it from these alone."""
    words = facts.words
    if not words.get("PriorityType", "").endswith("/multifactor") or words.get("PrioritySiteFactorPlugin"):
        return float("inf")
    weights = ",".join(value for key, value in words.items() if key.startswith("PriorityWeight"))
    return float(sum(scalars.number(part.rpartition("=")[2]) for part in weights.split(",")))


def _own_qos(facts: SiteFacts, harvest: Harvest) -> QosFacts | None:
    return (facts.qos or {}).get(harvest.qos)


def seconds(value: str) -> float:
    """A duration that Slurm prints, such as 00:10:00; 0 where it prints none or what is no duration."""
    try:
        return scalars.duration(value) or 0.0
    except InvalidInput:
        return 0.0


def _how_to_preempt(facts: SiteFacts, harvest: str) -> str:
    """What turns preemption on for the harvest partition alone: the global PreemptMode counts for every partition
    that has none of its own (slurm.conf(5))."""
    by_mode: dict[str, list[str]] = {}
    for partition in facts.main_partitions(harvest):
        mode = "GANG" if "GANG" in partition.preempt_mode.split(",") else "OFF"
        by_mode.setdefault(mode, []).append(partition.name)
    own = "".join(f", PreemptMode={mode} on {' and '.join(names)}" for mode, names in sorted(by_mode.items()))
    gang = ",GANG" if "GANG" in facts.preempt_mode.split(",") else ""
    return (
        f"in one edit of slurm.conf set PreemptType=preempt/partition_prio, PreemptMode=REQUEUE{gang}{own} (without "
        "that main jobs of a higher PriorityTier preempt others), and only then run `scontrol reconfigure`"
    )
