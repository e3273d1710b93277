"""Yield first: a main job that could start on idle plus harvested nodes is given them before Slurm preempts.

A backfill cycle that must preempt costs the main job a whole cycle more (30 s on most sites), so the nodes are
emptied beforehand, by the pilots whose leaving costs training least.

Nodes that pilots have left for a main job stay empty until Slurm has had a cycle to use them, or the job is gone:
which nodes a job is given is found anew at each look, and what Slurm shows changes between two. A pilot that starts
on them then has to be taken back when the turn of the job comes, and costs it the cycle they were emptied for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from malletrain.decide.rules import Rules
from malletrain.domain.job import Curve, JobView
from malletrain.domain.requirements import Requirements
from malletrain.domain.slurm_reasons import waits_for_nodes
from malletrain.domain.snapshot import BackfillPlan, NodeState, SlurmJob, SlurmState, Snapshot


@dataclass(frozen=True, slots=True)
class HarvestedNode:
    """A node that a pilot holds. `cost`: what training loses when this pilot leaves (speed-up lost);
    `co_allocated`: all nodes of its task, where it holds several: given up together, and `cost` is of all."""

    node: str
    pilot: str
    cost: float
    co_allocated: frozenset[str] = frozenset()


def leaving_costs(throughput: Callable[[int], float], size: int, least: int) -> list[float]:
    """What a job of `size` nodes trains less with each that goes, in that order: the last nodes of a job are cheaper
    than its first, and one cut below its `least` loses all that it has."""
    return [throughput(k) - (throughput(k - 1) if k > least else 0.0) for k in range(size, 0, -1)]


def with_whole_tasks(costs: Sequence[float], tasks: Sequence[Hashable]) -> list[float]:
    """Of each pilot the cost of all pilots of its task, which leave together."""
    whole: dict[Hashable, float] = {}
    for cost, task in zip(costs, tasks, strict=True):
        whole[task] = whole.get(task, 0.0) + cost
    return [whole[task] for task in tasks]


def harvested(view: JobView) -> list[HarvestedNode]:
    """The nodes of the job's staying pilots, each with the speed-up that it loses without it: the n-th to go costs
    O(k-n+1) - O(k-n) over O(1), times the job's weight."""
    curve = (view.curve or Curve.linear(view.job.max_nodes)).over_one()
    # The pilots that end soonest are the first to go.
    pilots = sorted(view.staying, key=lambda p: (p.started_at is not None, p.ends_at or 0.0, p.node, p.id))
    costs = leaving_costs(curve.throughput, len(pilots), view.job.min_nodes)
    if view.co_allocated:
        # A node of a task that holds several is given up with all of them.
        costs = with_whole_tasks(costs, [pilot.task for pilot in pilots])
    together = {task: frozenset(each.node for each in whole) for task, whole in view.co_allocated.items()}
    return [
        HarvestedNode(p.node, p.id, view.job.weight * cost, together.get(p.task, frozenset()))
        for p, cost in zip(pilots, costs, strict=True)
    ]


def harvested_by(live: Mapping[int, JobView]) -> list[HarvestedNode]:
    """The nodes of all these jobs, as `harvested` has them."""
    return [node for _, view in sorted(live.items()) for node in harvested(view)]


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
    snapshot: Snapshot, harvested: Sequence[HarvestedNode], since: Mapping[str, float], now: float, rules: Rules
) -> YieldPlan:
    """Which pilots leave for which waiting main jobs, and which free nodes are kept for them.

    Main jobs are taken in the order of their priority, the parts of a heterogeneous job together, each on nodes
    that no better job plans to use before it would end. `since` is the last answer's `startable`: a job that
    could have started for longer than `claim_patience_s` is held up by something else.
    """
    at_hand = availability(snapshot, harvested, rules)
    left = NodesLeft(snapshot, at_hand, rules, now)
    assigned: dict[str, str] = {}
    startable: dict[str, float] = {}
    delayed: dict[str, bool] = {}
    at_once: dict[str, str] = {}
    is_behind = False
    pilots_on = at_hand.pilot_on.keys() | nodes_of_pilots(snapshot, rules)
    for group in _waiting(snapshot, rules, now)[: rules.max_queue]:
        if not len(left):
            break
        name = group[0].id
        first_at = since.get(name, now)
        # One that was put off may start from its BeginTime on, and not before.
        waited_s = max(0.0, now - max([first_at, *(_begins_at(part) for part in group)]))
        has_lapsed = waited_s % rules.claim_again_s > rules.claim_patience_s
        # The waiting rest of an array is one row that stands for many tasks.
        tasks = group[0].task_count if len(group) == 1 else 1
        while tasks:
            places, served = left.choose_tasks(group[0], tasks) if tasks > 1 else ([], 0)
            if not places:
                places, served = left.choose(group), 1
            if not places:
                is_behind = True
                break
            startable[name] = first_at
            if has_lapsed:
                break
            chosen = dict.fromkeys(left.take(places), name)
            tasks -= served
            assigned |= chosen
            if not pilots_on.isdisjoint(chosen):
                delayed.setdefault(name, is_behind)
            if group[0].het_id:
                at_once |= chosen
    leave = {at_hand.pilot_on[node].pilot: job for node, job in assigned.items() if node in at_hand.pilot_on}
    claimed = {node: job for node, job in assigned.items() if node in at_hand.free}
    return YieldPlan(leave, claimed, startable, assigned, delayed, at_once)


