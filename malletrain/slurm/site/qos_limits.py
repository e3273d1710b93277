"""Limits of the pilots' QOS, or of their partition's, under which no pilot starts (sacctmgr(1)): Slurm takes the held
tasks, and leaves each pending (QOSMaxCpuPerJobLimit and the like)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from malletrain.slurm.formats import scalars
from malletrain.slurm.site.pilot_gates import too_large
from malletrain.slurm.site.site_config import Finding, Harvest, Level, NodeFacts, SiteFacts

#: How many jobs may run, or be there, at a time.
_COUNTS = ("GrpJobs", "GrpSubmit", "MaxJobsPU", "MaxSubmitJobsPU", "MaxJobsPA", "MaxSubmitJobsPA")
#: How much jobs may have at most: of all, a job's, a user's, an account's, on one node.
_MOST = ("GrpTRES", "MaxTRES", "MaxTRESPU", "MaxTRESPA", "MaxTRESPerNode")
_LEAST = "MinTRES"
#: How much of it times a job's limit in minutes: a job's, and of all that run.
_MINUTES = ("MaxTRESMins", "GrpTRESRunMins")
#: What is read, in this order.
LIMITS = (*_COUNTS, "MaxWall", *_MOST, _LEAST, *_MINUTES)

#: What a pilot takes of a node.
_WHOLE: Mapping[str, Callable[[NodeFacts], int]] = {
    "cpu": lambda node: node.cpus, "mem": lambda node: node.memory_mib,
}  # fmt: skip

#: A pilot trains in no less (seconds).
_SHORTEST_S = 120.0


def parse(fields: Sequence[str], keys: Sequence[str] = LIMITS) -> Mapping[str, str]:
    """The limits that are set, of the fields of these keys that sacctmgr printed: `MaxWall`, and `MaxTRES=node` for
    what is printed as `node=4,cpu=64`."""
    found = {}
    for key, printed in zip(keys, fields, strict=False):
        for part in filter(None, printed.split(",")):
            tres, equals, value = part.rpartition("=")
            found[f"{key}={tres}" if equals else key] = value
    return found


def check_qos_limits(facts: SiteFacts, harvest: Harvest) -> Iterator[Finding]:
    """The limits under which a pilot, which takes a node whole, does not start."""
    nodes = facts.of_partition(harvest.partition)
    for key, (value, qos) in sorted(limits_of_pilots(facts, harvest).items()):
        yield from judged(key, value, nodes, f"QOS {qos}", f"sacctmgr modify qos {qos}")


def judged(key: str, value: str, nodes: tuple[NodeFacts, ...], whose: str, modify: str) -> Iterator[Finding]:
    """What one limit does to pilots on these nodes. `modify`: the command that `set KEY=-1` ends."""
    what, remedy = f"{whose} has {key}={value}", f"{modify} set {key}=-1"
    kind, _, tres = key.partition("=")
    if _shuts(kind, tres, value, nodes):
        yield Finding(Level.ERROR, f"{what}: no pilot starts", remedy)
    elif kind in _MOST and tres in _WHOLE:
        yield from too_large(nodes, _WHOLE[tres], _amount(tres, value), what, remedy, Level.WARNING)
    elif value == "0" and "/" in tres:
        yield Finding(Level.WARNING, f"{what}: no pilot that asks for {tres} starts", remedy)


def _shuts(kind: str, tres: str, value: str, nodes: Sequence[NodeFacts]) -> bool:
    if kind == "MaxWall":
        return (scalars.duration(value) or 0.0) < _SHORTEST_S
    amount = _amount(tres, value)
    if kind in _MINUTES and tres in _WHOLE and nodes:
        return all(_WHOLE[tres](node) * _SHORTEST_S / 60 > amount for node in nodes)
    if kind != _LEAST:
        return value == "0" and "/" not in tres  # gres/gpu=0 shuts those out that ask for one
    if tres == "node":
        return amount > 1
    return tres in _WHOLE and bool(nodes) and all(_WHOLE[tres](node) < amount for node in nodes)


def are_enforced(facts: SiteFacts) -> bool:
    """Whether Slurm keeps to any limit of a QOS or an association (slurm.conf(5), AccountingStorageEnforce)."""
    return "limits" in facts.words.get("AccountingStorageEnforce", "").split(",")


def limits_of_pilots(facts: SiteFacts, harvest: Harvest) -> Mapping[str, tuple[str, str]]:
    """Each limit that counts for pilots: its value, and the QOS that sets it."""
    found: dict[str, tuple[str, str]] = {}
    if not are_enforced(facts):
        return found
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
