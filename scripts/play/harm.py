"""How much later main jobs start in one arm than in another, and whether the goals are met. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from malletrain.loop.queue_promise import lower_share
from scripts.bench.shared import bootstrap

#: The arms: the first is what the others are compared with, the second its twin: the noise floor.
BASE, TWIN, PREEMPTION, PILOTS = "none", "twin", "preemption", "pilots"
ARMS = (BASE, TWIN, PREEMPTION, PILOTS)

#: Arms in which no pilot runs: how far they differ is chance.
WITHOUT_PILOTS = (BASE, TWIN, PREEMPTION)

#: Goals beyond the noise floor by profile, the 99th percentile and the mean in seconds; and the share of what replay
#: says is possible.
GOALS_S = {"fast": (1.5, 0.3), "site": (2.0, 0.5)}
SHARE = 0.8

#: A main job is comparable where all arms without pilots start it within so many seconds of one another. Where they
#: do not, chance decides by more than a promise: which node's epilog ends first decides which node a job gets, that
#: for which job backfill finds room, and in a full queue every start after it.
COMPARABLE_S = 2.0

#: With a smaller share of comparable jobs a play says nothing about a promise.
LEAST_COMPARABLE = 0.5

#: Backfill comes so often at profile `site`, and its prolog takes so long (seconds).
SITE_CYCLE_S, SITE_PROLOG_S = 30.0, 10.0

#: Of so large a share of main jobs a promise of the 95th percentile speaks.
PROMISED_SHARE = 0.95

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One main job in two arms: `later_s` in the second; `labels` are the classes that it counts in; `base_s`: how
    long it waited in the first."""

    later_s: float
    labels: tuple[str, ...]
    base_s: float = 0.0


def pairs(run: Run, arm: str) -> list[Pair]:
    """The jobs that started in both arms of one run. Classes are those of the base arm, but for the kind."""
    base, other = run["arms"][BASE]["jobs"], run["arms"][arm]["jobs"]
    alike = comparable(run)
    found = []
    for number, job in base.items():
        twin = other.get(number)
        if twin is None or job["start_s"] is None or twin["start_s"] is None:
            continue
        labels = ["all", job["kind"]]
        if number in alike:
            labels.append("comparable")
        if job["kind"] == "plain":
            labels.append(job["how"])
        if job["near_reservation"]:
            labels.append("near a reservation")
        found.append(Pair(twin["start_s"] - job["start_s"], tuple(labels), job["start_s"]))
    return found


def comparable(run: Run) -> list[str]:
    """The jobs that all arms without pilots started within `COMPARABLE_S` of one another."""
    arms = [run["arms"][arm]["jobs"] for arm in WITHOUT_PILOTS]
    found = []
    for number in arms[0]:
        starts = [jobs[number]["start_s"] for jobs in arms if number in jobs]
        if len(starts) == len(arms) and None not in starts and max(starts) - min(starts) <= COMPARABLE_S:
            found.append(number)
    return found


