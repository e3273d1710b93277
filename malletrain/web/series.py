"""Series for plots, cut to as many points as a screen shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.domain.history import TrainingWindow, WorldChange
from malletrain.wire.rows import PoolRow

POOL_NAMES = ("harvested", "idle", "planned", "main", "reserved", "down")


def pool_series(rows: Sequence[PoolRow], begin: float, end: float, points: int) -> dict[str, list[float]]:
    """Node counts at `points` equally spaced times, by name, and the times as `at`; empty without rows.

    A time before the first row has the first row's counts.
    """
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


def size_series(changes: Sequence[WorldChange], began: float, end: float) -> list[tuple[float, int]]:
    """(time, nodes that train together): each change, the begin and the end; a step from one to the next."""
    found = [(began, changes[0].before if changes else 0)]
    found += [(change.at, change.nodes) for change in changes]
    return [*found, (max(end, found[-1][0]), found[-1][1])]
