"""Yield first: a main job that could start on idle plus harvested nodes is given them before Slurm preempts.

A backfill cycle that must preempt costs the main job a whole cycle more (30 s on most sites), so the nodes are
emptied beforehand, by the pilots whose leaving costs training least.

Nodes that pilots have left for a main job stay empty until Slurm has had a cycle to use them, or the job is gone:
which nodes a job is given is found anew at each look, and what Slurm shows changes between two. A pilot that starts
on them then has to be taken back when the turn of the job comes, and costs it the cycle they were emptied for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain.decide.nodes_left import Availability, HarvestedNode, NodesLeft, rank_of
from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import BackfillPlan, NodeState, SlurmJob, SlurmState, Snapshot

#: Reasons (squeue(1) %r) of a job that waits for nodes only. Any other reason holds it up whatever is idle.
WAITS_FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Nodes_required")


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """Which pilots leave, and for whom."""

    leave: Mapping[str, str] = field(default_factory=dict)  #: pilot -> the main job that is given its node
    claimed: Mapping[str, str] = field(default_factory=dict)  #: free node -> the main job that it is kept for
    startable: Mapping[str, float] = field(default_factory=dict)  #: main job that could start now -> since when
    assigned: Mapping[str, str] = field(default_factory=dict)  #: every such node, also those that are coming free
    #: Main jobs that could start now but for pilots, which leave their nodes or are asked to -> whether a better job
    #: waits that cannot start, so that only backfill starts it.
    delayed: Mapping[str, bool] = field(default_factory=dict)
    #: Node -> the heterogeneous job that is given it. Slurm puts such a job off for minutes when it finds some of its
    #: nodes idle and has to preempt for others, so all are given back in the same moment.
    at_once: Mapping[str, str] = field(default_factory=dict)
    emptied: Mapping[str, EmptiedNode] = field(default_factory=dict)  #: what main jobs were given and may still use

    @property
    def kept(self) -> frozenset[str]:
        """Every node that is kept for a main job, also those that are coming free."""
        return frozenset(self.assigned).union(self.emptied)


def plan_yields(
    snapshot: Snapshot, harvested: Sequence[HarvestedNode], startable_since: Mapping[str, float], now: float,
    rules: Rules,
) -> YieldPlan:  # fmt: skip
    """Which pilots leave for which waiting main jobs, and which free nodes are kept for them.

    Main jobs are taken in the order of their priority, the parts of a heterogeneous job together, each on nodes
    that no better job plans to use before it would end. `startable_since` is the last answer's `startable`: a job
    that could have started for longer than `claim_patience_s` is held up by something else.
    """
    at_hand = availability(snapshot, harvested, rules)
    left = NodesLeft(snapshot, at_hand, rules, now)
    given: dict[str, str] = {}
    startable: dict[str, float] = {}
    delayed: dict[str, bool] = {}
    at_once: dict[str, str] = {}
    is_behind = False
    pilots_on = at_hand.pilot_on.keys() | nodes_of_pilots(snapshot, rules)
    for group in _waiting(snapshot, rules, now)[: rules.max_queue]:
        if not len(left):
            break
        name = group[0].id
        since = startable_since.get(name, now)
        # One that was put off may start from its BeginTime on, and not before.
        waited_s = max(0.0, now - max([since, *(_begins_at(part) for part in group)]))
        has_lapsed = waited_s % rules.claim_again_s > rules.claim_patience_s
        # The waiting rest of an array is one row that stands for many tasks.
        tasks = group[0].task_count if len(group) == 1 else 1
        while tasks:
            if has_lapsed and left.suffice_for(group):
                startable[name] = since
                break
            places, served = left.choose_tasks(group[0], tasks) if tasks > 1 else ([], 0)
            if not places:
                places, served = left.choose(group), 1
            if not places:
                is_behind = True
                break
            chosen = dict.fromkeys(left.take(places), name)
            tasks -= served
            startable[name] = since
            given |= chosen
            if not pilots_on.isdisjoint(chosen):
                delayed.setdefault(name, is_behind)
            if group[0].het_id:
                at_once |= chosen
    leave = {at_hand.pilot_on[node].pilot: job for node, job in given.items() if node in at_hand.pilot_on}
    claimed = {node: job for node, job in given.items() if node in at_hand.free}
    return YieldPlan(leave, claimed, startable, given, delayed, at_once)


def any_pending_fits(snapshot: Snapshot, rules: Rules) -> bool:
    """Whether some waiting main job could start if all nodes but those of running main jobs were empty: cheap to
    say, and mostly not so while the queue is full of large jobs."""
    harvest, completing = rules.harvest_partition, SlurmState.COMPLETING  # for thousands of rows
    going = [len(job.nodes) for job in snapshot.holding if job.partition == harvest or job.state is completing]
    most = len(snapshot.nodes) - len(snapshot.held_names) + sum(going)
    return any(waits_for_nodes(job, rules) for job in snapshot.pending if job.node_count <= most)


def availability(snapshot: Snapshot, harvested: Sequence[HarvestedNode], rules: Rules) -> Availability:
    """What a main job, or the reserve, could have soon. `harvested`: the nodes whose pilots may leave."""
    pilot_on = {h.node: h for h in harvested if h.node in snapshot.node}
    # A pilot may have been released since the snapshot was taken: its node only looks free.
    free = snapshot.free_names.difference(pilot_on)
    going = {node.name for node in snapshot.nodes if node.state is NodeState.COMPLETING}
    staying: set[str] = set()
    for job in snapshot.holding:
        is_going = job.state is SlurmState.COMPLETING or job.partition == rules.harvest_partition
        (going if is_going else staying).update(job.nodes)
    coming = (going - staying - pilot_on.keys()) & snapshot.node.keys()
    return Availability(free, frozenset(coming), pilot_on)


def nodes_of_pilots(snapshot: Snapshot, rules: Rules) -> frozenset[str]:
    """The nodes that Slurm shows pilots on, those that are leaving among them."""
    return frozenset(n for job in snapshot.holding if job.partition == rules.harvest_partition for n in job.nodes)


def waits_for_nodes(job: SlurmJob, rules: Rules) -> bool:
    """Whether it is a main job that waits for nodes, and for nothing else."""
    return (
        job.state is SlurmState.PENDING
        and job.partition != rules.harvest_partition
        and (job.reason == "" or job.reason.startswith(WAITS_FOR_NODES))
        # Slurm names no reason for a new array until it has looked at it; what it depends on is there at once.
        and "unfulfilled" not in job.dependency
    )


def _waiting(snapshot: Snapshot, rules: Rules, now: float) -> list[list[SlurmJob]]:
    """Waiting main jobs in the order of priority; parts of one heterogeneous job stand together. One of which a part
    waits for something else, or still leaves the nodes that Slurm took back, is left out: no part starts alone."""
    groups: dict[str, list[SlurmJob]] = {}
    held_up: set[int] = set()
    for job in snapshot.pending:
        begins_soon = job.reason == "BeginTime" and _begins_at(job) <= now + rules.begin_lead_s
        if waits_for_nodes(job, rules) or (job.het_id and begins_soon):
            groups.setdefault(f"het{job.het_id}" if job.het_id else job.id, []).append(job)
        elif job.het_id:
            held_up.add(job.het_id)
    if any(name.startswith("het") for name in groups):
        held_up.update(job.het_id for job in snapshot.holding if job.het_id)
    found = (group for group in groups.values() if group[0].het_id not in held_up)
    return sorted(found, key=lambda group: min(map(rank_of, group)))


def _begins_at(job: SlurmJob) -> float:
    """Before when Slurm does not start the job (Unix seconds)."""
    return job.start_time or 0.0 if job.reason == "BeginTime" else 0.0


@dataclass(frozen=True, slots=True)
class EmptiedNode:
    """A node that a main job was given. `whole`: the number that tasks of its array, or parts of a heterogeneous job,
    share; `free_since`: when a look first showed the node free (Unix seconds), None before."""

    job: str
    whole: int
    free_since: float | None = None


def emptied_nodes(
    given: Mapping[str, str], before: Mapping[str, EmptiedNode], available: Collection[str], snapshot: Snapshot,
    now: float, rules: Rules,
) -> Mapping[str, EmptiedNode]:  # fmt: skip
    """The nodes that no pilot starts on: those that main jobs are `given` at this look (node -> job), and those of
    the last answer, `before`, that are `available`, whose job still waits and which no backfill cycle has found free.
    """
    main = [job for job in snapshot.pending if job.partition != rules.harvest_partition]
    whole = {job.id: job.het_id or job.array_id or job.raw_id for job in main}
    found = {node: EmptiedNode(name, whole[name]) for node, name in given.items()}
    waiting = set(whole.values())
    for node, kept in before.items():
        mine = found.get(node)
        if mine is not None and mine.whole == kept.whole:
            found[node] = replace(mine, free_since=kept.free_since)
        elif mine is None and kept.whole in waiting and node in available and not _had_its_cycle(kept, snapshot, now):
            found[node] = kept
    return {
        node: replace(each, free_since=now) if each.free_since is None and snapshot.is_free(node) else each
        for node, each in found.items()
    }


def _had_its_cycle(node: EmptiedNode, snapshot: Snapshot, now: float) -> bool:
    """Whether backfill has begun a cycle since the node was free, and ended it; where no cycle is known of, or none
    comes, whether the time of two is over."""
    plan: BackfillPlan = snapshot.plan
    if node.free_since is None:
        return False
    if now - node.free_since > plan.lasts_s:
        return True
    began = plan.last_cycle_at
    return began is not None and began > node.free_since and now - began > (plan.backfill_cycle_s or 0.0)
