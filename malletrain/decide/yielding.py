"""Yield first: a main job that could start on idle plus harvested nodes is given them before Slurm preempts.

A backfill cycle that must preempt costs the main job a whole cycle more (30 s on most sites), so the nodes are
emptied beforehand, by the pilots whose leaving costs training least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.decide.leaf_choice import leaves_of, on_few_leaves
from malletrain.decide.rules import Rules
from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import NodeState, SlurmJob, SlurmState, Snapshot

#: Reasons (squeue(1) %r) of a job that waits for nodes only. Any other reason holds it up whatever is idle.
WAITS_FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "Nodes_required")

#: Pilots on few leaf switches leave instead of the cheapest while training loses at most so many times as much.
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

    def rank(self, name: str) -> tuple[int, float]:
        """Free nodes come before those that are coming, and both before pilots, the cheapest first."""
        if name in self.free:
            return 0, 0.0
        return (1, 0.0) if name in self.coming else (2, self.pilot_on[name].cost)

    def co_allocated(self, name: str) -> frozenset[str]:
        """The nodes that are given up with it, itself included; none where it is a node by itself."""
        return self.pilot_on[name].co_allocated if name in self.pilot_on else frozenset()

    def emptied_with(self, chosen: Collection[str]) -> frozenset[str]:
        """The further nodes that pilots leave when they leave `chosen`."""
        return frozenset().union(*(self.co_allocated(name) for name in chosen)).difference(chosen)

    def without(self, emptied: Collection[str]) -> Availability:
        """The same once the pilots on `emptied` are asked to leave."""
        left = {name: held for name, held in self.pilot_on.items() if name not in emptied}
        return Availability(self.free, self.coming.union(emptied), left)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A start that Slurm has planned: `rank` orders jobs as `_rank` does."""

    job: str
    rank: tuple[int, int]
    start: float
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """Which pilots leave, and for whom.

    Attributes:
        leave: pilot -> the main job that is given its node.
        claimed: free node -> the main job that it is kept for.
        startable: main job that could start now -> since when (Unix seconds).
        given: every node that a main job is given, also those that are coming free.
        awaiting: main jobs that could start now but for pilots, which leave their nodes or are asked to -> whether
            a better job waits that cannot start, so that only backfill starts it.
        at_once: node -> the heterogeneous job that is given it. Slurm puts such a job off for minutes when it finds
            some of its nodes idle and has to preempt for others, so all are given back in the same moment.
        gathered: nodes of pilots that leave instead of cheaper ones, so that the job is on few leaf switches.
    """

    leave: Mapping[str, str] = field(default_factory=dict)
    claimed: Mapping[str, str] = field(default_factory=dict)
    startable: Mapping[str, float] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    awaiting: Mapping[str, bool] = field(default_factory=dict)
    at_once: Mapping[str, str] = field(default_factory=dict)
    gathered: frozenset[str] = frozenset()


def plan_yields(
    snapshot: Snapshot,
    harvested: Sequence[HarvestedNode],
    startable_since: Mapping[str, float],
    now: float,
    rules: Rules,
) -> YieldPlan:
    """Which pilots leave for which waiting main jobs, and which free nodes are kept for them.

    Main jobs are taken in the order of their priority, the parts of a heterogeneous job together, each on nodes
    that no better job plans to use before it would end. `startable_since` is the last answer's `startable`: a job
    that could have started for longer than `claim_patience_s` is held up by something else; it claims nothing until
    `claim_again_s` have passed. A heterogeneous job that Slurm has put off is given nodes from `begin_lead_s` before
    it begins.
    """
    at_hand = availability(snapshot, harvested, rules)
    all_nodes = at_hand.free | at_hand.coming | set(at_hand.pilot_on)
    left = set(all_nodes)
    planned = _planned(snapshot, rules)
    leave: dict[str, str] = {}
    claimed: dict[str, str] = {}
    startable: dict[str, float] = {}
    awaiting: dict[str, bool] = {}
    at_once: dict[str, str] = {}
    gathered: set[str] = set()
    is_behind = False
    pilots_on = at_hand.pilot_on.keys() | _nodes_of_pilots(snapshot, rules)
    for group in _waiting(snapshot, rules, now)[: rules.max_queue]:
        if not left:
            break
        name = group[0].id
        # The waiting rest of an array is one row that stands for many tasks.
        for _ in range(group[0].task_count if len(group) == 1 else 1):
            chosen, instead = _choose(group, snapshot, left, at_hand, planned, now, rules.keep_idle)
            if not chosen:
                is_behind = True
                break
            since = startable_since.get(name, now)
            startable[name] = since
            # One that was put off may start from its BeginTime on, and not before.
            waited_s = max(0.0, now - max([since, *(_begins_at(part) for part in group)]))
            if waited_s % rules.claim_again_s > rules.claim_patience_s:
                break
            left.difference_update(chosen)
            gathered |= instead
            if not pilots_on.isdisjoint(chosen):
                awaiting.setdefault(name, is_behind)
            emptied = at_hand.emptied_with(chosen)
            if group[0].het_id:
                at_once |= dict.fromkeys(chosen, name)
            for node in chosen:
                if node in at_hand.free:
                    claimed[node] = name
                elif node in at_hand.pilot_on:
                    leave[at_hand.pilot_on[node].pilot] = name
            if emptied:
                at_hand = at_hand.without(emptied)
    return YieldPlan(leave, claimed, startable, frozenset(all_nodes - left), awaiting, at_once, frozenset(gathered))


