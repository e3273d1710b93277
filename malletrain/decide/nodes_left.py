"""The nodes that are left for waiting main jobs, in the order in which jobs are given them.

Hundreds of small jobs may wait for thousands of nodes. Jobs that ask for the same share one sorted list, from which
nodes only go: what a job costs follows from the nodes that it is given, not from those that there are. Tasks of an
array that take one node after the other from such a list are given theirs at once.

On leaf switches nodes are chosen as Slurm's topology/tree places a job: on the leaf that it fills most, else the
widest. Slurm chooses so among the nodes that are idle. Where pilots hold nodes, those that leave decide which nodes
are idle, so they are chosen by the same rule: a main job spreads over no more switches than it would without pilots,
and whole leaves stay for the next job that asks for one (`_eval_nodes_topo` in
src/plugins/select/cons_tres/job_test.c).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice, takewhile
from math import inf

from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import Node, SlurmJob, Snapshot


def leaf_order(
    on: Mapping[str, int], wanted: int, near: Collection[str] = (), room: Mapping[str, int] | None = None
) -> list[str]:
    """Leaves to take `wanted` nodes from, in this order: those in `near`, then the leaf with least `room` that holds
    the rest, or else the one with most nodes.

    `on`: leaf -> nodes that can be taken there; `room`: leaf -> nodes there without a main job, `on` if not given.
    """
    free = on if room is None else room
    order = sorted(on.keys() & set(near))
    left = wanted - sum(on[leaf] for leaf in order)
    others = on.keys() - set(order)
    whole = [(free.get(leaf, 0), leaf) for leaf in others if 0 < left <= on[leaf]]
    if left > 0 and not whole:
        for leaf in sorted(others, key=lambda name: (on[name], name), reverse=True):
            if left <= on[leaf]:
                break
            left -= on[leaf]
            order.append(leaf)
        whole = [(free.get(leaf, 0), leaf) for leaf in others.difference(order) if 0 < left <= on[leaf]]
    return [*order, min(whole)[1]] if whole else order


def on_few_leaves(
    names: Sequence[str],
    wanted: int,
    leaves: Mapping[str, str],
    near: Collection[str] = (),
    room: Mapping[str, int] | None = None,
) -> list[str]:
    """`wanted` of `names` (all, if there are fewer) on as few leaves as `leaf_order` finds, of each the first.

    Those on no leaf come last. The first `wanted` of all, where these are on fewer leaves outside `near`.
    """
    first = list(names[:wanted])
    if not leaves or len(names) <= wanted:
        return first
    on = Counter(leaves[name] for name in names if name in leaves)
    place_of = {leaf: at for at, leaf in enumerate(leaf_order(on, wanted, near, room))}
    found = sorted(names, key=lambda name: place_of.get(leaves.get(name, ""), len(place_of)))[:wanted]
    more = leaves_of(found, leaves) - set(near), leaves_of(first, leaves) - set(near)
    return found if len(more[0]) <= len(more[1]) else first


def leaves_of(names: Collection[str], leaves: Mapping[str, str]) -> set[str]:
    """The leaves that these nodes are on; one that is on none counts as a leaf by itself."""
    return {leaves.get(name, name) for name in names}


#: What nodes of one rank are sorted by: what training loses, the first node that is given up with it, its name.
Cost = tuple[float, str, str]

#: Idle nodes come first, then those that are coming free, then those of pilots.
RANKS = IDLE, COMING, PILOTS = (0, 1, 2)


#: Ends of jobs for which the nodes that they can have are kept; of more, those asked for last.
MOST_ENDS = 16


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A start that Slurm has planned for a main job; of two jobs the better one has the lower `rank`."""

    job: str
    rank: tuple[int, int]
    start: float
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Nodes of one rank in their order, some of which may have left it."""

    rank: int
    names: Sequence[str]


@dataclass(slots=True)
class _Prices:
    """What the first so many nodes of each leaf cost; `order`: of the leaves that have as many, cheapest first."""

    known: dict[str, tuple[int, float]] = field(default_factory=dict)
    order: list[tuple[tuple[int, float], str]] = field(default_factory=list)
    stale: set[str] = field(default_factory=set)


class Candidates:
    """The nodes that jobs can have which ask for the same. Names in `hidden` count as not there; of nodes of one
    rank, those in `kept` come first.

    Nodes only go, or are moved on from `PILOTS` to `COMING`, so what has left a line is passed over once.
    """

    def __init__(self, ranks: Sequence[list[str]], cost: Callable[[str], Cost], leaves: Mapping[str, str]) -> None:
        """`ranks`: the nodes of each rank, sorted by cost; `leaves`: as in `Snapshot`."""
        self._cost = cost
        self._leaves = leaves
        self._rank_of = {name: rank for rank in RANKS for name in ranks[rank]}
        self._lines = tuple(_Line(rank, ranks[rank]) for rank in RANKS)
        #: After each place that was passed over, the first where a node may still be.
        self._next: dict[_Line, dict[int, int]] = {}
        self._on: dict[str, tuple[_Line, ...]] = {}  # by leaf, '' for nodes on none
        self._room: dict[str, int] = {}  # how many nodes there
        self._of_rank: tuple[dict[str, int], ...] = ({}, {}, {})  # how many of them are of each rank
        self._prices: dict[int, _Prices] = {}  # of so many nodes
        self._here: frozenset[str] | None = None  # only nodes on these leaves
        if leaves:
            self._sort_onto_leaves(ranks)

    def _sort_onto_leaves(self, ranks: Sequence[list[str]]) -> None:
        names_on: dict[str, list[list[str]]] = {}
        for rank in RANKS:
            for name in ranks[rank]:
                names_on.setdefault(self._leaves.get(name, ""), [[], [], []])[rank].append(name)
        for leaf, on_it in names_on.items():
            self._on[leaf] = tuple(_Line(rank, on_it[rank]) for rank in RANKS)
            self._room[leaf] = sum(map(len, on_it))
            for rank in RANKS:
                if on_it[rank]:
                    self._of_rank[rank][leaf] = len(on_it[rank])

    def copy(self) -> Candidates:
        """The same, of which others can go."""
        some = copy(self)
        some._rank_of, some._next = dict(self._rank_of), {}
        some._on, some._room, some._of_rank = dict(self._on), dict(self._room), tuple(map(dict, self._of_rank))
        some._prices = {
            count: _Prices(dict(each.known), list(each.order), set(each.stale))
            for count, each in self._prices.items()
        }
        return some

    def __contains__(self, name: str) -> bool:
        return name in self._rank_of and (self._here is None or self._leaves.get(name, "") in self._here)

    @property
    def leaves(self) -> int:
        """On how many leaf switches they are."""
        return len(self._room)

    def front(self, kept: Collection[str]) -> tuple[int, str] | None:
        """The first node and its rank; None where there is none, or some of that rank are `kept`."""
        firsts = ((line.rank, name) for line in self._lines if (name := next(self._present(line), "")))
        rank, name = next(firsts, (IDLE, ""))
        return None if not name or any(self._rank_of.get(each) == rank for each in kept) else (rank, name)

    def one_by_one(self, rank: int, by_leaf: bool) -> Iterator[str]:
        """The nodes of a rank in the order in which jobs of one node are given them that ask for a number of switches
        (`by_leaf`), or for none."""
        if not by_leaf:
            return self._present(self._lines[rank])
        on = (self._present(self._on[leaf][rank]) for leaf in self._of_rank[rank])
        return merge(*on, key=lambda name: (self._cost(name)[0], self._leaves.get(name, ""), self._cost(name)))

    def pilots_on_few_leaves(self, may: Callable[[str, str], bool]) -> Iterator[tuple[str, str]]:
        """The nodes that `on_few_leaves` finds for one job of one node after the other where only pilots' are left,
        each with the cheapest; this one instead where `may(node, cheapest)` does not hold."""
        left = dict(self._of_rank[PILOTS])
        fullest = [(count, leaf) for leaf, count in left.items() if leaf]
        heapify(fullest)
        ahead = {leaf: self._present(lines[PILOTS]) for leaf, lines in self._on.items()}
        front: dict[str, str] = {}
        taken: set[str] = set()
        for cheapest in self._present(self._lines[PILOTS]):
            while cheapest not in taken:
                while fullest and fullest[0][0] != left[fullest[0][1]]:
                    heappop(fullest)
                found = cheapest
                if fullest:
                    leaf = fullest[0][1]
                    while leaf not in front or front[leaf] in taken:
                        front[leaf] = next(ahead[leaf])
                    found = front[leaf] if may(front[leaf], cheapest) else cheapest
                yield found, cheapest
                taken.add(found)
                leaf = self._leaves.get(found, "")
                left[leaf] -= 1
                if leaf and left[leaf]:
                    heappush(fullest, (left[leaf], leaf))

    def count(self, hidden: Collection[str]) -> int:
        """How many nodes there are."""
        return len(self._rank_of) - sum(name in self._rank_of for name in hidden)

    def sort(self, names: Iterable[str], kept: Collection[str]) -> list[str]:
        """Some of the nodes, in the order in which jobs are given them."""
        return sorted(names, key=lambda name: (self._rank_of[name], name not in kept, self._cost(name)))

    def first(self, count: int, kept: Collection[str], hidden: Collection[str]) -> list[str]:
        """The first `count` nodes."""
        return self._first(self._lines, count, hidden, kept)

    def on_few_leaves(
        self, count: int, own: Sequence[str], ranks: Sequence[int], fixed: Collection[str], hidden: Collection[str]
    ) -> list[str]:
        """`own` and `count` nodes of these ranks, found as by `on_few_leaves`; none of those that are
        `fixed`, which are room on their leaves."""
        gone = {*hidden, *fixed}
        first = self._first([self._lines[rank] for rank in ranks], count, gone)
        on = self._without(gone, self._room if IDLE in ranks else self._of_rank[PILOTS], ranks)
        if sum(on.values()) <= count:
            return [*own, *first]
        on = {leaf: count for leaf, count in on.items() if leaf} if "" in on else on
        near = leaves_of(own, self._leaves)
        order = leaf_order(on, count, near, self._without(hidden, self._room))
        lines = (self._on[leaf][rank] for leaf in (*order, "") if leaf in self._on for rank in ranks)
        found = self._first(lines, count, gone)
        more = [leaves_of(names, self._leaves) - near for names in (found, first)]
        return [*own, *(found if len(more[0]) <= len(more[1]) else first)]

    def on_asked_leaves(
        self,
        switches: int | None,
        count: int,
        required: Collection[str],
        kept: Collection[str],
        hidden: Collection[str],
    ) -> Candidates:
        """Those on the leaf switches that make room for the job at the least cost; all where it asks for no number of
        switches, or none would do: then it waits for its --switches patience, and starts anywhere.

        One leaf alone is chosen exactly; of several, those with most room.
        """
        if not switches or not self._leaves:
            return self
        rooms = self._without(hidden, self._room)
        wanted = {self._leaves.get(name, "") for name in required}
        touched = {self._leaves.get(name, "") for name in chain(kept, hidden)}
        prices = self._prices_of(count)

        def price(leaf: str) -> tuple[tuple[int, float], str]:
            if leaf not in touched:
                return prices.known[leaf], leaf
            kept_there = [name for name in kept if self._leaves.get(name, "") == leaf]
            return self._price(self._first(self._on[leaf], count, hidden, kept_there)), leaf

        usual = (leaf for _, leaf in prices.order if leaf not in touched and wanted <= {leaf})
        other = (leaf for leaf in touched if rooms.get(leaf, 0) >= count and wanted <= {leaf})
        cheapest = min(chain(islice(usual, 1), other), key=price, default=None)
        if cheapest is not None:
            return self._only([cheapest])
        best = sorted(rooms, key=lambda leaf: (leaf not in wanted, -rooms[leaf], price(leaf)))[:switches]
        return self._only(best) if sum(rooms[leaf] for leaf in best) >= count and wanted <= set(best) else self

    def _prices_of(self, count: int) -> _Prices:
        """What so many nodes of each leaf cost; what is not known since nodes have gone is found."""
        prices = self._prices.get(count)
        if prices is None:
            prices = self._prices[count] = _Prices(stale=set(self._room))
        for leaf in prices.stale:
            known = prices.known.pop(leaf, None)
            at = len(prices.order) if known is None else bisect_left(prices.order, (known, leaf))
            if at < len(prices.order) and prices.order[at][1] == leaf:
                del prices.order[at]
            room = self._room.get(leaf, 0)
            if room:
                prices.known[leaf] = self._price(self._first(self._on[leaf], count, ()))
            if room >= count:
                insort(prices.order, (prices.known[leaf], leaf))
        prices.stale.clear()
        return prices

    def discard(self, names: Iterable[str]) -> None:
        """These nodes are a job's now, or kept for one."""
        for name in names:
            rank = self._rank_of.pop(name, None)
            if rank is not None:
                self._recount(name, rank, -1)

    def empty(self, names: Iterable[str]) -> None:
        """The pilots on these nodes leave: they are coming free."""
        moved = [name for name in names if self._rank_of.get(name) == PILOTS]
        for name in moved:
            self._recount(name, PILOTS, -1)
            self._rank_of[name] = COMING
            self._recount(name, COMING, 1)
        if moved:
            self._lines = self._with(self._lines, moved)
        on: dict[str, list[str]] = {}
        for name in moved if self._leaves else ():
            on.setdefault(self._leaves.get(name, ""), []).append(name)
        for leaf, names in on.items():
            self._on[leaf] = self._with(self._on[leaf], names)

    def _with(self, lines: tuple[_Line, ...], names: Iterable[str]) -> tuple[_Line, ...]:
        """The lines with these nodes among those that are coming free."""
        self._next.pop(lines[COMING], None)
        coming = _Line(COMING, sorted({*self._present(lines[COMING]), *names}))
        return lines[IDLE], coming, lines[PILOTS]

    def _present(self, line: _Line) -> Iterator[str]:
        """The nodes that are still of the line's rank."""
        beyond, names, rank, rank_of = self._next.setdefault(line, {}), line.names, line.rank, self._rank_of
        at, end = 0, len(line.names)
        while at < end:
            passed = []
            while at < end and rank_of.get(names[at]) != rank:
                passed.append(at)
                at = beyond.get(at, at + 1)
            for place in passed:
                beyond[place] = at
            if at < end:
                yield names[at]
            at += 1

    def _recount(self, name: str, rank: int, more: int) -> None:
        if not self._leaves:
            return
        leaf = self._leaves.get(name, "")
        for prices in self._prices.values():
            prices.stale.add(leaf)
        for counts in (self._room, self._of_rank[rank]):
            counts[leaf] = counts.get(leaf, 0) + more
            if not counts[leaf]:
                del counts[leaf]

    def _without(
        self, gone: Collection[str], counts: Mapping[str, int], ranks: Sequence[int] = RANKS
    ) -> Mapping[str, int]:
        """`counts` by leaf less the nodes of these ranks that are gone."""
        going = [name for name in gone if name in self and self._rank_of[name] in ranks]
        if not going:
            return counts
        left = dict(counts)
        for name in going:
            leaf = self._leaves.get(name, "")
            left[leaf] -= 1
            if not left[leaf]:
                del left[leaf]
        return left

    def _first(
        self, lines: Iterable[_Line], count: int, hidden: Collection[str], kept: Collection[str] = ()
    ) -> list[str]:
        """The first `count` nodes of the lines, one line after the other."""
        found: list[str] = []
        for line in lines:
            if len(found) >= count:
                break
            mine = [n for n in kept if n in self and self._rank_of[n] == line.rank and n not in hidden]
            others = (name for name in self._present(line) if name not in hidden and name not in kept)
            found += islice(chain(sorted(mine, key=self._cost), others), count - len(found))
        return found

    def _price(self, names: Iterable[str]) -> tuple[int, float]:
        return sum(self._rank_of[name] for name in names), sum(self._cost(name)[0] for name in names)

    def _only(self, leaves: Sequence[str]) -> Candidates:
        """Those on these leaves, as long as none goes."""
        some = copy(self)
        some._here = frozenset(leaves)
        some._on = {leaf: self._on[leaf] for leaf in leaves}
        some._room = {leaf: self._room[leaf] for leaf in leaves}
        some._of_rank = tuple({leaf: on[leaf] for leaf in leaves if leaf in on} for on in self._of_rank)
        some._lines = some._on[leaves[0]]
        if len(leaves) > 1:
            lines = some._on.values()
            ranks = [[n for line in lines for n in self._present(line[rank])] for rank in RANKS]
            some._lines = tuple(_Line(rank, sorted(ranks[rank], key=self._cost)) for rank in RANKS)
            some._next = {}
        return some


