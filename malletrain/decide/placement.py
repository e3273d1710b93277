"""Which nodes: a job keeps what it holds; growth takes the longest holes, shrinking gives up the shortest.

Nodes that became idle together go to one job where that is known, since they leave together and it pays once. Jobs
whose nodes cost most to start choose first. Finer rules for who gets which hole were tried and gained nothing
(docs/explanation/holes.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from malletrain.decide.draft import Draft, Unfit
from malletrain.decide.holes import best_first, leaves_first, rank
from malletrain.domain.decision import Hole
from malletrain.domain.job import Pilot
from malletrain.domain.requirements import Requirements
from malletrain.sizing.whole_tasks import keep_whole_tasks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each job is to run, by job."""

    keep: dict[int, tuple[Pilot, ...]]
    drop: dict[int, tuple[Pilot, ...]]
    take: dict[int, tuple[Hole, ...]]  #: holes to start on
    #: How many nodes its size still lacks, because nodes that others leave are not free yet.
    short: dict[int, int] = field(default_factory=dict)
    #: Those of `drop` that make room for a job that can run on few nodes, and whose own goes elsewhere: pilot -> why.
    moved: dict[str, str] = field(default_factory=dict)
    spoken_for: set[str] = field(default_factory=set)  #: nodes that pilots leave, for such a job


def take_cohorts(
    groups: list[tuple[float | None, list[T]]], own: Iterable[float | None], wanted: int, leaf_of: Callable[[T], str]
) -> list[T]:
    """Up to `wanted` nodes, which the `groups` lose, each a cohort and its nodes: cohorts that the job has nodes of
    (`own`), then as few others as will do, of these the smallest that has enough, or the largest; of each the nodes
    on few leaf switches."""
    taken: list[T] = []
    mine = set(own) - {None}
    while groups and len(taken) < wanted:
        left = wanted - len(taken)
        among = [each for each in groups if each[0] in mine] or groups
        group = min(among, key=lambda each: (len(each[1]) < left, abs(len(each[1]) - left)))
        nodes = leaves_first(group[1], left, leaf_of)
        taken += nodes[:left]
        group[1][:] = nodes[left:]
        mine |= {group[0]} - {None}
        if not group[1]:
            groups.remove(group)
    return taken


def place(draft: Draft, sizes: Mapping[int, int]) -> Placement:
    """Turn counts into nodes. Deterministic.

    Jobs that can have the fewest nodes choose first, then those whose nodes cost most to start, then the lower id.
    """
    pool, jobs = _Pool(draft), draft.live
    keep = {job: tuple(draft.staying.get(job, ())) for job in sorted(sizes)}
    found = Placement(keep, dict.fromkeys(keep, ()), dict.fromkeys(keep, ()))
    slow = {each.pilot for workers in draft.situation.slow.values() for each in workers}
    parts = {job: _parts(draft, job, sizes[job], keep[job]) for job in keep}
    changed = [j for j in keep if any(n != len(_of_class(draft, keep[j], name)) for name, n in parts[j])]
    choosy = [draft.barred(job) for job in changed if job in draft.unfit and sizes[job] > len(keep[job])]

    def last_to_go(pilot: Pilot) -> tuple[object, ...]:
        # A pilot that trains is worth more than one that Slurm has not started; the sooner it ends, the less.
        # Not by task: which one of equals is given up must not follow from Slurm's numbers.
        wanted, is_slow = any(pilot.node not in nodes for nodes in choosy), pilot.id in slow
        return is_slow, pilot.started_at is None, wanted, -(pilot.ends_at or 0.0), pilot.node, pilot.id

    for job in sorted(changed, key=lambda j: (-len(draft.barred(j)), -jobs[j].costs.activate_s, j)):
        kept: list[Pilot] = []
        for name, size in parts[job]:
            mine = _of_class(draft, keep[job], name)
            if size < len(mine):
                ranked = sorted(mine, key=last_to_go)
                mine = list(keep_whole_tasks(ranked, size))
                left = {pilot.id for pilot in mine}
                found.drop[job] += tuple(pilot for pilot in ranked if pilot.id not in left)
            kept += mine
        keep[job] = tuple(kept)
        own = frozenset(draft.holes[pilot.node].cohort for pilot in kept if pilot.node in draft.holes)
        for name, size in parts[job]:
            wanted = size - len(_of_class(draft, kept, name))
            taken = pool.take(job, wanted, own, name)
            found.take[job] += tuple(taken)
            if wanted > len(taken):
                found.short[job] = found.short.get(job, 0) + wanted - len(taken)
    for job in sorted(found.short.keys() & draft.unfit.keys()):
        _make_way(found, job, draft, pool)
    return found


