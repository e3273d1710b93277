"""Yield first: a main job that could start on idle plus harvested nodes is given them before Slurm preempts.

A backfill cycle that must preempt costs the main job a whole cycle more (30 s on most sites), so the nodes are
emptied beforehand, by the pilots whose leaving costs training least.

Nodes that pilots have left for a main job stay empty until Slurm has had a cycle to use them, or the job is gone.
Which nodes a job is given is found anew at each look, and what Slurm shows changes between two: a better job is
planned on these nodes, a part of a heterogeneous job is taken back, a reason changes for a moment. A pilot that
starts on them then has to be taken back when the turn of the job comes, and costs it the cycle they were emptied for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile

from malletrain.decide.nodes_left import IDLE, PILOTS, RANKS, Candidates, Cost, NodesLeft, PlannedStart, leaves_of
from malletrain.decide.rules import Rules
from malletrain.domain.snapshot import BackfillPlan, NodeState, SlurmJob, SlurmState, Snapshot

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


@dataclass(frozen=True, slots=True)
class YieldPlan:
    """Which pilots leave, and for whom.

    Attributes:
        leave: pilot -> the main job that is given its node.
        claimed: free node -> the main job that it is kept for.
        startable: main job that could start now -> since when (Unix seconds).
        given_to: every node that a main job is given, also those that are coming free -> that job.
        emptied: these, and those that main jobs were given before and may still use.
        awaiting: main jobs that could start now but for pilots, which leave their nodes or are asked to -> whether
            a better job waits that cannot start, so that only backfill starts it.
        at_once: node -> the heterogeneous job that is given it. Slurm puts such a job off for minutes when it finds
            some of its nodes idle and has to preempt for others, so all are given back in the same moment.
        gathered: nodes of pilots that leave instead of cheaper ones, so that the job is on few leaf switches.
    """

    leave: Mapping[str, str] = field(default_factory=dict)
    claimed: Mapping[str, str] = field(default_factory=dict)
    startable: Mapping[str, float] = field(default_factory=dict)
    given_to: Mapping[str, str] = field(default_factory=dict)
    awaiting: Mapping[str, bool] = field(default_factory=dict)
    at_once: Mapping[str, str] = field(default_factory=dict)
    gathered: frozenset[str] = frozenset()
    emptied: Mapping[str, EmptiedNode] = field(default_factory=dict)

    @property
    def given(self) -> frozenset[str]:
        """Every node that is kept for a main job, also those that are coming free."""
        return frozenset(self.given_to).union(self.emptied)


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
    given = _Given(snapshot, at_hand, _planned(snapshot, rules), now, rules.keep_idle)
    leave: dict[str, str] = {}
    claimed: dict[str, str] = {}
    given_to: dict[str, str] = {}
    startable: dict[str, float] = {}
    awaiting: dict[str, bool] = {}
    at_once: dict[str, str] = {}
    gathered: set[str] = set()
    is_behind = False
    pilots_on = at_hand.pilot_on.keys() | nodes_of_pilots(snapshot, rules)
    for group in _waiting(snapshot, rules, now)[: rules.max_queue]:
        if not given.left.names:
            break
        name = group[0].id
        since = startable_since.get(name, now)
        # One that was put off may start from its BeginTime on, and not before.
        waited_s = max(0.0, now - max([since, *(_begins_at(part) for part in group)]))
        has_lapsed = waited_s % rules.claim_again_s > rules.claim_patience_s
        # The waiting rest of an array is one row that stands for many tasks.
        tasks = group[0].task_count if len(group) == 1 else 1
        while tasks:
            if has_lapsed and given.suffice_for(group):
                startable[name] = since
                break
            chosen, instead, served = given.choose_tasks(group[0], tasks) if tasks > 1 else NONE_CHOSEN
            if not chosen:
                chosen, instead = given.choose(group)
                served = 1
            if not chosen:
                is_behind = True
                break
            tasks -= served
            startable[name] = since
            gathered |= instead
            given_to |= dict.fromkeys(chosen, name)
            if not pilots_on.isdisjoint(chosen):
                awaiting.setdefault(name, is_behind)
            if group[0].het_id:
                at_once |= dict.fromkeys(chosen, name)
            for node in chosen:
                if node in at_hand.free:
                    claimed[node] = name
                elif node in given.pilot_on:
                    leave[given.pilot_on[node].pilot] = name
            given.take(chosen)
    return YieldPlan(leave, claimed, startable, given_to, awaiting, at_once, frozenset(gathered))


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


def nodes_of_pilots(snapshot: Snapshot, rules: Rules) -> frozenset[str]:
    """The nodes that Slurm shows pilots on, those that are leaving among them."""
    return frozenset(n for job in snapshot.holding if job.partition == rules.harvest_partition for n in job.nodes)


def _goes(job: SlurmJob, rules: Rules) -> bool:
    return job.state is SlurmState.COMPLETING or job.partition == rules.harvest_partition


def _rank(job: SlurmJob) -> tuple[int, int]:
    """Slurm's order: higher priority first, then the older job."""
    return -job.priority, job.raw_id


