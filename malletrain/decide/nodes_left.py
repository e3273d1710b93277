"""The nodes that are left for waiting main jobs, in the order in which jobs are given them.

Hundreds of small jobs may wait for thousands of nodes, so which nodes a job can have is one mask over all of them.

On leaf switches nodes are chosen as Slurm's topology/tree places a job: on the leaf that it fills most, else the
widest. Slurm chooses so among the nodes that are idle. Where pilots hold nodes, those that leave decide which nodes
are idle, so they are chosen by the same rule: a main job spreads over no more switches than it would without pilots,
and whole leaves stay for the next job that asks for one (`_eval_nodes_topo` in
src/plugins/select/cons_tres/job_test.c).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import Node, SlurmJob, Snapshot

#: Places of nodes in some order; or of nodes the numbers of their leaf switches, from 1 in the order of names, and 0
#: for those on none; or how many nodes there are on each leaf.
Places = NDArray[np.intp]
Mask = NDArray[np.bool_]


def leaf_numbers(leaves: Mapping[str, str]) -> dict[str, int]:
    """The number of the leaf switch of each node that is on one."""
    number = {leaf: at for at, leaf in enumerate(sorted(set(leaves.values())), start=1)}
    return {node: number[leaf] for node, leaf in leaves.items()}


def leaf_order(on: Places, wanted: int, near: Collection[int], room: Places) -> list[int]:
    """Leaves to take `wanted` nodes from, in this order: those in `near`, then the leaf with least `room` that holds
    the rest, or else the one with most nodes.

    `on`: how many nodes can be taken on each leaf; `room`: how many there are without a main job.
    """
    order = sorted(leaf for leaf in near if 0 < leaf < len(on) and on[leaf])
    left, others = wanted - sum(int(on[leaf]) for leaf in order), on.copy()
    others[[0, *order]] = 0
    if left > int(others.max()):
        for leaf in np.lexsort((np.arange(len(on)), others))[::-1].tolist():
            if left <= others[leaf] or not others[leaf]:
                break
            left -= int(others[leaf])
            order.append(leaf)
            others[leaf] = 0
    whole = np.flatnonzero(others >= left) if left > 0 else others[:0]
    return [*order, int(whole[np.argmin(room[whole])])] if len(whole) else order


def on_few_leaves(leaf: Places, wanted: int, near: Collection[int], room: Places) -> Places:
    """Which `wanted` of some nodes (all, if there are fewer) are on as few leaves as `leaf_order` finds, of each the
    first. `leaf`: of each node the number of its leaf, the best node first; the rest as in `leaf_order`.

    Those on no leaf come last. The first `wanted` of all, where these are on fewer leaves outside `near`.
    """
    first = np.arange(min(wanted, len(leaf)))
    if not wanted or len(leaf) <= wanted:
        return first
    parts: list[Places] = []
    for each in (*leaf_order(np.bincount(leaf, minlength=len(room)), wanted, near, room), 0):
        if sum(map(len, parts)) < wanted:
            parts.append(np.flatnonzero(leaf == each))
    found = np.concatenate(parts)[:wanted]
    return found if _apart(leaf[found], near) <= _apart(leaf[first], near) else first


def _apart(leaf: Places, near: Collection[int]) -> int:
    """On how many leaves outside `near` nodes are; one that is on none counts as a leaf by itself."""
    leaves: list[int] = leaf.tolist()
    return len({*leaves}.difference(near, (0,))) + leaves.count(0)


#: What nodes of one rank are sorted by: what training loses, the first node that is given up with it, its name.
Cost = tuple[float, str, str]

#: Idle nodes come first, then those that are coming free, then those of pilots.
IDLE, COMING, PILOTS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A start that Slurm has planned for a main job; of two jobs the better one has the lower `rank`."""

    job: str
    rank: tuple[int, int]
    start: float
    nodes: frozenset[str]