def lost(run: Run, arm: str) -> list[str]:
    """Jobs that started, or were taken, in the base arm and not in this one."""
    base, other = run["arms"][BASE]["jobs"], run["arms"][arm]["jobs"]
    return [n for n, job in base.items() if job["start_s"] is not None and other.get(n, {}).get("start_s") is None]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, between two of them in proportion."""
    return float(np.quantile(values, share))


def p99(values: Sequence[float]) -> float:
    return quantile(values, 0.99)


#: What a table of `row` has above its columns.
HEAD = f"{'later than without (s)':36}{'jobs':>6}{'median':>9}{'mean':>9}{'95 % of mean':>20}{'p99':>9}   worst"


def row(name: str, later_s: Sequence[float]) -> str:
    """A line of figures of paired delays."""
    low, high = bootstrap(later_s)
    return (
        f"{name:36}{len(later_s):6d}{median(later_s):+9.2f}{fmean(later_s):+9.2f}"
        f"{f'{low:+.2f} to {high:+.2f}':>20}{p99(later_s):+9.2f}{max(later_s):+9.2f}"
    )


def summary(runs: Sequence[Run]) -> Iterator[str]:
    """The runs for people: by arm and class the paired delays, then what else was harmed, then the goals."""
    later = {arm: [pair for run in runs for pair in pairs(run, arm)] for arm in ARMS if arm != BASE}
    if any(not found for found in later.values()):
        yield "no pair of jobs started in every arm"
        return
    jobs = sum(len(run["arms"][BASE]["jobs"]) for run in runs)
    profiles = sorted({run["profile"] for run in runs})
    factors = sorted({round(run["factor"]) for run in runs})
    yield f"{len(runs)} runs of profile {', '.join(profiles)}; {jobs} main jobs; time divided by {factors}"
    yield HEAD
    labels = list(dict.fromkeys(label for pair in later[PILOTS] for label in pair.labels))
    for label in ["all", *sorted(set(labels) - {"all"})]:
        for arm, found in later.items():
            if values := [pair.later_s for pair in found if label in pair.labels]:
                yield row(f"{label}: {arm}", values)
    yield from _foreseeable(runs)
    yield from _else(runs)
    yield from _goals(runs, later)


def _foreseeable(runs: Sequence[Run]) -> Iterator[str]:
    """How late jobs are that could have been seen coming before their cycle, and those that could not. A job that
    starts within a cycle of its submission without pilots gives nobody the time to leave its nodes beforehand."""
    if any(run["profile"] != "site" for run in runs):
        return
    yield ""
    yield f"{'jobs that, without pilots,':44}{'jobs':>6}{'mean':>9}{'median':>9}{'worst':>9}{'twin':>9}"
    for words, waits in (("waited less than a backfill cycle", False), ("waited a backfill cycle or longer", True)):
        later: dict[str, list[float]] = {}
        for arm in (PILOTS, TWIN):
            later[arm] = [
                pair.later_s
                for run in runs
                for pair in pairs(run, arm)
                if (pair.base_s >= SITE_CYCLE_S + SITE_PROLOG_S) is waits
            ]
        found = later[PILOTS] or [0.0]
        yield (
            f"{words:44}{len(later[PILOTS]):6d}{fmean(found):+9.2f}{median(found):+9.2f}{max(found):+9.2f}"
            f"{fmean(later[TWIN] or [0.0]):+9.2f}"
        )


def _else(runs: Sequence[Run]) -> Iterator[str]:
    yield ""
    yield (
        f"{'':12}{'not started':>12}{'refused -I':>11}{'refused':>9}{'leaves/job':>11}{'light nodes':>12}"
        f"{'reserv. refused':>16}{'drained':>8}{'main cycle ms':>14}{'backfill ms':>12}"
    )
    for arm in ARMS:
        facts = [run["arms"][arm] for run in runs]
        jobs = [job for fact in facts for job in fact["jobs"].values()]
        placed = [job for job in jobs if job["leaves"]]
        refused = [job for job in jobs if job["refused"]]
        at_once = sum(1 for job in refused if job["kind"] == "immediate")
        nodes = sum(job["nodes"] for job in placed)
        light = 1 - sum(job["heavy"] for job in placed) / nodes if nodes else 0.0
        asked, denied = (sum(fact[key] for fact in facts) for key in ("reservations", "reservations_refused"))
        unstarted = sum(1 for job in jobs if job["start_s"] is None and not job["refused"])
        yield (
            f"{arm:12}{unstarted:12d}{at_once:11d}{len(refused) - at_once:9d}"
            f"{fmean([job['leaves'] for job in placed] or [0]):11.2f}{light:12.0%}{f'{denied} of {asked}':>16}"
            f"{sum(len(fact['drained']) for fact in facts):8d}{_ms(facts, 'main_cycle_s'):>14}"
            f"{_ms(facts, 'backfill_cycle_s'):>12}"
        )


def _ms(facts: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [fact[key] for fact in facts if fact[key] is not None]
    return f"{1000 * fmean(values):.2f}" if values else "-"


def _goals(runs: Sequence[Run], later: Mapping[str, Sequence[Pair]]) -> Iterator[str]:
    values = {arm: [pair.later_s for pair in found if "comparable" in pair.labels] for arm, found in later.items()}
    yield ""
    if values[PILOTS]:
        profile = "site" if any(run["profile"] == "site" for run in runs) else "fast"
        figures: tuple[Callable[[Sequence[float]], float], ...] = (p99, fmean)
        for name, figure, limit in zip(("p99", "mean"), figures, GOALS_S[profile], strict=True):
            beyond = figure(values[PILOTS]) - figure(values[TWIN])
            what = f"{name} of delay beyond the noise floor, comparable jobs: {beyond:+.2f} s"
            yield _goal(what, f"< {limit:g} s", beyond < limit)
    yield from _promise(runs)
    gone = sum(len(lost(run, PILOTS)) for run in runs)
    floor = sum(len(lost(run, TWIN)) for run in runs)
    yield _goal(f"jobs that started without and not with pilots: {gone} (twin: {floor})", "none more", gone <= floor)
    harvests = [run["harvest"] for run in runs if run.get("harvest") and run["harvest"].get("possible_node_s")]
    if harvests:
        done, possible = (sum(h[key] for h in harvests) for key in ("productive_node_s", "possible_node_s"))
        share = done / possible
        yield _goal(
            f"productive node-seconds: {done:.0f} of {possible:.0f} that replay says are possible ({share:.0%})",
            f">= {SHARE:.0%}",
            share >= SHARE,
        )


def _promise(runs: Sequence[Run]) -> Iterator[str]:
    """Whether what the site promised its main queue was kept, for the jobs whose start chance does not decide. One of
    them that did not start with pilots was late."""
    stated = [run.get("attributed", {}).get("stated", {}) for run in runs]
    bounds = {each.get("main_delay_p95") for each in stated}
    bound = next(iter(bounds))
    if len(bounds) != 1 or bound is None:
        return
    chance = min(each["chance"] for each in stated)
    jobs = soon = started = 0
    for run in runs:
        base, pilots = run["arms"][BASE]["jobs"], run["arms"][PILOTS]["jobs"]
        alike = comparable(run)
        jobs += len(alike)
        starts = [(pilots.get(number, {}).get("start_s"), base[number]["start_s"]) for number in alike]
        soon += sum(
            1 for with_pilots, without in starts if with_pilots is not None and with_pilots - without <= bound
        )
        started += sum(1 for job in base.values() if job["start_s"] is not None)
    enough = jobs >= LEAST_COMPARABLE * started
    least = lower_share(soon, jobs, chance) if jobs else 0.0
    yield _goal(
        f"promised: {soon} of {jobs} comparable main jobs at most {bound:g} s later,"
        f" {least:.1%} at least with a chance of {chance:.0%}",
        f">= {PROMISED_SHARE:.0%}" + ("" if enough else f", of {LEAST_COMPARABLE:.0%} of the jobs that started"),
        enough and least >= PROMISED_SHARE,
    )
    shown = []
    for arm in (PILOTS, TWIN, PREEMPTION):
        later = [pair.later_s for run in runs for pair in pairs(run, arm)]
        shown.append(f"{arm} {sum(each <= bound for each in later)} of {len(later)}")
    yield f"         {jobs} of {started} jobs are comparable; of all, within {bound:g} s: {', '.join(shown)}"


def _goal(what: str, goal: str, met: bool) -> str:
    return f"{'met    ' if met else 'NOT met'}  {what}; goal {goal}"
