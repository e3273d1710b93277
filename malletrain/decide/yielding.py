"""Yield first: a main job that could start on idle plus harvested nodes is given them before Slurm preempts.

A backfill cycle that must preempt costs the main job a whole cycle more (30 s on most sites), so the nodes are
emptied beforehand, by the pilots whose leaving costs training least.

Nodes that pilots have left for a main job stay empty until Slurm has had a cycle to use them, or the job is gone.
Which nodes a job is given is found anew at each look, and what Slurm shows changes between two: a better job is
planned on these nodes, a part of a heterogeneous job is taken back, a reason changes for a moment. A pilot that
starts on them then has to be taken back when the turn of the job comes, and costs it the cycle they were emptied for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from malletrain.decide.nodes_left import PILOTS, Mask, NodesLeft, Places, rank_of
from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import BackfillPlan, NodeState, SlurmJob, SlurmState, Snapshot

#: Reasons (squeue(1) %r) of a job that waits for nodes only. Any other reason holds it up whatever is idle.
WAITS_FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Nodes_required")

#: Pilots on one leaf switch leave instead of the cheapest where training loses at most so many times as much.
MOST_TIMES_CHEAPEST = 2.0


@dataclass(frozen=True, slots=True)
class HarvestedNode:
    """A node that a pilot holds. `cost`: what training loses when this pilot leaves (speed-up lost);
    `co_allocated`: all nodes of its task, where it holds several: given up together, and `cost` is of all."""

    node: str
    pilot: str
    job_id: int
    cost: float
    co_allocated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Availability:
    """Nodes that a main job could have soon: `free` now, `coming` free (completing, or their pilot is leaving
    already), or a pilot's."""

    free: frozenset[str]
    coming: frozenset[str]
    pilot_on: Mapping[str, HarvestedNode]


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """Which pilots leave, and for whom."""

    leave: Mapping[str, str] = field(default_factory=dict)  #: pilot -> the main job that is given its node
    claimed: Mapping[str, str] = field(default_factory=dict)  #: free node -> the main job that it is kept for
    startable: Mapping[str, float] = field(default_factory=dict)  #: main job that could start now -> since when
    given_to: Mapping[str, str] = field(default_factory=dict)  #: every such node, also those that are coming free
    #: Main jobs that could start now but for pilots, which leave their nodes or are asked to -> whether a better job
    #: waits that cannot start, so that only backfill starts it.
    awaiting: Mapping[str, bool] = field(default_factory=dict)
    #: Node -> the heterogeneous job that is given it. Slurm puts such a job off for minutes when it finds some of its
    #: nodes idle and has to preempt for others, so all are given back in the same moment.
    at_once: Mapping[str, str] = field(default_factory=dict)
    emptied: Mapping[str, EmptiedNode] = field(default_factory=dict)  #: what main jobs were given and may still use

    @property
    def given(self) -> frozenset[str]:
        """Every node that is kept for a main job, also those that are coming free."""
        return frozenset(self.given_to).union(self.emptied)