@dataclass(slots=True)
class _Kept:
    """Candidates for jobs that would end at `end`, and how much of what has happened they have taken in."""

    candidates: Candidates
    end: float
    given: int = 0
    planned: int = 0
    emptied: int = 0


class NodesLeft:
    """The nodes that are left at one look, for main jobs that are taken in the order of their rank."""

    def __init__(
        self,
        ranks: Sequence[Collection[str]],
        cost: Callable[[str], Cost],
        planned: Iterable[PlannedStart],
        snapshot: Snapshot,
        now: float,
    ) -> None:
        """`ranks`: the nodes of each rank; `planned`: starts that no worse job may delay."""
        self.names = {name for names in ranks for name in names}
        self._ranks = [sorted(names, key=cost) for names in ranks]
        self._cost = cost
        self._leaves = snapshot.leaves
        self._now = now
        here = (replace(plan, nodes=plan.nodes & self.names) for plan in planned)
        self._planned = sorted((plan for plan in here if plan.nodes), key=lambda plan: plan.rank)
        self._passed = 0  # so many of these are of better jobs than all that are still to come
        self._reserved = [each for each in snapshot.reservations if each.end > now]
        self._starts = sorted({plan.start for plan in self._planned} | {each.start for each in self._reserved})
        self._given: list[Collection[str]] = []
        #: Nodes that others have from a time on.
        self._taken_from: list[tuple[float, Collection[str]]] = [(each.start, each.nodes) for each in self._reserved]
        self._emptied: list[Collection[str]] = []
        self._alike: dict[tuple[object, ...], tuple[Node, list[str]]] = {}  # what a job can ask for is the same
        for name in sorted(self.names):
            node = snapshot.node[name]
            of_node = node.partitions, node.gres, node.features, node.memory_mib
            self._alike.setdefault(of_node, (node, []))[1].append(name)
        self._having: dict[tuple[str, Requirements], tuple[int, ...]] = {}
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._ending: dict[tuple[object, ...], _Kept] = {}  # of these, where others have nodes before a job would end

    def candidates(self, job: SlurmJob, rank: tuple[int, int]) -> Candidates:
        """Of the nodes that are left, those that Slurm could give `job`: in its partition, with the features, generic
        resources and memory that it asks for, and planned by no job better than `rank` or reservation for a time
        before this one would end. No rank may be better than one before."""
        while self._passed < len(self._planned) and self._planned[self._passed].rank < rank:
            plan = self._planned[self._passed]
            self._taken_from.append((plan.start, plan.nodes))
            self._passed += 1
        end = self._end(job)
        having = self._having_what(job)
        alike = having, job.excluded_nodes
        kept = self._kept.get(alike)
        if kept is None:
            kept = self._kept[alike] = _Kept(self._anew(having, job), -inf)
        # Jobs are alike that end between the same planned starts.
        before = bisect_left(self._starts, end)
        if not before:
            return self._updated(kept)
        shorter = self._ending.pop((alike, before), None)
        if shorter is None:
            everything = self._updated(kept).copy()
            shorter = _Kept(everything, end, given=len(self._given), emptied=len(self._emptied))
        self._ending[alike, before] = shorter
        if len(self._ending) > MOST_ENDS:
            del self._ending[next(iter(self._ending))]
        return self._updated(shorter)

    def _updated(self, kept: _Kept) -> Candidates:
        for names in self._given[kept.given :]:
            kept.candidates.discard(names)
        for start, names in self._taken_from[kept.planned :]:
            if start < kept.end:
                kept.candidates.discard(names)
        for names in self._emptied[kept.emptied :]:
            kept.candidates.empty(names)
        kept.given, kept.planned, kept.emptied = len(self._given), len(self._taken_from), len(self._emptied)
        return kept.candidates

    def planned_by_others(self, job: SlurmJob, rank: tuple[int, int], group: Collection[str]) -> set[str]:
        """Nodes that `job`, of a lower rank than the `rank` of its group, cannot have besides."""
        end, own = self._end(job), (-job.priority, job.raw_id)
        between = takewhile(lambda plan: plan.rank < own, islice(self._planned, self._passed, None))
        return {name for plan in between if plan.job not in group and plan.start < end for name in plan.nodes}

    def give(self, names: Collection[str]) -> None:
        """A job is given these."""
        self.names.difference_update(names)
        self._given.append(names)

    def empty(self, names: Collection[str]) -> None:
        """The pilots on these leave: they are coming free."""
        self._emptied.append(names)

    def _end(self, job: SlurmJob) -> float:
        return inf if job.time_limit_s is None else self._now + job.time_limit_s

    def _having_what(self, job: SlurmJob) -> tuple[int, ...]:
        """Which kinds of nodes have what the job asks for."""
        asked = Requirements(job.gres, job.features, job.memory_mib)
        key = job.partition, asked
        if key not in self._having:
            partitions = set(job.partition.split(","))
            kinds = enumerate(node for node, _ in self._alike.values())
            self._having[key] = tuple(
                at for at, node in kinds if partitions & set(node.partitions) and (not asked or asked.met_by(node))
            )
        return self._having[key]

    def _anew(self, having: Collection[int], job: SlurmJob) -> Candidates:
        """The candidates for such jobs at the beginning."""
        kinds = [names for _, names in self._alike.values()]
        names = {name for at in having for name in kinds[at]}.difference(job.excluded_nodes)
        ranks = [[name for name in rank if name in names] for rank in self._ranks]
        return Candidates(ranks, self._cost, self._leaves)
