"""The nodes that are left for waiting main jobs, in the order in which jobs are given them.

Hundreds of small jobs may wait for thousands of nodes. Jobs that ask for the same share one sorted list, from which
nodes only go: what a job costs follows from the nodes that it is given, not from those that there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from math import inf

from malletrain.decide.leaf_choice import leaf_order, leaves_of
from malletrain.domain.requirements import Requirements
from malletrain.domain.snapshot import Node, SlurmJob, Snapshot

#: What nodes of one rank are sorted by: what training loses, the first node that is given up with it, its name.
Cost = tuple[float, str, str]

#: Idle nodes come first, then those that are coming free, then those of pilots.
RANKS = IDLE, COMING, PILOTS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A start that Slurm has planned for a main job; of two jobs the better one has the lower `rank`."""

    job: str
    rank: tuple[int, int]
    start: float
    nodes: frozenset[str]


class _Line:
    """Nodes of one rank in their order. Those that have left it, to which none comes back, are passed over once."""

    def __init__(self, names: list[str], rank: int, rank_of: Mapping[str, int]) -> None:
        self.rank = rank
        self._rank_of = rank_of
        self._names = names
        self._next = list(range(len(names)))  # from each place on, the first that may still be there

    def __iter__(self) -> Iterator[str]:
        at = self._present(0)
        while at < len(self._names):
            yield self._names[at]
            at = self._present(at + 1)

    def _present(self, at: int) -> int:
        passed = []
        while at < len(self._names) and self._rank_of.get(self._names[at]) != self.rank:
            passed.append(at)
            at = max(at + 1, self._next[at])
        for place in passed:
            self._next[place] = at
        return at


class Candidates:
    """The nodes that jobs can have which ask for the same. Names in `hidden` count as not there; of nodes of one
    rank, those in `kept` come first."""

    def __init__(self, ranks: Sequence[list[str]], cost: Callable[[str], Cost], leaves: Mapping[str, str]) -> None:
        """`ranks`: the nodes of each rank, sorted by cost; `leaves`: as in `Snapshot`."""
        self._cost = cost
        self._leaves = leaves
        self._rank_of = {name: rank for rank in RANKS for name in ranks[rank]}
        self._lines = [_Line(ranks[rank], rank, self._rank_of) for rank in RANKS]
        self._on: dict[str, list[_Line]] = {}  # by leaf, '' for nodes on none
        self._room: dict[str, int] = {}  # how many nodes there
        self._pilots: dict[str, int] = {}  # how many of them are pilots'
        self._prices: dict[str, dict[int, tuple[int, float]]] = {}  # of so many nodes there
        if leaves:
            self._sort_onto_leaves(ranks)

    def _sort_onto_leaves(self, ranks: Sequence[list[str]]) -> None:
        names_on: dict[str, list[list[str]]] = {}
        for rank in RANKS:
            for name in ranks[rank]:
                names_on.setdefault(self._leaves.get(name, ""), [[], [], []])[rank].append(name)
        for leaf, on_it in names_on.items():
            self._on[leaf] = [_Line(on_it[rank], rank, self._rank_of) for rank in RANKS]
            self._room[leaf] = sum(map(len, on_it))
            if on_it[PILOTS]:
                self._pilots[leaf] = len(on_it[PILOTS])

    def __contains__(self, name: str) -> bool:
        return name in self._rank_of

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
        """`own` and `count` nodes of these ranks, found as by `leaf_choice.on_few_leaves`; none of those that are
        `fixed`, which are room on their leaves."""
        gone = {*hidden, *fixed}
        first = self._first([self._lines[rank] for rank in ranks], count, gone)
        on = self._without(gone, self._room if IDLE in ranks else self._pilots, ranks)
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

        def price(leaf: str) -> tuple[int, float, str]:
            known = self._prices.setdefault(leaf, {})
            if leaf in touched:
                kept_there = [name for name in kept if self._leaves.get(name, "") == leaf]
                return *self._price(self._first(self._on[leaf], count, hidden, kept_there)), leaf
            if count not in known:
                known[count] = self._price(self._first(self._on[leaf], count, ()))
            return *known[count], leaf

        enough = [leaf for leaf, room in rooms.items() if room >= count and wanted <= {leaf}]
        if enough:
            return self._only([min(enough, key=price)])
        best = sorted(rooms, key=lambda leaf: (leaf not in wanted, -rooms[leaf], price(leaf)))[:switches]
        return self._only(best) if sum(rooms[leaf] for leaf in best) >= count and wanted <= set(best) else self

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
            self._lines[COMING] = self._with(self._lines[COMING], moved)
        for leaf in {self._leaves.get(name, "") for name in moved} if self._leaves else ():
            on_it = [name for name in moved if self._leaves.get(name, "") == leaf]
            self._on[leaf][COMING] = self._with(self._on[leaf][COMING], on_it)

    def _with(self, line: _Line, names: Iterable[str]) -> _Line:
        return _Line(sorted({*line, *names}), COMING, self._rank_of)

    def _recount(self, name: str, rank: int, more: int) -> None:
        if not self._leaves:
            return
        leaf = self._leaves.get(name, "")
        self._prices.pop(leaf, None)
        for counts in (self._room, self._pilots) if rank == PILOTS else (self._room,):
            counts[leaf] = counts.get(leaf, 0) + more
            if not counts[leaf]:
                del counts[leaf]

    def _without(
        self, gone: Collection[str], counts: Mapping[str, int], ranks: Sequence[int] = RANKS
    ) -> Mapping[str, int]:
        """`counts` by leaf less the nodes of these ranks that are gone."""
        going = [name for name in gone if self._rank_of.get(name) in ranks]
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
            mine = [name for name in kept if self._rank_of.get(name) == line.rank and name not in hidden]
            others = (name for name in line if name not in hidden and name not in kept)
            found += islice(chain(sorted(mine, key=self._cost), others), count - len(found))
        return found

    def _price(self, names: Iterable[str]) -> tuple[int, float]:
        return sum(self._rank_of[name] for name in names), sum(self._cost(name)[0] for name in names)

    def _only(self, leaves: Iterable[str]) -> Candidates:
        """Those on these leaves."""
        lines = [self._on[leaf] for leaf in leaves]
        ranks = [sorted(chain.from_iterable(line[rank] for line in lines), key=self._cost) for rank in RANKS]
        return Candidates(ranks, self._cost, self._leaves)