def _make_way(found: Placement, job: int, draft: Draft, pool: _Pool) -> None:
    """Nodes that a short job can have are given up for free ones, which it cannot have."""
    unfit = draft.barred(job)
    going = {*draft.coming, *(pilot.node for pilots in found.drop.values() for pilot in pilots)} - found.spoken_for
    usable = sorted(going.difference(unfit))[: found.short[job]]
    found.spoken_for.update(usable)
    lacking = found.short[job] - len(usable)
    for other in sorted(found.keep.keys() - found.short.keys()):
        theirs = () if draft.live[other].co_allocated else found.keep[other]
        for pilot in [each for each in theirs if each.node not in unfit][:lacking]:
            elsewhere = pool.take(other, 1)
            if not elsewhere:
                break
            found.keep[other] = tuple(each for each in found.keep[other] if each is not pilot)
            found.drop[other] += (pilot,)
            found.spoken_for.add(pilot.node)
            found.take[other] += tuple(elsewhere)
            found.moved[pilot.id] = f"job {other} moves to {elsewhere[0].node}: job {job} can run on few nodes"
            lacking -= 1


def _of_class(draft: Draft, pilots: Sequence[Pilot], name: str | None) -> list[Pilot]:
    """Those on nodes of the class; None: of any."""
    return [pilot for pilot in pilots if name is None or draft.class_of.get(pilot.node) == name]


def _parts(draft: Draft, job: int, size: int, keep: Sequence[Pilot]) -> list[tuple[str | None, int]]:
    """How many nodes of which class a job is to have; of any class where that is not said."""
    class_of, of_classes = draft.class_of, draft.classes.get(job, {})
    if not class_of or (size and sum(of_classes.values()) != size) or any(p.node not in class_of for p in keep):
        return [(None, size)]
    return [(name, of_classes.get(name, 0)) for name in sorted(set(class_of.values()))]


def unfit_nodes(draft: Draft) -> dict[int, Unfit]:
    """The nodes that jobs cannot have, of those that pilots hold and keep, that are free, and that change hands.

    What a job asks for is what Slurm's rows of its arrays say, so it is right whoever submitted them, and however.
    """
    snapshot, rules, resting = draft.snapshot, draft.rules, draft.situation.resting_on
    asked = {
        str(row.array_id): needs
        for row in snapshot.jobs
        if row.array_id is not None
        and row.partition == rules.harvest_partition
        and (needs := Requirements(row.gres, row.features, row.memory_mib))
    }
    if not asked and not resting:
        return {}
    kept = [pilot.node for pilot in draft.mine]
    shared = [name for name in (*kept, *(h.node for h in draft.free), *draft.coming) if name in snapshot.node]
    lacking: dict[Requirements, frozenset[str]] = {}
    found: dict[int, Unfit] = {}
    for job_id, view in sorted(draft.live.items()):
        arrays = sorted({pilot.partition("_")[0] for pilot in view.pilots}) if asked else ()
        needs = next((asked[array] for array in arrays if array in asked), Requirements())
        if needs not in lacking:
            named = shared if needs else ()
            lacking[needs] = frozenset(n for n in named if not needs.satisfied_by(snapshot.node[n]))
        without, rests = lacking[needs], resting.get(job_id, {})
        nodes = without.union(rests.keys() & set(shared) if rests else ())
        nodes = nodes.difference(pilot.node for pilot in view.staying)
        if nodes:
            words = [f"{len(without)} of {len(shared)} nodes lack {needs}"] if without else []
            words += [f"{node}: {why}" for node, why in sorted(rests.items()) if node in nodes]
            found[job_id] = Unfit(nodes, "; ".join(words))
    return found


class _Pool:
    """Free holes, best first."""

    def __init__(self, draft: Draft) -> None:
        self._free, self._draft = best_first(draft.free, draft.snapshot), draft

    def take(
        self, job: int, wanted: int, own: frozenset[float | None] = frozenset(), name: str | None = None
    ) -> list[Hole]:
        """Up to `wanted` holes that the job may have, of the class `name`: of those about equally good, cohorts of
        nodes that it has (`own`), then from as few cohorts as will do, each the smallest that does."""
        draft, taken = self._draft, list[Hole]()
        barred = {*draft.situation.avoided.get(job, ()), *draft.barred(job)}
        if name is not None:
            barred |= {node for node, other in draft.class_of.items() if other != name}

        def leaf_of(hole: Hole) -> str:
            return draft.snapshot.leaves.get(hole.node, "")

        may = (hole for hole in self._free if hole.node not in barred) if wanted > 0 else ()
        for _, alike in groupby(may, key=lambda hole: rank(hole, draft.snapshot.node[hole.node].weight)[:2]):
            groups = [(cohort, list(group)) for cohort, group in groupby(alike, key=attrgetter("cohort"))]
            taken += take_cohorts(groups, own | {hole.cohort for hole in taken}, wanted - len(taken), leaf_of)
            if len(taken) >= wanted:
                break
        if taken:
            gone = {hole.node for hole in taken}
            self._free = [hole for hole in self._free if hole.node not in gone]
        return taken
