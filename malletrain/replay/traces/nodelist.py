"""Slurm's node lists to names, within bounds."""

from __future__ import annotations

import re
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

#: No job runs on more nodes; `n[1-99999999]` is damage or an attack on memory.
MAX_NODES_IN_LIST = 200_000

#: What sacct(1) prints where a job has no nodes.
NO_NODES = frozenset({"", "none assigned", "none", "(null)", "unknown", "n/a"})

_PLAIN = re.compile(r"[A-Za-z0-9_.\-]{1,253}")
#: ClusterShell's own operators (@ & ! ^) and wildcards stay out: they never stand in a node list.
_LIST = re.compile(r"[A-Za-z0-9_.\-\[\],]+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")


@lru_cache(maxsize=65_536)
def expand(text: str) -> tuple[str, ...] | None:
    """The names in `text`, in Slurm's order; () where it says that there are none; None where it is no node list."""
    text = text.strip()
    if text.lower() in NO_NODES:
        return ()
    if _PLAIN.fullmatch(text):
        return (text,)
    if not _LIST.fullmatch(text) or not _is_bounded(text):
        return None
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return None


def _is_bounded(text: str) -> bool:
    """Whether the list stands for at most `MAX_NODES_IN_LIST` names: looked at before anything is expanded."""
    total = 1
    widest = 0
    for part in _split(text):
        total = 1
        for bracket in _BRACKET.findall(part):
            size = 0
            for piece in bracket.split(","):
                low, dash, high = piece.partition("-")
                if not (low.isascii() and low.isdigit() and len(low) <= 12):
                    return False
                if dash and not (high.isascii() and high.isdigit() and len(high) <= 12 and int(high) >= int(low)):
                    return False
                size += int(high) - int(low) + 1 if dash else 1
            total *= size
        widest += total
        if widest > MAX_NODES_IN_LIST:
            return False
    return True


def _split(text: str) -> list[str]:
    """Splits at the commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    parts.append(text[begin:])
    return parts