def any_pending_fits(snapshot: Snapshot, rules: Rules) -> bool:
    """Whether some waiting main job could start if all nodes but those of running main jobs were empty: cheap to
    say, and mostly not so while the queue is full of large jobs."""
    harvest, completing = rules.harvest_partition, SlurmState.COMPLETING  # for thousands of rows
    going = [len(job.nodes) for job in snapshot.holding if job.partition == harvest or job.state is completing]
    most = len(snapshot.nodes) - len(snapshot.held_names) + sum(going)
    return any(waits_for_nodes(job, rules.harvest_partition) for job in snapshot.pending if job.node_count <= most)


def availability(snapshot: Snapshot, harvested: Sequence[HarvestedNode], rules: Rules) -> Availability:
    """What a main job, or the reserve, could have soon. `harvested`: the nodes whose pilots may leave."""
    nodes = snapshot.node
    pilot_on = {h.node: h for h in harvested if h.node in nodes}
    # A pilot may have been released since the snapshot was taken: its node only looks free.
    free = snapshot.free_names.difference(pilot_on)
    going = {node.name for node in snapshot.nodes if node.state is NodeState.COMPLETING}
    staying: set[str] = set()
    for job in snapshot.holding:
        is_going = job.state is SlurmState.COMPLETING or job.partition == rules.harvest_partition
        (going if is_going else staying).update(job.nodes)
    coming = (going - staying - pilot_on.keys()) & nodes.keys()
    return Availability(free, frozenset(coming), pilot_on)


def nodes_of_pilots(snapshot: Snapshot, rules: Rules) -> frozenset[str]:
    """The nodes that Slurm shows pilots on, those that are leaving among them."""
    return frozenset(n for job in snapshot.holding if job.partition == rules.harvest_partition for n in job.nodes)


def _waiting(snapshot: Snapshot, rules: Rules, now: float) -> list[list[SlurmJob]]:
    """Waiting main jobs in the order of priority; parts of one heterogeneous job stand together. One of which a part
    waits for something else, or still leaves the nodes that Slurm took back, is left out: no part starts alone."""
    groups: dict[str, list[SlurmJob]] = {}
    held_up: set[int] = set()
    for job in snapshot.pending:
        begins_soon = job.reason == "BeginTime" and _begins_at(job) <= now + rules.begin_lead_s
        if waits_for_nodes(job, rules.harvest_partition) or (job.het_id and begins_soon):
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
    assigned: Mapping[str, str],
    before: Mapping[str, EmptiedNode],
    available: Collection[str],
    snapshot: Snapshot,
    now: float,
) -> Mapping[str, EmptiedNode]:
    """The nodes that no pilot starts on: those that main jobs are `assigned` at this look (node -> job), and those of
    the last answer, `before`, that are `available`, whose job still waits and which no backfill cycle has found free.
    """
    whole = {job.id: job.het_id or job.array_id or job.raw_id for job in snapshot.pending}
    found = {node: EmptiedNode(name, whole[name]) for node, name in assigned.items()}
    waiting = set(whole.values())
    for node, kept in before.items():
        mine = found.get(node)
        is_wanted = mine is None and kept.whole in waiting and node in available
        if mine is not None and mine.whole == kept.whole:
            found[node] = replace(mine, free_since=kept.free_since)
        elif is_wanted and not _had_its_cycle(kept, snapshot.plan, now):
            found[node] = kept
    return {
        node: replace(each, free_since=now) if each.free_since is None and snapshot.is_free(node) else each
        for node, each in found.items()
    }


