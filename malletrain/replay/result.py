"""What a replay found: totals, and the columns behind every plot."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from malletrain.replay.pilots.pilot_table import PilotRecorder, PilotTable
from malletrain.replay.scoring.waterfall import UnheldTime

Floats = NDArray[np.float64]
#: A year has millions of moments.
Counts = NDArray[np.int32]


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
        self.unheld = UnheldTime()
        self.by_job: Floats = np.zeros(jobs)

    def add(self, other: Totals, times: float = 1) -> None:
        """Take in those of another part of the window, `times` times."""
        for name, value in vars(other).items():
            if name != "unheld":
                setattr(self, name, getattr(self, name) + times * value)
        for reason, seconds in other.unheld.node_s.items():
            self.unheld.node_s[reason] += times * seconds


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
    _time: array[float] = field(default_factory=lambda: array("d"))
    _idle: array[int] = field(default_factory=lambda: array("i"))
    _held: array[int] = field(default_factory=lambda: array("i"))
    _speed: array[float] = field(default_factory=lambda: array("d"))
    _jobs: array[int] = field(default_factory=lambda: array("i"))
    _trained: array[float] = field(default_factory=lambda: array("d"))
    _best: array[float] = field(default_factory=lambda: array("d"))
    pilots: PilotRecorder = field(default_factory=PilotRecorder)

    def sample(self, now: float, idle: int, held: int, speed: float, jobs: int, trained: float, best: float) -> None:
        if self._time and self._time[-1] == now:
            self._idle[-1], self._held[-1], self._speed[-1], self._jobs[-1] = idle, held, speed, jobs
            return
        self._time.append(now)
        self._idle.append(idle)
        self._held.append(held)
        self._speed.append(speed)
        self._jobs.append(jobs)
        self._trained.append(trained)
        self._best.append(best)

    def columns(self) -> Columns:
        def whole(values: array[Any], kind: type[np.generic]) -> NDArray[Any]:
            return np.frombuffer(values, kind) if len(values) else np.empty(0, kind)  # no second copy

        return Columns(
            whole(self._time, np.float64), whole(self._idle, np.int32), whole(self._held, np.int32),
            whole(self._speed, np.float64), whole(self._jobs, np.int32),
            whole(self._trained, np.float64), whole(self._best, np.float64), self.pilots.table(),
            whole(self.solve_s, np.float64),
        )  # fmt: skip


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
    totals, before, logs = Totals(len(parts[0].samples)), Totals(0), []
    for each in parts:
        totals.add(each.totals)
        log = each.log
        logs.append(replace(log, trained=log.trained + before.speedup, best=log.best + before.ideal))
        before.speedup += each.totals.speedup
        before.ideal += each.totals.ideal
    samples = np.sum([each.samples for each in parts], axis=0)
    first_start = np.fmin.reduce([each.first_start for each in parts])
    submitted, finished, wall_s = parts[0].submitted, parts[0].finished, sum(each.wall_s for each in parts)
    parts.clear()
    return Result(totals, _joined_columns(logs), samples, submitted, finished, first_start, wall_s)


def _joined_columns(logs: list[Columns]) -> Columns:
    """The rows of these, one after the other. Uses them up."""
    pieces: dict[str, list[Any]] = {each.name: [getattr(log, each.name) for log in logs] for each in fields(Columns)}
    logs.clear()
    whole: dict[str, Any] = {"pilots": PilotTable.joined(pieces.pop("pilots"))}
    for name in list(pieces):
        whole[name] = np.concatenate(pieces.pop(name))
    return Columns(**whole)


def integral(time: Floats, value: NDArray[Any], end: float, at: Floats) -> Floats:
    """The integral up to each moment of `at`, of any shape, of what is `value[i]` from `time[i]` on, up to `end`."""
    if not len(time):
        return np.zeros(at.shape)
    moments = np.append(time, max(end, float(time[-1])))
    total = np.concatenate([[0.0], np.cumsum(value * np.diff(moments))])
    found: Floats = np.interp(at, moments, total)
    return found
