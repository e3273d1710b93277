"""Whether pilots can start in the harvest partition, and Slurm itself gives their nodes to main jobs, also with the
daemon dead: what slurm.conf(5) and sacctmgr(1) say of it, and what switches it off for a time or for some jobs."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.site import site_facts
from malletrain.slurm.site.site_facts import ERROR, WARNING, Finding, Harvest, Level, PartitionFacts, SiteFacts

#: Modes that free the node. A suspended pilot keeps its memory and its GPUs.
_FREES = frozenset({"REQUEUE", "CANCEL"})

#: Nodes that a finding names.
_NAMED_NODES = 3

Nodes = Sequence[site_facts.NodeFacts]

#: What a pilot takes of a node.
_WHOLE: Mapping[str, Callable[[site_facts.NodeFacts], int]] = {
    "cpu": lambda node: node.cpus,
    "mem": lambda node: node.memory_mib,
}

#: Words of a partition that keep every pilot out: what they mean, and what lets pilots in.
_GATES = (
    ("ReqResv", "YES", "every job there needs a reservation", "NO"),
    ("RootOnly", "YES", "root alone submits there", "NO"),
    ("MaxNodes", "0", "no job there has a node", "UNLIMITED"),
)

#: A pilot trains in no less (seconds).
_SHORTEST_S = 120.0


def check_harvest_partition(facts: SiteFacts, harvest: Harvest) -> tuple[Finding, ...]:
    """Whether pilots can start in this partition, and give way to every other job: it exists, is up and open, Slurm
    preempts them for every partition that shares its nodes, and this user sees the queue. Findings of level `error`
    mean: start nothing."""
    return (*site_facts.check_sight(facts), *_check_partition(facts, harvest))


def _check_partition(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    mine = facts.partitions.get(harvest.partition)
    if mine is None:
        known = ", ".join(sorted(facts.partitions)) or "none"
        what = f"partition {harvest.partition} does not exist (there are: {known})"
        remedy = "add it to slurm.conf with a PriorityTier below all others, or name another in the configuration"
        yield Finding.error(what, remedy)
        return
    yield from _preemption(facts, harvest, mine)
    yield from _settings(facts, harvest, mine)
    yield from _accounts(mine, harvest)
    yield from _groups(mine)
    yield from _submitting_nodes(mine)
    yield from _sizes(facts, mine)
    yield from _qos_limits(facts, harvest)


def _settings(facts: SiteFacts, harvest: Harvest, mine: PartitionFacts) -> Iterator[Finding]:
    name, words, set_it = mine.name, mine.words, f"on partition {mine.name}"
    least, most = _count(words.get("MinNodes", "")) or 0, _count(words.get("MaxNodes", "")) or harvest.max_nodes
    qos = (facts.qos or {}).get(harvest.qos)
    longest_s = _SHORTEST_S if mine.max_time_s is None else mine.max_time_s
    yield from site_facts.findings([
        (facts.federation, ERROR,
         f"the cluster is in federation {facts.federation}: its jobs may go to other clusters",
         "federations are not supported; take the cluster out of it (sacctmgr modify federation)"),
        (not mine.nodes, ERROR, f"partition {name} has no nodes", "give it Nodes= in slurm.conf"),
        (mine.state != "UP", ERROR, f"partition {name} is {mine.state or 'in no known state'}",
         f"scontrol update PartitionName={name} State=UP"),
        *((words.get(key) == shut, ERROR, f"partition {name} has {key}={shut}: {meaning}",
           f"set {key}={opened} {set_it}") for key, shut, meaning, opened in _GATES),
        (least > 1, ERROR, f"partition {name} has MinNodes={least}: a pilot of one node never starts",
         f"set MinNodes=0 {set_it}"),
        (0 < most < harvest.max_nodes, WARNING, f"partition {name} has MaxNodes={most}: wider pilots never start",
         f"set pilot.max_nodes = {most}, or MaxNodes=UNLIMITED {set_it}"),
        (qos is not None and "RequiresReservation" in qos.flags, ERROR, f"QOS {harvest.qos} requires a reservation",
         f"sacctmgr modify qos {harvest.qos} set flags-=RequiresReservation"),
        (not sharing(facts, mine), WARNING,
         f"no other partition has nodes of {name}: there is nothing to harvest from",
         "list the main partition's nodes in it"),
        (longest_s < _SHORTEST_S, ERROR, f"MaxTime of {name} is {longest_s:g} s: no pilot can train in that",
         "set MaxTime of at least 30 minutes"),
        (mine.grace_s > 60, WARNING, f"GraceTime of {name} is {mine.grace_s:g} s",
         "pilots leave within seconds; 10 to 30 s suffice, and bound what a stuck one costs"),
    ])  # fmt: skip


# Preemption


def _preemption(facts: SiteFacts, harvest: Harvest, mine: PartitionFacts) -> Iterator[Finding]:
    """What keeps Slurm from preempting pilots for every other job."""
    if facts.preempt_type.endswith("/qos"):
        yield from _by_qos(facts, harvest)
    elif facts.preempt_type.endswith("/partition_prio") and facts.preempt_mode != "OFF":
        yield from _by_partition(facts, mine)
    else:
        kind, mode = facts.preempt_type or "not set", facts.preempt_mode or "not set"
        what = f"Slurm preempts nothing (PreemptType {kind}, PreemptMode {mode})"
        yield Finding.error(what, _how_to_preempt(facts, harvest.partition))
        return
    yield from _exempt_time(facts, harvest, mine)
    # PreemptParameters=min_exempt_priority (23.11 and later): jobs of that priority and more are not preempted.
    least = site_facts.parameters(facts.words.get("PreemptParameters", "")).get("min_exempt_priority")
    if least is not None and scalars.number(least) <= _highest_priority(facts):
        what = f"min_exempt_priority={least}: Slurm preempts no pilot of that priority and more"
        remedy = "take min_exempt_priority out of PreemptParameters, or set it above the sum of all PriorityWeight*"
        yield Finding.error(what, remedy)


def sharing(facts: SiteFacts, mine: PartitionFacts) -> list[PartitionFacts]:
    """The other partitions on nodes of this one."""
    return [p for p in facts.partitions.values() if p.name != mine.name and p.nodes & mine.nodes]


def _by_partition(facts: SiteFacts, mine: PartitionFacts) -> Iterator[Finding]:
    equal = sorted(p.name for p in sharing(facts, mine) if p.tier <= mine.tier)
    if mine.preempt_mode not in _FREES:
        yield Finding.error(
            f"jobs of partition {mine.name} are not preempted (PreemptMode={mine.preempt_mode or 'OFF'})",
            f"set PreemptMode=REQUEUE (or CANCEL) on partition {mine.name} in slurm.conf, and leave the global "
            "PreemptMode as it is",
        )
    if equal:
        yield Finding.error(
            f"partition {', '.join(equal)} shares nodes with {mine.name} and does not go before it "
            f"(PriorityTier not above {mine.tier})",
            f"give {mine.name} a lower PriorityTier than every partition on its nodes (0: below the default)",
        )


def _by_qos(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """A partition's PreemptMode has no effect then, and the QOS's own goes before the cluster's."""
    own = None if facts.qos is None else facts.qos.get(harvest.qos)
    mode = (own.preempt_mode if own is not None else "") or facts.preempt_mode
    name = harvest.qos or "harvest"
    if not _FREES & set(mode.upper().split(",")):
        yield Finding.error(
            f"preemption is by QOS, and frees no node of a pilot (PreemptMode={mode or 'OFF'})",
            f"sacctmgr modify qos {name} set PreemptMode=requeue",
        )
    elif "GANG" in facts.preempt_mode.split(","):
        yield Finding.warning(
            f"PreemptMode={facts.preempt_mode}: jobs share nodes in turns, which is not tested with pilots",
            "take GANG out of PreemptMode, or try pilots on a test system first",
        )
    if facts.qos is None:
        yield Finding.warning(
            "preemption is by QOS",
            f"check that the QOS {harvest.qos or 'of the pilots'} is in Preempt= of every other QOS (sacctmgr)",
        )
        return
    others = (qos for qos in facts.qos.values() if qos.name != harvest.qos)
    lacking = ",".join(qos.name for qos in others if harvest.qos not in qos.preempts)
    if lacking or not harvest.qos:
        yield Finding.error(
            f"preemption is by QOS, and {lacking or 'every QOS'} does not preempt {harvest.qos or 'the pilots'}",
            f"sacctmgr modify qos {lacking or 'NAME'} set preempt+={name}",
        )
    else:
        yield Finding.ok(f"every other QOS preempts {harvest.qos}")


