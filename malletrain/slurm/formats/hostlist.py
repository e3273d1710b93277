"""Slurm's node lists, `n[001-003,7]`, opened to the names that `scontrol show hostnames` gives, within bounds, and
folded again. Own code because no library opens `n[01-120]`, which Slurm writes for n01 to n99, n100 to n120."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import product

from malletrain.domain.errors import InvalidInput

#: The largest machines have some 10,000 to 100,000 nodes; a list beyond this is a fault or an attack.
MAX_NODES = 200_000
#: A host name is no longer (RFC 1035).
MAX_NAME_CHARS = 253

#: What Slurm prints where there is no list.
EMPTY = frozenset({"", "(null)", "N/A", "n/a", "None", "None assigned", "null", "NONE", "Unknown"})

_NAME = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_LIST = re.compile(r"[A-Za-z0-9_.\-\[\],]+\Z")
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
# A name that ends in a number, of digits that Slurm's 64 bits hold.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})\Z")
# Slurm reads `1-` as 1.
_RANGE = re.compile(r"([0-9]{1,253})(?:-([0-9]{1,253})?)?\Z")


@lru_cache(maxsize=16384)
def expand(text: str, where: str = "node list") -> tuple[str, ...]:
    """What `opened` gives, kept: a snapshot's lists come again at every tick. Raises `InvalidInput`: not a node list,
    or one of more than `MAX_NODES` names."""
    return opened(text, where)


def opened(text: str, where: str = "node list") -> tuple[str, ...]:
    """The names in `text` in the order that they are written in, each once. Raises `InvalidInput`: not a node list,
    or one of more than `MAX_NODES` names."""
    text = text.strip()
    if text in EMPTY:
        return ()
    if _NAME.match(text) and len(text) <= MAX_NAME_CHARS:
        return (text,)
    if not _LIST.match(text):
        raise InvalidInput(where, f"{_short(text)} is not a node list such as n[001-128]")
    if size(text, where) > MAX_NODES:
        raise InvalidInput(where, f"{_short(text)} names more than {MAX_NODES} nodes")
    return tuple(dict.fromkeys(name for item in _ITEM.findall(text) for name in _names(item)))


def node_names(lists: Iterable[str], where: str) -> frozenset[str]:
    """The names in `lists`, as people write them: blanks part names, too. Raises `InvalidInput`: one is not a node
    list, is one of more than `MAX_NODES` names, or names no node."""
    found = [opened(",".join(text.split()), where) for text in lists]
    if not all(found):
        raise InvalidInput(where, "names no node; write n[001-128], or leave it out")
    return frozenset(name for names in found for name in names)


def folded(names: Iterable[str]) -> str:
    """`login,n[001-128,130]`: these names, sorted, as Slurm's commands and slurm.conf take them.

    Only the last digits of a name are folded: Slurm takes nothing behind a bracket.
    """
    numbers: dict[str, dict[int, set[int]]] = {}  # of names by what stands before and the width
    plain = []
    for name in set(names):
        match = _NUMBERED.match(name)
        if match is None:
            plain.append(name)
        else:
            numbers.setdefault(match[1], {}).setdefault(len(match[2]), set()).add(int(match[2]))
    return ",".join(sorted([*plain, *(_folded(before, those) for before, those in numbers.items())]))


def _folded(before: str, numbers: Mapping[int, Set[int]]) -> str:
    found = [run for width, those in sorted(numbers.items()) for run in runs(those, width)]
    alone = len(found) == 1 and "-" not in found[0]
    return before + (found[0] if alone else f"[{','.join(found)}]")


def runs(numbers: Set[int], width: int = 1) -> Iterator[str]:
    """Consecutive numbers as `001-128`: of one width, so that nobody's rule for padding matters."""
    for first in sorted(number for number in numbers if number - 1 not in numbers):
        last = first
        while last + 1 in numbers:
            last += 1
        yield f"{first:0{width}}-{last:0{width}}" if last > first else f"{first:0{width}}"


def size(text: str, where: str = "node list") -> int:
    """How many names `text` opens to, those that it names twice counted twice, without opening it. Raises
    `InvalidInput`: the brackets or ranges are malformed, or a name would be longer than `MAX_NAME_CHARS`."""
    if _ITEM.sub("", text).strip(","):
        raise InvalidInput(where, f"{_short(text)} has unbalanced brackets")
    return sum(_size(item, text, where) for item in _ITEM.findall(text))


def _size(item: str, text: str, where: str) -> int:
    count, chars = 1, len(_BRACKET.sub("", item))
    for bracket in _BRACKET.findall(item):
        ranges = [_range(part, text, where) for part in bracket.split(",")]
        count *= sum(high - low + 1 for low, high, _ in ranges)
        chars += max(max(width, len(str(high))) for _, high, width in ranges)
    if chars > MAX_NAME_CHARS:
        raise InvalidInput(where, f"{_short(text)} names a node by a name longer than {MAX_NAME_CHARS} characters")
    return count


def _range(part: str, text: str = "", where: str = "") -> tuple[int, int, int]:
    """First and last number of a range, and the width that its numbers are padded to."""
    match = _RANGE.match(part)
    if match is None:
        raise InvalidInput(where, f"{_short(text)} holds a malformed range {_short(part)}")
    low, high = int(match[1]), int(match[2] or match[1])
    if high < low:
        raise InvalidInput(where, f"{_short(text)} holds a range that runs backwards")
    return low, high, len(match[1])


def _names(item: str) -> Iterator[str]:
    """The names of one item, `rack[1-2]n[01-12]`, whose size has been looked at."""
    first, *rest = _BRACKET.split(item)  # plain text and the insides of brackets in turn
    if not rest:
        return iter((first,))
    numbered = [list(_numbers(piece)) for piece in rest[::2]]
    tails = rest[1::2]
    # Slurm goes through the last bracket first, then through the others from the left.
    return (
        first + "".join(map("".join, zip((*reversed(others), last), tails, strict=True)))
        for *others, last in product(*reversed(numbered[:-1]), numbered[-1])
    )


def _numbers(bracket: str) -> Iterator[str]:
    for low, high, width in map(_range, bracket.split(",")):
        yield from (str(number).zfill(width) for number in range(low, high + 1))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
