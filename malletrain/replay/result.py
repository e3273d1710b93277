"""What a replay found: totals, every pilot, and the columns behind every plot, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from malletrain.sizing.values import Floats, Ints

#: A year has millions of moments, and tens of millions of pilots.
Counts = NDArray[np.int32]
Table = TypeVar("Table", "PilotTable", "Columns")

#: What idle node-time went to, in the order in which it is taken off; those of nodes without a pilot first.
WATERFALL = {
    "reserve": "kept idle (pool.keep_idle)",
    "cap": "beyond the cap of pilots (pool.max_pilots)",
    "new_holes": "new holes, until the daemon's next look",
    "between_pilots": "nodes that a pilot left, until the next look",
    "starts_put_off": "beyond the starts that one look may make",
    "no_job": "no job is sized to take them",
    "lost_activation": "activation of pilots that ended before they trained",
    "activation": "activation of pilots that trained",
    "stalls": "stalls while jobs change size",
    "productive": "training",
}
UNHELD = tuple(WATERFALL)[:6]


class Cause(IntEnum):
    """Why a pilot ended."""

    WINDOW = 0  #: the replay's window closed
    SHRINK = 1  #: its job gave the node up
    PREEMPTED = 2  #: the main queue took the node, or it went down
    JOB_OVER = 3
    LIMIT = 4  #: its time limit
    TASK = 5  #: the main queue took another node of the same Slurm task


class Totals:
    """Sums over the window. Node-seconds but for the counts; `speedup` and `ideal` are integrals of
    sum_j O_j(n_j)/O_j(1). occupied = productive + stalled + activating. `main_starts`: moments at which the main
    queue took idle nodes; `main_starts_on_pilots`: those at which some of them held a pilot. `beyond_cap`: idle nodes
    for which the daemon's cap allows no pilot; `reserve`: those that it keeps idle; `unheld`: all without a
    pilot, by reason. `lost_activation`: of `activating`, that of pilots which ended before they trained."""

    def __init__(self, jobs: int) -> None:
        self.idle = self.occupied = self.productive = self.stalled = self.activating = 0.0
        self.speedup = self.ideal = 0.0
        self.beyond_cap = self.reserve = 0.0
        self.rescales = self.activations = self.preemptions = self.completed = 0
        self.main_starts = self.main_starts_on_pilots = 0
        self.lost_activation = 0.0
        self.unheld = dict.fromkeys(UNHELD, 0.0)
        self.by_job: Floats = np.zeros(jobs)

    def add(self, other: Totals, times: float = 1) -> None:
        """Take in those of another part of the window, `times` times."""
        for name, value in vars(other).items():
            if name != "unheld":
                setattr(self, name, getattr(self, name) + times * value)
        for reason, seconds in other.unheld.items():
            self.unheld[reason] += times * seconds

    def add_unheld(self, seconds: float, nodes: int, **counts: int) -> None:
        """`nodes` idle nodes had no pilot for so long; `counts`: how many of them each reason says that it holds.
        A node for which several do counts to the first of them; one for which none does to `no_job`."""
        for name in UNHELD:
            part = nodes if name == "no_job" else min(nodes, counts.get(name, 0))
            self.unheld[name] += part * seconds
            nodes -= part

    def waterfall(self) -> dict[str, float]:
        """Node-seconds of each part of `WATERFALL`; together they are the idle node-seconds."""
        return self.unheld | {
            "lost_activation": self.lost_activation,
            "activation": self.activating - self.lost_activation,
            "stalls": self.stalled,
            "productive": self.productive,
        }


class PilotRows(NamedTuple):
    """Some pilots, one row a node that one held: the node, from when until when (Unix seconds), the job's number, and
    why it ended (`Cause`)."""

    node: Counts
    start: Floats
    end: Floats
    job: Counts
    cause: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class PilotTable:
    """`node` of each row; run i is of `count[i]` rows that have `start[i]`, `end[i]`, `job[i]` and `cause[i]`: a job
    takes and gives many nodes at once, so there are four to ten rows for each run."""

    node: Counts
    count: Counts
    start: Floats
    end: Floats
    job: Counts
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


class PilotRecorder:
    """Collects pilots while the engine runs."""

    def __init__(self) -> None:
        self._columns: tuple[array[Any], ...] = tuple(array(kind) for kind in "iiddib")
        self._new: list[tuple[Ints, Floats, float, Ints, int]] = []

    def add(self, nodes: Ints, start: Floats, end: float, jobs: Ints, cause: int) -> None:
        """Pilots on `nodes` ended together, at `end`, for one cause. The arrays are kept: leave them as they are."""
        if not len(nodes):
            return
        self._new.append((nodes, start, end, jobs, cause))
        if len(self._new) == 512:  # one pass over many costs a fraction of many
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
            node.astype(np.int32),
            np.diff(first, append=len(node)).astype(np.int32),
            start[first],
            np.array([end for _, _, end, _, _ in self._new])[of],
            job[first].astype(np.int32),
            np.array([cause for *_, cause in self._new], np.int8)[of],
        )
        for column, part in zip(self._columns, values, strict=True):
            column.frombytes(part.tobytes())
        self._new.clear()

    def table(self) -> PilotTable:
        """What was collected; nothing may be added after."""
        self._merge()
        return PilotTable(*map(_whole, self._columns))


def _whole(values: array[Any]) -> NDArray[Any]:
    """The numbers, without a second copy of them."""
    return np.frombuffer(values, values.typecode) if len(values) else np.empty(0, values.typecode)


@dataclass(frozen=True, slots=True)
class Columns:
    """`time`, `idle` (nodes that are idle or harvested), `held` (by pilots), `speed` (sum of speed-ups) and `jobs`
    (that are there and not finished) after each moment; `trained` and `best`: the integrals `Totals.speedup` and
    `Totals.ideal` up to that moment;
    `pilots`: one row a pilot; `solve_s`: seconds of each sizing."""

    time: Floats
    idle: Counts
    held: Counts
    speed: Floats
    jobs: Counts
    trained: Floats
    best: Floats
    pilots: PilotTable
    solve_s: Floats


@dataclass
class Log:
    """Collects columns while the engine runs."""

    solve_s: array[float] = field(default_factory=lambda: array("d"))
    pilots: PilotRecorder = field(default_factory=PilotRecorder)
    #: The first seven of `Columns`.
    _columns: tuple[array[Any], ...] = field(default_factory=lambda: tuple(array(kind) for kind in "diididd"))

    def sample(self, now: float, idle: int, held: int, speed: float, jobs: int, trained: float, best: float) -> None:
        """What there is from `now` on. Of several at one moment the last stands."""
        times = self._columns[0]
        if times and times[-1] == now:
            for column in self._columns:
                column.pop()
        for column, value in zip(self._columns, (now, idle, held, speed, jobs, trained, best), strict=True):
            column.append(value)

    def columns(self) -> Columns:
        time, idle, held, speed, jobs, trained, best = map(_whole, self._columns)
        return Columns(time, idle, held, speed, jobs, trained, best, self.pilots.table(), _whole(self.solve_s))


@dataclass(frozen=True, slots=True)
class Result:
    """One policy's replay. By job: `samples` trained, `submitted`, `first_start` (of a pilot), `finished` (Unix
    seconds; nan: not so far)."""

    totals: Totals
    log: Columns
    samples: Floats
    submitted: Floats
    finished: Floats
    first_start: Floats
    wall_s: float


def joined(parts: list[Result]) -> Result:
    """The results of parts of one window that follow one another, as one. Uses `parts` up: otherwise the columns of a
    year are there twice."""
    if len(parts) == 1:
        return parts[0]
    totals, logs = Totals(len(parts[0].samples)), []
    for each in parts:
        log = each.log
        logs.append(replace(log, trained=log.trained + totals.speedup, best=log.best + totals.ideal))
        totals.add(each.totals)
    samples = np.sum([each.samples for each in parts], axis=0)
    first_start = np.fmin.reduce([each.first_start for each in parts])
    submitted, finished, wall_s = parts[0].submitted, parts[0].finished, sum(each.wall_s for each in parts)
    parts.clear()
    return Result(totals, _joined_tables(logs), samples, submitted, finished, first_start, wall_s)


def _joined_tables(tables: list[Table]) -> Table:
    """The rows of these, one after the other. Uses them up."""
    kind = type(tables[0])
    pieces = [[getattr(table, each.name) for table in tables] for each in fields(kind)]
    tables.clear()
    return kind(*map(_joined_columns, (pieces.pop(0) for _ in range(len(pieces)))))


def _joined_columns(parts: list[Any]) -> Any:
    return _joined_tables(parts) if isinstance(parts[0], PilotTable) else np.concatenate(parts)


def integral(time: Floats, value: NDArray[Any], end: float, at: Floats) -> Floats:
    """The integral up to each moment of `at`, of any shape, of what is `value[i]` from `time[i]` on, up to `end`."""
    if not len(time):
        return np.zeros(at.shape)
    moments = np.append(time, max(end, float(time[-1])))
    total = np.concatenate([[0.0], np.cumsum(value * np.diff(moments))])
    found: Floats = np.interp(at, moments, total)
    return found