def _exempt_time(facts: SiteFacts, harvest: Harvest, mine: PartitionFacts) -> Iterator[Finding]:
    """Jobs are not preempted in their first PreemptExemptTime. A QOS's goes before the global one, also a 0."""
    qos = next((qos for qos in facts.qos_of_pilots(mine.name, harvest.qos) if qos.exempt_s is not None), None)
    if qos is not None:
        exempt, where = qos.exempt_s, f"QOS {qos.name}"
    else:
        here = site_facts.seconds(mine.words.get("PreemptExemptTime", ""))
        exempt = here or site_facts.seconds(facts.words.get("PreemptExemptTime", ""))
        where = f"partition {mine.name}" if here else "slurm.conf"
    if not exempt:
        return
    what = f"PreemptExemptTime of {where}: Slurm preempts no pilot in its first {exempt:g} s"
    remedy = f"set PreemptExemptTime=0 in {where}, and run `scontrol reconfigure`"
    if name := qos.name if qos else harvest.qos:
        remedy = f"sacctmgr modify qos {name} set PreemptExemptTime=0 (a QOS's goes before the global one)"
    yield Finding(ERROR if exempt > 30.0 else WARNING, what, remedy)  # costs a main job little


def _highest_priority(facts: SiteFacts) -> float:
    """What no pilot's priority exceeds: the sum of PriorityWeight*, each the most that its term is (slurm.conf(5));
    endless where Slurm does not reckon it from these alone."""
    words = facts.words
    if not words.get("PriorityType", "").endswith("/multifactor") or words.get("PrioritySiteFactorPlugin"):
        return float("inf")
    weights = ",".join(value for key, value in words.items() if key.startswith("PriorityWeight"))
    return float(sum(scalars.number(part.rpartition("=")[2]) for part in weights.split(",")))


