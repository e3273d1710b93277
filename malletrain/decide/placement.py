"""Which nodes: a job keeps what it holds; growth takes the longest holes, shrinking gives up the shortest.

Nodes that became idle together go to one job where that is known, since they leave together and it pays once. Of
those the job takes nodes on leaf switches that it is on already, then from as few others as will do (Slurm's
topology). Jobs whose nodes cost most to start choose first. Finer rules for who gets which hole were tried and gained
nothing (docs/explanation/holes.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from malletrain.decide.draft import Draft, Inputs, Unfit
from malletrain.decide.multi_node_pilots import keep_whole_tasks
from malletrain.decide.nodes_left import leaf_numbers, leaf_order
from malletrain.domain.decision import Hole
from malletrain.domain.job import JobView, Pilot
from malletrain.domain.requirements import Requirements


@dataclass(frozen=True, slots=True)
class Placement:
    """`keep`: job -> pilots that stay; `drop`: job -> pilots that leave; `take`: job -> holes to start on;
    `short`: job -> how many nodes its size still lacks, because nodes that others leave are not free yet; `moved`:
    those of `drop` that make room for a job that can run on few nodes, and whose own goes elsewhere: pilot -> why."""

    keep: Mapping[int, tuple[Pilot, ...]] = field(default_factory=dict)
    drop: Mapping[int, tuple[Pilot, ...]] = field(default_factory=dict)
    take: Mapping[int, tuple[Hole, ...]] = field(default_factory=dict)
    short: Mapping[int, int] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)


def rank(hole: Hole, weight: int) -> tuple[float, int, float, str]:
    """The order in which holes are taken: the longest first; of those that last as long the one whose node Slurm
    prefers least, by its Weight; then cohorts side by side."""
    return -hole.until, -weight, hole.cohort or 0.0, hole.node


def cohort_to_take(cohorts: Sequence[tuple[float | None, int]], own: Collection[float | None], wanted: int) -> int:
    """Which of the cohorts, each with how many nodes it has, a job takes `wanted` nodes of: one that it has nodes of
    (`own`), then the smallest that has enough, or the largest."""
    places = [at for at, (cohort, _) in enumerate(cohorts) if cohort in own] or range(len(cohorts))
    enough = [at for at in places if cohorts[at][1] >= wanted]
    return min(enough, key=lambda at: cohorts[at][1]) if enough else max(places, key=lambda at: cohorts[at][1])


def place(
    sizes: Mapping[int, int],
    jobs: Mapping[int, JobView],
    stays: Mapping[int, Sequence[Pilot]],
    free: Sequence[Hole],
    weights: Mapping[str, int],
    holes: Mapping[str, Hole] | None = None,
    slow: Collection[str] = (),
    leaves: Mapping[str, str] | None = None,
    avoided: Mapping[int, Mapping[str, str]] | None = None,
    unfit: Mapping[int, Collection[str]] | None = None,
    coming: Collection[str] = (),
    classes: Mapping[int, Mapping[str, int]] | None = None,
    class_of: Mapping[str, str] | None = None,
) -> Placement:
    """Turn counts into nodes.

    `stays` are the pilots that may stay, `free` the holes that may be started on, `weights` Slurm's node Weight (see
    `rank`), `holes` those of held nodes too, `slow` pilots whose workers hold up the others, `leaves` the leaf switch
    of each node, where there are switches, `avoided` by job the nodes that it is not to be given, with the reason,
    `unfit` by job the nodes that it cannot have, `coming` the nodes that pilots are leaving already, `classes` by job
    how many nodes of which class its size is made of, and `class_of` the class of each node. Jobs that can
    have the fewest nodes choose first, then those whose nodes cost most to start, then the lower id. Deterministic.
    """
    not_for = unfit or {}
    of_held = holes or {}
    numbers = leaf_numbers(leaves) if leaves and free else {}
    pool = _Pool(sorted(free, key=lambda hole: rank(hole, weights.get(hole.node, 1))), weights, numbers)
    keep: dict[int, tuple[Pilot, ...]] = {}
    drop: dict[int, tuple[Pilot, ...]] = {}
    take: dict[int, tuple[Hole, ...]] = {}
    short: dict[int, int] = {}
    changed = []
    parts: dict[int, list[tuple[str | None, int]]] = {}
    for job_id, size in sorted(sizes.items()):
        keep[job_id], drop[job_id], take[job_id] = tuple(stays.get(job_id, ())), (), ()
        parts[job_id] = _parts(job_id, size, keep[job_id], classes or {}, class_of or {})
        if any(count != len(_of_class(keep[job_id], name, class_of)) for name, count in parts[job_id]):
            changed.append(job_id)
    choosy = [j for j in changed if j in not_for and sizes[j] > len(keep[j])]
    for job_id in sorted(changed, key=lambda j: (-len(not_for.get(j, ())), -jobs[j].costs.activate_s, j)):
        kept_parts: list[Pilot] = []
        for name, size in parts[job_id]:
            mine = _of_class(keep[job_id], name, class_of)
            if size < len(mine):
                # A pilot that trains is worth more than one that Slurm has not started; the sooner it ends, the less.
                ranked = sorted(
                    mine,
                    key=lambda p: (
                        p.id in slow,
                        p.started_at is None,
                        any(p.node not in not_for[j] for j in choosy),
                        -(p.ends_at or 0.0),
                        p.node,  # not by task: which one of equals is given up must not follow from Slurm's numbers
                        p.id,
                    ),
                )
                left = keep_whole_tasks(ranked, size)
                kept = {pilot.id for pilot in left}
                drop[job_id] += tuple(pilot for pilot in ranked if pilot.id not in kept)
                kept_parts += left
            else:
                kept_parts += mine
        keep[job_id] = tuple(kept_parts)
        own = {of_held[p.node].cohort for p in keep[job_id] if p.node in of_held}
        beside = [p.node for p in keep[job_id]]
        for name, size in parts[job_id]:
            wanted = size - len(_of_class(keep[job_id], name, class_of))
            avoids = {*(avoided or {}).get(job_id, ()), *not_for.get(job_id, ())}
            if name is not None:
                avoids |= {node for node, other in (class_of or {}).items() if other != name}
            if avoids:
                taken = tuple(pool.without(avoids).take(wanted, own, beside))
                pool = pool.without({hole.node for hole in taken})
            else:
                taken = tuple(pool.take(wanted, own, beside))
            take[job_id] += taken
            if wanted > len(taken):
                short[job_id] = short.get(job_id, 0) + wanted - len(taken)
    moved: dict[str, str] = {}
    going = {*coming, *(pilot.node for pilots in drop.values() for pilot in pilots)}
    for job_id in sorted(short.keys() & not_for.keys()):
        lacking = short[job_id]
        for node in sorted(going.difference(not_for[job_id]))[:lacking]:
            going.remove(node)
            lacking -= 1
        for other in sorted(keep.keys() - short.keys()):
            # Nodes that the short job can have are given up for free ones, which it cannot have.
            theirs = () if jobs[other].co_allocated else keep[other]
            for pilot in [p for p in theirs if p.node not in not_for[job_id]][: max(0, lacking)]:
                elsewhere = pool.without({*(avoided or {}).get(other, ()), *not_for.get(other, ())}).take(
                    1, set(), ()
                )
                if not elsewhere:
                    break
                pool = pool.without({elsewhere[0].node})
                keep[other] = tuple(p for p in keep[other] if p is not pilot)
                drop[other] += (pilot,)
                take[other] += tuple(elsewhere)
                moved[pilot.id] = f"job {other} moves to {elsewhere[0].node}: job {job_id} can run on few nodes"
                lacking -= 1
    return Placement(keep, drop, take, short, moved)


def _parts(
    job_id: int,
    size: int,
    keep: Sequence[Pilot],
    classes: Mapping[int, Mapping[str, int]],
    class_of: Mapping[str, str],
) -> list[tuple[str | None, int]]:
    """How many nodes of which class a job is to have; of any class where that is not said."""
    if not class_of or (size and sum(classes.get(job_id, {}).values()) != size):
        return [(None, size)]
    if any(pilot.node not in class_of for pilot in keep):
        return [(None, size)]
    return [(name, classes.get(job_id, {}).get(name, 0)) for name in sorted(set(class_of.values()))]


def _of_class(pilots: Sequence[Pilot], name: str | None, class_of: Mapping[str, str] | None) -> list[Pilot]:
    return [pilot for pilot in pilots if name is None or (class_of or {}).get(pilot.node) == name]


def unfit_nodes(draft: Draft, inputs: Inputs) -> dict[int, Unfit]:
    """The nodes that jobs cannot have, of those that pilots hold and keep, that are free, and that change hands.

    What a job asks for is what Slurm's rows of its arrays say, so it is right whoever submitted them, and however.
    """
    snapshot, rules, resting = inputs.snapshot, inputs.rules, inputs.situation.resting_on
    asked = {
        str(row.array_id): needs
        for row in snapshot.jobs
        if row.array_id is not None
        and row.partition == rules.harvest_partition
        and (needs := Requirements(row.gres, row.features, row.memory_mib))
    }
    if not asked and not resting:
        return {}
    kept = [pilot.node for pilots in draft.staying.values() for pilot in pilots]
    shared = [name for name in (*kept, *(h.node for h in draft.free), *draft.coming) if name in snapshot.node]
    lacking: dict[Requirements, frozenset[str]] = {}
    found: dict[int, Unfit] = {}
    for job_id, holdings in sorted(inputs.holdings.items()):
        needs = next((asked[array] for array in sorted(holdings.arrays) if array in asked), Requirements())
        if needs not in lacking:
            lacking[needs] = frozenset([n for n in shared if not needs.met_by(snapshot.node[n])] if needs else ())
        without, rests = lacking[needs], resting.get(job_id, {})
        nodes = without.union(rests.keys() & set(shared) if rests else ()) - holdings.nodes
        if nodes:
            words = [f"{len(without)} of {len(shared)} nodes lack {needs}"] if without else []
            words += [f"{node}: {why}" for node, why in sorted(rests.items()) if node in nodes]
            found[job_id] = Unfit(nodes, "; ".join(words))
    return found


class _Pool:
    """Free holes, best first, in groups of one cohort."""

    def __init__(self, ranked: Sequence[Hole], weights: Mapping[str, int], leaves: Mapping[str, int]) -> None:
        def alike(hole: Hole) -> tuple[float, int]:
            return rank(hole, weights.get(hole.node, 1))[:2]

        self._weights, self._leaves = weights, leaves
        self._fronts: list[list[list[Hole]]] = [
            [list(group) for _, group in groupby(front, key=lambda hole: hole.cohort)]
            for _, front in groupby(ranked, key=alike)
        ]

    def without(self, nodes: Collection[str]) -> _Pool:
        """A pool of its own that lacks these nodes."""
        left = [hole for front in self._fronts for group in front for hole in group if hole.node not in nodes]
        return _Pool(left, self._weights, self._leaves)

    def take(self, wanted: int, own: set[float | None], beside: Iterable[str]) -> list[Hole]:
        """Up to `wanted` holes: of those about equally good, cohorts of nodes that the job has (`own` cohorts), then
        from as few cohorts as will do, each the smallest that does; `beside`: the job's own nodes."""
        taken: list[Hole] = []
        own = own - {None}
        near = {self._leaves[node] for node in beside if node in self._leaves}
        while len(taken) < wanted and self._fronts:
            front, left = self._fronts[0], wanted - len(taken)
            group = front[cohort_to_take([(group[0].cohort, len(group)) for group in front], own, left)]
            if self._leaves and left < len(group):
                self._gather(group, left, near)
            taken += group[:left]
            near.update(self._leaves[hole.node] for hole in group[:left] if hole.node in self._leaves)
            own.add(group[0].cohort)
            own.discard(None)
            del group[:left]
            if not group:
                front.remove(group)
            if not front:
                del self._fronts[0]
        return taken

    def _gather(self, group: list[Hole], wanted: int, near: set[int]) -> None:
        """Put holes on as few leaves as will do first: those in `near`, then the smallest leaf that holds the rest,
        or the largest. Otherwise the order stays."""
        on = np.bincount([self._leaves.get(hole.node, 0) for hole in group])
        order = leaf_order(on, wanted, near, on)
        place_of = {leaf: i for i, leaf in enumerate(order)}
        group.sort(key=lambda hole: place_of.get(self._leaves.get(hole.node, 0), len(order)))
