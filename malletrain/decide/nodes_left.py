"""The nodes that are left for waiting main jobs, in the order in which jobs are given them.

Hundreds of small jobs may wait for thousands of nodes, so which nodes a job can have is one mask over all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import Node, SlurmJob, Snapshot

#: Places of nodes in the order in which they go; and which of all nodes something is said of.
Places = NDArray[np.intp]
Mask = NDArray[np.bool_]

#: What nodes of one rank are sorted by: what training loses, the first node that is given up with it, its name.
Cost = tuple[float, str, str]

#: Idle nodes come first, then those that are coming free, then those of pilots.
IDLE, COMING, PILOTS = (0, 1, 2)


def rank_of(job: SlurmJob) -> tuple[int, int]:
    """Slurm's order: higher priority first, then the older job."""
    return -job.priority, job.raw_id


class NodesLeft:
    """The nodes that are left at one look, for main jobs that are taken in the order of their rank.

    A node goes by its place in the order in which jobs are given nodes. One that is given up with others has a second
    place, among those that are coming free, which it has once these are given away.
    """

    def __init__(
        self, free: Iterable[str], coming: Iterable[str], pilots: Mapping[str, Cost], together: Iterable[str],
        planned: Iterable[SlurmJob], snapshot: Snapshot, now: float,
    ) -> None:  # fmt: skip
        """`pilots`: the nodes of pilots, each with its cost; `together`: those of them that are given up with others;
        `planned`: main jobs whose planned starts no worse one may delay."""
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
        self.has_leaves = bool(snapshot.leaves)
        number = {leaf: at for at, leaf in enumerate(sorted(set(snapshot.leaves.values())), start=1)}
        self._leaf = np.array([number.get(snapshot.leaves.get(name, ""), 0) for name in self._names], np.int16)
        nodes = {name: snapshot.node[name] for name in self._place}
        kinds: dict[tuple[object, ...], int] = {}  # what a job can ask for is the same
        of_name = {
            name: kinds.setdefault((node.partitions, node.gres, node.features, node.memory_mib), len(kinds))
            for name, node in nodes.items()
        }
        self._kinds: list[Node] = list({kind: nodes[name] for name, kind in of_name.items()}.values())
        self._kind = np.array([of_name[name] for name in self._names], np.intp)
        self._having: dict[tuple[str, Requirements], Mask] = {}
        self._now = now
        self._planned = [(rank_of(job), job.start_time or 0.0, job) for job in sorted(planned, key=rank_of)]
        self._passed = 0  # so many of these are of better jobs than all that are still to come
        self._taken_from = np.full(len(self._names), inf)  # when others have each node
        self._is_taken_from = inf
        for each in snapshot.reservations:
            if each.end > now:
                self._bar(each.nodes, each.start)

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
        while self._passed < len(self._planned) and self._planned[self._passed][0] < rank:
            _, start, better = self._planned[self._passed]
            self._bar(better.planned_nodes, start)
            self._passed += 1
        end = inf if job.time_limit_s is None else self._now + job.time_limit_s
        found: Mask = self._left & self._with(job)
        if self._is_taken_from < end:
            found &= self._taken_from >= end
        if job.excluded_nodes:
            found[self.places(job.excluded_nodes)] = False
        for other_rank, start, other in self._planned[self._passed :] if group else ():
            if other_rank < rank_of(job) and other.id not in group and start < end:
                found[self.places(other.planned_nodes)] = False
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

    def on_few_leaves(self, order: Places, leaves: int, count: int, required: Sequence[int] = ()) -> Places:
        """Of `order`, those on the one leaf switch that makes room for `count` nodes at the least cost, else on so
        many `leaves` with most room; all where these would not do, or not have the `required` nodes."""
        leaf = self._leaf[order]
        by_leaf, room = order[np.argsort(leaf, kind="stable")], np.bincount(leaf)
        begin, there = np.cumsum(room) - room, np.minimum(room, count)
        first = by_leaf[np.repeat(begin - np.cumsum(there) + there, there) + np.arange(there.sum())]
        ranks, costs = (np.bincount(self._leaf[first], of[first], len(room)) for of in (self.rank, self.cost))
        cheapest = [each for each in np.lexsort((costs, ranks)).tolist() if room[each]]
        wanted = {int(self._leaf[at]) for at in required}
        best = [each for each in cheapest if room[each] >= count and wanted <= {each}][:1]
        best = best or sorted(cheapest, key=lambda each: (each not in wanted, -room[each]))[:leaves]
        if room[best].sum() < count or not wanted.issubset(best):
            return order
        return order[np.isin(leaf, best)]

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
