"""What a reader hands on: columns of numbers, and an honest account of what it could not read."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.errors import InvalidInput

#: States of a node in a trace of node events.
BUSY, IDLE, DOWN = 0, 1, 2

#: More distinct node names than any machine has: such a trace is damaged or hostile.
MAX_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Account:
    """How a trace was read: `kind` is `node events`, `SWF`, `sacct` or `sacct JSON`.

    `skipped` counts lines by the reason why they were left out; `first_skipped` names the first such line of each
    reason; `warnings` are sentences for people.
    """

    source: str
    kind: str
    lines: int = 0
    records: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    first_skipped: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Tally:
    """Counts skipped lines by reason while a reader runs."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.warnings: list[str] = []
        self.cluster = ""

    def of_cluster(self, name: str, where: str) -> None:
        """Call it with the cluster that a row names, if any: two clusters have nodes and jobs of one name.
        Raises InvalidInput: a row before was of another cluster."""
        if name != self.cluster and name:
            if self.cluster:
                raise InvalidInput(where, f"holds clusters {self.cluster} and {name}: ask Slurm for one (-M {name})")
            self.cluster = name

    def skip(self, reason: str, line: int) -> None:
        self.count[reason] = self.count.get(reason, 0) + 1
        self.first.setdefault(reason, line)

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def summary(self) -> str:
        """The reasons and their counts, in one line."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.count.items()) or "nothing"

    def account(self, source: str, kind: str, lines: int, records: int) -> Account:
        return Account(source, kind, lines, records, dict(self.count), dict(self.first), tuple(self.warnings))


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """A log of node events, sorted by time: node `node[i]` is in `state[i]` from `time[i]` (Unix seconds) on.

    A node's state before its first event is not known and is taken as busy.
    """

    account: Account
    nodes: tuple[str, ...]
    time: NDArray[np.float64]
    node: NDArray[np.int32]
    state: NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecords:
    """A log of jobs: record i held `count[i]` nodes from `start[i]` to `end[i]` (Unix seconds; inf: still running).

    Where the log names nodes, record i's are `node[first[i]:first[i + 1]]`, numbers into `nodes`; otherwise `nodes`
    is empty and `procs` (processors, 0 where the log counts nodes) says how much was held. `node_count` and
    `procs_per_node` are the log's own words about the machine, None where it has none. `last_seen` is the latest
    moment that the log mentions. `limit`: how long it might have run (seconds; nan: not known).
    """

    account: Account
    submit: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    limit: NDArray[np.float64]
    last_seen: float
    count: NDArray[np.int32]
    procs: NDArray[np.int32]
    nodes: tuple[str, ...] = ()
    first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    node: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    node_count: int | None = None
    procs_per_node: int | None = None

    @property
    def has_node_lists(self) -> bool:
        return bool(self.nodes)


Trace = NodeChanges | JobRecords


def column(values: array[Any], dtype: Any) -> NDArray[Any]:
    """The numbers of `values` as an array of its own."""
    return np.array(values, dtype=dtype) if len(values) else np.empty(0, dtype=dtype)