def _how_to_preempt(facts: SiteFacts, harvest: str) -> str:
    """What turns preemption on for the harvest partition alone: others without a mode have the global one."""
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


# What a partition asks of jobs


def _accounts(mine: PartitionFacts, harvest: Harvest) -> Iterator[Finding]:
    for what, key, name in (("Accounts", "account", harvest.account), ("Qos", "qos", harvest.qos)):
        if not name or mine.admits(what, name):
            continue
        who = f"{key if key == 'account' else 'QOS'} {name}"
        if allowed := mine.allowed(what):
            remedy = f"add it, or name one of {allowed} in slurm.{key}"
            yield Finding.error(f"{who} is not in Allow{what} of {mine.name}", remedy)
        else:
            yield Finding.error(f"{who} is in Deny{what} of {mine.name}", "take it out there")


def _groups(mine: PartitionFacts) -> Iterator[Finding]:
    allowed = mine.words.get("AllowGroups", "ALL")
    if allowed in ("ALL", ""):
        return
    what = f"only members of group {allowed} may submit to partition {mine.name} (AllowGroups)"
    remedy = f"set AllowGroups=ALL on partition {mine.name}: AllowAccounts says who may use it"
    if any(_has_members(name) for name in allowed.split(",")):
        yield Finding.warning(what, remedy)
    else:
        yield Finding.error(f"{what}: nobody here", remedy)


def _has_members(group: str) -> bool:
    try:
        found = grp.getgrnam(group)
    except KeyError:
        return False
    return bool(found.gr_mem) or any(user.pw_gid == found.gr_gid for user in pwd.getpwall())


def _submitting_nodes(mine: PartitionFacts) -> Iterator[Finding]:
    """Researchers submit on login nodes, and workers submit further tasks on the nodes that they train on."""
    allowed = mine.words.get("AllocNodes", "ALL")
    if allowed == "ALL":
        return
    try:
        there = frozenset(hostlist.expand(allowed))
    except InvalidInput:
        there = frozenset()
    if not mine.nodes <= there:
        only = f"partition {mine.name} takes jobs of {allowed or 'no node'} alone (AllocNodes)"
        remedy = f"set AllocNodes=ALL on partition {mine.name}"
        yield Finding(WARNING if there else ERROR, f"{only}, and workers submit from their own nodes", remedy)


