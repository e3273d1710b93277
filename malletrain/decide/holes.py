"""Each node's hole: until when it may be harvested, read from Slurm's own plan.

idle-until(node) = min over the planned starts of waiting jobs whose SchedNodeList holds the node, and over the
starts of reservations (squeue(1) %S and %Y; scontrol(1) show reservations). Early ends of running jobs and new
arrivals are not in any plan: yielding answers those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from malletrain.decide.rules import Rules
from malletrain.decide.yielding import waits_for_nodes
from malletrain.domain.decision import Hole
from malletrain.domain.snapshot import Snapshot

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
    if not any(waits_for_nodes(job, rules) for job in snapshot.pending):
        return None
    until = now + min(rules.unknown_s, rules.max_pilot_s) + rules.margin_s
    return until, f"unknown: Slurm's backfill plan is {now - made:.0f} s old"


def pilot_limit_s(hole: Hole, now: float, rules: Rules) -> float:
    """The time limit of a pilot that starts now in `hole`: whole minutes, since Slurm's limits are, and ended
    `margin_s` before the hole is. 0 where not even a minute fits, or the hole is shorter than `min_hole_s`."""
    return limit_s(hole.until - now, rules.min_hole_s, rules.margin_s, rules.max_pilot_s)


def limit_s(left_s: float, min_hole_s: float, margin_s: float, max_pilot_s: float) -> float:
    """As `pilot_limit_s`, of a hole that ends in `left_s` seconds; the rest as in `Rules`."""
    if left_s < shortest_hole_s(min_hole_s, margin_s):
        return 0.0
    return 60.0 * max(0, int(min(left_s - margin_s, max_pilot_s) // 60))


def shortest_hole_s(min_hole_s: float, margin_s: float) -> float:
    """No pilot starts in a hole that ends sooner: its limit would be less than a minute."""
    return max(min_hole_s, margin_s + 60.0)


def cut_end(ends_at: float, until: float, now: float, margin_s: float) -> float | None:
    """To when a pilot's limit is cut whose hole ends at `until` by now; None: not at all. Slurm keeps whole minutes:
    a cut of less than one changes nothing."""
    latest = until - margin_s
    return latest if ends_at > latest + 60.0 and latest > now + 60.0 else None
