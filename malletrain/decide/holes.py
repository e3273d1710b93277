"""Each node's hole: until when it may be harvested, read from Slurm's own plan; and the reserve, the holes that stay.

idle-until(node) = min over the planned starts of waiting jobs whose SchedNodeList holds the node, and over the
starts of reservations (squeue(1) %S and %Y; scontrol(1) show reservations). Early ends of running jobs and new
arrivals are not in any plan: yielding answers those.

The reserve is what `srun -I`, a hetjob, and the first jobs of a burst start on: idle nodes that no pilot takes, and
that are made free again when a main job has taken them. Slurm fills nodes of the lowest Weight first, so the reserve
is of those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import HarvestedNode
from malletrain.domain.decision import Hole
from malletrain.domain.slurm_reasons import waits_for_nodes
from malletrain.domain.snapshot import Snapshot

T = TypeVar("T")

#: When a hole ends (Unix seconds), and what says so.
HoleEnd = tuple[float, str]


def planned_ends(snapshot: Snapshot, names: Collection[str], now: float, rules: Rules) -> Mapping[str, HoleEnd]:
    """When each of the nodes `names` is next wanted, and by what; a node that nothing plans for is absent.

    Plans beyond the longest limit of a pilot are left out: they bind no pilot yet. A reservation that has begun wants
    its nodes now. A planned start that has passed counts for two backfill intervals more: after that, backfill has
    not come to the job again (beyond bf_max_job_test), or does not run.
    """
    since = now if snapshot.plan.is_stale(now) else now - snapshot.plan.lasts_s
    plans: list[tuple[float, str, Collection[str]]] = [
        (job.start_time, f"planned start of job {job.id}", job.planned_nodes)
        for job in snapshot.pending
        if job.start_time is not None and job.start_time >= since and job.partition != rules.harvest_partition
    ]
    plans += [(max(now, r.start), f"reservation {r.name}", r.nodes) for r in snapshot.reservations if r.end > now]
    # The earliest first, so each node is looked at until it is found once.
    plans.sort(key=lambda plan: plan[0])
    wanted: dict[str, HoleEnd] = {}
    left, latest = set(names), _longest(now, rules)
    for when, why, nodes in plans:
        if not left or when >= latest:
            break
        hit = left.intersection(nodes)
        wanted.update(dict.fromkeys(hit, (when, why)))
        left -= hit
    return wanted


def find_holes(snapshot: Snapshot, held: Collection[str], now: float, rules: Rules) -> dict[str, Hole]:
    """The holes of nodes that are free or that pilots hold (`held`), by node name, sorted.

    A node that staff wants (draining, reserved, rebooting, ...) has no hole; one wanted at once ends now.
    """
    index = snapshot.index
    of_partition = index.partitions.get(rules.harvest_partition, frozenset())
    names = (snapshot.free_names.union(held) & of_partition) - index.staffed
    if rules.include_nodes or rules.exclude_nodes:
        names = frozenset([name for name in names if rules.may_harvest(name)])
    longest = (_longest(now, rules), "nothing planned")
    # A pilot that runs keeps its limit: one that is cut cannot be lengthened again when the plan is fresh.
    unknown = _unknown(snapshot, now, rules) or longest
    planned = planned_ends(snapshot, names, now, rules)
    return {
        name: Hole(name, *(planned.get(name) or (longest if name in held else unknown))) for name in sorted(names)
    }


def _longest(now: float, rules: Rules) -> float:
    """The end of a hole that nothing is planned for: as long as a pilot may last."""
    return now + rules.max_pilot_s + rules.margin_s


def _unknown(snapshot: Snapshot, now: float, rules: Rules) -> HoleEnd | None:
    """Until when a node may be harvested that nothing is known of: Slurm's plan is old, and main jobs wait."""
    made = snapshot.plan.last_cycle_at
    if made is None or not snapshot.plan.is_stale(now):
        return None
    if not any(waits_for_nodes(job, rules.harvest_partition) for job in snapshot.pending):
        return None
    until = now + min(rules.unknown_s, rules.max_pilot_s) + rules.margin_s
    return until, f"unknown: Slurm's backfill plan is {now - made:.0f} s old"


def pilot_limit_s(hole: Hole, now: float, rules: Rules) -> float:
    """The time limit of a pilot that starts now in `hole`: whole minutes, since Slurm's limits are, and ended
    `margin_s` before the hole is. 0 where not even a minute fits, or the hole is shorter than `min_hole_s`."""
    return limit_s(hole.until - now, rules.min_hole_s, rules.margin_s, rules.max_pilot_s)


