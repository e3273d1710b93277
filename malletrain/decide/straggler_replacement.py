"""A straggler is replaced: a free node is started on in its stead, and it leaves once that worker is ready.

After Or, Zhang, Freedman (MLSys 2020): the replacement joins first. The next generation takes the one in and lets the
other go, so the job never trains on fewer nodes. Each job replaces one worker at a time, its slowest. Where no node
is free, or where the job avoids as many nodes as it may already, the straggler stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.decide.holes import pilot_limit_s
from malletrain.decide.reconcile import leaving
from malletrain.decide.rules import Rules
from malletrain.domain.decision import Action, Hole, LeaveCause, Refusal, StartPilot
from malletrain.domain.job import JobView, Pilot
from malletrain.learn.stragglers import Straggler

#: Most nodes that a job avoids for slow workers at a time, as a part of its nodes; one always may.
MAX_AVOIDED_PART = 0.125


@dataclass(frozen=True, slots=True)
class Replacements:
    """`starts`: replacements, on `nodes`; `leaves`: of stragglers, the pilots `gone`; `uncounted`: pilots whose
    replacement counts instead of them, so that sizing does not take both for the job's."""

    starts: list[StartPilot] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    leaves: list[Action] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    uncounted: set[str] = field(default_factory=set)
    refusals: list[Refusal] = field(default_factory=list)


def replace_stragglers(
    slow: Mapping[int, Sequence[Straggler]],
    views: Mapping[int, JobView],
    stays: Mapping[int, Sequence[Pilot]],
    free: Sequence[Hole],
    now: float,
    rules: Rules,
    avoided: Mapping[int, Mapping[str, str]] | None = None,
    unfit: Mapping[int, Collection[str]] | None = None,
) -> Replacements:
    """What to do about `slow` workers (by job, the slowest first), given the pilots that stay, the holes that may
    be started on, best first, the nodes that each job avoids since its worker was slow there, and those that it
    cannot have (`unfit`)."""
    out = Replacements()
    holes = list(free)
    for job_id, found in sorted(slow.items()):
        mine = {pilot.id: pilot for pilot in stays.get(job_id, ())}
        for_whom = {pilot.replaces: pilot for pilot in mine.values() if pilot.replaces}
        here = [each for each in found if each.pilot in mine]
        # One at a time: first whoever has a replacement, then the slowest.
        chosen = next((each for each in here if each.pilot in for_whom), here[0] if here else None)
        if chosen is None:
            continue
        pilot, stand_in = mine[chosen.pilot], for_whom.get(chosen.pilot)
        subject, slow_one = f"job {job_id}", f"{pilot.id} on {pilot.node}: {chosen.reason}"
        if stand_in is not None:
            out.uncounted.add(pilot.id)
            where = f"{stand_in.id} on {stand_in.node}"
            if stand_in.ready:
                reason = f"{chosen.reason}; its replacement, {where}, is ready"
                out.leaves.append(leaving(pilot, LeaveCause.STRAGGLER, now, rules, reason))
                out.gone.add(pilot.id)
            else:
                out.refusals.append(Refusal(subject, f"{slow_one}; it stays until {where} is ready"))
            continue
        avoids = (avoided or {}).get(job_id, {})
        barred = {*avoids, *(unfit or {}).get(job_id, ())}
        hole = next((each for each in holes if each.node not in barred), None)
        if len(avoids) >= max(1, int(MAX_AVOIDED_PART * len(mine))):
            resting = ", ".join(sorted(avoids))
            out.refusals.append(Refusal(subject, f"{slow_one}; its job avoids {resting} for that already"))
        elif hole is None or not views[job_id].held:
            lacking = "no free node" if hole is None else "no held task of its job"
            out.refusals.append(Refusal(subject, f"{slow_one}; {lacking} is there to replace it"))
        else:
            holes.remove(hole)
            reason = f"replaces {slow_one}"
            limit = pilot_limit_s(hole, now, rules)
            task = views[job_id].held[0].id
            out.starts.append(StartPilot(job_id, task, hole.node, limit, reason, replaces=pilot.id))
            out.nodes.add(hole.node)
    return out