def any_pending_fits(snapshot: Snapshot, rules: Rules) -> bool:
    """Whether some waiting main job could start if all nodes but those of running main jobs were empty: cheap to
    say, and mostly not so while the queue is full of large jobs."""
    harvest, completing = rules.harvest_partition, SlurmState.COMPLETING  # as `_goes`, for thousands of rows
    going = [len(job.nodes) for job in snapshot.holding if job.partition == harvest or job.state is completing]
    most = len(snapshot.nodes) - len(snapshot.held_names) + sum(going)
    return any(waits_for_nodes(job, rules) for job in snapshot.pending if job.node_count <= most)


def availability(snapshot: Snapshot, harvested: Sequence[HarvestedNode], rules: Rules) -> Availability:
    """What a main job, or the reserve, could have soon. `harvested`: the nodes whose pilots may leave."""
    pilot_on = {h.node: h for h in harvested}
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


def _nodes_of_pilots(snapshot: Snapshot, rules: Rules) -> frozenset[str]:
    """The nodes that Slurm shows pilots on, those that are leaving among them."""
    return frozenset(n for job in snapshot.holding if job.partition == rules.harvest_partition for n in job.nodes)


def _goes(job: SlurmJob, rules: Rules) -> bool:
    return job.state is SlurmState.COMPLETING or job.partition == rules.harvest_partition


def _rank(job: SlurmJob) -> tuple[int, int]:
    """Slurm's order: higher priority first, then the older job."""
    return -job.priority, job.raw_id


def _planned(snapshot: Snapshot, rules: Rules) -> list[_Planned]:
    return [
        _Planned(job.id, _rank(job), job.start_time, frozenset(job.planned_nodes))
        for job in snapshot.pending
        if job.planned_nodes and job.start_time is not None and job.partition != rules.harvest_partition
    ]


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
    return sorted(found, key=lambda group: min(_rank(job) for job in group))


def _begins_soon(job: SlurmJob, now: float, rules: Rules) -> bool:
    """Whether Slurm may start the job within `begin_lead_s`, at the BeginTime that it waits for."""
    return job.reason == "BeginTime" and _begins_at(job) <= now + rules.begin_lead_s


def _begins_at(job: SlurmJob) -> float:
    """Before when Slurm does not start the job (Unix seconds)."""
    return job.start_time or 0.0 if job.reason == "BeginTime" else 0.0


def _choose(
    group: Sequence[SlurmJob],
    snapshot: Snapshot,
    left: Collection[str],
    at_hand: Availability,
    planned: Sequence[_Planned],
    now: float,
    reserve: int,
) -> tuple[list[str], set[str]]:
    """Nodes for all parts of a job at once, none when it cannot start; and those of them that are not the cheapest,
    chosen for their leaf switches."""
    if sum(job.node_count for job in group) > len(left):
        return [], set()
    chosen: list[str] = []
    instead: set[str] = set()
    own = {job.id for job in group}
    for part in group:
        better = [plan for plan in planned if plan.job not in own and plan.rank < _rank(part)]
        usable = [n for n in _usable(snapshot, part, left, better, now) if n not in chosen]
        required = [n for n in part.required_nodes if n in usable]
        if len(required) < len(part.required_nodes):
            return [], set()
        kept_for_it = set(part.planned_nodes)

        def order(name: str, kept: Collection[str] = kept_for_it) -> tuple[int, bool, float, str, str]:
            # Of equal cost, nodes that are given up together come side by side.
            first = min(at_hand.co_allocated(name), default=name)
            return at_hand.rank(name)[0], name not in kept, at_hand.rank(name)[1], first, name

        count = max(part.node_count, len(required))
        usable = _on_asked_leaves(usable, required, count, part.switches, snapshot.leaves, order)
        rest = sorted((n for n in usable if n not in required), key=order)
        cheapest = (required + rest)[:count]
        picked = _gathered(cheapest, kept_for_it.union(required), rest, at_hand, snapshot.leaves, reserve)
        instead.update(name for name in picked if name not in cheapest)
        picked = _sparing(picked, required, [name for name in rest if name not in picked], at_hand)
        if len(picked) < part.node_count:
            return [], set()
        chosen += picked
    return chosen, instead