def _sizes(facts: SiteFacts, mine: PartitionFacts) -> Iterator[Finding]:
    """Limits that a whole node exceeds: Slurm holds a pilot there with BadConstraints or MaxMemPerLimit."""
    nodes, unlimited = facts.of_partition(mine.name), f"UNLIMITED on partition {mine.name}"
    cpus = _count(mine.words.get("MaxCPUsPerNode", ""))
    if cpus is not None:
        what = f"partition {mine.name} has MaxCPUsPerNode={cpus}"
        yield from _too_large(nodes, _WHOLE["cpu"], cpus, what, f"set MaxCPUsPerNode={unlimited}", ERROR)
    of_socket = _count(mine.words.get("MaxCPUsPerSocket", ""))
    if of_socket is not None and not (nodes and all(n.cpus <= of_socket * max(1, n.sockets) for n in nodes)):
        # 24.11 gives an exclusive job all processors whatever it says.
        what = f"partition {mine.name} has MaxCPUsPerSocket={of_socket}: a pilot takes whole nodes, and may not start"
        yield Finding.warning(what, f"set MaxCPUsPerSocket={unlimited}")
    key, limit, where = _memory_limit(facts, mine)
    if limit is not None:
        whole = _WHOLE["mem"] if key == "MaxMemPerNode" else lambda n: -(-n.memory_mib // max(1, n.cpus))
        most = max((node.memory_mib for node in nodes), default=0) or "RealMemory"
        remedy = (
            f"set MaxMemPerNode={most} on partition {mine.name}, in place of its own limit; the global one does not "
            "count there then"
        )
        yield from _too_large(nodes, whole, limit, f"{where} has {key}={limit}", remedy, WARNING)


def _memory_limit(facts: SiteFacts, mine: PartitionFacts) -> tuple[str, int | None, str]:
    """Which limit of memory counts, its MiB, and who has it: the partition's goes before the global one."""
    for words, where in ((mine.words, f"partition {mine.name}"), (facts.words, "slurm.conf")):
        for key in ("MaxMemPerNode", "MaxMemPerCPU"):
            if limit := _count(words.get(key, "")):
                return key, limit, where
    return "", None, ""


def _too_large(
    nodes: Nodes, whole: Callable[[site_facts.NodeFacts], int], limit: int, what: str, remedy: str, unknown: Level
) -> Iterator[Finding]:
    """The finding on a limit that nodes exceed; `unknown`: its level where no node's size is known."""
    over = sorted(node.name for node in nodes if whole(node) > limit)
    names = ", ".join(over[:_NAMED_NODES])
    more = f" and {len(over) - _NAMED_NODES} more" if over[_NAMED_NODES:] else ""
    if 0 < len(over) < len(nodes):
        yield Finding.warning(
            f"{what}: no pilot starts on {names}{more}, of which it takes the whole",
            f"{remedy}; or name these nodes in pool.exclude",
        )
    elif len(over) == len(nodes):
        yield Finding(ERROR if over else unknown, f"{what}: a pilot, which takes a node whole, never starts", remedy)


def _count(value: str) -> int | None:
    """A number that Slurm prints; None for UNLIMITED and the like."""
    return int(value) if value.isdecimal() else None


# Limits of a QOS or an account: Slurm takes the held tasks, and leaves each pending (QOSMaxCpuPerJobLimit and so on)


def _qos_limits(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    nodes = facts.of_partition(harvest.partition)
    for key, (value, qos) in sorted(limits_of_pilots(facts, harvest).items()):
        yield from judged(key, value, nodes, f"QOS {qos}", f"sacctmgr modify qos {qos}")


def judged(
    key: str, value: str, nodes: tuple[site_facts.NodeFacts, ...], whose: str, modify: str
) -> Iterator[Finding]:
    """What one limit does to pilots on these nodes. `modify`: the command that `set KEY=-1` ends."""
    what, remedy = f"{whose} has {key}={value}", f"{modify} set {key}=-1"
    kind, _, tres = key.partition("=")
    if _shuts(kind, tres, value, nodes):
        yield Finding.error(f"{what}: no pilot starts", remedy)
    elif kind in site_facts.MOST and tres in _WHOLE:
        yield from _too_large(nodes, _WHOLE[tres], _amount(tres, value), what, remedy, WARNING)
    elif value == "0" and "/" in tres:
        yield Finding.warning(f"{what}: no pilot that asks for {tres} starts", remedy)


def _shuts(kind: str, tres: str, value: str, nodes: Nodes) -> bool:
    if kind == "MaxWall":
        return (scalars.duration(value) or 0.0) < _SHORTEST_S
    amount = _amount(tres, value)
    if kind in site_facts.MINUTES and tres in _WHOLE and nodes:
        return all(_WHOLE[tres](node) * _SHORTEST_S / 60 > amount for node in nodes)
    if kind != "MinTRES":
        return value == "0" and "/" not in tres  # gres/gpu=0 shuts those out that ask for one
    if tres == "node":
        return amount > 1
    return tres in _WHOLE and bool(nodes) and all(_WHOLE[tres](node) < amount for node in nodes)


def limits_of_pilots(facts: SiteFacts, harvest: Harvest) -> Mapping[str, tuple[str, str]]:
    """Each limit that counts for pilots: its value, and the QOS that sets it."""
    found: dict[str, tuple[str, str]] = {}
    if facts.enforces("limits"):
        for qos in reversed(facts.qos_of_pilots(harvest.partition, harvest.qos)):
            found |= {key: (value, qos.name) for key, value in qos.limits.items()}
    return found


def longest_pilot_s(facts: SiteFacts, harvest: Harvest) -> float | None:
    """The shorter of the partition's MaxTime and the QOS's MaxWall; None: neither limits pilots."""
    there = facts.partitions.get(harvest.partition)
    max_wall, _ = limits_of_pilots(facts, harvest).get("MaxWall", ("", ""))
    limits = [None if there is None else there.max_time_s, scalars.duration(max_wall) if max_wall else None]
    return min((limit for limit in limits if limit is not None), default=None)


def _amount(tres: str, value: str) -> int:
    return scalars.mebibytes(value) if tres == "mem" else scalars.number(value)
