"""`ladder`: the best plan for several periods, against every plan; and what it is for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing.papers.ladder import Ladder, planned
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import permitted_sizes
from tests.sizing.problems import curves, examples, job


@st.composite
def ladders(draw: st.DrawFn) -> Problem:
    nodes = draw(st.integers(0, 6))
    count = draw(st.integers(1, 3))
    least = draw(st.lists(st.integers(0, nodes), max_size=2))
    ahead = draw(st.lists(st.sampled_from([5.0, 60.0, 300.0]), min_size=3, max_size=3))
    lifetimes, at = [], 0.0
    for seconds, alive in zip(ahead, [nodes, *sorted(least, reverse=True)], strict=False):
        at += seconds
        lifetimes.append((at, alive))
    jobs = [
        JobDemand(
            i, draw(st.integers(0, 4)), draw(st.integers(1, 2)), 4, draw(curves(4, wild=False)),
            weight=draw(st.sampled_from([0.5, 1.0, 2.0])), grow_s=draw(st.sampled_from([0.0, 18.0])),
            shrink_s=draw(st.sampled_from([0.0, 12.0])), activate_s=draw(st.sampled_from([0.0, 20.0])),
        )
        for i in range(count)
    ]  # fmt: skip
    return Problem(300.0, nodes, tuple(jobs), lifetimes=tuple(lifetimes))


def worth(each: JobDemand, path: tuple[int, ...], spans: list[float]) -> float:
    """The formula of the policy's docstring, read again."""
    rate, k, c = each.curve.throughput, path[0], each.current
    total = sum(span * rate(size) for span, size in zip(spans, path, strict=True))
    whole = sum(spans)
    if k > c:
        ready = min(each.activate_s, whole)
        grown = ready * rate(c) + max(0.0, whole - ready - (each.grow_s if c else 0.0)) * rate(k)
        total -= whole * rate(k) - grown
    elif k < c:
        total -= min(each.shrink_s, whole) * rate(k)
    total -= sum(each.shrink_s * rate(b) for a, b in itertools.pairwise(path) if b < a)
    return each.weight * total


def best(problem: Problem) -> float:
    """Every plan of every job."""
    times = [0.0, *(seconds for seconds, _ in problem.lifetimes)]
    spans = [b - a for a, b in itertools.pairwise(times)]
    options = []
    for each in problem.jobs:
        sizes = permitted_sizes(each, problem.nodes).tolist()
        falling = [p for p in itertools.product(sizes, repeat=len(spans)) if list(p) == sorted(p, reverse=True)]
        options.append([(worth(each, p, spans), p) for p in falling])
    room = [nodes for _, nodes in problem.lifetimes]
    return max(
        sum(w for w, _ in plan)
        for plan in itertools.product(*options)
        if all(sum(p[i] for _, p in plan) <= room[i] for i in range(len(room)))
    )


@examples(60)
@given(ladders())
def test_its_plan_is_close_to_the_best_of_all_and_its_bound_above(problem: Problem) -> None:
    found, truth = planned(problem), best(problem)
    assert found is not None
    scale = max(abs(truth), 1.0)
    assert found.bound >= truth - 1e-6 * scale, "the bound bounds every plan"
    assert found.worth <= truth + 1e-6 * scale
    times = [0.0, *(seconds for seconds, _ in problem.lifetimes)]
    spans = [b - a for a, b in itertools.pairwise(times)]
    by_id = {each.id: each for each in problem.jobs}
    of_those_that_fit = sum(worth(by_id[name], path, spans) for name, path in found.sizes.items())
    assert found.worth == pytest.approx(of_those_that_fit, rel=1e-9, abs=1e-6)
    for i, (_, room) in enumerate(problem.lifetimes):
        assert sum(path[i] for path in found.sizes.values()) <= room
    assert repr(Ladder().size(problem)) == repr(Ladder().size(problem))


def test_short_lived_nodes_go_to_the_job_that_loses_little() -> None:
    """Four of eight nodes leave after a minute. Where a resize is dear, that job keeps to the others."""
    curve = Curve.linear(8)
    dear = job("dear", 4, 8, curve, grow_s=40.0, shrink_s=40.0)
    cheap = job("cheap", 0, 8, curve, grow_s=0.0, shrink_s=0.0, weight=0.7)
    ahead = Problem(300.0, 8, (dear, cheap), lifetimes=((60.0, 8), (300.0, 4)))
    assert Exact().size(ahead).sizes == {"dear": 8, "cheap": 0}
    assert Ladder().size(ahead).sizes == {"dear": 4, "cheap": 4}


def test_one_period_is_the_exact_plan() -> None:
    demands = tuple(job(i, i, 16, Curve(((1, 10.0 + i), (4, 30.0 + i), (16, 90.0)))) for i in range(4))
    problem = Problem(300.0, 24, demands)
    assert Ladder().size(problem).objective == pytest.approx(Exact().size(problem).objective, rel=2e-3)
