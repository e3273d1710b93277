"""Each node's hole: until when it may be harvested, read from Slurm's own plan.

idle-until(node) = min over the planned starts of waiting jobs whose SchedNodeList holds the node, and over the
starts of reservations (squeue(1) %S and %Y; scontrol(1) show reservations). Early ends of running jobs and new
arrivals are not in any plan: yielding answers those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from malletrain.decide.forecast import Forecast, Remaining
from malletrain.decide.rules import Rules
from malletrain.decide.yielding import waits
from malletrain.domain.decision import Hole, OpenHole
from malletrain.domain.snapshot import LEAVE_STATES, Snapshot

#: A tuple: membership by identity, which enumerations test faster than by their hash.
_STAFF = tuple(LEAVE_STATES)


def planned_ends(
    snapshot: Snapshot, names: Collection[str], now: float, rules: Rules
) -> Mapping[str, tuple[float, str]]:
    """When each of the nodes `names` is next wanted, and by what; a node that nothing plans for is absent.

    Plans beyond the longest limit of a pilot are left out: they bind nobody yet. A reservation that has begun wants
    its nodes now. A planned start that has passed counts for two backfill
    intervals more: after that, backfill has not come to the job again (beyond bf_max_job_test), or does not run.
    """
    since = now if snapshot.plan.is_stale(now) else now - 2 * snapshot.plan.interval_s
    plans: list[tuple[float, str, Collection[str]]] = [
        (job.start_time, f"planned start of job {job.id}", job.planned_nodes)
        for job in snapshot.pending
        if job.planned_nodes
        and job.start_time is not None
        and job.start_time >= since
        and job.partition != rules.harvest_partition
    ]
    plans += [
        (max(now, reservation.start), f"reservation {reservation.name}", reservation.nodes)
        for reservation in snapshot.reservations
        if reservation.end > now
    ]
    # The earliest first, so each node is looked at until it is found once.
    plans.sort(key=lambda plan: plan[0])
    wanted: dict[str, tuple[float, str]] = {}
    left = set(names)
    latest = _longest(now, rules)
    for when, why, nodes in plans:
        if not left or when >= latest:
            break
        hit = left.intersection(nodes)
        if hit:
            wanted.update(dict.fromkeys(hit, (when, why)))
            left -= hit
    return wanted


def holes(
    snapshot: Snapshot, held: Collection[str], now: float, rules: Rules, foresight: Foresight | None = None
) -> dict[str, Hole]:
    """The holes of nodes that are free or that pilots hold (`held`), by node name, sorted.

    A node that staff wants (draining, reserved, rebooting, ...) has no hole; one wanted at once ends now.
    """
    nodes, partition = snapshot.node, rules.harvest_partition
    names = [
        name
        for name in sorted(snapshot.free_names.union(held))
        if (node := nodes.get(name)) is not None and partition in node.partitions and node.state not in _STAFF
    ]
    if rules.include_nodes or rules.exclude_nodes:
        names = [name for name in names if rules.may_harvest(name)]
    wanted = planned_ends(snapshot, names, now, rules)
    longest = (_longest(now, rules), "nothing planned")
    unknown = _unknown(snapshot, now, rules) or longest
    # A pilot that runs keeps its limit: one that is cut cannot be lengthened again when the plan is fresh.
    if unknown is longest:
        ends = [wanted.get(name, longest) for name in names]
    else:
        ends = [wanted.get(name) or (longest if name in held else unknown) for name in names]
    if foresight is None:
        return {name: Hole(name, *end) for name, end in zip(names, ends, strict=True)}
    rests = foresight.of(names, ends)
    return {name: Hole(name, *end, *rest) for name, end, rest in zip(names, ends, rests, strict=True)}


def _longest(now: float, rules: Rules) -> float:
    """The end of a hole that nothing is planned for: as long as a pilot may last."""
    return now + rules.max_pilot_s + rules.margin_s


def _unknown(snapshot: Snapshot, now: float, rules: Rules) -> tuple[float, str] | None:
    """Until when a node may be harvested that nothing is known of: Slurm's plan is old, and main jobs wait."""
    made = snapshot.plan.last_cycle_at
    if made is None or not snapshot.plan.is_stale(now) or not any(waits(job, rules) for job in snapshot.pending):
        return None
    until = now + min(rules.unknown_s, rules.max_pilot_s) + rules.margin_s
    return until, f"unknown: Slurm's backfill plan is {now - made:.0f} s old"


@dataclass(frozen=True)
class Foresight:
    """How long holes probably last: the forecast for their age and cohort, cut off where their plan ends.

    A hole whose begin is not known counts as new: the safe side.
    """

    open_holes: Mapping[str, OpenHole]
    forecast: Forecast
    now: float

    def of(self, names: Iterable[str], ends: Iterable[tuple[float, str]]) -> list[tuple[float, float]]:
        """For each node, planned to end at `ends`: seconds that its hole probably lasts, and when its cohort opened.

        Nodes of one cohort and plan are reckoned once.
        """
        new, get = OpenHole(self.now, 1), self.open_holes.get
        opened = [get(name, new) for name in names]
        kinds = [(each.began, each.cohort, until) for each, (until, _) in zip(opened, ends, strict=True)]
        rests: dict[tuple[float, int], Remaining] = {}
        lasts: dict[tuple[float, int, float], tuple[float, float]] = {}
        for kind in dict.fromkeys(kinds):
            began, cohort, until = kind
            rest = rests.get((began, cohort))
            if rest is None:
                rest = rests[began, cohort] = self.forecast.remaining(self.now - began, cohort)
            lasts[kind] = rest.mean_s(max(0.0, until - self.now)), began
        return [lasts[kind] for kind in kinds]


def pilot_limit_s(hole: Hole, now: float, rules: Rules) -> float:
    """The time limit of a pilot that starts now in `hole`: whole minutes, since Slurm's limits are, and ended
    `margin_s` before the hole is. 0 where not even a minute fits, or the hole is shorter than `min_hole_s`.
    """
    left = hole.until - now
    if left < rules.min_hole_s:
        return 0.0
    whole_minutes = int(min(left - rules.margin_s, rules.max_pilot_s) // 60)
    return 60.0 * max(0, whole_minutes)
