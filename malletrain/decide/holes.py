"""Each node's hole: until when it may be harvested, read from Slurm's own plan.

idle-until(node) = min over the planned starts of waiting jobs whose SchedNodeList holds the node, and over the
starts of reservations (squeue(1) %S and %Y; scontrol(1) show reservations). Early ends of running jobs and new
arrivals are not in any plan: yielding answers those.
"""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.decide.forecast import Forecast, Remaining
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Hole, OpenHole
from malletrain.domain.snapshot import LEAVE_STATES, Node, SlurmState, Snapshot


def planned_ends(snapshot: Snapshot, now: float, rules: Rules) -> Mapping[str, tuple[float, str]]:
    """When each node is next wanted, and by what, by node name; a node that nothing plans for is absent.

    A reservation that has begun wants its nodes now. A stale plan (see `BackfillPlan.is_stale`) says nothing.
    """
    wanted: dict[str, tuple[float, str]] = {}

    def want(name: str, when: float, why: str) -> None:
        if name not in wanted or when < wanted[name][0]:
            wanted[name] = (when, why)

    if not snapshot.plan.is_stale(now):
        for job in snapshot.jobs:
            if job.state is SlurmState.PENDING and job.start_time is not None:
                if job.partition == rules.harvest_partition:
                    continue
                for name in job.planned_nodes:
                    want(name, job.start_time, f"planned start of job {job.id}")
    for reservation in snapshot.reservations:
        if reservation.end > now:
            for name in reservation.nodes:
                want(name, max(now, reservation.start), f"reservation {reservation.name}")
    return wanted


def holes(snapshot: Snapshot, held: Mapping[str, str], now: float, rules: Rules) -> tuple[Hole, ...]:
    """The holes of nodes that are free or that pilots hold (`held`: node -> pilot), by node name.

    A node that staff wants (draining, reserved, rebooting, ...) has no hole; one wanted at once ends now.
    """
    wanted = planned_ends(snapshot, now, rules)
    found: list[Hole] = []
    for node in snapshot.nodes:
        if not _harvestable(node, rules):
            continue
        if node.name not in held and not snapshot.is_free(node.name):
            continue
        until, reason = wanted.get(node.name, (now + rules.max_pilot_s + rules.margin_s, "nothing planned"))
        found.append(Hole(node.name, until, reason))
    return tuple(sorted(found, key=lambda hole: hole.node))


def foreseen(
    found: Mapping[str, Hole], open_holes: Mapping[str, OpenHole], forecast: Forecast, now: float
) -> dict[str, Hole]:
    """The holes with how long each probably lasts: the forecast for its age and cohort, cut off where its plan ends.

    A hole whose begin is not known counts as new: the safe side.
    """
    rests: dict[OpenHole, Remaining] = {}
    means: dict[tuple[OpenHole, float], float] = {}
    answer: dict[str, Hole] = {}
    for name, hole in found.items():
        opened = open_holes.get(name) or OpenHole(now, 1)
        key = (opened, hole.until)
        if key not in means:
            if opened not in rests:
                rests[opened] = forecast.remaining(now - opened.began, opened.cohort)
            means[key] = rests[opened].mean_s(max(0.0, hole.until - now))
        answer[name] = Hole(name, hole.until, hole.reason, means[key], opened.began)
    return answer


def pilot_limit_s(hole: Hole, now: float, rules: Rules) -> float:
    """The time limit of a pilot that starts now in `hole`: whole minutes, since Slurm's limits are, and ended
    `margin_s` before the hole is. 0 where not even a minute fits, or the hole is shorter than `min_hole_s`.
    """
    left = hole.until - now
    if left < rules.min_hole_s:
        return 0.0
    whole_minutes = int(min(left - rules.margin_s, rules.max_pilot_s) // 60)
    return 60.0 * max(0, whole_minutes)


def _harvestable(node: Node, rules: Rules) -> bool:
    if node.state in LEAVE_STATES or not rules.may_harvest(node.name):
        return False
    return rules.harvest_partition in node.partitions
