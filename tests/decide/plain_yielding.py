"""What waiting main jobs are given, said plainly: each job, and each task of an array, sorts all nodes anew.

As `malletrain.decide.yielding` decides, which masks nodes that it has sorted once; slow, and for comparison alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from malletrain.decide import yielding
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import MOST_TIMES_CHEAPEST, HarvestedNode, YieldPlan, rank_of
from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import SlurmJob, Snapshot


class PlainYields:
    """One look."""

    def __init__(self, snapshot: Snapshot, harvested: Sequence[HarvestedNode], now: float, rules: Rules) -> None:
        at_hand = yielding.availability(snapshot, harvested, rules)
        self.free, self.coming, self.pilot_on = set(at_hand.free), set(at_hand.coming), dict(at_hand.pilot_on)
        self.left, self.all_pilots = self.free | self.coming | self.pilot_on.keys(), dict(self.pilot_on)
        self.snapshot, self.now, self.rules = snapshot, now, rules

    def plan(self, since: dict[str, float]) -> YieldPlan:
        """As `plan_yields`."""
        plan = YieldPlan({}, {}, {}, {}, {}, {})
        pilots = {name for job in self.snapshot.holding if job.partition == "harvest" for name in job.nodes}
        pilots |= self.pilot_on.keys()
        is_behind = False
        for group in yielding._waiting(self.snapshot, self.rules, self.now)[: self.rules.max_queue]:
            name, tasks = group[0].id, group[0].task_count if len(group) == 1 else 1
            for _ in range(tasks if self.left else 0):
                chosen = self.choose(group)
                if not chosen:
                    is_behind = True
                    break
                plan.startable[name] = since.get(name, self.now)  # type: ignore[index]
                waited_s = max(0.0, self.now - max([plan.startable[name], *map(yielding._begins_at, group)]))
                if waited_s % self.rules.claim_again_s > self.rules.claim_patience_s:
                    break
                plan.assigned.update(dict.fromkeys(chosen, name))  # type: ignore[attr-defined]
                if not pilots.isdisjoint(chosen):
                    plan.delayed.setdefault(name, is_behind)  # type: ignore[attr-defined]
                if group[0].het_id:
                    plan.at_once.update(dict.fromkeys(chosen, name))  # type: ignore[attr-defined]
                for node in chosen:
                    if node in self.free:
                        plan.claimed[node] = name  # type: ignore[index]
                    elif node in self.all_pilots:
                        plan.leave[self.all_pilots[node].pilot] = name  # type: ignore[index]
                self.left -= set(chosen)
                for node in self.emptied_with(chosen):
                    self.pilot_on.pop(node, None)
                    self.coming.add(node)
        return plan

    def choose(self, group: Sequence[SlurmJob]) -> list[str]:
        """The nodes of all parts of a job."""
        chosen: list[str] = []
        for part in group:
            usable = [name for name in self.usable(part, {job.id for job in group}) if name not in chosen]
            required, kept = list(part.required_nodes), set(part.planned_nodes)
            count = max(part.node_count, len(required))
            if len(usable) < part.node_count or not set(required) <= set(usable):
                return []
            usable = self.on_few_leaves(usable, required, count, part.switches if count > 1 else 0, kept)
            rest = sorted((name for name in usable if name not in required), key=lambda n: self.order(n, kept))
            picked = (required + rest)[:count]
            if not part.switches:
                picked = self.on_one_leaf(picked, kept.union(required), rest)
            chosen += self.sparing(picked, required, [name for name in rest if name not in picked])
        return chosen

    def usable(self, job: SlurmJob, own: Collection[str]) -> list[str]:
        """Of the nodes that are left, those that Slurm could give the job."""
        end = self.now + (float("inf") if job.time_limit_s is None else job.time_limit_s)
        barred = set(job.excluded_nodes)
        for plan in self.snapshot.pending:
            is_better = plan.id not in own and rank_of(plan) < rank_of(job)
            if plan.partition != "harvest" and plan.start_time is not None and is_better and plan.start_time < end:
                barred.update(plan.planned_nodes)
        for reservation in self.snapshot.reservations:
            if reservation.start < end and reservation.end > self.now:
                barred.update(reservation.nodes)
        asked, partitions = Requirements(job.gres, job.features, job.memory_mib), set(job.partition.split(","))
        nodes = (self.snapshot.node[name] for name in sorted(self.left - barred))
        return [n.name for n in nodes if partitions & set(n.partitions) and (not asked or asked.satisfied_by(n))]

    def rank(self, name: str) -> tuple[int, float]:
        """Free nodes first, then those that are coming free, then pilots by cost."""
        if name in self.free:
            return 0, 0.0
        return (1, 0.0) if name in self.coming else (2, self.pilot_on[name].cost)

    def co_allocated(self, name: str) -> frozenset[str]:
        """The nodes that are given up with it."""
        return self.pilot_on[name].co_allocated if name in self.pilot_on else frozenset()

    def order(self, name: str, kept: Collection[str]) -> tuple[object, ...]:
        """The order in which a job is given nodes."""
        rank, cost = self.rank(name)
        return rank, name not in kept, cost, min(self.co_allocated(name), default=name), name

    def emptied_with(self, names: Collection[str]) -> frozenset[str]:
        """The further nodes that pilots leave with these."""
        return frozenset().union(*map(self.co_allocated, names)).difference(names)

    def on_few_leaves(
        self, usable: list[str], required: Collection[str], count: int, switches: int | None, kept: Collection[str]
    ) -> list[str]:
        """Those on the leaves that make room at the least cost."""
        leaves = self.snapshot.leaves
        if not switches or not leaves:
            return usable
        rooms: dict[str, list[str]] = {}
        for name in sorted(usable, key=lambda n: self.order(n, kept)):
            rooms.setdefault(leaves.get(name, ""), []).append(name)
        wanted = {leaves.get(name, "") for name in required}

        def price(leaf: str) -> tuple[int, float, str]:
            ranks = [self.rank(name) for name in rooms[leaf][:count]]
            return sum(rank for rank, _ in ranks), sum(cost for _, cost in ranks), leaf

        enough = [leaf for leaf, names in rooms.items() if len(names) >= count and wanted <= {leaf}]
        if enough:
            return rooms[min(enough, key=price)]
        best = sorted(rooms, key=lambda leaf: (leaf not in wanted, -len(rooms[leaf]), price(leaf)))[:switches]
        room = [name for leaf in best for name in rooms[leaf]]
        return room if len(room) >= count and set(required) <= set(room) else usable

    def on_one_leaf(self, picked: list[str], fixed: Collection[str], rest: list[str]) -> list[str]:
        """The same, but of the pilots as many on one leaf, unless that costs much more."""
        pilots = [name for name in picked if name in self.pilot_on and name not in fixed]
        if len(pilots) < 2:
            return picked
        loose = [name for name in rest if name in self.pilot_on and name not in fixed]
        usable = self.on_few_leaves(loose, (), len(pilots), 1, ())
        best = sorted(usable, key=lambda n: self.order(n, ()))[: len(pilots)]
        costs = [sum(self.pilot_on[name].cost for name in names) for names in (best, pilots)]
        if costs[0] > MOST_TIMES_CHEAPEST * costs[1]:
            return picked
        return [name for name in picked if name not in pilots] + best

    def sparing(self, picked: list[str], required: Collection[str], others: list[str]) -> list[str]:
        """The same, but with nodes that are emptied anyway instead of the dearest that need not be."""
        emptied = self.emptied_with(picked)
        spare = [name for name in others if name in emptied]
        alone = [name for name in picked if name in self.pilot_on and not self.co_allocated(name)]
        alone = sorted((n for n in alone if n not in required), key=lambda n: (-self.pilot_on[n].cost, n))
        saved = alone[: len(spare)]
        return [name for name in picked if name not in saved] + spare[: len(saved)]
