"""How far a real harvest stays behind its replay: a factor with its range, from plays or from a daemon's journal.

A replay knows the curves, and its pilots start and leave when it says so; a real daemon measures, waits for Slurm and
yields. The factor is real over replayed training. It is the site's own where its daemon has run.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from malletrain.domain.decision import StartPilot
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import ActionIntent, Event, GenerationSwitched, WorkerWarm
from malletrain.domain.job import ResizeCosts
from malletrain.replay.scoring.journal_score import score_journal

#: Most parts that a journal is cut into; each is at least an hour long.
MAX_PARTS = 14
MIN_PART_S = 3600.0
#: Columns of a table of plays.
COLUMNS = ("play", "predicted", "measured")
#: A ratio beyond these is a slip (a wrong unit, figures exchanged), not a measurement.
RATIO_BOUNDS = (0.01, 10.0)
#: How every SQLite file begins; bytes read of a table of plays.
SQLITE_MAGIC = b"SQLite format 3\x00"
MAX_TABLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RealismFactor:
    """Real over replayed training: `factor`, the least and greatest of the `count` parts that it was taken from
    (equal where there is one), and `source` in words."""

    factor: float
    low: float
    high: float
    count: int
    source: str

    def of(self, replayed: float) -> tuple[float, float, float]:
        """A replayed figure as it would probably come out: (expected, least, greatest)."""
        return replayed * self.factor, replayed * self.low, replayed * self.high

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured. `ratios`: real over predicted training of each play; `shares`: of each part of a journal the
    training as a share of its ideal, and `whole` that of all; exactly one of `ratios` and `shares` is filled."""

    source: str
    ratios: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    whole: float = 0.0

    def factor(self, share_of_ideal: float | None) -> RealismFactor | None:
        """The factor for a replay that reached `share_of_ideal`; None where a journal is to be compared with a replay
        that had nothing to train."""
        if self.ratios:
            mean = math.exp(math.fsum(map(math.log, self.ratios)) / len(self.ratios))
            return RealismFactor(mean, min(self.ratios), max(self.ratios), len(self.ratios), self.source)
        if not share_of_ideal:
            return None
        low, high = min(self.shares), max(self.shares)
        return RealismFactor(
            self.whole / share_of_ideal, low / share_of_ideal, high / share_of_ideal, len(self.shares), self.source
        )


def read_calibration(path: Path) -> Calibration:
    """The calibration in a table of plays, or in a daemon's journal: told apart by content.

    Raises:
        InvalidInput: the file cannot be read, or holds neither.
        StoreError: it is a journal that cannot be read.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(MAX_TABLE_BYTES)
    except OSError as error:
        raise InvalidInput("--calibration", f"{path} cannot be read: {error.strerror}") from error
    if not begin.startswith(SQLITE_MAGIC):
        return of_plays(begin.decode("utf-8", "replace"), path.name)
    from malletrain.store.event_reader import read_events

    return of_journal(read_events(path), path.name)


def of_plays(text: str, where: str) -> Calibration:
    """From CSV with the columns `play,predicted,measured`: what a replay predicted and what was then measured, in any
    unit that is the same within a row.

    Raises:
        InvalidInput: columns are missing, there is no row, or a figure is not a positive number or absurd.
    """
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidInput(where, f"lacks the columns {', '.join(missing)}: its first line is {','.join(COLUMNS)}")
    ratios = []
    for row in rows:
        at = f"{where}:{rows.line_num}"
        try:
            predicted, measured = float(row["predicted"]), float(row["measured"])
        except (TypeError, ValueError):
            raise InvalidInput(at, "predicted and measured must be numbers") from None
        ratio = measured / predicted if predicted > 0 else math.nan
        if not RATIO_BOUNDS[0] <= ratio <= RATIO_BOUNDS[1]:
            raise InvalidInput(at, f"{measured:g} measured of {predicted:g} predicted: both positive, in one unit")
        ratios.append(ratio)
    if not ratios:
        raise InvalidInput(where, "has no play: each row is a play, what was predicted, and what was measured")
    return Calibration(f"{where}: {len(ratios)} plays" if len(ratios) > 1 else f"{where}: one play", tuple(ratios))


def of_journal(events: Iterable[Event], where: str) -> Calibration:
    """From a daemon's journal: training as a share of the best possible with its jobs and idle nodes, in up to
    `MAX_PARTS` parts of equal length.

    Raises:
        InvalidInput: the journal shows no training.
    """
    listed = list(events)
    start, end = (listed[0].at, max(event.at for event in listed)) if listed else (0.0, 0.0)
    parts = max(1, min(MAX_PARTS, int((end - start) / MIN_PART_S)))
    trained, best = [0.0], [0.0]
    for part in range(1, parts + 1):
        score = score_journal(listed, start + (end - start) * part / parts)
        trained.append(score.speedup_node_seconds)
        best.append(score.ideal_speedup_node_seconds)
    if trained[-1] <= 0 or best[-1] <= 0:
        raise InvalidInput(where, "shows no training: a calibration takes a daemon's journal with some hours of it")
    shares = _shares(trained, best)
    cut = f" in {len(shares)} parts" if len(shares) > 1 else ""
    words = f"{where}: {(end - start) / 3600:,.1f} hours of a daemon's journal{cut}"
    return Calibration(words, shares=shares, whole=trained[-1] / best[-1])


def _shares(trained: Sequence[float], best: Sequence[float]) -> tuple[float, ...]:
    """Of each part with something to train in it; parts that trained nothing are downtime, and count in the whole."""
    found = []
    for i in range(1, len(trained)):
        done, possible = trained[i] - trained[i - 1], best[i] - best[i - 1]
        if done > 0 and possible > 0:
            found.append(done / possible)
    return tuple(found) or (trained[-1] / best[-1],)


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Medians, in seconds, and of how many they are: `activations` from the decision to start a pilot until its
    worker is warm, Slurm's part included; `grown`, `shrunk` the stalls of worlds, those after a lost node among
    `shrunk`."""

    costs: ResizeCosts
    activations: int
    grown: int
    shrunk: int


def measured_costs(events: Iterable[Event], otherwise: ResizeCosts) -> MeasuredCosts:
    """Folds a journal; what it does not show is taken from `otherwise`.

    A worker that was warm before its start was decided (clocks differ) counts as nothing; a script in restart mode
    that reports its pause twice counts once, with the later one.
    """
    decided: dict[str, float] = {}
    activations: list[float] = []
    stalls: dict[tuple[int | None, int, bool], float] = {}
    for event in events:
        pilot = event.pilot or ""
        match event.payload:
            case ActionIntent(action=StartPilot()):
                decided[pilot] = event.at
            case WorkerWarm() if pilot in decided:
                activations.append(max(0.0, event.at - decided.pop(pilot)))
            case GenerationSwitched(generation=generation, grew=grew, pause_s=seconds):
                if math.isfinite(seconds) and seconds > 0.0:  # 0: a world that begins
                    stalls[event.job, generation, grew] = seconds
    grown = [seconds for (*_, grew), seconds in stalls.items() if grew]
    shrunk = [seconds for (*_, grew), seconds in stalls.items() if not grew]
    costs = replace(
        otherwise,
        activate_s=median(activations) if activations else otherwise.activate_s,
        grow_s=median(grown) if grown else otherwise.grow_s,
        shrink_s=median(shrunk) if shrunk else otherwise.shrink_s,
    )
    return MeasuredCosts(costs, len(activations), len(grown), len(shrunk))