def _planned(snapshot: Snapshot, rules: Rules) -> list[PlannedStart]:
    return [
        PlannedStart(job.id, _rank(job), job.start_time, frozenset(job.planned_nodes))
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


#: No nodes for any task.
NONE_CHOSEN: tuple[list[str], set[str], int] = ([], set(), 0)


class _Given:
    """What main jobs are given at one look, as they are taken in the order of their priority."""

    def __init__(
        self, snapshot: Snapshot, at_hand: Availability, planned: Sequence[PlannedStart], now: float, reserve: int
    ) -> None:
        self.pilot_on = dict(at_hand.pilot_on)
        self._free = at_hand.free
        self._leaves = snapshot.leaves
        self._reserve = reserve
        self._loss = TrainingLoss(at_hand.pilot_on)
        ranks = at_hand.free, at_hand.coming, at_hand.pilot_on
        self._cost: dict[str, Cost] = {name: (0.0, name, name) for name in chain(at_hand.free, at_hand.coming)}
        # Of equal cost, nodes that are given up together come side by side.
        first_of = {held.co_allocated: min(held.co_allocated, default="") for held in at_hand.pilot_on.values()}
        self._cost |= {
            name: (held.cost, first_of[held.co_allocated] or name, name) for name, held in at_hand.pilot_on.items()
        }
        self.left = NodesLeft(ranks, self._cost.__getitem__, planned, snapshot, now)

    def choose(self, group: Sequence[SlurmJob]) -> tuple[list[str], set[str]]:
        """Nodes for all parts of a job at once, none when it cannot start; and those of them that are not the
        cheapest, chosen for their leaf switches."""
        if sum(job.node_count for job in group) > len(self.left.names):
            return [], set()
        chosen: list[str] = []
        instead: set[str] = set()
        best, own = min(map(_rank, group)), {job.id for job in group}
        for part in group:
            candidates = self.left.candidates(part, best)
            hidden = set(chosen)
            if len(group) > 1:
                hidden |= self.left.planned_by_others(part, best, own)
            if not _suffice(candidates, part, hidden):
                return [], set()
            required = list(part.required_nodes)
            kept = set(part.planned_nodes)
            count = max(part.node_count, len(required))
            rest = candidates.on_asked_leaves(part.switches, count, required, kept, hidden)
            hidden.update(required)
            cheapest = required + rest.first(count - len(required), kept, hidden)
            picked = self._gathered(cheapest, kept.union(required), rest, hidden)
            if picked is not cheapest:
                instead |= set(picked).difference(cheapest)
            chosen += self._sparing(picked, required, rest, kept, hidden)
        return chosen, instead

    def choose_tasks(self, job: SlurmJob, most: int) -> tuple[list[str], set[str], int]:
        """Nodes for the next tasks of an array, as `choose` finds them for one after the other; those of them that
        are not the cheapest; and how many tasks these are, of `most`: 0 where the next has to be looked at alone."""
        candidates = self.left.candidates(job, _rank(job))
        rank, first = candidates.front(job.planned_nodes) or (PILOTS, "")
        if not first or job.required_nodes or not self._is_alone(first):
            return NONE_CHOSEN
        by_leaf = bool(job.switches and self._leaves)
        in_order = not self._leaves or (rank == IDLE and not by_leaf)
        if not in_order and (job.node_count > 1 or (by_leaf and most < candidates.leaves)):
            return NONE_CHOSEN
        if in_order or by_leaf or rank != PILOTS:
            nodes = islice(candidates.one_by_one(rank, by_leaf), most * job.node_count)
            chosen = list(takewhile(self._is_alone, nodes))
            served = len(chosen) // job.node_count
            return chosen[: served * job.node_count], set(), served
        pairs = islice(candidates.pilots_on_few_leaves(self._may_replace), most)
        found = list(takewhile(lambda pair: all(map(self._is_alone, pair)), pairs))
        return [name for name, _ in found], {name for name, cheapest in found if name != cheapest}, len(found)

    def suffice_for(self, group: Sequence[SlurmJob]) -> bool:
        """Whether `choose` finds nodes."""
        if len(group) > 1:
            return bool(self.choose(group)[0])
        return _suffice(self.left.candidates(group[0], _rank(group[0])), group[0], ())

    def take(self, chosen: Sequence[str]) -> None:
        """Give these nodes away; the pilots on them leave, those of a task together."""
        emptied = self._emptied_with(chosen)
        self.left.give(chosen)
        if emptied:
            self.left.empty(emptied)
            for name in emptied:
                self.pilot_on.pop(name, None)
                self._cost[name] = (0.0, name, name)

    def _is_alone(self, name: str) -> bool:
        held = self.pilot_on.get(name)
        return held is None or not held.co_allocated

    def _may_replace(self, name: str, cheapest: str) -> bool:
        """Whether training loses little enough more when the pilot on `name` leaves."""
        return self._loss.of_one(name) <= MOST_TIMES_CHEAPEST * self._loss.of_one(cheapest)

    def _emptied_with(self, chosen: Collection[str]) -> frozenset[str]:
        """The further nodes that pilots leave when they leave `chosen`."""
        held = [self.pilot_on[name].co_allocated for name in chosen if name in self.pilot_on]
        return frozenset().union(*held).difference(chosen)

    def _gathered(
        self, picked: list[str], fixed: Collection[str], rest: Candidates, hidden: Collection[str]
    ) -> list[str]:
        """`picked`, but of the pilots those that leave it on few leaf switches; the cheapest, as they are in
        `picked`, where the others would cost training more than `MOST_TIMES_CHEAPEST`.

        Where it needs fewer leaves without the idle nodes of the reserve, up to `reserve` pilots more leave instead:
        as many would leave afterwards to fill it again. `fixed`: nodes that it has in any case; `rest`: all that it
        could have but for those that are `hidden`.
        """
        if not self._leaves or all(name in self._free for name in picked):
            return picked
        pilots = self._leaving(picked, fixed)
        others = [name for name in picked if name not in set(pilots)]
        most = MOST_TIMES_CHEAPEST * self._loss.of(pilots)
        best = rest.on_few_leaves(len(pilots), others, [PILOTS], fixed, hidden)
        if self._loss.of(self._leaving(best, fixed)) > most:
            best = picked
        leaves = len(leaves_of(best, self._leaves))
        if leaves == 1:
            return best
        own = [name for name in picked if name in fixed]
        anew = rest.on_few_leaves(len(picked) - len(own), own, RANKS, fixed, hidden)
        leaving = self._leaving(anew, fixed)
        if (
            len(leaves_of(anew, self._leaves)) < leaves
            and len(leaving) <= len(pilots) + self._reserve
            and self._loss.of(leaving) <= most
        ):
            return anew
        return best

    def _leaving(self, names: Iterable[str], fixed: Collection[str]) -> list[str]:
        return [name for name in names if name in self.pilot_on and name not in fixed]

    def _sparing(
        self,
        picked: list[str],
        required: Collection[str],
        rest: Candidates,
        kept: Collection[str],
        hidden: Collection[str],
    ) -> list[str]:
        """`picked`, but with nodes of `rest` that are emptied anyway instead of the dearest that need not be."""
        emptied = self._emptied_with(picked)
        spare = rest.sort((name for name in emptied if name in rest and name not in hidden), kept)
        if not spare:
            return picked
        alone = [name for name in picked if name in self.pilot_on and not self.pilot_on[name].co_allocated]
        alone.sort(key=lambda name: (-self.pilot_on[name].cost, name))
        saved = [name for name in alone if name not in required][: len(spare)]
        return [name for name in picked if name not in saved] + spare[: len(saved)]


def _suffice(candidates: Candidates, job: SlurmJob, hidden: Collection[str]) -> bool:
    required = all(name in candidates and name not in hidden for name in job.required_nodes)
    return required and candidates.count(hidden) >= job.node_count


class TrainingLoss:
    """What training loses when pilots leave: of each job as much as its cheapest so many, since the first of its
    pilots to leave costs least, whichever it is; of tasks of several nodes each once."""

    def __init__(self, pilot_on: Mapping[str, HarvestedNode]) -> None:
        self._pilot_on = pilot_on
        self._costs: dict[int, list[float]] = {}
        for held in pilot_on.values():
            if not held.co_allocated:
                self._costs.setdefault(held.job_id, []).append(held.cost)
        for costs in self._costs.values():
            costs.sort()

    def of_one(self, name: str) -> float:
        """The loss when the pilot on this node alone leaves."""
        held = self._pilot_on[name]
        return held.cost if held.co_allocated else self._costs[held.job_id][0]

    def of(self, names: Collection[str]) -> float:
        """The loss when the pilots on these nodes leave."""
        held = [self._pilot_on[name] for name in names]
        tasks = {each.co_allocated: each.cost for each in held if each.co_allocated}
        going = Counter(each.job_id for each in held if not each.co_allocated)
        return sum(tasks.values()) + sum(sum(self._costs[job][:count]) for job, count in going.items())


def training_loss(names: Collection[str], pilot_on: Mapping[str, HarvestedNode]) -> float:
    """As `TrainingLoss.of`, once."""
    return TrainingLoss(pilot_on).of(names)


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
    given: Mapping[str, str],
    before: Mapping[str, EmptiedNode],
    available: Collection[str],
    snapshot: Snapshot,
    now: float,
    rules: Rules,
) -> Mapping[str, EmptiedNode]:
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