def plan_yields(
    snapshot: Snapshot, harvested: Sequence[HarvestedNode], startable_since: Mapping[str, float], now: float,
    rules: Rules,
) -> YieldPlan:  # fmt: skip
    """Which pilots leave for which waiting main jobs, and which free nodes are kept for them.

    Main jobs are taken in the order of their priority, the parts of a heterogeneous job together, each on nodes
    that no better job plans to use before it would end. `startable_since` is the last answer's `startable`: a job
    that could have started for longer than `claim_patience_s` is held up by something else; it claims nothing until
    `claim_again_s` have passed. A heterogeneous job that Slurm has put off is given nodes from `begin_lead_s` before
    it begins.
    """
    at_hand = availability(snapshot, harvested, rules)
    sharing = _Sharing(snapshot, at_hand, rules, now)
    given: dict[str, str] = {}
    startable: dict[str, float] = {}
    delayed: dict[str, bool] = {}
    at_once: dict[str, str] = {}
    is_behind = False
    pilots_on = at_hand.pilot_on.keys() | nodes_of_pilots(snapshot, rules)
    for group in _waiting(snapshot, rules, now)[: rules.max_queue]:
        if not len(sharing.left):
            break
        name = group[0].id
        since = startable_since.get(name, now)
        # One that was put off may start from its BeginTime on, and not before.
        waited_s = max(0.0, now - max([since, *(_begins_at(part) for part in group)]))
        has_lapsed = waited_s % rules.claim_again_s > rules.claim_patience_s
        # The waiting rest of an array is one row that stands for many tasks.
        tasks = group[0].task_count if len(group) == 1 else 1
        while tasks:
            if has_lapsed and sharing.suffice_for(group):
                startable[name] = since
                break
            places, served = sharing.choose_tasks(group[0], tasks) if tasks > 1 else ([], 0)
            if not places:
                places, served = sharing.choose(group), 1
            if not places:
                is_behind = True
                break
            chosen = dict.fromkeys(sharing.left.named(places), name)
            tasks -= served
            startable[name] = since
            given |= chosen
            if not pilots_on.isdisjoint(chosen):
                delayed.setdefault(name, is_behind)
            if group[0].het_id:
                at_once |= chosen
            sharing.take(places)
    leave = {at_hand.pilot_on[node].pilot: job for node, job in given.items() if node in at_hand.pilot_on}
    claimed = {node: job for node, job in given.items() if node in at_hand.free}
    return YieldPlan(leave, claimed, startable, given, delayed, at_once)


def any_pending_fits(snapshot: Snapshot, rules: Rules) -> bool:
    """Whether some waiting main job could start if all nodes but those of running main jobs were empty: cheap to
    say, and mostly not so while the queue is full of large jobs."""
    harvest, completing = rules.harvest_partition, SlurmState.COMPLETING  # as `_goes`, for thousands of rows
    going = [len(job.nodes) for job in snapshot.holding if job.partition == harvest or job.state is completing]
    most = len(snapshot.nodes) - len(snapshot.held_names) + sum(going)
    return any(waits_for_nodes(job, rules) for job in snapshot.pending if job.node_count <= most)


def availability(snapshot: Snapshot, harvested: Sequence[HarvestedNode], rules: Rules) -> Availability:
    """What a main job, or the reserve, could have soon. `harvested`: the nodes whose pilots may leave."""
    pilot_on = {h.node: h for h in harvested if h.node in snapshot.node}
    # A pilot may have been released since the snapshot was taken: its node only looks free.
    free = snapshot.free_names.difference(pilot_on)
    going: set[str] = set()
    staying: set[str] = set()
    for job in snapshot.holding:
        (going if _goes(job, rules) else staying).update(job.nodes)
    coming = {name for name in going - staying - pilot_on.keys() if name in snapshot.node}
    completing = NodeState.COMPLETING
    coming.update(
        node.name
        for node in snapshot.nodes
        if node.state is completing and node.name not in staying and node.name not in pilot_on
    )
    return Availability(free, frozenset(coming), pilot_on)


def nodes_of_pilots(snapshot: Snapshot, rules: Rules) -> frozenset[str]:
    """The nodes that Slurm shows pilots on, those that are leaving among them."""
    return frozenset(n for job in snapshot.holding if job.partition == rules.harvest_partition for n in job.nodes)


def _goes(job: SlurmJob, rules: Rules) -> bool:
    return job.state is SlurmState.COMPLETING or job.partition == rules.harvest_partition


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
        if waits_for_nodes(job, rules) or (job.het_id and _begins_soon(job, now, rules)):
            groups.setdefault(f"het{job.het_id}" if job.het_id else job.id, []).append(job)
        elif job.het_id:
            held_up.add(job.het_id)
    if any(name.startswith("het") for name in groups):
        held_up.update(job.het_id for job in snapshot.holding if job.het_id)
    found = (group for group in groups.values() if group[0].het_id not in held_up)
    return sorted(found, key=lambda group: min(map(rank_of, group)))