def limit_s(left_s: float, min_hole_s: float, margin_s: float, max_pilot_s: float) -> float:
    """As `pilot_limit_s`, of a hole that ends in `left_s` seconds; the rest as in `Rules`."""
    if left_s < max(min_hole_s, margin_s + 60.0):
        return 0.0
    return 60.0 * max(0, int(min(left_s - margin_s, max_pilot_s) // 60))


def cut_end(ends_at: float, until: float, now: float, margin_s: float) -> float | None:
    """To when a pilot's limit is cut whose hole ends at `until` by now; None: not at all. Slurm keeps whole minutes:
    a cut of less than one changes nothing."""
    latest = until - margin_s
    return latest if ends_at > latest + 60.0 and latest > now + 60.0 else None


def rank(hole: Hole, weight: int) -> tuple[float, int, float, str]:
    """The order in which holes are taken: the longest first; of those that last as long the one whose node Slurm
    prefers least, by its Weight; then cohorts side by side."""
    return -hole.until, -weight, hole.cohort or 0.0, hole.node


def best_first(holes: Iterable[Hole], snapshot: Snapshot) -> list[Hole]:
    """By `rank`."""
    return sorted(holes, key=lambda hole: rank(hole, snapshot.node[hole.node].weight))


def leaves_first(nodes: Sequence[T], wanted: int, leaf_of: Callable[[T], str]) -> list[T]:
    """`nodes` with those first that leave most leaf switches whole: on the smallest leaf that has `wanted` of them,
    else on the largest. `leaf_of`: "" where Slurm knows none; such nodes come last, and in their order."""
    room = Counter(map(leaf_of, nodes))
    if len(room) <= 1 or wanted >= len(nodes):
        return list(nodes)

    def order(node: T) -> tuple[bool, int, str]:
        leaf = leaf_of(node)
        there = room[leaf] if leaf else 0
        return there < wanted, abs(there - wanted), leaf

    return sorted(nodes, key=order)


def split_reserve(keep_idle: int, free: int, coming: int) -> tuple[int, int, int]:
    """How many of `keep_idle` nodes are free ones (the worst), how many are `coming` free, and how many pilots are to
    leave because these do not do."""
    of_free = min(keep_idle, free)
    of_coming = min(keep_idle - of_free, coming)
    return of_free, of_coming, keep_idle - of_free - of_coming


def plan_reserve(
    free: Sequence[Hole],
    harvested: Sequence[HarvestedNode],
    coming: Collection[str],
    snapshot: Snapshot,
    rules: Rules,
) -> tuple[dict[str, str], dict[str, str]]:
    """Which of the `free` holes (best first) and of nodes that are `coming` free stay empty, and which pilots leave,
    of those of the `harvested` nodes, because too few do: node -> why, and pilot -> why.

    First `keep_leaves` whole leaf switches on which no main job runs, those with the fewest pilots; then single nodes
    up to `keep_idle` in all, next to those that are kept already and of the least worth to training, of those worth
    as much the ones on few leaves.
    """
    leaves, leave = snapshot.leaves, dict[str, str]()
    kept: dict[str, str] = {}
    empty, pilots = {hole.node for hole in free}.union(coming), {node.node: node for node in harvested}
    emptiest = _emptiest(empty, pilots, leaves) if rules.keep_leaves else []
    for leaf, nodes in emptiest[: rules.keep_leaves]:
        why = f"on leaf {leaf}, which stays idle (pool.keep_leaves = {rules.keep_leaves})"
        kept |= {name: why for name in nodes if name in empty}
        leave |= {pilots[name].pilot: why for name in nodes if name in pilots}
    missing = max(0, rules.keep_idle - len(kept) - len(leave))
    why = f"one of {rules.keep_idle} nodes that stay idle ({rules.keep_why or 'pool.keep_idle'})"
    same_leaf = {leaves[name] for name in kept}
    singles = [name for name in [*(hole.node for hole in reversed(free)), *sorted(coming)] if name not in kept]
    singles.sort(key=lambda name: leaves.get(name) not in same_leaf)
    worth = {hole.node: rank(hole, snapshot.node[hole.node].weight)[:2] for hole in free}
    chosen: list[str] = []
    for _, alike in groupby(singles, key=lambda name: (leaves.get(name) in same_leaf, worth.get(name))):
        if len(chosen) >= missing:
            break
        chosen += leaves_first(list(alike), missing - len(chosen), lambda name: leaves.get(name, ""))
    kept |= dict.fromkeys(chosen[:missing], why)

    def price(node: HarvestedNode) -> tuple[int, float, str]:
        slurm_node = snapshot.node.get(node.node)
        return slurm_node.weight if slurm_node else 1, node.cost, node.node

    others = sorted((node for node in harvested if node.pilot not in leave), key=price)
    leave |= {node.pilot: why for node in others[: split_reserve(missing, len(singles), 0)[2]]}
    return kept, leave


def _emptiest(
    empty: set[str], pilots: Mapping[str, HarvestedNode], leaves: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """The leaves with nothing but empty nodes and pilots, those whose making free costs least first."""
    found: list[tuple[int, float, str, list[str]]] = []
    for leaf, alike in groupby(sorted(leaves, key=lambda name: (leaves[name], name)), key=lambda name: leaves[name]):
        names = list(alike)
        if empty.union(pilots).issuperset(names):
            costs = [pilots[name].cost for name in names if name in pilots]
            found.append((len(costs), sum(costs), leaf, names))
    return [(leaf, names) for _, _, leaf, names in sorted(found)]