def _had_its_cycle(node: EmptiedNode, plan: BackfillPlan, now: float) -> bool:
    """Whether backfill has begun a cycle since the node was free, and ended it; where no cycle is known of, or none
    comes, whether the time of two is over."""
    if node.free_since is None:
        return False
    if now - node.free_since > plan.lasts_s:
        return True
    began = plan.last_cycle_at
    return began is not None and began > node.free_since and now - began > (plan.backfill_cycle_s or 0.0)


#: Places of nodes in the order in which they go; and which of all nodes something is said of.
Places = NDArray[np.intp]
Mask = NDArray[np.bool_]

#: Idle nodes come first, then those that are coming free, then those of pilots.
IDLE, COMING, PILOTS = (0, 1, 2)

#: Pilots on one leaf switch leave instead of the cheapest where training loses at most so many times as much.
MOST_TIMES_CHEAPEST = 2.0


@dataclass(frozen=True, slots=True)
class Availability:
    """Nodes that a main job could have soon: `free` now, `coming` free (completing, or their pilot is leaving
    already), or a pilot's."""

    free: frozenset[str]
    coming: frozenset[str]
    pilot_on: Mapping[str, HarvestedNode]


def rank_of(job: SlurmJob) -> tuple[int, int]:
    """Slurm's order: higher priority first, then the older job."""
    return -job.priority, job.raw_id


