"""How far the curve that a job's owner gives is believed: a prior, until measurements say otherwise. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from malletrain.domain.job import Curve, ThroughputSample

#: Throughput a node on more nodes, over that on the fewest given: caches may help a little.
MAX_SUPERLINEAR_RATIO = 1.1
#: Windows of one size that tell, and by which factor their median is off when they contradict.
MIN_WINDOWS = 3
MAX_RATIO_TO_GIVEN = 1.25


def plausible(given: Curve) -> Curve:
    """`given`, with no more throughput than nodes can bring; the same object where it claims none."""
    fewest, rate = given.points[0]
    most_a_node = MAX_SUPERLINEAR_RATIO * rate / fewest
    if all(each <= most_a_node * n for n, each in given.points):
        return given
    return Curve(tuple((n, min(each, most_a_node * n)) for n, each in given.points))


def refutation(given: Curve, samples: Iterable[ThroughputSample], latest: ThroughputSample) -> str:
    """How the windows at the size and on the class of nodes of the `latest` contradict `given`; '' where they do not.

    A curve that is wrong at one size is not believed at any: its owner's other sizes were not measured here either.
    """
    alike = [each.rate for each in samples if (each.nodes, each.node_class) == (latest.nodes, latest.node_class)]
    if len(alike) < MIN_WINDOWS:
        return ""
    claimed, measured = given.throughput(latest.nodes), median(alike)
    if claimed <= MAX_RATIO_TO_GIVEN * measured and measured <= MAX_RATIO_TO_GIVEN * claimed:
        return ""
    nodes = "1 node" if latest.nodes == 1 else f"{latest.nodes} nodes"
    return f"{nodes} train {measured:.4g} samples/s, not the {claimed:.4g} of the curve that was given"