class NodesLeft:
    """The nodes that are left at one look, for main jobs that are taken in the order of their rank.

    A node goes by its place in the order in which jobs are given nodes. One that is given up with others has a second
    place, among those that are coming free, which it has once these are given away.
    """

    def __init__(
        self,
        free: Iterable[str],
        coming: Iterable[str],
        pilots: Mapping[str, Cost],
        together: Iterable[str],
        planned: Iterable[PlannedStart],
        snapshot: Snapshot,
        now: float,
    ) -> None:
        """`pilots`: the nodes of pilots, each with its cost; `together`: those of them that are given up with others;
        `planned`: starts that no worse job may delay."""
        ranks = sorted(free), sorted({*coming, *together}), sorted(pilots, key=pilots.__getitem__)
        self._names = [name for names in ranks for name in names]
        self.rank = np.repeat(np.arange(3), [len(names) for names in ranks])
        self._begin = np.searchsorted(self.rank, np.arange(3))
        self.cost = np.array([pilots[name][0] if name in pilots else 0.0 for name in self._names])
        self.cost[self.rank == COMING] = 0.0
        self._place = {name: at for at, name in enumerate(self._names)}
        self._once_emptied = {name: at for at, name in enumerate(ranks[COMING], len(ranks[IDLE]))}
        self._left = np.zeros(len(self._names), np.bool_)
        self._left[list(self._place.values())] = True
        self._sort_onto_leaves(snapshot.leaves)
        kinds: dict[tuple[object, ...], int] = {}  # what a job can ask for is the same
        self._kinds: list[Node] = []
        of_name: dict[str, int] = {}
        for name in self._place:
            node = snapshot.node[name]
            of_name[name] = kinds.setdefault((node.partitions, node.gres, node.features, node.memory_mib), len(kinds))
            if len(kinds) > len(self._kinds):
                self._kinds.append(node)
        self._kind = np.array([of_name[name] for name in self._names], np.intp)
        self._having: dict[tuple[str, Requirements], Mask] = {}
        self._now = now
        self._planned = sorted(planned, key=lambda plan: plan.rank)
        self._passed = 0  # so many of these are of better jobs than all that are still to come
        self._taken_from = np.full(len(self._names), inf)  # when others have each node
        self._is_taken_from = inf
        for each in snapshot.reservations:
            if each.end > now:
                self._bar(each.nodes, each.start)

    def _sort_onto_leaves(self, leaves: Mapping[str, str]) -> None:
        self.has_leaves = bool(leaves)
        number = leaf_numbers(leaves)
        self.leaf = np.array([number.get(name, 0) for name in self._names], np.intp)
        self._by_leaf = np.argsort(self.leaf, kind="stable")

    def __len__(self) -> int:
        return int(np.count_nonzero(self._left))

    def places(self, names: Iterable[str]) -> list[int]:
        """Of those of the nodes that there were at the beginning."""
        return [self._place[name] for name in names if name in self._place]

    def named(self, places: Iterable[int]) -> list[str]:
        """Their names."""
        return [self._names[at] for at in places]

    def open_to(self, job: SlurmJob, rank: tuple[int, int], group: Collection[str] = ()) -> Mask:
        """Of the nodes that are left, those that Slurm could give `job`: in its partition, with the features, generic
        resources and memory that it asks for, and planned by no job better than `rank` or reservation for a time
        before this one would end. No rank may be better than one before.

        `group`: the parts of a heterogeneous job that it is one of, whose best has the `rank`.
        """
        while self._passed < len(self._planned) and self._planned[self._passed].rank < rank:
            plan = self._planned[self._passed]
            self._bar(plan.nodes, plan.start)
            self._passed += 1
        end = inf if job.time_limit_s is None else self._now + job.time_limit_s
        found: Mask = self._left & self._with(job)
        if self._is_taken_from < end:
            found &= self._taken_from >= end
        if job.excluded_nodes:
            found[self.places(job.excluded_nodes)] = False
        for plan in self._planned[self._passed :] if group else ():
            if plan.rank < (-job.priority, job.raw_id) and plan.job not in group and plan.start < end:
                found[self.places(plan.nodes)] = False
        return found

    def _bar(self, names: Iterable[str], start: float) -> None:
        """Others have these from `start` on."""
        places = self.places(names)
        if places:
            self._taken_from[places] = np.minimum(self._taken_from[places], start)
            self._is_taken_from = min(self._is_taken_from, start)

    def _with(self, job: SlurmJob) -> Mask:
        """The nodes that have what the job asks for."""
        asked = Requirements(job.gres, job.features, job.memory_mib)
        key = job.partition, asked
        if key not in self._having:
            partitions = set(job.partition.split(","))
            kinds = [not partitions.isdisjoint(n.partitions) and (not asked or asked.met_by(n)) for n in self._kinds]
            self._having[key] = np.array(kinds, np.bool_)[self._kind]
        return self._having[key]

    def in_order(self, among: Mask, kept: Collection[int] = ()) -> Places:
        """The places as jobs are given them; of nodes of one rank, those in `kept` come first."""
        order = np.flatnonzero(among)
        if not kept:
            return order
        first = sorted(set(kept))
        order = np.delete(order, np.searchsorted(order, first))
        with_first: Places = np.insert(order, np.searchsorted(order, self._begin[self.rank[first]]), first)
        return with_first

    def on_asked_leaves(
        self, among: Mask, kept: Collection[int], switches: int, count: int, required: Sequence[int]
    ) -> Places:
        """As `in_order`, those on the leaf switches that make room for `count` nodes at the least cost; all where
        none would do: then the job waits for its --switches patience, and starts anywhere.

        One leaf alone is chosen exactly; of several, those with most room.
        """
        by_leaf = self._by_leaf[among[self._by_leaf]]
        if kept:
            order = self.in_order(among, kept)
            by_leaf = order[np.argsort(self.leaf[order], kind="stable")]
        room = np.bincount(self.leaf[by_leaf])
        begin, there = np.cumsum(room) - room, np.minimum(room, count)
        first = by_leaf[np.repeat(begin - np.cumsum(there) + there, there) + np.arange(there.sum())]
        on = np.repeat(np.arange(len(room)), there)
        ranks, costs = (np.bincount(on, of[first], len(room)) for of in (self.rank, self.cost))
        cheapest = np.lexsort((costs, ranks))
        cheapest = cheapest[room[cheapest] > 0]
        wanted = {int(self.leaf[at]) for at in required}
        enough = (each for each in cheapest[room[cheapest] >= count].tolist() if wanted <= {each})
        for one in islice(enough, 1):
            return by_leaf[begin[one] : begin[one] + room[one]]
        best = sorted(cheapest.tolist(), key=lambda each: (each not in wanted, -room[each]))[:switches]
        order = self.in_order(among, kept)
        if sum(room[best]) < count or not wanted.issubset(best):
            return order
        return order[np.isin(self.leaf[order], best)]

    def on_few_leaves(self, order: Places, wanted: int, own: Sequence[int], room: Places) -> list[int]:
        """As `on_few_leaves`, next to the nodes at `own`."""
        near = set(self.leaf[list(own)].tolist())
        found: list[int] = order[on_few_leaves(self.leaf[order], wanted, near, room)].tolist()
        return found

    def of_pilots(self, order: Places) -> Places:
        """Those that pilots are on, which come last."""
        return order[np.count_nonzero(order < self._begin[PILOTS]) :]

    def room(self, places: Places) -> Places:
        """How many of these are on each leaf."""
        return np.bincount(self.leaf[places], minlength=1)

    def leaves_of(self, places: Sequence[int]) -> int:
        """On how many leaves they are."""
        return _apart(self.leaf[list(places)], ())

    def filling_leaves(self, order: Places, may: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
        """The nodes that `on_few_leaves` finds for one job of one node after the other, each with the cheapest; this
        one instead where `may(node, cheapest)` does not hold."""
        on: dict[int, deque[int]] = {}
        leaf_of = dict(zip(order.tolist(), self.leaf[order].tolist(), strict=True))
        for at, leaf in leaf_of.items():
            on.setdefault(leaf, deque()).append(at)
        fullest = [(len(places), leaf) for leaf, places in on.items() if leaf]
        heapify(fullest)
        taken: set[int] = set()
        for cheapest in leaf_of:
            while cheapest not in taken:
                while fullest and fullest[0][0] != len(on[fullest[0][1]]):
                    heappop(fullest)
                found = on[fullest[0][1]][0] if fullest else cheapest
                found = found if may(found, cheapest) else cheapest
                yield found, cheapest
                taken.add(found)
                leaf = leaf_of[found]
                on[leaf].popleft()  # whichever it is, it was the first of its leaf
                if leaf and on[leaf]:
                    heappush(fullest, (len(on[leaf]), leaf))

    def give(self, places: Sequence[int]) -> None:
        """A job is given these."""
        self._left[places] = False

    def empty(self, names: Iterable[str]) -> None:
        """The pilots on these leave: they are coming free."""
        for name in names:
            was = self._place.get(name)
            if was is not None and self._left[was] and self.rank[was] == PILOTS:
                at = self._place[name] = self._once_emptied[name]
                self._left[was], self._left[at] = False, True
                self._taken_from[at] = self._taken_from[was]
