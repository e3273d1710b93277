"""Nodes that are not there for nothing: those of a cloud, and those that Slurm powers down when they are idle
(slurm.conf(5), SuspendTime). A pilot would boot them, or keep them from being suspended."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist, scalars
from malletrain.slurm.site.site_facts import ERROR, WARNING, Finding, SiteFacts

#: A comma outside brackets.
_BETWEEN = re.compile(r",(?![^\[]*\])")

_NEVER = ("INFINITE", "UNLIMITED", "NONE", "-1")


def costly_nodes(facts: SiteFacts, partition: str) -> frozenset[str]:
    """The partition's nodes that belong to a cloud or would be powered down if nothing ran on them."""
    mine = facts.partitions.get(partition)
    if mine is None:
        return frozenset()
    cloud = frozenset(node.name for node in facts.nodes if node.cloud)
    return mine.nodes & (cloud | _powered_down_when_idle(facts, mine.nodes))


def check_power(facts: SiteFacts, partition: str, include: Collection[str]) -> Iterator[Finding]:
    """Which nodes of the partition are left out, but for those of the lists `include`, and whether each pilot's end
    powers its node down."""
    mine = facts.partitions.get(partition)
    costly = costly_nodes(facts, partition)
    left_out = costly - {name for part in include for name in hostlist.expand(part)}
    all_out = mine is not None and left_out == mine.nodes
    if mine is not None and _is_on(facts) and mine.words.get("PowerDownOnIdle") == "YES":
        yield Finding.error(
            f"partition {partition} has PowerDownOnIdle=YES: a node that a pilot left is powered down, and the main "
            "job that it left for waits until it has booted",
            f"set PowerDownOnIdle=NO on partition {partition}",
        )
    if left_out:
        yield Finding(
            ERROR if all_out else WARNING,
            f"{len(left_out)} nodes of {partition} are of a cloud or powered down when idle, and not harvested"
            + (": there are no others" if all_out else ""),
            f"take them out of Nodes= of {partition}, since a held task that its owner releases boots them; or name "
            "those that may be harvested in pool.include",
        )
    elif costly:
        yield Finding.ok(f"{len(costly)} nodes are of a cloud or powered down when idle: pool.include names them")


def _is_on(facts: SiteFacts) -> bool:
    return bool(facts.words.get("SuspendProgram") and facts.words.get("ResumeProgram"))


def _powered_down_when_idle(facts: SiteFacts, nodes: frozenset[str]) -> frozenset[str]:
    if not _is_on(facts):
        return frozenset()
    spared = _always_on(facts.words.get("SuspendExcNodes", ""))
    for name in facts.words.get("SuspendExcParts", "").split(","):
        if name in facts.partitions:
            spared |= facts.partitions[name].nodes
    longest = _own_times(facts)
    usual = _suspend_time(facts.words.get("SuspendTime", ""))
    return frozenset(name for name in nodes - spared if longest.get(name, usual) < math.inf)


def _own_times(facts: SiteFacts) -> dict[str, float]:
    """The SuspendTime of nodes whose partitions have one of their own: the longest of them."""
    found: dict[str, float] = {}
    for partition in facts.partitions.values():
        own = partition.words.get("SuspendTime", "")
        if own not in ("", "GLOBAL"):
            for name in partition.nodes:
                found[name] = max(found.get(name, 0.0), _suspend_time(own))
    return found


def _suspend_time(value: str) -> float:
    return math.inf if not value or value.upper() in _NEVER else float(scalars.number(value))


def _always_on(text: str) -> frozenset[str]:
    """The nodes of SuspendExcNodes. Of a list with a count (`n[1-9]:4`), and of all before it, any may be powered
    down."""
    found: set[str] = set()
    for part in _BETWEEN.split(text):
        try:
            found.update(hostlist.expand(part))
        except InvalidInput:
            found.clear()
    return frozenset(found)
