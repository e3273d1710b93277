"""Where the idle node-time of a live machine went, by the daemon's journal: the parts of a replay's waterfall."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from malletrain.domain.event import (
    Event,
    GenerationSwitched,
    HolesEnded,
    HolesOpened,
    PilotEnded,
    PilotHeld,
    PilotStarted,
    WorkerLeft,
    WorkerLost,
    WorkerWarm,
)
from malletrain.replay.scoring.waterfall import UnheldTime, Waterfall

#: From and to, in Unix seconds.
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PilotSpan:
    """A pilot on its node from Slurm's start of it until its worker left; `warm_at` None: it never trained."""

    node: str
    start: float
    end: float
    warm_at: float | None = None


def pilot_spans(events: Iterable[Event], until: float) -> list[PilotSpan]:
    """The pilots of a journal; one that still runs ends at `until` (Unix seconds)."""
    began: dict[str, tuple[str, float]] = {}
    warm: dict[str, float] = {}
    spans: list[PilotSpan] = []

    def close(pilot: str, at: float) -> None:
        held = began.pop(pilot, None)
        if held is not None:
            node, start = held
            ready = warm.pop(pilot, None)
            spans.append(PilotSpan(node, start, max(start, at), None if ready is None else max(start, ready)))

    for event in events:
        pilot = event.pilot or ""
        match event.payload:
            case PilotStarted(started_at=started_at) if event.node and pilot not in began:
                began[pilot] = (event.node, min(started_at or event.at, event.at))
            case WorkerWarm():
                warm.setdefault(pilot, event.at)  # before Slurm showed its start, on a quick machine
            case WorkerLeft() | WorkerLost() | PilotHeld() | PilotEnded():
                close(pilot, event.at)
                warm.pop(pilot, None)
    for pilot in list(began):
        close(pilot, until)
    return spans


def holes_seen(events: Iterable[Event], until: float) -> dict[str, list[Span]]:
    """Each node's times without a main job, as the daemon's looks showed them; those still open end at `until`."""
    opened: dict[str, float] = {}
    found: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        match event.payload:
            case HolesOpened(nodes=nodes):
                for node in nodes:
                    opened.setdefault(node, event.at)
            case HolesEnded(nodes=nodes, last_seen=last_seen):
                for node in nodes:
                    if node in opened:
                        found[node].append((opened.pop(node), event.at if last_seen is None else last_seen))
    for node, at in opened.items():
        found[node].append((at, until))
    return dict(found)


def stalls_seen(events: Iterable[Event]) -> list[tuple[Span, int]]:
    """When worlds of so many nodes stood still for a change of size; a later one of a job cuts the one before."""
    last: dict[int | None, int] = {}
    found: list[tuple[Span, int]] = []
    for event in events:
        match event.payload:
            case GenerationSwitched(nodes=nodes, pause_s=pause_s) if pause_s > 0:
                begin, end = event.at, event.at + pause_s
                before = last.get(event.job)
                if before is not None and found[before][0][1] > begin:
                    found[before] = ((found[before][0][0], begin), found[before][1])
                last[event.job] = len(found)
                found.append(((begin, end), nodes))
    return found


def waterfall_of(
    holes: Mapping[str, Sequence[Span]],
    pilots: Sequence[PilotSpan],
    stalls: Sequence[tuple[Span, int]],
    window: Span,
    keep_idle: int = 0,
) -> Waterfall:
    """The parts of the idle node-time within `window`; they add up to it.

    A node's idle time without a pilot counts as a new hole before the first pilot of that hole, as between pilots
    before another, and else as too short for a pilot (the rest of a hole, and holes that never had one); first of
    all `keep_idle` nodes are in reserve. Time of a pilot outside a hole (the main job had the node already) is no
    idle time and left out.
    """
    begin, end = window
    by_node: dict[str, list[PilotSpan]] = defaultdict(list)
    for each in sorted(pilots, key=lambda pilot: pilot.start):
        by_node[each.node].append(each)
    changes: dict[float, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    activation = lost = held_s = 0.0

    def unheld(name: str, start: float, stop: float) -> None:
        if stop > start:
            changes[start][name] += 1
            changes[stop][name] -= 1

    for node, spans in holes.items():
        for opened, closed in spans:
            opened, closed = max(opened, begin), min(closed, end)
            if closed <= opened:
                continue
            at, name = opened, "new_holes"
            for pilot in by_node[node]:
                start, stop = max(pilot.start, at), min(pilot.end, closed)
                if stop <= start:
                    continue
                unheld(name, at, start)
                at, name = stop, "between_pilots"
                held_s += stop - start
                ready = stop if pilot.warm_at is None else min(max(pilot.warm_at, start), stop)
                if pilot.warm_at is None or pilot.warm_at >= pilot.end:
                    lost += stop - start
                else:
                    activation += ready - start
            unheld("wanted_soon", at, closed)
    idle = UnheldTime()
    counts: dict[str, int] = defaultdict(int)
    for now, following in pairwise(sorted(changes)):
        for name, count in changes[now].items():
            counts[name] += count
        idle.add(following - now, sum(counts.values()), reserve=keep_idle, **counts)
    stalled = sum(max(0.0, min(b, end) - max(a, begin)) * nodes for (a, b), nodes in stalls)
    return Waterfall(
        **idle.node_s,
        lost_activation=lost,
        activation=activation,
        stalls=stalled,
        productive=held_s - lost - activation - stalled,
    )


def journal_waterfall(events: Iterable[Event], window: Span, keep_idle: int = 0) -> Waterfall:
    """The same from a journal alone. A hole begins there at the look that shows it."""
    listed = [event for event in events if event.at <= window[1]]
    return waterfall_of(
        holes_seen(listed, window[1]), pilot_spans(listed, window[1]), stalls_seen(listed), window, keep_idle
    )
