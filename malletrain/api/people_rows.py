"""Rows for people: what the main queue is promised, what that costs and how it was kept; how a job scales. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from malletrain.api.visibility import Visibility
from malletrain.decide.rules import MainPromise, Rules
from malletrain.domain.job import JobView
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.profiling import expected_curve, profile_of
from malletrain.loop.queue_promise import CHANCE, PromiseKept, lower_share, why_broken
from malletrain.loop.trackers.main_jobs import MainJobDelay
from malletrain.loop.trackers.main_promise import PromiseTracker
from malletrain.wire.rows import MainJobDelayRow, ProfileRow, PromiseCostRow, PromiseKeptRow, PromiseRow, SizeRow

#: Bounds on the delay of 95 % of main jobs that the curve shows (seconds), beside the one that is stated.
CURVE_BOUNDS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)

#: Main jobs that are listed: the newest.
MAX_LISTED_JOBS = 1_000


def promise_row(tracker: PromiseTracker, rules: Rules, since: float, now: float, sight: Visibility) -> PromiseRow:
    """The answer, about main jobs from `since` on, to one who sees that much: sums are of all main jobs, those that
    `sight` shows are listed."""
    times, held, budget = tracker.times(), tracker.held, tracker.budget
    bound_s = None if rules.promise is None else rules.promise.p95_s
    begin, kept = tracker.kept_since(since, now)
    delays = tracker.delays(since)
    behind = [each.delay_s for each in delays if each.behind and each.could_at >= begin]
    listed = [each for each in delays if sight.sees_main_job_of(each.user)][-MAX_LISTED_JOBS:]
    bounds = sorted({*CURVE_BOUNDS_S, *(() if bound_s is None else (bound_s,))})
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
        curve=tuple(PromiseCostRow(*point) for point in tracker.curve(now, bounds)),
        kept=kept_row(bound_s, kept, begin, now, behind),
        main_jobs=tuple(delay_row(each, sight) for each in listed),
    )


def stated(promise: MainPromise | None) -> dict[str, float]:
    """The promises that are made, by their keys in [promise]; with `chance` where there is any."""
    if promise is None:
        return {}
    promises = {"main_delay_p95": promise.p95_s, "controller_cycle": promise.cycle_ratio, "chance": CHANCE}
    return {key: value for key, value in promises.items() if value is not None}


def kept_row(
    bound_s: float | None, kept: PromiseKept, since: float, now: float, behind: Sequence[float]
) -> PromiseKeptRow:
    """How it was kept, and with which certainty these jobs show that. `behind`: delays of jobs that waited behind."""
    soon = None if bound_s is None else kept.jobs - kept.late(bound_s)
    return PromiseKeptRow(
        since=since,
        until=now,
        main_jobs=kept.jobs,
        met=len(kept.delays_s),
        delayed=kept.late(0.0),
        delay_p95_s=kept.delay_p95_s,
        delay_mean_s=kept.delay_mean_s,
        longest_s=max(kept.delays_s, default=0.0),
        bound_s=bound_s,
        within=None if soon is None or not kept.jobs else soon / kept.jobs,
        at_least=None if soon is None or not kept.jobs else lower_share(soon, kept.jobs),
        broken=why_broken(bound_s, kept),
        behind=len(behind),
        behind_longest_s=max(behind, default=0.0),
    )


def delay_row(delay: MainJobDelay, sight: Visibility) -> MainJobDelayRow:
    """One main job; without names of nodes where `sight` hides them."""
    return MainJobDelayRow(
        delay.main_job,
        delay.user,
        delay.could_at,
        delay.started_at,
        delay.nodes if sight.nodes else (),
        delay.delay_s,
        delay.freed_s or 0.0,
        delay.preempted,
        delay.cause.value,
        sight.words(delay.words()),
    )


def profile_row(view: JobView, known: JobKnowledge | None, advice: str, rules: Rules) -> ProfileRow:
    """`known` is None where nothing is learnt of the job: its curve was given, or it is over."""
    job = view.job
    profile = profile_of(view, rules.probing).value
    took = view.costs
    costs = {
        "start": took.start_s,
        "activation": took.activate_s,
        "grow": took.grow_s,
        "shrink": took.shrink_s,
        "loss": took.loss_s,
    }
    known = known or JobKnowledge()
    row = ProfileRow(job.id, profile, ignored=dict(known.ignored), next=advice, costs=costs)
    fit, windows = known.fit, known.windows
    if fit is None:
        points = () if job.given_curve is None else expected_curve(view, known, rules.probing).points
        return replace(row, sizes=tuple(SizeRow(n, rate, rate, rate) for n, rate in points))
    sizes = sorted(set(windows) | {n for n, _ in fit.curve(job.max_nodes).points})
    return replace(
        row,
        sizes=tuple(SizeRow(e.nodes, e.rate, e.low, e.high, windows.get(e.nodes, 0)) for e in fit.at(sizes)),
        family=fit.family,
        noise=fit.noise,
        probe_nodes=known.probe.nodes if known.probe else None,
        node_class=fit.node_class,
    )
