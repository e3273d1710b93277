"""The policies of the source papers: their formulas on examples, their optimum against every plan."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.decision import SizingStatus
from malletrain.domain.job import Curve
from malletrain.sizing import laws, registry
from malletrain.sizing.constraints import cap
from malletrain.sizing.papers.budget import Budget
from malletrain.sizing.papers.efficiency import Efficiency, Utility
from malletrain.sizing.papers.elastic_batch import ElasticBatch
from malletrain.sizing.papers.greedy import Greedy
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.policies.goodput import Goodput
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import ArrivingWork, JobDemand, JobId, NodeBudget, Problem
from malletrain.sizing.values import permitted_sizes
from tests.sizing.problems import constrained, curves, examples, job, problems

PAPERS = [Efficiency(), Utility(), Budget(), ElasticBatch(), Goodput(), Greedy()]


@pytest.mark.parametrize("policy", PAPERS, ids=lambda p: p.name)
@given(problem=constrained(most_jobs=6, most=10, most_nodes=20))
@examples(25)
def test_answers_are_within_bounds_and_repeat(policy: Policy, problem: Problem) -> None:
    assert laws.broken(policy, problem) == []
    assert registry.policy(policy.name).name == policy.name


@pytest.mark.parametrize("policy", PAPERS, ids=lambda p: p.name)
def test_a_side_constraint_is_never_broken(policy: Policy) -> None:
    problem = Problem(300, 20, (job("a", 2, 8), job("b", 2, 8)), constraints=(cap("c", ["a"], 3),))
    assert policy.size(problem).sizes["a"] <= 3


@given(problems())
def test_greedy_never_beats_exact(problem: Problem) -> None:
    best = Exact().size(problem).objective
    assert Greedy().size(problem).objective <= best + 1e-9 * max(abs(best), 1.0)


def test_efficiency_is_the_papers_example() -> None:
    """400 samples/s on 4, 480 on 5: s = (80 / 1) / (400 / 4) = 0.8."""
    curve = Curve(((4, 400.0), (5, 480.0), (8, 480.0)))
    problem = Problem(300, 20, (job(1, 4, 8, curve, min=4),))
    assert Efficiency(0.79).size(problem).sizes == {1: 5}
    assert Efficiency(0.81).size(problem).sizes == {1: 4}
    assert Efficiency().size(problem).sizes == {1: 5}


def test_what_is_wanted_beyond_the_nodes_is_shared_evenly() -> None:
    flat = Curve(((1, 10.0), (2, 11.0), (3, 11.0)))  # settles at 1: s = 0.1, not above it
    problem = Problem(300, 10, (job(1, 0, 64), job(2, 0, 64), job(3, 0, 64, flat)))
    assert Efficiency().size(problem).sizes == {1: 5, 2: 4, 3: 1}


def test_utility_weighs_time_against_node_time() -> None:
    """From 1 to 2 nodes at 1.5 times the speed: 1/3 of a second sooner for 1/3 node-second more."""
    curve = Curve(((1, 1.0), (2, 1.5)))
    problem = Problem(300, 2, (job(1, 0, 2, curve),))
    assert Utility(1.01).size(problem).sizes == {1: 2}
    assert Utility(0.99).size(problem).sizes == {1: 1}
    heavy = Problem(300, 2, (job(1, 0, 2, curve, weight=1.1),))
    assert Utility(0.99).size(heavy).sizes == {1: 2}


def _budgeted(jobs: tuple[JobDemand, ...], node_s: float, nodes: int = 1000) -> Problem:
    return Problem(300, nodes, jobs, budgets=(NodeBudget("account", frozenset(j.id for j in jobs), node_s),))


def _spent(problem: Problem, sizes: Mapping[JobId, int]) -> tuple[float, float]:
    """Weighted seconds and node-seconds to the end of all jobs that run."""
    seconds = node_seconds = 0.0
    for j in problem.jobs:
        k = sizes[j.id]
        if k:
            took = (j.remaining_samples or 0.0) / j.curve.throughput(k)
            seconds += j.weight * took
            node_seconds += k * took
    return seconds, node_seconds


concave = st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6).map(
    lambda gains: Curve(tuple((n + 1, sum(sorted(gains, reverse=True)[: n + 1])) for n in range(6)))
)


@given(st.lists(st.tuples(concave, st.floats(10, 1000)), min_size=1, max_size=4), st.floats(1.05, 4))
def test_budget_is_kept_and_well_spent(given_jobs: list[tuple[Curve, float]], slack: float) -> None:
    """Within the budget; and no plan that spends no more ends much sooner: by less than one step of one job."""
    demands = tuple(job(i, 0, 6, curve, remaining_samples=samples) for i, (curve, samples) in enumerate(given_jobs))
    cheapest = _spent(_budgeted(demands, 0), {j.id: 1 for j in demands})[1]
    problem = _budgeted(demands, cheapest * slack)
    answer = Budget().size(problem)
    assert answer.status is SizingStatus.FEASIBLE
    seconds, node_seconds = _spent(problem, answer.sizes)
    assert all(answer.sizes.values())
    assert node_seconds <= cheapest * slack * (1 + 1e-9)
    plans = [
        _spent(problem, dict(zip((j.id for j in demands), sizes, strict=True)))
        for sizes in itertools.product(range(1, 7), repeat=len(demands))
    ]
    best = min(s for s, n in plans if n <= cheapest * slack)
    step = max(
        (j.remaining_samples or 0) * (1 / j.curve.throughput(k) - 1 / j.curve.throughput(k + 1))
        for j in demands
        for k in range(1, 6)
    )
    assert seconds <= best + step + 1e-9


def test_budget_without_money_runs_nothing_and_without_a_budget_uses_the_nodes() -> None:
    demands = (job(1, 0, 8, remaining_samples=1000.0), job(2, 0, 8, remaining_samples=1000.0))
    assert Budget().size(_budgeted(demands, 0)).sizes == {1: 0, 2: 0}
    assert Budget().size(_budgeted(demands, 1000)).sizes == {1: 8, 2: 0}  # a perfect curve costs 1000 at any width
    assert Budget().size(Problem(300, 12, demands)).sizes == {1: 6, 2: 6}
    assert "node-second" in Budget().size(_budgeted(demands, 1000)).reason


def test_a_budget_binds_its_own_jobs_only() -> None:
    curve = Curve(((1, 1.0), (4, 2.0), (8, 3.0)))
    demands = (job(1, 0, 8, curve, remaining_samples=100.0), job(2, 0, 8, curve, remaining_samples=100.0))
    problem = Problem(300, 100, demands, budgets=(NodeBudget("poor", frozenset({1}), 120.0),))
    assert Budget().size(problem).sizes == {1: 1, 2: 8}


@st.composite
def batch_jobs(draw: st.DrawFn) -> Problem:
    demands = []
    for i in range(draw(st.integers(1, 4))):
        low = draw(st.integers(1, 3))
        batches = draw(st.dictionaries(st.sampled_from([32, 64, 128]), curves(6, wild=False), min_size=1, max_size=3))
        first = next(iter(batches.values()))
        demands.append(job(i, 0, draw(st.integers(low, 6)), first, min=low, batches=tuple(sorted(batches.items()))))
    return Problem(300, draw(st.integers(0, 14)), tuple(demands))


@given(batch_jobs())
def test_elastic_batch_is_the_papers_dynamic_programme(problem: Problem) -> None:
    """Against every plan: nodes and batch of each admitted job, at least its minimum."""
    admitted, spare = [], problem.nodes
    for j in problem.in_order():
        if j.min <= spare:
            admitted.append(j)
            spare -= j.min

    def speedup(j: JobDemand, k: int) -> float:
        """As the paper, over one node; over the first size that trains where one node trains nothing."""
        rate = {
            n: max(c.throughput(n) for _, c in j.batches) for n in {1, *permitted_sizes(j, problem.nodes).tolist()}
        }
        positive = [(n, r) for n, r in sorted(rate.items()) if r > 0 and n]
        one = rate[1] if rate[1] > 0 else positive[0][1] / positive[0][0] if positive else 1.0
        return rate[k] / one

    choices = [[k for k in permitted_sizes(j, problem.nodes).tolist() if k] for j in admitted]
    best = max(
        sum(speedup(j, k) for j, k in zip(admitted, plan, strict=True))
        for plan in itertools.product(*choices)
        if sum(plan) <= problem.nodes
    )
    answer = ElasticBatch().size(problem)
    assert sum(speedup(j, answer.sizes[j.id]) for j in admitted) == pytest.approx(best)
    assert all(answer.sizes[j.id] >= j.min for j in admitted)
    assert all(answer.sizes[j.id] == 0 for j in problem.jobs if j not in admitted)
    for j in admitted:
        of_batch = {b: c.throughput(answer.sizes[j.id]) for b, c in j.batches}
        assert of_batch[answer.batches[j.id]] == max(of_batch.values())


def test_goodput_prefers_the_batch_that_makes_progress() -> None:
    small, large = Curve(((1, 100.0), (8, 400.0))), Curve(((1, 110.0), (8, 800.0)))
    noisy = job("noisy", 0, 8, small, batches=((32, small), (512, large)), noise_scale=1e6)
    clean = replace(noisy, id="clean", noise_scale=10.0)
    unsaid = replace(noisy, id="unsaid", noise_scale=None)
    assert Goodput().size(Problem(300, 8, (noisy,))).batches == {"noisy": 512}
    assert Goodput().size(Problem(300, 8, (clean,))).batches == {"clean": 32}
    assert Goodput().size(Problem(300, 8, (unsaid,))).batches == {}
    both = Goodput().size(Problem(300, 8, (noisy, clean)))
    assert both.sizes["noisy"] > both.sizes["clean"]


def test_a_budget_that_must_last_pays_for_what_arrives_and_does_not_starve_who_is_there() -> None:
    """One job that scales as k^.5: alone it may be as wide as 4 (x k^.5 = 200); with three of its kind to come in
    the budget's time each has a fourth, width 1; with thirty to come it has width 1 still."""
    curve = Curve(tuple((k, k**0.5) for k in range(1, 17)))
    demand = JobDemand(1, 0, 1, 16, curve)
    width = {}
    for more in (0, 3, 30):
        coming = (ArrivingWork(curve, 100.0, more / 1000.0),) if more else ()
        budget = NodeBudget("account", frozenset({1}), 200.0 if more < 3 else 400.0, {1: 100.0}, 1000.0, coming)
        width[more] = Budget().size(Problem(300, 100, (demand,), budgets=(budget,))).sizes[1]
    assert width == {0: 4, 3: 1, 30: 1}
