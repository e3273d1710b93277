"""A table in which workers compare the numbers of their forward passes: a row a worker, of 64-bit integers.

Workers have other numbers of samples where a batch cannot be divided evenly, and what a script computes from its
number n differs by right: `total / n`. So a number that differs between workers of unlike n counts only if it is the
same in none of the forms v, v / n, v * n and v - n, and has changed from step to step while n did not (a square root
of n has not).

Where a worker has read a number from its samples (`loss.item()`), that number may be what differs, and only numbers
that something is multiplied with, divided by or added to are looked at: lengths follow from samples by right.

What is no number (nan) is not compared: it reaches the gradients, whose own check names it. An infinite one is, since
`best = inf` is what many scripts begin with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from malletrain.elastic.guards.digest import digest_of_text
from malletrain.elastic.guards.operations.forward_numbers import ForwardNumbers

#: Places for numbers, and for lines.
SLOTS, LINES = 256, 512

_MAY_DIFFER, _READS, _SHAPES, _SAMPLES, _LINES, _GRAPH, _HEAD = range(7)
_NAME, _VARIES, _WEIGHS, _VALUE, _COLUMNS = 0, 1, 2, 3, 7

#: Operations that weigh with a number.
_WEIGHING = frozenset({"mul", "div", "add", "sub", "rsub", "pow", "torch.tensor", "scalar"})

#: Length of a row.
ROW_LENGTH = _HEAD + SLOTS * _COLUMNS

Row = Sequence[int]


def row_of(numbers: ForwardNumbers) -> list[int]:
    """A worker's row."""
    row = [0] * ROW_LENGTH
    row[_MAY_DIFFER], row[_READS] = numbers.may_differ, numbers.reads
    row[_SHAPES], row[_SAMPLES] = numbers.shapes, numbers.samples
    row[_LINES], row[_GRAPH] = digest_of_text(repr(sorted(numbers.lines))), numbers.graph
    for slot, name in _slots(numbers).items():
        value, n = numbers.numbers[name], numbers.samples
        if math.isnan(value):
            continue
        forms = [digest_of_text(f"{form:.10g}") for form in (value, value / n, value * n, value - n)]
        at = _HEAD + _COLUMNS * slot
        weighs = name.split()[1].rstrip("_") in _WEIGHING
        row[at : at + _COLUMNS] = [digest_of_text(name), name in numbers.varying, weighs, *forms]
    return row


def odd_number(rows: Sequence[Row]) -> int | None:
    """The slot of the first number that differs between workers though their samples do not explain it, or None."""
    if not _are_comparable(rows):
        return None
    pairs, read = list(_unlike_pairs(rows)), have_read(rows)
    weighing = [
        slot for slot in range(SLOTS) if not read or any(row[_HEAD + _COLUMNS * slot + _WEIGHS] for row in rows)
    ]
    return next((slot for slot in weighing if any(_differ(*pair, slot) for pair in pairs)), None)


def have_read(rows: Sequence[Row]) -> bool:
    """Whether a worker has read a number from its samples, which may be what differs."""
    return any(row[_READS] for row in rows)


def computes_otherwise(rows: Sequence[Row]) -> bool:
    """Whether two workers of as many samples run other lines, and so get a loss with another graph."""
    return (
        _are_comparable(rows)
        and not have_read(rows)
        and any(
            one[_SAMPLES] == other[_SAMPLES] and one[_LINES] != other[_LINES] and one[_GRAPH] != other[_GRAPH]
            for one, other in _unlike_pairs(rows)
        )
    )


def number_at(numbers: ForwardNumbers, slot: int) -> tuple[str, float]:
    """Name and value of a worker's number in a slot; "" and nan if it has none there."""
    name = _slots(numbers).get(slot, "")
    return name, numbers.numbers.get(name, math.nan)


def lines_of(numbers: ForwardNumbers) -> list[int]:
    """Which lines a worker runs: 1 at the places of theirs among `LINES`."""
    row = [0] * LINES
    for line in numbers.lines:
        row[digest_of_text(line) % LINES] = 1
    return row


def line_at(numbers: ForwardNumbers, places: Iterable[int]) -> str:
    """The first of a worker's lines at one of these places; "" if it has none there."""
    wanted = set(places)
    found = sorted(line for line in numbers.lines if digest_of_text(line) % LINES in wanted)
    return found[0].partition(" ")[0] if found else ""


def _unlike_pairs(rows: Sequence[Row]) -> Iterable[tuple[Row, Row]]:
    """Pairs of rows that are not the same: of hundreds of workers few differ."""
    return itertools.combinations(dict.fromkeys(tuple(row) for row in rows), 2)


def _are_comparable(rows: Sequence[Row]) -> bool:
    return not any(row[_MAY_DIFFER] for row in rows) and len({row[_SHAPES] for row in rows}) == 1


def _differ(one: Row, other: Row, slot: int) -> bool:
    at = _HEAD + _COLUMNS * slot
    mine, theirs = one[at : at + _COLUMNS], other[at : at + _COLUMNS]
    if not mine[_NAME] or mine[_NAME] != theirs[_NAME] or mine[_VALUE] == theirs[_VALUE]:
        return False
    if one[_SAMPLES] == other[_SAMPLES]:
        return True
    varies = mine[_VARIES] or theirs[_VARIES]
    return bool(varies) and all(a != b for a, b in zip(mine[_VALUE:], theirs[_VALUE:], strict=True))


def _slots(numbers: ForwardNumbers) -> dict[int, str]:
    """Names by slot: the first free one from a name's hash on, so that most keep theirs where a worker has some more.
    Of too many the last are kept, which are nearest to the loss."""
    slots: dict[int, str] = {}
    for name in sorted(list(numbers.numbers)[-SLOTS:]):
        slot = digest_of_text(name) % SLOTS
        while slot in slots:
            slot = (slot + 1) % SLOTS
        slots[slot] = name
    return slots
