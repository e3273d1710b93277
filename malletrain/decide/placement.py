"""Which nodes: a job keeps what it holds; growth takes the longest holes, shrinking gives up the shortest.

Nodes that became idle together go to one job where that is known, since they leave together and it pays once. Jobs
whose nodes cost most to start choose first. Finer rules for who gets which hole were tried and gained nothing
(docs/explanation/holes.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from malletrain.decide.draft import Draft, Unfit
from malletrain.decide.multi_node_pilots import keep_whole_tasks
from malletrain.domain.decision import Hole
from malletrain.domain.job import Pilot
from malletrain.domain.requirements import Requirements


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


def place(draft: Draft, sizes: Mapping[int, int]) -> Placement:
    """Turn counts into nodes. Deterministic.

    Jobs that can have the fewest nodes choose first, then those whose nodes cost most to start, then the lower id.
    """
    pool, unfit, jobs = _Pool(draft), {job: each.nodes for job, each in draft.unfit.items()}, draft.live
    keep = {job: tuple(draft.staying.get(job, ())) for job in sorted(sizes)}
    found = Placement(keep, dict.fromkeys(keep, ()), dict.fromkeys(keep, ()))
    slow = {each.pilot for workers in draft.situation.slow.values() for each in workers}
    parts = {job: _parts(draft, sizes[job], keep[job], draft.classes.get(job, {})) for job in keep}
    changed = [j for j in keep if any(n != len(_of_class(draft, keep[j], name)) for name, n in parts[j])]
    choosy = [unfit[job] for job in changed if job in unfit and sizes[job] > len(keep[job])]

    def last_to_go(pilot: Pilot) -> tuple[object, ...]:
        # A pilot that trains is worth more than one that Slurm has not started; the sooner it ends, the less.
        # Not by task: which one of equals is given up must not follow from Slurm's numbers.
        wanted, is_slow = any(pilot.node not in nodes for nodes in choosy), pilot.id in slow
        return is_slow, pilot.started_at is None, wanted, -(pilot.ends_at or 0.0), pilot.node, pilot.id

    for job in sorted(changed, key=lambda j: (-len(unfit.get(j, ())), -jobs[j].costs.activate_s, j)):
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
        own = {draft.holes[pilot.node].cohort for pilot in kept if pilot.node in draft.holes}
        for name, size in parts[job]:
            wanted = size - len(_of_class(draft, kept, name))
            taken = pool.take(job, wanted, own, name)
            found.take[job] += tuple(taken)
            if wanted > len(taken):
                found.short[job] = found.short.get(job, 0) + wanted - len(taken)
    for job in sorted(found.short.keys() & unfit.keys()):
        _make_way(found, job, unfit[job], draft, pool)
    return found


def _make_way(found: Placement, job: int, unfit: Collection[str], draft: Draft, pool: _Pool) -> None:
    """Nodes that a short job can have are given up for free ones, which it cannot have."""
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


def _parts(
    draft: Draft, size: int, keep: Sequence[Pilot], of_classes: Mapping[str, int]
) -> list[tuple[str | None, int]]:
    """How many nodes of which class a job is to have; of any class where that is not said."""
    class_of = draft.class_of
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
            lacking[needs] = frozenset([n for n in shared if not needs.met_by(snapshot.node[n])] if needs else ())
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
        node = draft.snapshot.node
        ranks = [(rank(hole, node[hole.node].weight), hole) for hole in draft.free]
        self._free, self._draft = sorted(ranks, key=lambda ranked: ranked[0]), draft

    def take(self, job: int, wanted: int, own: Collection[float | None] = (), name: str | None = None) -> list[Hole]:
        """Up to `wanted` holes that the job may have, of the class `name`: of those about equally good, cohorts of
        nodes that it has (`own`), then from as few cohorts as will do, each the smallest that does."""
        draft, taken, mine = self._draft, list[Hole](), {*own} - {None}
        barred = {*draft.situation.avoided.get(job, ()), *(draft.unfit[job].nodes if job in draft.unfit else ())}
        if name is not None:
            barred |= {node for node, other in draft.class_of.items() if other != name}
        may = (each for each in self._free if each[1].node not in barred) if wanted > 0 else ()
        for _, alike in groupby(may, key=lambda ranked: ranked[0][:2]):
            groups = [list(group) for _, group in groupby((hole for _, hole in alike), key=lambda hole: hole.cohort)]
            while groups and len(taken) < wanted:
                left = wanted - len(taken)
                at = cohort_to_take([(group[0].cohort, len(group)) for group in groups], mine, left)
                mine = (mine | {groups[at][0].cohort}) - {None}
                taken += groups[at][:left]
                del groups[at][:left]
                if not groups[at]:
                    del groups[at]
            if len(taken) >= wanted:
                break
        if taken:
            gone = {hole.node for hole in taken}
            self._free = [each for each in self._free if each[1].node not in gone]
        return taken
