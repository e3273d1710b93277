"""Workers of a job that may train, or save, where the daemon does not hear them. Pure.

No two worlds of a job may train, and no older state may be saved over a newer one. So before others begin, or go on
without such workers, the nodes of these are taken back. `holding`: the job's pilots that may hold a node, and whether
a worker has been warm there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from malletrain.loop.membership.state import Check, JobMembership, Worker


def unheard_with_state(job: JobMembership, holding: Mapping[str, bool]) -> dict[str, Worker | None]:
    """The pilots where the job may train without the daemon hearing of it: no world may begin beside them. By pilot,
    with its worker where that was given up for its silence, None where another has been warm that is not known, or
    whose node is being taken back."""
    latest = _latest_runs(job)
    silent = {pilot: each for pilot, each in latest.items() if _is_unheard(each)}
    reporting = latest.keys() - silent.keys() - job.fenced
    return {pilot: silent.get(pilot) for pilot in sorted(_warm(holding) - reporting)}


def silent_majorities(job: JobMembership, check: Check, holding: Mapping[str, bool]) -> dict[str, Worker | None]:
    """The silent pilots, with their workers where these are known, of each world more than half of which is silent:
    these would make a world of their own (`malletrain.elastic.resize.quorum`). Whoever is known to have ended, or to
    hold no node, does not count."""
    latest = _latest_runs(job)
    away: dict[str, Worker | None] = {}
    for world, unheard in _worlds_that_may_train(job, check, holding):
        if 2 * len(unheard) > len(world):
            away.update((pilot, latest.get(pilot)) for pilot in sorted(unheard))
    return away


def could_go_on_apart(
    job: JobMembership, check: Check, left_out: Collection[str], holding: Mapping[str, bool]
) -> bool:
    """Whether an urgent plan must not leave these workers out, though they are to leave: with those that are silent
    they are more than half of a world, and where the plan does not reach them, they would make one of their own."""
    pilots = {job.workers[name].pilot for name in left_out}
    worlds = _worlds_that_may_train(job, check, holding)
    return any(2 * len(unheard | (world & pilots)) > len(world) for world, unheard in worlds)


def scripts_apart(job: JobMembership, holding: Mapping[str, bool]) -> list[Worker]:
    """The launchers whose scripts may train on, or save, in a world that is over. A launcher takes a plan without
    asking the other members of its world, whose scripts then fail: only a world that is silent as a whole can train
    on. But the first member of any may be about to save, over what later worlds have saved."""
    latest = _latest_runs(job).values()
    silent = {each.id: each for each in latest if each.silent and holding.get(each.pilot)}
    return [each for each in silent.values() if each.unheard or _saves(each) or _trains_apart(each, silent)]


def still_held(job: JobMembership, holding: Mapping[str, bool]) -> set[str]:
    """The pilots whose nodes are being taken back and are not free yet, nor started on again."""
    return job.fenced & _warm(holding)


def _warm(holding: Mapping[str, bool]) -> set[str]:
    return {pilot for pilot, has_been_warm in holding.items() if has_been_warm}


def _latest_runs(job: JobMembership) -> dict[str, Worker]:
    """By pilot, the worker of its latest run."""
    return {each.pilot: each for each in sorted(job.workers.values(), key=lambda each: each.restart)}


def _worlds_that_may_train(
    job: JobMembership, check: Check, holding: Mapping[str, bool]
) -> list[tuple[frozenset[str], frozenset[str]]]:
    """The pilots of each world that members may be in, and those of them whose workers may train in silence."""
    # An urgent plan's members enter its world without the consent of the others.
    later = (job.pending, *job.published.values())
    entered = (plan for plan in later if plan is not None and (check.entered or plan.urgent))
    plans = [plan for plan in (job.world, *entered) if plan is not None]
    # A daemon before may have died, or not heard, as the members of a later world took it.
    present = job.world.generation if job.world is not None else 0
    untaken = [pilots for number, pilots in job.before.untaken.items() if number > present]
    worlds = [frozenset(seat.pilot for seat in plan.members) for plan in plans] + untaken
    latest = _latest_runs(job)
    unheard = frozenset(pilot for pilot, warm in holding.items() if warm and _is_unheard(latest.get(pilot)))
    return [(world, world & unheard) for world in worlds]


def _is_unheard(worker: Worker | None) -> bool:
    """Whether a pilot's worker, None where none has said hello, may train where it is not heard."""
    return worker is None or (worker.silent and not worker.phase.lives)


def _saves(worker: Worker) -> bool:
    """Whether the script of this launcher is the one that saves: the first of its world."""
    return worker.at is not None and worker.at.workers[0] == worker.id


def _trains_apart(worker: Worker, silent: Mapping[str, Worker]) -> bool:
    """Whether all members of the world that the worker is in are silent, and none is in a later one."""
    world = worker.at
    if world is None:
        return False
    members = [silent.get(name) for name in world.workers]
    return all(each is not None and (each.at is None or each.at.generation <= world.generation) for each in members)
