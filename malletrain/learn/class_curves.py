"""Curves by class of nodes that learn from one another: of one job, and of all jobs. Pure.

A job's windows on one class of nodes are fitted with those on other classes as evidence about the shape
(`malletrain.learn.curve.fit_curve`). On a class where it has not trained it is taken to have its present shape, at
the level that other jobs have shown: the median over jobs of how much faster they train on the one class than on the
other, at the sizes that they were measured on in both. Where no job was measured on both, worlds that span them tell
how much faster one worker computes on the one than on the other; waiting for the exchange is not in that, so it is an
upper bound. A world of several classes with equal shares trains at the level of its slowest class.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from statistics import median

from malletrain.domain.job import Curve, Elastic, JobView, Pilot, ThroughputSample
from malletrain.learn.advisor import JobKnowledge
from malletrain.learn.curve import CurveFit, fit_curve
from malletrain.learn.prior_jobs import PriorJobs
from malletrain.sizing.problem import JobDemand, OnClasses

#: What joins the classes of a world whose nodes differ.
MIXED = " + "
#: A class counts as faster or slower by no more than this, whatever was measured.
MAX_SPEED_RATIO = 100.0


def fits_by_class(samples: Sequence[ThroughputSample], prior_jobs: PriorJobs | None = None) -> Mapping[str, CurveFit]:
    """The curve on each class that the job has trained on, where there are several; worlds of mixed nodes count as
    evidence about the shape only."""
    names = {sample.node_class for sample in samples}
    if len(names) < 2:
        return {}
    found = {}
    for name in sorted(names):
        if not name or MIXED in name:
            continue
        # The class of the last sample is the one that is fitted.
        ordered = [s for s in samples if s.node_class != name] + [s for s in samples if s.node_class == name]
        fit = fit_curve(ordered, prior_jobs)
        if fit is not None and fit.node_class == name:
            found[name] = fit
    return found


def class_speeds(
    jobs: Iterable[Mapping[str, CurveFit]], workers: Iterable[Mapping[str, float]] = ()
) -> Mapping[tuple[str, str], float]:
    """How many times faster jobs train on one class than on another: by (class, other class), the median over jobs
    that were measured on both; else over `workers`, the speeds of one worker by class in worlds that span them."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for fits in jobs:
        for one, other in permutations(fits, 2):
            if (ratio := _ratio(fits[one], fits[other])) is not None:
                ratios.setdefault((one, other), []).append(ratio)
    spanning: dict[tuple[str, str], list[float]] = {}
    for speeds in workers:
        for one, other in permutations(speeds, 2):
            if speeds[one] > 0 and speeds[other] > 0:
                ratio = min(max(speeds[one] / speeds[other], 1 / MAX_SPEED_RATIO), MAX_SPEED_RATIO)
                spanning.setdefault((one, other), []).append(ratio)
    return {pair: median(found) for pair, found in sorted((spanning | ratios).items())}


def _ratio(one: CurveFit, other: CurveFit) -> float | None:
    """Throughput of one over the other, at the sizes that either was measured on and both can tell of."""
    sizes = sorted({m.nodes for m in one.measured} & {m.nodes for m in other.measured})
    sizes = sizes or sorted({m.nodes for m in one.measured} | {m.nodes for m in other.measured})
    logs = [math.log(a / b) for a, b in zip(one.rates(sizes), other.rates(sizes), strict=True) if a > 0 and b > 0]
    return None if not logs else min(max(math.exp(median(logs)), 1 / MAX_SPEED_RATIO), MAX_SPEED_RATIO)


def curves_on_classes(
    classes: Iterable[str],
    present: Curve,
    present_class: str,
    fits: Mapping[str, CurveFit],
    speeds: Mapping[tuple[str, str], float],
    max_nodes: int,
    *,
    balanced: bool = False,
) -> Mapping[str, Curve]:
    """Samples/s over nodes of each of `classes`: measured, or the `present` curve at the level of that class.
    `present_class` may name several, joined; the slowest gates them unless shares are `balanced`."""
    found = {}
    mix = present_class.split(MIXED)
    if len(mix) > 1 and not balanced:
        present_class = min(mix, key=lambda name: (max(speeds.get((name, other), 1.0) for other in mix), name))
    for name in classes:
        if name in fits:
            found[name] = fits[name].curve(max_nodes)
            continue
        speed = speeds.get((name, present_class), 1.0) if name != present_class else 1.0
        found[name] = Curve(tuple((n, rate * speed) for n, rate in present.points))
    return found


def on_classes(
    demand: JobDemand,
    stays: Sequence[Pilot],
    known: JobKnowledge,
    classes: Sequence[str],
    class_of: Mapping[str, str],
    speeds: Mapping[tuple[str, str], float],
    view: JobView,
) -> OnClasses:
    """How a job runs on each class, in the units of its demand: speed-ups over one node as its curve has it.

    A job may train on several classes at once: of a step each node has an equal share, so the slowest class gates it;
    of independent items each takes as many as it can.
    """
    main, one = known.fit.node_class if known.fit is not None else "", view.rate_of_one
    scaled = Curve(tuple((n, rate * one) for n, rate in demand.curve.points))
    by_items = view.job.elastic is Elastic.TASKS
    curves = curves_on_classes(classes, scaled, main, known.by_class, speeds, demand.max, balanced=by_items)
    return OnClasses(
        {name: curve.over(one) for name, curve in curves.items()},
        dict(sorted(Counter(class_of[pilot.node] for pilot in stays).items())),
        least_on(view.job.class_min, classes),
        spans=True,
        equal_shares=not by_items,
    )


def least_on(asked: Sequence[tuple[str, int]], classes: Sequence[str]) -> Mapping[str, int]:
    """The fewest nodes of each of `classes`, by words `asked` for with a number: a word names every class that has
    it, or has it as a part of its GRES (`k80` the class `gpu:k80:4 64 cpus`)."""
    parts = {name: {*name.split(), *re.split("[:, ]", name)} for name in classes}
    least = {name: max((nodes for word, nodes in asked if word in parts[name]), default=0) for name in classes}
    return {name: nodes for name, nodes in least.items() if nodes}
