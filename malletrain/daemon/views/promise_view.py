"""What the site promises its main queue, what that costs and how it was kept, as rows for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from malletrain.api.visibility import Visibility
from malletrain.decide.queue_promise import CHANCE, PromiseKept, lower_share, why_broken
from malletrain.decide.rules import MainPromise, Rules
from malletrain.loop.trackers.main_jobs import MainJobDelay
from malletrain.loop.trackers.main_promise import PromiseTracker
from malletrain.wire.rows import MainJobDelayRow, PromiseCostRow, PromiseKeptRow, PromiseRow

#: Bounds on the delay of 95 % of main jobs that the curve shows (seconds), beside the one that is stated.
CURVE_BOUNDS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)

#: Main jobs that are listed: the newest.
MAX_LISTED_JOBS = 1_000


@dataclass(frozen=True, slots=True)
class PromiseFigures:
    """What is read of the tracker at once: `curve` as of `reserve_curve`; `since`: from when `kept` counts."""

    curve: Sequence[tuple[float, float, float]]
    since: float
    kept: PromiseKept
    delays: Sequence[MainJobDelay]


def promise_figures(tracker: PromiseTracker, rules: Rules, since: float, now: float) -> PromiseFigures:
    """The figures of main jobs from `since` on (Unix seconds)."""
    promise = rules.promise or MainPromise()
    stated = () if promise.p95_s is None else (promise.p95_s,)
    begin, kept = tracker.kept_since(since, now)
    curve = tracker.curve(now, sorted({*CURVE_BOUNDS_S, *stated}))
    return PromiseFigures(curve, begin, kept, tracker.delays(since))


def promise_row(
    tracker: PromiseTracker, rules: Rules, figures: PromiseFigures, now: float, sight: Visibility
) -> PromiseRow:
    """The answer to one who sees that much: sums are of all main jobs, those that `sight` shows are listed."""
    times, held, budget = tracker.times(), tracker.held, tracker.budget
    listed = [each for each in figures.delays if sight.sees_main_job_of(each.user)][-MAX_LISTED_JOBS:]
    return PromiseRow(
        stated=stated(rules.promise),
        arrivals=tracker.arrivals,
        hour=tracker.hour(now).which,
        yields=len(times.took_s),
        freed_median_s=median(times.took_s) if times.took_s else None,
        cycle_s=times.cycle_s,
        reserve_nodes=None if held is None else held.nodes,
        reserve_reason="" if held is None else held.reason,
        steps_back=tracker.steps_back,
        stepped_for=tracker.stepped_for,
        pilot_cap=None if budget is None else budget.cap,
        cap_reason="" if budget is None else budget.reason,
        curve=tuple(PromiseCostRow(*point) for point in figures.curve),
        kept=kept_row(rules.promise, figures, now),
        main_jobs=tuple(delay_row(each, sight) for each in listed),
    )


def stated(promise: MainPromise | None) -> dict[str, float]:
    """The promises that are made, by their keys in [promise]; with `chance` where there is any."""
    if promise is None:
        return {}
    given = {
        "main_delay_p95": promise.p95_s,
        "controller_cycle": promise.cycle_ratio,
        "chance": CHANCE,
    }
    return {key: value for key, value in given.items() if value is not None}


def kept_row(promise: MainPromise | None, figures: PromiseFigures, now: float) -> PromiseKeptRow:
    """How it was kept, and with which certainty these jobs show that."""
    kept = figures.kept
    bound = None if promise is None else promise.p95_s
    soon = None if bound is None else kept.jobs - kept.late(bound)
    behind = [each.delay_s for each in figures.delays if each.behind and each.could_at >= figures.since]
    return PromiseKeptRow(
        since=figures.since,
        until=now,
        main_jobs=kept.jobs,
        met=len(kept.delays_s),
        delayed=kept.late(0.0),
        delay_p95_s=kept.delay_p95_s,
        delay_mean_s=kept.delay_mean_s,
        longest_s=max(kept.delays_s, default=0.0),
        bound_s=bound,
        within=None if soon is None or not kept.jobs else soon / kept.jobs,
        at_least=None if soon is None or not kept.jobs else lower_share(soon, kept.jobs),
        broken=why_broken(bound, kept),
        behind=len(behind),
        behind_longest_s=max(behind, default=0.0),
    )


def delay_row(delay: MainJobDelay, sight: Visibility) -> MainJobDelayRow:
    """One main job; without names of nodes where `sight` hides them."""
    return MainJobDelayRow(
        delay.main_job, delay.user, delay.could_at, delay.started_at, delay.nodes if sight.nodes else (),
        delay.delay_s, delay.freed_s or 0.0, delay.preempted, delay.cause.value, sight.words(delay.words()),
    )  # fmt: skip
