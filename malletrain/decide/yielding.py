"""Yield first: a main job that could start on idle plus harvested nodes is given them before Slurm preempts.

A backfill cycle that must preempt costs the main job a whole cycle more (30 s on most sites), so the nodes are
emptied beforehand, by the pilots whose leaving costs training least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot

#: Reasons (squeue(1) %r) of a job that waits for nodes only. Any other reason holds it up whatever is idle.
WAITS_FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Nodes_required")


@dataclass(frozen=True, slots=True)
class HarvestedNode:
    """A node that a pilot holds. `cost`: what training loses when this pilot leaves (speed-up lost)."""

    node: str
    pilot: str
    job_id: int
    cost: float


@dataclass(frozen=True, slots=True)
class Yields:
    """`leave`: pilot -> why; `claimed`: free node -> the main job it is kept for; `startable`: main jobs that
    could start now -> since when (Unix seconds)."""

    leave: Mapping[str, str] = field(default_factory=dict)
    claimed: Mapping[str, str] = field(default_factory=dict)
    startable: Mapping[str, float] = field(default_factory=dict)


def yields(
    snapshot: Snapshot,
    harvested: Sequence[HarvestedNode],
    startable_since: Mapping[str, float],
    now: float,
    rules: Rules,
) -> Yields:
    """Which pilots leave for which waiting main jobs, and which free nodes are kept for them.

    Main jobs are taken in the order of their priority, the parts of a heterogeneous job together, each on nodes
    that no better job plans to use before it would end. `startable_since` is the last answer's `startable`: a job
    that could have started for longer than `claim_patience_s` is held up by something else, and claims nothing.
    """
    pilot_on = {h.node: h for h in harvested}
    # A pilot may have been released since the snapshot was taken: its node only looks free.
    free = {n.name for n in snapshot.nodes if snapshot.is_free(n.name) and n.name not in pilot_on}
    taken: set[str] = set()
    leave: dict[str, str] = {}
    claimed: dict[str, str] = {}
    startable: dict[str, float] = {}
    for group in _waiting(snapshot, rules):
        chosen: list[str] = []
        for part in group:
            usable = [n for n in _usable(snapshot, part, group, now) if n not in taken and n not in chosen]
            picked = _pick(part, usable, free, pilot_on)
            if picked is None:
                break
            chosen += picked
        else:
            name = group[0].id
            since = startable_since.get(name, now)
            startable[name] = since
            if now - since > rules.claim_patience_s:
                continue
            taken.update(chosen)
            for node in chosen:
                if node in free:
                    claimed[node] = name
                else:
                    leave[pilot_on[node].pilot] = f"main job {name} could start on {node}"
    return Yields(leave, claimed, startable)


def _waiting(snapshot: Snapshot, rules: Rules) -> list[list[SlurmJob]]:
    """Waiting main jobs in the order of priority; parts of one heterogeneous job stand together."""
    groups: dict[str, list[SlurmJob]] = {}
    for job in snapshot.jobs:
        if job.state is not SlurmState.PENDING or job.partition == rules.harvest_partition:
            continue
        if not job.reason.startswith(WAITS_FOR_NODES) and job.reason != "":
            continue
        groups.setdefault(f"het{job.het_id}" if job.het_id else job.id, []).append(job)
    return sorted(groups.values(), key=lambda g: (-max(j.priority for j in g), min(j.raw_id for j in g)))


def _usable(snapshot: Snapshot, job: SlurmJob, group: Sequence[SlurmJob], now: float) -> list[str]:
    """Nodes that Slurm could give `job` now, were they idle: right partition and features, and not planned by a
    better job for a time before this one would end."""
    partitions = set(job.partition.split(","))
    own = {j.id for j in group}
    end = now + (job.time_limit_s if job.time_limit_s is not None else float("inf"))
    barred: set[str] = set(job.excluded_nodes)
    for other in snapshot.jobs:
        if other.state is SlurmState.PENDING and other.start_time is not None and other.id not in own:
            better = (other.priority, -other.raw_id) > (job.priority, -job.raw_id)
            if better and other.start_time < end:
                barred.update(other.planned_nodes)
    for reservation in snapshot.reservations:
        if reservation.start < end and reservation.end > now:
            barred.update(reservation.nodes)
    needed_features = {f for f in job.features.replace("&", ",").split(",") if f and f != "(null)"}
    plain_features = needed_features if not any(c in job.features for c in "|[]*!()") else set()
    return [
        node.name
        for node in snapshot.nodes
        if node.name not in barred
        and partitions & set(node.partitions)
        and (not plain_features or plain_features <= set(node.features))
    ]


def _pick(
    job: SlurmJob, usable: Sequence[str], free: set[str], pilot_on: Mapping[str, HarvestedNode]
) -> list[str] | None:
    """The nodes to start `job` on: required ones, free ones, the cheapest pilots'. None: it cannot start."""
    ready = [n for n in usable if n in free or n in pilot_on]
    required = [n for n in job.required_nodes if n in ready]
    if len(required) < len(job.required_nodes):
        return None
    rest = [n for n in ready if n not in required]
    planned = set(job.planned_nodes)
    rest.sort(key=lambda n: (n not in free, n not in planned, pilot_on[n].cost if n in pilot_on else 0.0, n))
    chosen = (required + rest)[: max(job.node_count, len(required))]
    return chosen if len(chosen) >= job.node_count else None
