"""The site's holes as its journal tells them: which nodes became idle together, and since when.

A hole is a node's time without main job: it stands idle, or a pilot holds it. Nodes whose holes opened between the
same two looks are a cohort.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from malletrain.decide.rules import Rules
from malletrain.domain.decision import OpenHole
from malletrain.domain.event import DaemonStarted, Event, HolesEnded, HolesOpened
from malletrain.domain.snapshot import FREE_STATES, LEAVE_STATES, Node, NodeState, Snapshot

#: Looks farther apart than this do not tell when a hole ended.
BLIND_S = 120.0


class _Use(Enum):
    """What a node is used for."""

    HOLE = 1  #: no job, or a pilot
    MAIN = 2  #: the main queue
    STAFF = 3
    AS_BEFORE = 4  #: it is being freed, and the snapshot does not say by whom


class HoleTracker:
    """Folds the events of holes. Not thread-safe: its owner holds one lock."""

    def __init__(self) -> None:
        self._open: dict[str, OpenHole] = {}
        self._before: dict[str, float] = {}  # of nodes that were idle when the last daemon ended: since when

    def apply(self, event: Event) -> None:
        """Fold one event, of whatever kind."""
        match event.payload:
            case DaemonStarted():
                self._before = {name: hole.together for name, hole in self._open.items()}
                self._open.clear()
            case HolesOpened() as opened:
                before = {} if opened.seen_whole else self._before
                new = {name: OpenHole(event.at, before.get(name)) for name in opened.nodes if name not in self._open}
                self._open.update(new)
                self._before = {}
            case HolesEnded() as ended:
                for name in ended.nodes:
                    self._open.pop(name, None)

    def open(self) -> Mapping[str, OpenHole]:
        """The holes that are open, by node."""
        return dict(self._open)


def hole_events(
    snapshot: Snapshot, open_holes: Mapping[str, OpenHole], last_look: float | None, rules: Rules
) -> list[Event]:
    """What `snapshot` says of holes that is not known yet. `last_look`: when the last snapshot was taken, None for
    the first one since the daemon started: holes that are open then began at an unknown time."""
    opened: list[str] = []
    ended: dict[bool, list[str]] = {True: [], False: []}
    at = snapshot.taken_at
    blind = last_look is None or at - last_look > BLIND_S
    of_main = {
        name for job in snapshot.holding if job.partition != rules.harvest_partition for name in job.nodes
    }  # fmt: skip
    for node in snapshot.nodes:
        if not rules.may_harvest(node.name) or rules.harvest_partition not in node.partitions:
            continue
        use = _use(node, of_main, snapshot.held_names)
        if use is _Use.HOLE and node.name not in open_holes:
            opened.append(node.name)
        elif use in (_Use.MAIN, _Use.STAFF) and node.name in open_holes:
            ended[use is _Use.MAIN and not blind].append(node.name)
    gone = sorted(set(open_holes) - {node.name for node in snapshot.nodes})
    ended[False] += gone
    events: list[Event] = []
    for taken, nodes in ended.items():
        if nodes:
            over = HolesEnded(tuple(nodes), taken, last_look if blind else None)
            reason = "the main queue took them" if taken else "lost sight of"
            events.append(Event(at, over, reason=f"{_count(nodes)}: {reason}"))
    if opened:
        begun = HolesOpened(tuple(opened), not blind)
        events.append(Event(at, begun, reason=f"{_count(opened)} without main job"))
    return events


def _use(node: Node, of_main: Collection[str], held: Collection[str]) -> _Use:
    if node.name in of_main:
        return _Use.MAIN
    if node.state in LEAVE_STATES or node.state is NodeState.UNKNOWN:
        return _Use.STAFF
    if node.state in FREE_STATES or node.name in held:
        return _Use.HOLE
    return _Use.AS_BEFORE if node.state is NodeState.COMPLETING else _Use.MAIN


def _count(nodes: list[str]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