def _gathered(
    picked: list[str],
    fixed: Collection[str],
    rest: Sequence[str],
    at_hand: Availability,
    leaves: Mapping[str, str],
    reserve: int,
) -> list[str]:
    """`picked`, but of the pilots those that leave it on few leaf switches; the cheapest, as they are in `picked`,
    where the others would cost training more than `MOST_TIMES_CHEAPEST`.

    Where it needs fewer leaves without the idle nodes of the reserve, up to `reserve` pilots more leave instead: as
    many would leave afterwards to fill it again. `fixed`: nodes that it has in any case; `rest`: all that it could
    have, the cheapest first.
    """
    pilots = [name for name in picked if name in at_hand.pilot_on and name not in fixed]
    if not leaves or all(name in at_hand.free for name in picked):
        return picked
    others = [name for name in picked if name not in pilots]
    room = Counter(leaves[name] for name in rest if name in leaves)
    loss = MOST_TIMES_CHEAPEST * training_loss(pilots, at_hand.pilot_on)

    def choose(names: Sequence[str], own: Sequence[str]) -> list[str]:
        usable = [name for name in names if name not in fixed]
        return [*own, *on_few_leaves(usable, len(picked) - len(own), leaves, leaves_of(own, leaves), room)]

    def leaving(names: Sequence[str]) -> list[str]:
        return [name for name in names if name in at_hand.pilot_on and name not in fixed]

    best = choose([name for name in rest if name in at_hand.pilot_on], others)
    if training_loss(leaving(best), at_hand.pilot_on) > loss:
        best = picked
    anew = choose(rest, [name for name in picked if name in fixed])
    if (
        len(leaves_of(anew, leaves)) < len(leaves_of(best, leaves))
        and len(leaving(anew)) <= len(pilots) + reserve
        and training_loss(leaving(anew), at_hand.pilot_on) <= loss
    ):
        return anew
    return best


def training_loss(names: Collection[str], pilot_on: Mapping[str, HarvestedNode]) -> float:
    """What training loses when the pilots on `names` leave: of each job as much as its cheapest so many, since the
    first of its pilots to leave costs least, whichever it is; of tasks of several nodes each once."""
    tasks = {held.co_allocated: held.cost for name in names if (held := pilot_on[name]).co_allocated}
    going = Counter(pilot_on[name].job_id for name in names if not pilot_on[name].co_allocated)
    of_job: dict[int, list[float]] = {job: [] for job in going}
    for held in pilot_on.values():
        if held.job_id in of_job and not held.co_allocated:
            of_job[held.job_id].append(held.cost)
    return sum(tasks.values()) + sum(sum(sorted(costs)[: going[job]]) for job, costs in of_job.items())


def _sparing(picked: list[str], required: Collection[str], others: Iterable[str], at_hand: Availability) -> list[str]:
    """`picked`, but with nodes of `others` that are emptied anyway instead of the dearest that need not be."""
    emptied = at_hand.emptied_with(picked)
    spare = [name for name in others if name in emptied]
    if not spare:
        return picked
    whole = {name for name in picked if at_hand.co_allocated(name)}
    saved = [name for name in picked if name in at_hand.pilot_on and name not in whole and name not in required]
    saved = sorted(saved, key=lambda name: (-at_hand.rank(name)[1], name))[: len(spare)]
    return [name for name in picked if name not in saved] + spare[: len(saved)]


def _on_asked_leaves(
    usable: list[str],
    required: Collection[str],
    count: int,
    switches: int | None,
    leaves: Mapping[str, str],
    order: Callable[[str], tuple[int, bool, float, str, str]],
) -> list[str]:
    """Of `usable`, the nodes on those leaf switches that make room for the job at the least cost; all where it asks
    for no number of switches, or none would do: then it waits for its --switches patience, and starts anywhere.

    One leaf alone is chosen exactly; of several, those with most room.
    """
    if not switches or not leaves:
        return usable
    rooms: dict[str, list[str]] = {}
    for name in usable:
        rooms.setdefault(leaves.get(name, ""), []).append(name)
    wanted = {leaves.get(name, "") for name in required}

    def price(leaf: str) -> tuple[int, float, str]:
        ranks = [order(name) for name in sorted(rooms[leaf], key=order)[:count]]
        return sum(rank for rank, *_ in ranks), sum(cost for _, _, cost, *_ in ranks), leaf

    enough = [leaf for leaf, names in rooms.items() if len(names) >= count and wanted <= {leaf}]
    if enough:
        return rooms[min(enough, key=price)]
    best = sorted(rooms, key=lambda leaf: (leaf not in wanted, -len(rooms[leaf]), price(leaf)))[:switches]
    room = [name for leaf in best for name in rooms[leaf]]
    return room if len(room) >= count and set(required) <= set(room) else usable


def _usable(
    snapshot: Snapshot, job: SlurmJob, left: Collection[str], better: Sequence[_Planned], now: float
) -> list[str]:
    """Of `left`, the nodes that Slurm could give `job`: in its partition, with the features, generic
    resources and memory that it asks for, and planned by no better job or reservation for a time before this one
    would end."""
    end = now + (job.time_limit_s if job.time_limit_s is not None else float("inf"))
    barred = set(job.excluded_nodes)
    for plan in better:
        if plan.start < end:
            barred |= plan.nodes
    for reservation in snapshot.reservations:
        if reservation.start < end and reservation.end > now:
            barred.update(reservation.nodes)
    partitions = set(job.partition.split(","))
    asked = Requirements(job.gres, job.features, job.memory_mib)
    return [
        name
        for name in left
        if name not in barred
        and partitions & set(snapshot.node[name].partitions)
        and (not asked or asked.met_by(snapshot.node[name]))
    ]