@dataclass(slots=True)
class _Kept:
    """Candidates for jobs that would end at `end`, and how much of what has happened they have taken in."""

    candidates: Candidates
    end: float
    gone: int = 0
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
        self._gone: list[tuple[float, Collection[str]]] = []  # nodes, and from when on others have them
        self._emptied: list[Collection[str]] = []
        self._alike: dict[tuple[object, ...], tuple[Node, list[str]]] = {}  # what a job can ask for is the same
        for name in sorted(self.names):
            node = snapshot.node[name]
            of_node = node.partitions, node.gres, node.features, node.memory_mib
            self._alike.setdefault(of_node, (node, []))[1].append(name)
        self._having: dict[tuple[str, Requirements], tuple[int, ...]] = {}
        self._kept: dict[tuple[object, ...], _Kept] = {}

    def candidates(self, job: SlurmJob, rank: tuple[int, int]) -> Candidates:
        """Of the nodes that are left, those that Slurm could give `job`: in its partition, with the features, generic
        resources and memory that it asks for, and planned by no job better than `rank` or reservation for a time
        before this one would end. No rank may be better than one before."""
        while self._passed < len(self._planned) and self._planned[self._passed].rank < rank:
            plan = self._planned[self._passed]
            self._gone.append((plan.start, plan.nodes))
            self._passed += 1
        end = self._end(job)
        having = self._having_what(job)
        # Jobs are alike that end between the same planned starts.
        key = having, job.excluded_nodes, bisect_left(self._starts, end)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(self._anew(having, job, end), end)
        for start, names in islice(self._gone, kept.gone, None):
            if start < end:
                kept.candidates.discard(names)
        for names in islice(self._emptied, kept.emptied, None):
            kept.candidates.empty(names)
        kept.gone, kept.emptied = len(self._gone), len(self._emptied)
        return kept.candidates

    def planned_by_others(self, job: SlurmJob, rank: tuple[int, int], group: Collection[str]) -> set[str]:
        """Nodes that `job`, of a lower rank than the `rank` of its group, cannot have besides."""
        end, own = self._end(job), (-job.priority, job.raw_id)
        between = takewhile(lambda plan: plan.rank < own, islice(self._planned, self._passed, None))
        return {name for plan in between if plan.job not in group and plan.start < end for name in plan.nodes}

    def give(self, names: Collection[str]) -> None:
        """A job is given these."""
        self.names.difference_update(names)
        self._gone.append((-inf, names))

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

    def _anew(self, having: Collection[int], job: SlurmJob, end: float) -> Candidates:
        """The candidates for such jobs at the beginning."""
        kinds = [names for _, names in self._alike.values()]
        names = {name for at in having for name in kinds[at]}.difference(job.excluded_nodes)
        names.difference_update(*(each.nodes for each in self._reserved if each.start < end))
        ranks = [[name for name in rank if name in names] for rank in self._ranks]
        return Candidates(ranks, self._cost, self._leaves)
