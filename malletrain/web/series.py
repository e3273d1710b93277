"""What the page draws beside the strip: jobs in short, and series cut to as many points as a screen shows. Pure."""

from collections.abc import Sequence
from typing import Any

from malletrain.domain.history import NodeStay, TrainingWindow, WorldChange
from malletrain.wire.job_columns import JOB_COLUMNS
from malletrain.wire.rows import JobRow, PoolRow

POOL_NAMES = ("harvested", "idle", "planned", "main", "reserved", "powered_down", "down")


def pool_series(rows: Sequence[PoolRow], begin: float, end: float, points: int) -> dict[str, list[float]]:
    """Node counts at `points` equally spaced times, by name, and the times as `at`; empty without rows.

    A time before the first row has the first row's counts."""
    if not rows:
        return {}
    times = [begin + (end - begin) * at / (points - 1) for at in range(points)]
    found: dict[str, list[float]] = {"at": [round(at) for at in times], **{name: [] for name in POOL_NAMES}}
    place = 0
    for at in times:
        while place + 1 < len(rows) and rows[place + 1].at <= at:
            place += 1
        for name in POOL_NAMES:
            found[name].append(getattr(rows[place], name))
    return found


def rate_series(windows: Sequence[TrainingWindow], points: int) -> list[tuple[float, float, int]]:
    """(time, samples/s, nodes) of at most `points` windows: neighbours on as many nodes are merged, by their time."""
    each = max(1, -(-len(windows) // points))
    found = []
    for at in range(0, len(windows), each):
        part = windows[at : at + each]
        seconds = sum(window.seconds for window in part)
        rate = sum(window.rate * window.seconds for window in part) / seconds
        found.append((round(part[-1].at, 1), rate, part[-1].nodes))
    return found


def size_series(
    changes: Sequence[WorldChange], stays: Sequence[NodeStay], began: float, end: float
) -> list[tuple[float, int, int]]:
    """(time, nodes held by pilots, nodes that train together) at each change from `began` to `end`; steps between.

    A world is never larger than what is held: without pilots nothing trains."""
    held: dict[float, int] = {began: 0, end: 0}
    for stay in stays:
        held[max(began, stay.started_at)] = held.get(max(began, stay.started_at), 0) + 1
        if stay.ended_at is not None and stay.ended_at < end:
            held[max(began, stay.ended_at)] = held.get(max(began, stay.ended_at), 0) - 1
    trains = {change.at: change.nodes for change in changes if began <= change.at <= end}
    found, holds, world = [], 0, changes[0].before if changes else 0
    for at in sorted({at for at in (*held, *trains) if at <= end}):
        holds += held.get(at, 0)
        world = min(trains.get(at, world), holds)
        found.append((round(at, 1), holds, world))
    return found


#: What the table of jobs does not show, and would make long.
_LEFT_OUT = frozenset({"pilots", "metrics", "result", "check_text", "check_digest"})


def short_job(row: JobRow) -> dict[str, Any]:
    """A job as a line of a table; `cells`: heading, whether a number, and words of each column that the page does not
    draw in a way of its own."""
    found = {name: getattr(row, name) for name in JobRow.__dataclass_fields__ if name not in _LEFT_OUT}
    if cells := [[each.head, each.number, each.words(row)] for each in JOB_COLUMNS if not each.drawn]:
        found["cells"] = cells
    return found
