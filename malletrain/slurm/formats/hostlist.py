"""Slurm's node lists, `n[001-003,7]`, opened and folded by ClusterShell, with a guard on their size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from malletrain.domain.errors import InvalidInput

#: The largest machines have some 10,000 to 100,000 nodes; a list beyond this is a fault or an attack.
MAX_NODES = 200_000

#: What Slurm prints where there is no list.
EMPTY = frozenset({"", "(null)", "N/A", "n/a", "None", "None assigned", "null", "NONE", "Unknown"})

# ClusterShell gives @ ! & ^ : / a meaning of its own, which Slurm's lists never have.
_PLAIN = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_LIST = re.compile(r"[A-Za-z0-9_.\-\[\],]+\Z")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z")


@lru_cache(maxsize=16384)
def expand(text: str, where: str = "node list") -> tuple[str, ...]:
    """What `opened` gives, kept: a snapshot's lists come again at every tick.

    Raises:
        InvalidInput: not a node list, or one of more than `MAX_NODES` names.
    """
    return opened(text, where)


def opened(text: str, where: str = "node list") -> tuple[str, ...]:
    """The names in `text`, in the order of ClusterShell (by prefix, then number).

    Raises:
        InvalidInput: not a node list, or one of more than `MAX_NODES` names.
    """
    text = text.strip()
    if text in EMPTY:
        return ()
    if _PLAIN.match(text):
        return (text,)
    if not _LIST.match(text):
        raise InvalidInput(where, f"{_short(text)} is not a node list")
    if size(text, where) > MAX_NODES:
        raise InvalidInput(where, f"{_short(text)} names more than {MAX_NODES} nodes")
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise InvalidInput(where, f"{_short(text)} is not a node list ({error})") from error


def size(text: str, where: str = "node list") -> int:
    """How many names `text` would open to at most, without opening it.

    Raises:
        InvalidInput: the brackets or ranges are malformed.
    """
    total = 0
    for item in _items(text, where):
        product = 1
        for bracket in _BRACKET.findall(item):
            count = 0
            for part in bracket.split(","):
                match = _RANGE.match(part)
                if match is None:
                    raise InvalidInput(where, f"{_short(text)} holds a malformed range {_short(part)}")
                low, high = int(match[1]), int(match[2] or match[1])
                if high < low:
                    raise InvalidInput(where, f"{_short(text)} holds a range that runs backwards")
                count += high - low + 1
            product *= count
        total += product
    return total


def fold(names: Iterable[str]) -> str:
    """One node list of all names: the shortest form that Slurm's commands read."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def _items(text: str, where: str) -> list[str]:
    """Split at the commas outside brackets."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
        if depth not in (0, 1):
            raise InvalidInput(where, f"{_short(text)} has unbalanced brackets")
    if depth:
        raise InvalidInput(where, f"{_short(text)} has unbalanced brackets")
    items.append(text[start:])
    return items


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
