"""Changes to the text of a slurm.conf(5) that is in use. Pure: no file, no process."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scripts.lab.errors import UsageError

_GLOBAL = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.*)\Z")


@dataclass(frozen=True)
class Change:
    """What another configuration has: read by `changed`.

    `settings` replaces or adds global lines by key; "KEY+" appends to a comma-separated value; None removes the key.
    `partitions` and `nodes` replace or add attributes of the lines of that name. `lines` are appended. `files` are
    companions (topology.conf, job_submit.lua, ...): name -> text.
    """

    settings: Mapping[str, str | None] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def changed(text: str, change: Change) -> str:
    """`text` of a slurm.conf with `change` made to it. UsageError where it names a partition or node that is not
    there."""
    waiting = {key.removesuffix("+").lower(): (key, value) for key, value in change.settings.items()}
    missing = {("PartitionName", name) for name in change.partitions} | {("NodeName", name) for name in change.nodes}
    lines: list[str] = []
    for line in text.splitlines():
        head, name = line.partition(" ")[0].partition("=")[::2]
        if (head, name) in missing:
            wanted = change.partitions if head == "PartitionName" else change.nodes
            missing.discard((head, name))
            lines.append(_with_attributes(line, wanted[name]))
            continue
        found = _GLOBAL.match(line)
        if found is None or found[1].lower() not in waiting:
            lines.append(line)
            continue
        key, value = waiting.pop(found[1].lower())
        if value is not None:
            appended = f"{found[2]},{value}" if key.endswith("+") and found[2] else value
            lines.append(f"{found[1]}={appended}")
    if missing:
        kind, name = min(missing)
        raise UsageError(f"{kind}={name}: no such line in slurm.conf")
    lines += [f"{key.removesuffix('+')}={value}" for key, value in waiting.values() if value is not None]
    return "\n".join([*lines, *change.lines]) + "\n"


def _with_attributes(line: str, wanted: Mapping[str, str]) -> str:
    left = {key.lower(): f"{key}={value}" for key, value in wanted.items()}
    words = [left.pop(word.partition("=")[0].lower(), word) for word in line.split()]
    return " ".join([*words, *left.values()])