def _begins_soon(job: SlurmJob, now: float, rules: Rules) -> bool:
    """Whether Slurm may start the job within `begin_lead_s`, at the BeginTime that it waits for."""
    return job.reason == "BeginTime" and _begins_at(job) <= now + rules.begin_lead_s


def _begins_at(job: SlurmJob) -> float:
    """Before when Slurm does not start the job (Unix seconds)."""
    return job.start_time or 0.0 if job.reason == "BeginTime" else 0.0


class _Sharing:
    """What main jobs are given at one look, as they are taken in the order of their priority."""

    def __init__(self, snapshot: Snapshot, at_hand: Availability, rules: Rules, now: float) -> None:
        self.pilot_on = dict(at_hand.pilot_on)
        # Of equal cost, nodes that are given up together come side by side.
        costs = {
            name: (held.cost, min(held.co_allocated, default=name), name) for name, held in at_hand.pilot_on.items()
        }
        together = [name for name, held in at_hand.pilot_on.items() if held.co_allocated]
        planned = [
            job
            for job in snapshot.pending
            if job.planned_nodes and job.start_time is not None and job.partition != rules.harvest_partition
        ]
        self.left = NodesLeft(at_hand.free, at_hand.coming, costs, together, planned, snapshot, now)

    def choose(self, group: Sequence[SlurmJob]) -> list[int]:
        """Nodes for all parts of a job at once; none when it cannot start."""
        chosen: list[int] = []
        for part in group:
            open_to = self._open_to(part, group)
            open_to[chosen] = False
            if not self._suffice(part, open_to):
                return []
            required = self.left.places(part.required_nodes)
            kept = [at for at in self.left.places(part.planned_nodes) if open_to[at]]
            count = max(part.node_count, len(required))
            rest = self.left.in_order(open_to, kept)
            if part.switches and self.left.has_leaves and count > 1:
                rest = self.left.on_few_leaves(rest, part.switches, count, required)
            rest = _without(rest, required)
            picked = [*required, *rest[: count - len(required)].tolist()]
            if self.left.has_leaves:
                picked = self._on_one_leaf(picked, {*kept, *required}, rest)
            chosen += self._sparing(picked, required, rest)
        return chosen

    def choose_tasks(self, job: SlurmJob, most: int) -> tuple[list[int], int]:
        """Nodes for the next tasks of an array, as `choose` finds them for one after the other; and how many tasks
        these are, of `most`: 0 where the next has to be looked at alone."""
        open_to, width = self._open_to(job, [job]), job.node_count
        order = self.left.in_order(open_to)
        if not len(order) or job.required_nodes:
            return [], 0
        rank = self.left.rank[order[0]]
        if self.left.has_leaves and width > 1 and (rank == PILOTS or job.switches):
            return [], 0
        if any(open_to[at] and self.left.rank[at] == rank for at in self.left.places(job.planned_nodes)):
            return [], 0
        of_rank = order[self.left.rank[order] == rank][: most * width].tolist()
        served = len(list(takewhile(self._is_alone, of_rank))) // width
        return of_rank[: served * width], served

    def suffice_for(self, group: Sequence[SlurmJob]) -> bool:
        """Whether `choose` finds nodes."""
        if len(group) > 1:
            return bool(self.choose(group))
        return self._suffice(group[0], self._open_to(group[0], group))

    def _open_to(self, part: SlurmJob, group: Sequence[SlurmJob]) -> Mask:
        others = {job.id for job in group} if len(group) > 1 else ()
        return self.left.open_to(part, min(map(rank_of, group)), others)

    def _suffice(self, job: SlurmJob, open_to: Mask) -> bool:
        required = self.left.places(job.required_nodes)
        if len(required) < len(job.required_nodes) or not open_to[required].all():
            return False
        return int(np.count_nonzero(open_to)) >= job.node_count

    def take(self, chosen: Sequence[int]) -> None:
        """Give these nodes away; the pilots on them leave, those of a task together."""
        emptied = self._emptied_with(chosen)
        self.left.give(chosen)
        self.left.empty(emptied)
        for name in emptied:
            self.pilot_on.pop(name, None)

    def _held(self, places: Iterable[int]) -> list[HarvestedNode]:
        """Of those that pilots hold."""
        return [self.pilot_on[name] for name in self.left.named(places) if name in self.pilot_on]

    def _is_alone(self, at: int) -> bool:
        return not any(held.co_allocated for held in self._held([at]))

    def _emptied_with(self, chosen: Collection[int]) -> frozenset[str]:
        """The further nodes that pilots leave when they leave `chosen`."""
        together = [held.co_allocated for held in self._held(chosen) if held.co_allocated]
        return frozenset().union(*together).difference(self.left.named(chosen)) if together else frozenset()

    def _on_one_leaf(self, picked: list[int], fixed: Collection[int], rest: Places) -> list[int]:
        """`picked`, but of the pilots as many on one leaf switch, unless that costs training far more: Slurm, which
        places a job on as few as it can, finds idle what has been emptied. `fixed`: nodes that it has in any case;
        `rest`: all that it could have but for those that it requires."""
        is_pilot = self.left.rank == PILOTS
        pilots = [at for at in picked if is_pilot[at] and at not in fixed]
        if len(pilots) < 2:
            return picked
        best = self.left.on_few_leaves(_without(rest[is_pilot[rest]], fixed), 1, len(pilots))[: len(pilots)]
        if self.left.cost[best].sum() > MOST_TIMES_CHEAPEST * self.left.cost[pilots].sum():
            return picked
        return [*(at for at in picked if at not in set(pilots)), *best.tolist()]

    def _sparing(self, picked: list[int], required: Collection[int], rest: Places) -> list[int]:
        """`picked`, but with nodes of `rest` that are emptied anyway instead of the dearest that need not be."""
        emptied = self._emptied_with(picked)
        if not emptied:
            return picked
        spare: list[int] = rest[np.isin(rest, self.left.places(emptied))].tolist()
        alone = [held for held in self._held(picked) if not held.co_allocated]
        dearest = self.left.places(each.node for each in sorted(alone, key=lambda each: (-each.cost, each.node)))
        saved = [at for at in dearest if at not in required][: len(spare)]
        return [at for at in picked if at not in saved] + spare[: len(saved)]


