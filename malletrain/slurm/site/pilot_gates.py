"""Whether a pilot can start in the harvest partition at all: what slurm.conf(5) lets a partition ask of jobs, and
limits below what a pilot asks for, the whole of a node (`--exclusive --mem=0`)."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Iterator

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist
from malletrain.slurm.site.site_config import Finding, Harvest, Level, NodeFacts, PartitionFacts, SiteFacts

#: Nodes that a finding names.
_NAMED_NODES = 3


def check_gates(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """What keeps pilots from starting in the partition, which is there."""
    mine = facts.partitions[harvest.partition]
    for key, why in (("ReqResv", "every job there needs a reservation"), ("RootOnly", "root alone submits there")):
        if mine.words.get(key) == "YES":
            yield _shut(f"partition {mine.name} has {key}=YES: {why}", f"set {key}=NO on partition {mine.name}")
    yield from _node_counts(mine, harvest.max_nodes)
    yield from _accounts(mine, harvest)
    yield from _groups(mine)
    yield from _submitting_nodes(mine)
    if "RequiresReservation" in getattr((facts.qos or {}).get(harvest.qos), "flags", ()):
        yield _shut(
            f"QOS {harvest.qos} requires a reservation",
            f"sacctmgr modify qos {harvest.qos} set flags-=RequiresReservation",
        )
    yield from _sizes(facts, mine)


def _shut(what: str, remedy: str, level: Level = Level.ERROR) -> Finding:
    return Finding(level, what, remedy)


def _node_counts(mine: PartitionFacts, widest: int) -> Iterator[Finding]:
    least, most = _count(mine.words.get("MinNodes", "")), _count(mine.words.get("MaxNodes", ""))
    if least is not None and least > 1:
        yield _shut(
            f"partition {mine.name} has MinNodes={least}: a pilot of one node never starts",
            f"set MinNodes=0 on partition {mine.name}",
        )
    if most == 0:
        yield _shut(f"partition {mine.name} has MaxNodes=0", f"set MaxNodes=UNLIMITED on partition {mine.name}")
    elif most is not None and most < widest:
        yield _shut(
            f"partition {mine.name} has MaxNodes={most}: wider pilots never start",
            f"set pilot.max_nodes = {most}, or MaxNodes=UNLIMITED on partition {mine.name}",
            Level.WARNING,
        )


def _accounts(mine: PartitionFacts, harvest: Harvest) -> Iterator[Finding]:
    if harvest.account and not mine.admits("Accounts", harvest.account):
        yield _kept_out(mine, f"account {harvest.account}", "Accounts", mine.allow_accounts, "slurm.account")
    if harvest.qos and not mine.admits("Qos", harvest.qos):
        yield _kept_out(mine, f"QOS {harvest.qos}", "Qos", mine.allow_qos, "slurm.qos")


def _kept_out(mine: PartitionFacts, who: str, what: str, allowed: str, key: str) -> Finding:
    if allowed not in ("ALL", ""):
        return _shut(f"{who} is not in Allow{what} of {mine.name}", f"add it, or name one of {allowed} in {key}")
    return _shut(f"{who} is in Deny{what} of {mine.name}", "take it out there")


def _groups(mine: PartitionFacts) -> Iterator[Finding]:
    allowed = mine.words.get("AllowGroups", "ALL")
    if allowed in ("ALL", ""):
        return
    has_members = any(_has_members(name) for name in allowed.split(","))
    yield _shut(
        f"only members of group {allowed} may submit to partition {mine.name} (AllowGroups)"
        + ("" if has_members else ": nobody here"),
        f"set AllowGroups=ALL on partition {mine.name}: AllowAccounts says who may use it",
        Level.WARNING if has_members else Level.ERROR,
    )


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
        yield _shut(
            f"partition {mine.name} takes jobs of {allowed or 'no node'} alone (AllocNodes), and workers submit from "
            "their own nodes",
            f"set AllocNodes=ALL on partition {mine.name}",
            Level.WARNING if there else Level.ERROR,
        )


def _sizes(facts: SiteFacts, mine: PartitionFacts) -> Iterator[Finding]:
    """Limits that a whole node exceeds: Slurm holds a pilot there with BadConstraints or MaxMemPerLimit."""
    nodes = facts.of_partition(mine.name)
    most_memory = max((node.memory_mib for node in nodes), default=0)
    cpus = _count(mine.words.get("MaxCPUsPerNode", ""))
    if cpus is not None:
        yield from too_large(
            nodes, lambda node: node.cpus, cpus, f"partition {mine.name} has MaxCPUsPerNode={cpus}",
            f"set MaxCPUsPerNode=UNLIMITED on partition {mine.name}", Level.ERROR,
        )  # fmt: skip
    of_socket = _count(mine.words.get("MaxCPUsPerSocket", ""))
    if of_socket is not None and not (nodes and all(n.cpus <= of_socket * max(1, n.sockets) for n in nodes)):
        # 24.11 gives an exclusive job all processors whatever it says.
        yield _shut(
            f"partition {mine.name} has MaxCPUsPerSocket={of_socket}: a pilot takes whole nodes, and may not start",
            f"set MaxCPUsPerSocket=UNLIMITED on partition {mine.name}",
            Level.WARNING,
        )
    key, limit, where = _memory_limit(facts, mine)
    if limit is not None:
        per_cpu = key == "MaxMemPerCPU"
        yield from too_large(
            nodes, lambda node: -(-node.memory_mib // (max(1, node.cpus) if per_cpu else 1)), limit,
            f"{where} has {key}={limit}",
            f"set MaxMemPerNode={most_memory or 'RealMemory'} on partition {mine.name}, in place of its own limit; "
            "the global one does not count there then",
            Level.WARNING,
        )  # fmt: skip


def _memory_limit(facts: SiteFacts, mine: PartitionFacts) -> tuple[str, int | None, str]:
    """Which limit of memory counts, its MiB, and who has it: the partition's goes before the global one."""
    for words, where in ((mine.words, f"partition {mine.name}"), (facts.words, "slurm.conf")):
        for key in ("MaxMemPerNode", "MaxMemPerCPU"):
            limit = _count(words.get(key, ""))
            if limit:
                return key, limit, where
    return "", None, ""


def too_large(
    nodes: tuple[NodeFacts, ...],
    whole: Callable[[NodeFacts], int],
    limit: int,
    what: str,
    remedy: str,
    unknown: Level,
) -> Iterator[Finding]:
    """The finding on a limit that nodes exceed; `unknown`: its level where no node's size is known."""
    over = sorted(node.name for node in nodes if whole(node) > limit)
    if nodes and not over:
        return
    if len(over) < len(nodes):
        names = ", ".join(over[:_NAMED_NODES]) + (
            f" and {len(over) - _NAMED_NODES} more" if over[_NAMED_NODES:] else ""
        )
        yield Finding(
            Level.WARNING, f"{what}: no pilot starts on {names}, of which it takes the whole",
            f"{remedy}; or name these nodes in pool.exclude",
        )  # fmt: skip
        return
    yield Finding(
        Level.ERROR if over else unknown, f"{what}: a pilot, which takes a node whole, never starts", remedy
    )


def _count(value: str) -> int | None:
    """A number that Slurm prints; None for UNLIMITED and the like."""
    return int(value) if value.isdecimal() else None
