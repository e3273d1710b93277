"""What looks have shown of nodes without main job: which became idle together, and what was planned.

A hole is a node's time without main job: it stands idle, or a pilot holds it. Nodes whose holes opened between the
same two looks are a cohort.

squeue(1) shows no planned start, and no nodes of it, from the moment that the start has passed until backfill comes
to the job again: up to bf_interval (30 s by default), and longer while slurmctld is busy. A node that such a job is
about to get would look as if nothing were planned for it (measured on 22.05: the job's other node was still in its
epilog). So the last plan of a job counts for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from malletrain.decide.rules import Rules
from malletrain.domain.event import DaemonStarted, Event, HolesEnded, HolesOpened
from malletrain.domain.slurm_reasons import waits_for_nodes
from malletrain.domain.snapshot import FREE_STATES, LEAVE_STATES, Node, NodeState, SlurmJob, Snapshot


class HoleTracker:
    """Folds the events of holes. Not thread-safe: its owner holds one lock."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._before: dict[str, float] = {}  # those that were open when the last daemon ended

    def apply(self, event: Event) -> None:
        """Fold one event, of whatever kind."""
        match event.payload:
            case DaemonStarted():
                self._before, self._open = self._open, {}
            case HolesOpened() as opened:
                before = {} if opened.seen_whole else self._before
                self._open = {name: before.get(name, event.at) for name in opened.nodes} | self._open
                self._before = {}
            case HolesEnded() as ended:
                for name in ended.nodes:
                    self._open.pop(name, None)

    def open(self) -> Mapping[str, float]:
        """Since when each node has no main job (Unix seconds), the same for those that became idle together; an
        earlier daemon may have seen that."""
        return dict(self._open)


def hole_events(
    snapshot: Snapshot, open_holes: Mapping[str, float], last_look: float | None, rules: Rules
) -> list[Event]:
    """What `snapshot` says of holes that is not known yet. `last_look`: when the last snapshot was taken, None for
    the first one since the daemon started: holes that are open then began at an unknown time."""
    opened: list[str] = []
    ended: dict[bool, list[str]] = {True: [], False: []}
    at = snapshot.taken_at
    blind = last_look is None or at - last_look > 120.0  # too far apart to tell when a hole ended
    of_main = {name for job in snapshot.holding if job.partition != rules.harvest_partition for name in job.nodes}
    for node in snapshot.nodes:
        if not rules.may_harvest(node.name) or rules.harvest_partition not in node.partitions:
            continue
        use = _use(node, of_main, snapshot.held_names)
        if use == "hole" and node.name not in open_holes:
            opened.append(node.name)
        elif use in ("main", "staff") and node.name in open_holes:
            ended[use == "main" and not blind].append(node.name)
    gone = sorted(set(open_holes) - {node.name for node in snapshot.nodes})
    ended[False] += gone
    events: list[Event] = []
    for taken, nodes in ended.items():
        if nodes:
            over = HolesEnded(tuple(nodes), taken)
            reason = "the main queue took them" if taken else "lost sight of"
            events.append(Event(at, over, reason=f"{_count(nodes)}: {reason}"))
    if opened:
        begun = HolesOpened(tuple(opened), not blind)
        events.append(Event(at, begun, reason=f"{_count(opened)} without main job"))
    return events


def _use(node: Node, of_main: Collection[str], held: Collection[str]) -> str:
    """What a node is used for: "main", "staff", or it is a "hole"; "": it is being freed, and by whom is not said."""
    if node.name in of_main:
        return "main"
    if node.state in LEAVE_STATES or node.state is NodeState.UNKNOWN:
        return "staff"
    if node.state in FREE_STATES or node.name in held:
        return "hole"
    return "" if node.state is NodeState.COMPLETING else "main"


def _count(nodes: list[str]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


class PlannedStarts:
    """The last plan of each waiting main job, for two backfill intervals."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, SlurmJob]] = {}  # when, and the row that had the plan

    def over(self, snapshot: Snapshot, now: float, rules: Rules) -> Snapshot:
        """`snapshot`, with the last plan of jobs that still wait for nodes alone and have none now.

        `now`: when its queue was looked at (Unix seconds). The same object where nothing is missing.
        """
        since = now - snapshot.plan.lasts_s
        seen: dict[str, tuple[float, SlurmJob]] = {}
        planned: dict[str, SlurmJob] = {}
        for job in snapshot.pending:
            if job.planned_nodes and job.start_time is not None:
                seen[job.id] = now, job
                continue
            at, before = self._seen.get(job.id, (since - 1.0, job))
            if at >= since and waits_for_nodes(job, rules.harvest_partition):
                seen[job.id] = at, before
                planned[job.id] = replace(job, start_time=before.start_time, planned_nodes=before.planned_nodes)
        self._seen = seen
        if not planned:
            return snapshot
        return replace(snapshot, jobs=tuple(planned.get(job.id, job) for job in snapshot.jobs))