class NodesLeft:
    """What is left for main jobs that are taken in the order of their rank, and no better one than before.

    A node goes by its place in the order in which jobs are given nodes. One that is given up with others has a second
    place, among those that are coming free, which it has once these are given away.
    """

    def __init__(self, snapshot: Snapshot, at_hand: Availability, rules: Rules, now: float) -> None:
        pilot_on = at_hand.pilot_on
        together = {name for name, held in pilot_on.items() if held.co_allocated}
        first_of = {whole: min(whole) for whole in {pilot_on[name].co_allocated for name in together}}
        # Of equal cost, nodes that are given up together come side by side.
        pilots = sorted(pilot_on.values(), key=lambda p: (p.cost, first_of.get(p.co_allocated, p.node), p.node))
        ranks = sorted(at_hand.free), sorted(at_hand.coming | together), [held.node for held in pilots]
        self._names = [name for names in ranks for name in names]
        self._rank = np.repeat(np.arange(3), [len(names) for names in ranks])
        self._begin = np.searchsorted(self._rank, np.arange(4))
        self._cost = np.concatenate((np.zeros(self._begin[PILOTS]), np.array([held.cost for held in pilots])))
        self._together: dict[int, frozenset[str]] = {
            at: held.co_allocated for at, held in enumerate(pilots, int(self._begin[PILOTS])) if held.co_allocated
        }
        self._place = {name: at for at, name in enumerate(self._names)}
        self._once_emptied = {name: at for at, name in enumerate(ranks[COMING], len(ranks[IDLE]))}
        self._left = self._mask(self._place.values())
        self._is_together = self._mask(self._together)
        self._has_leaves = bool(snapshot.leaves)
        number = {leaf: at for at, leaf in enumerate(sorted(set(snapshot.leaves.values())), start=1)}
        leaf_of = {name: number[leaf] for name, leaf in snapshot.leaves.items()}
        self._leaf = np.array([leaf_of.get(name, 0) for name in self._names], np.intp)
        self._by_leaf = np.argsort(self._leaf, kind="stable")
        self._leaf_begin = np.searchsorted(self._leaf[self._by_leaf], np.arange(len(number) + 2))
        what_jobs_ask, node_of = attrgetter("partitions", "gres", "features", "memory_mib"), snapshot.node
        kinds: dict[object, int] = {}
        kind_of = {name: kinds.setdefault(what_jobs_ask(node_of[name]), len(kinds)) for name in self._place}
        self._kinds = list({kind: node_of[name] for name, kind in kind_of.items()}.values())
        self._kind = np.array([kind_of[name] for name in self._names], np.intp)
        self._having: dict[tuple[str, Requirements], Mask] = {}
        self._now = now
        planned = [
            (rank_of(job), job.start_time, job)
            for job in snapshot.pending
            if job.planned_nodes and job.start_time is not None and job.partition != rules.harvest_partition
        ]
        self._planned = sorted(planned, key=lambda plan: plan[0])
        self._passed = 0  # so many of these are of better jobs than all that are still to come
        self._taken_from = np.full(len(self._names), inf)  # when others have each node
        self._is_taken_from = inf
        for each in snapshot.reservations:
            if each.end > now:
                self._bar(each.nodes, each.start)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._left))

    def choose(self, group: Sequence[SlurmJob]) -> list[int]:
        """The places of nodes for all parts of a job at once; none when it cannot start."""
        chosen: list[int] = []
        for part in group:
            open_to = self._open_to(part, group)
            open_to[chosen] = False
            required = self._places(part.required_nodes)
            has_required = len(required) == len(part.required_nodes) and open_to[required].all()
            if not has_required or np.count_nonzero(open_to) < part.node_count:
                return []
            kept = self._places(part.planned_nodes)
            count = max(part.node_count, len(required))
            if part.switches and self._has_leaves and count > 1:
                rest = self._on_few_leaves(open_to, part.switches, count, kept, required)
            else:
                rest = self._in_order(open_to, kept)
            if required:
                rest = rest[~self._mask(required)[rest]]
            picked = [*required, *rest[: count - len(required)].tolist()]
            if self._has_leaves and not part.switches:
                picked = self._on_one_leaf(picked, {*kept, *required}, open_to)
            chosen += self._sparing(picked, required, rest)
        return chosen

    def choose_tasks(self, job: SlurmJob, most: int) -> tuple[list[int], int]:
        """Nodes for the next tasks of an array, as `choose` finds them for one after the other; and how many tasks
        these are, of `most`: 0 where the next has to be looked at alone."""
        open_to, width = self._open_to(job, [job]), job.node_count
        order = self._in_order(open_to)
        if not len(order) or job.required_nodes:
            return [], 0
        rank = self._rank[order[0]]
        by_leaf = self._has_leaves and width > 1 and (rank == PILOTS or job.switches)
        if by_leaf or any(open_to[at] and self._rank[at] == rank for at in self._places(job.planned_nodes)):
            return [], 0
        of_rank = order[: np.searchsorted(order, self._begin[rank + 1])][: most * width]
        alone = int(np.append(self._is_together[of_rank], True).argmax())  # so many are given up without others
        served = max(1, alone) if width == 1 else alone // width
        return of_rank[: served * width].tolist(), served

    def take(self, chosen: Sequence[int]) -> list[str]:
        """Give these nodes away, and say which they are; the pilots on them leave, those of a task together."""
        emptied = self._emptied_with(chosen)
        self._left[chosen] = False
        for name in emptied:
            was = self._place.get(name)
            if was is not None and self._left[was] and self._rank[was] == PILOTS:
                at = self._place[name] = self._once_emptied[name]
                self._left[was], self._left[at] = False, True
                self._taken_from[at] = self._taken_from[was]
        return [self._names[at] for at in chosen]

    def _mask(self, places: Collection[int]) -> Mask:
        """Which of all nodes these are."""
        found = np.zeros(len(self._names), np.bool_)
        found[list(places)] = True
        return found

    def _places(self, names: Iterable[str]) -> list[int]:
        """Of those of the nodes that there were at the beginning."""
        return [self._place[name] for name in names if name in self._place]

    def _open_to(self, job: SlurmJob, group: Sequence[SlurmJob]) -> Mask:
        """Of the nodes that are left, those that Slurm could give `job`: in its partition, with the features, generic
        resources and memory that it asks for, and planned by no job better than the best of its `group` (the parts of
        a heterogeneous job), or reservation, for a time before this one would end."""
        rank = min(map(rank_of, group))
        while self._passed < len(self._planned) and self._planned[self._passed][0] < rank:
            _, start, better = self._planned[self._passed]
            self._bar(better.planned_nodes, start)
            self._passed += 1
        end = inf if job.time_limit_s is None else self._now + job.time_limit_s
        found: Mask = self._left & self._with(job)
        if self._is_taken_from < end:
            found &= self._taken_from >= end
        found[self._places(job.excluded_nodes)] = False
        for other_rank, start, other in self._planned[self._passed :] if len(group) > 1 else ():
            if other_rank < rank_of(job) and start < end and all(other.id != part.id for part in group):
                found[self._places(other.planned_nodes)] = False
        return found

    def _bar(self, names: Iterable[str], start: float) -> None:
        """Others have these from `start` on."""
        if places := self._places(names):
            self._taken_from[places] = np.minimum(self._taken_from[places], start)
            self._is_taken_from = min(self._is_taken_from, start)

    def _with(self, job: SlurmJob) -> Mask:
        """The nodes that have what the job asks for."""
        asked = Requirements(job.gres, job.features, job.memory_mib)
        key = job.partition, asked
        if key not in self._having:
            partitions = set(job.partition.split(","))
            there = [not partitions.isdisjoint(n.partitions) for n in self._kinds]
            fits = [not asked or asked.satisfied_by(n) for n in self._kinds]
            self._having[key] = np.logical_and(there, fits)[self._kind]
        return self._having[key]

    def _in_order(self, among: Mask, kept: Collection[int] = ()) -> Places:
        """The places as jobs are given them; of nodes of one rank, those in `kept` come first."""
        order = np.flatnonzero(among)
        if not kept:
            return order
        first = sorted(at for at in set(kept) if among[at])
        order = order[~self._mask(first)[order]]
        with_first: Places = np.insert(order, np.searchsorted(order, self._begin[self._rank[first]]), first)
        return with_first

    def _on_few_leaves(
        self, among: Mask, leaves: int, count: int, kept: Sequence[int] = (), required: Sequence[int] = ()
    ) -> Places:
        """Of `among`, in order, those on the one leaf switch that makes room for `count` nodes at the least cost,
        else on so many `leaves` with most room; all where these would not do, or not have the `required` nodes."""
        by_leaf = self._by_leaf
        if kept:
            order = self._in_order(np.ones_like(among), kept)
            by_leaf = order[np.argsort(self._leaf[order], kind="stable")]
        there = np.flatnonzero(among[by_leaf])
        begin = np.searchsorted(there, self._leaf_begin)
        room = np.diff(begin)
        most = np.minimum(room, count)
        first = by_leaf[there[np.repeat(begin[:-1] - np.cumsum(most) + most, most) + np.arange(most.sum())]]
        ranks, costs = (np.bincount(self._leaf[first], of[first], len(room)) for of in (self._rank, self._cost))
        cheapest, wanted = np.lexsort((costs, ranks)), {int(self._leaf[at]) for at in required}
        for leaf in cheapest[room[cheapest] >= count].tolist():
            if wanted <= {leaf}:
                return by_leaf[there[begin[leaf] : begin[leaf + 1]]]
        best = sorted(cheapest.tolist(), key=lambda each: (each not in wanted, -room[each]))[:leaves]
        if room[best].sum() >= count and wanted.issubset(best):
            among = among & np.isin(self._leaf, best)
        return self._in_order(among, kept)

    def _on_one_leaf(self, picked: list[int], fixed: Collection[int], open_to: Mask) -> list[int]:
        """`picked`, but of the pilots as many on one leaf switch, unless that costs training far more: Slurm, which
        places a job on as few as it can, finds idle what has been emptied. `fixed`: nodes that it has in any case."""
        pilots = [at for at in picked if self._rank[at] == PILOTS and at not in fixed]
        if len(pilots) < 2:
            return picked
        loose = open_to & (self._rank == PILOTS)
        loose[list(fixed)] = False
        best = self._on_few_leaves(loose, 1, len(pilots))[: len(pilots)]
        if self._cost[best].sum() > MOST_TIMES_CHEAPEST * self._cost[pilots].sum():
            return picked
        return [*(at for at in picked if self._rank[at] != PILOTS or at in fixed), *best.tolist()]

    def _emptied_with(self, chosen: Collection[int]) -> frozenset[str]:
        """The further nodes that pilots leave when they leave `chosen`."""
        together = {self._together[at] for at in chosen if at in self._together}
        return frozenset().union(*together).difference(self._names[at] for at in chosen)

    def _sparing(self, picked: list[int], required: Collection[int], rest: Places) -> list[int]:
        """`picked`, but with nodes of `rest` that are emptied anyway instead of the dearest that need not be."""
        emptied = self._emptied_with(picked)
        if not emptied:
            return picked
        spare: list[int] = rest[self._mask(self._places(emptied))[rest]].tolist()
        alone = [at for at in picked if self._rank[at] == PILOTS and at not in self._together and at not in required]
        saved = sorted(alone, key=lambda at: (-self._cost[at], self._names[at]))[: len(spare)]
        return [at for at in picked if at not in saved] + spare[: len(saved)]