def _without(order: Places, places: Collection[int]) -> Places:
    if not places or not len(order):
        return order
    stays = np.ones(max(int(order.max()), *places) + 1, np.bool_)
    stays[list(places)] = False
    return order[stays[order]]


@dataclass(frozen=True, slots=True)
class EmptiedNode:
    """A node that a main job was given. `job`: its id; `whole`: that of its array or heterogeneous job; `free_since`:
    when a look first showed the node free (Unix seconds), None before."""

    job: str
    whole: int
    free_since: float | None = None


def whole_of(job: SlurmJob) -> int:
    """The number that the tasks of an array, or the parts of a heterogeneous job, share."""
    return job.het_id or job.array_id or job.raw_id


def emptied_nodes(
    given: Mapping[str, str], before: Mapping[str, EmptiedNode], available: Collection[str], snapshot: Snapshot,
    now: float, rules: Rules,
) -> Mapping[str, EmptiedNode]:  # fmt: skip
    """The nodes that no pilot starts on: those that main jobs are `given` at this look (node -> job), and those of
    the last answer, `before`, whose job still waits and which no backfill cycle has found free.

    `available`: nodes that are free, or coming free.
    """
    whole = {job.id: whole_of(job) for job in snapshot.pending if job.partition != rules.harvest_partition}
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
