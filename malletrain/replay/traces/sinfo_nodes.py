"""The machine's nodes as `sinfo` has them: a job log names only those that ran a job."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.source import Lines, opened
from malletrain.replay.traces.trace import MAX_NODES, Tally
from malletrain.replay.traces.words import expand

_GPU = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?[:(,\s]?", re.IGNORECASE)


@dataclass
class MachineNode:
    """One node: the partitions that it is in, and its GRES as Slurm writes them."""

    partitions: set[str] = field(default_factory=set)
    gres: str = ""


def read_machine(path: Path) -> dict[str, MachineNode]:
    """The nodes in the output of `sinfo --Node --noheader --format='%N|%P|%G'`, one line for each node and partition;
    lines with a name or a node list alone do, too.

    Raises:
        InvalidInput: it cannot be read, or names no node.
    """
    found: dict[str, MachineNode] = {}
    with opened(path) as stream:
        lines = Lines(stream, str(path), Tally())
        for line in lines:
            names, _, rest = line.strip().partition("|")
            partition, _, gres = rest.partition("|")
            for name in expand(names.strip()) or ():
                node = found.setdefault(name, MachineNode())
                if partition:
                    node.partitions.add(partition.strip().rstrip("*"))
                node.gres = gres.strip() if gres.strip() not in ("", "(null)") else node.gres
                if len(found) > MAX_NODES:
                    raise InvalidInput(f"{path}:{lines.number}", f"more than {MAX_NODES:,} distinct nodes")
    if not found:
        raise InvalidInput(str(path), "names no node; `malletrain replay --how` prints the sinfo command")
    return found


def selected(nodes: dict[str, MachineNode], partitions: Collection[str], gpu: str | None) -> frozenset[str]:
    """Of the machine's nodes those in one of `partitions` (any, where empty), and with GPUs of the type `gpu` (any
    type where that is `any`; None: with or without).

    Raises:
        InvalidInput: there is none.
    """
    known = {name for node in nodes.values() for name in node.partitions}
    for name in partitions:
        if name not in known:
            raise InvalidInput(
                "replay.partition", f"no node is in {name!r}; there are: {', '.join(sorted(known)) or 'none'}"
            )
    found = frozenset(
        name
        for name, node in nodes.items()
        if (not partitions or node.partitions & set(partitions)) and (gpu is None or _has_gpu(node.gres, gpu))
    )
    if not found:
        raise InvalidInput("replay.gpu", f"no node has GPUs of type {gpu!r}")
    return found


def _has_gpu(gres: str, wanted: str) -> bool:
    types = [match[1] or "" for match in _GPU.finditer(gres)]
    return bool(types) if wanted == "any" else wanted.lower() in (each.lower() for each in types)
