"""Every pilot of a replay: one row a node that one held, in as little memory as the many of a year need.

Rows that follow one another and differ in their node alone share what else they say: a job takes and gives many nodes
at once, so there are four to ten rows for each such run.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Nodes = NDArray[np.int32]


#: Additions that are kept before they are put into the columns.
MAX_UNMERGED = 512


class PilotRows(NamedTuple):
    """Some rows: the node, from when until when (Unix seconds), the job's number, and why it ended (`Cause`)."""

    node: Nodes
    start: Floats
    end: Floats
    job: Nodes
    cause: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class PilotTable:
    """`node` of each row; run i is of `count[i]` rows that have `start[i]`, `end[i]`, `job[i]` and `cause[i]`."""

    node: Nodes
    count: Nodes
    start: Floats
    end: Floats
    job: Nodes
    cause: NDArray[np.int8]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.node)

    def rows(self, at: slice | Ints = slice(None)) -> PilotRows:
        """The rows `at`, all by default."""
        return self._rows(at, np.cumsum(self.count, dtype=np.int64))

    def parts(self, at_once: int) -> Iterator[PilotRows]:
        """All rows in order, `at_once` at a time."""
        ends: Ints = np.cumsum(self.count, dtype=np.int64)
        for begin in range(0, len(self.node), at_once):
            yield self._rows(slice(begin, begin + at_once), ends)

    def _rows(self, at: slice | Ints, ends: Ints) -> PilotRows:
        """`ends`: one past the last row of each run."""
        places = np.arange(*at.indices(len(self.node))) if isinstance(at, slice) else at
        run = np.searchsorted(ends, places, side="right")
        return PilotRows(self.node[places], self.start[run], self.end[run], self.job[run], self.cause[run])

    @staticmethod
    def joined(tables: list[PilotTable]) -> PilotTable:
        """The rows of these tables, one after the other. Uses `tables` up."""
        columns = [[getattr(table, each.name) for table in tables] for each in fields(PilotTable)]
        tables.clear()
        return PilotTable(*(np.concatenate(columns.pop(0)) for _ in range(len(columns))))


class PilotRecorder:
    """Collects rows while the engine runs."""

    def __init__(self) -> None:
        self._columns: tuple[array[Any], ...] = tuple(array(kind) for kind in "iiddib")
        # What was added last, not in the columns yet: one pass over many costs a fraction of many passes.
        self._new: list[tuple[Ints, Floats, float, Ints, int]] = []

    def add(self, nodes: Ints, start: Floats, end: float, jobs: Ints, cause: int) -> None:
        """Pilots on `nodes` ended together, at `end`, for one cause. The arrays are kept: leave them as they are."""
        if not len(nodes):
            return
        self._new.append((nodes, start, end, jobs, cause))
        if len(self._new) == MAX_UNMERGED:
            self._merge()

    def _merge(self) -> None:
        if not self._new:
            return
        sizes = np.array([len(nodes) for nodes, *_ in self._new])
        node, start, job = (np.concatenate([each[column] for each in self._new]) for column in (0, 1, 3))
        begins = np.concatenate([[True], (start[1:] != start[:-1]) | (job[1:] != job[:-1])])
        ends: Ints = np.cumsum(sizes)
        begins[ends[:-1]] = True
        first = begins.nonzero()[0]
        of = np.searchsorted(ends, first, side="right")
        values: tuple[NDArray[Any], ...] = (
            node.astype(np.int32), np.diff(first, append=len(node)).astype(np.int32), start[first],
            np.array([end for _, _, end, _, _ in self._new])[of], job[first].astype(np.int32),
            np.array([cause for *_, cause in self._new], np.int8)[of],
        )  # fmt: skip
        for column, part in zip(self._columns, values, strict=True):
            column.frombytes(part.tobytes())
        self._new.clear()

    def table(self) -> PilotTable:
        """What was collected; nothing may be added after."""
        self._merge()
        kinds = (np.int32, np.int32, np.float64, np.float64, np.int32, np.int8)
        whole = (
            np.frombuffer(column, kind) if len(column) else np.empty(0, kind)
            for column, kind in zip(self._columns, kinds, strict=True)
        )  # fmt: skip
        return PilotTable(*whole)
