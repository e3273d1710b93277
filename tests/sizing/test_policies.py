"""Every exact policy finds the same best plan, proves it, and settles ties alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from malletrain.domain.decision import SizingStatus
from malletrain.domain.job import Curve
from malletrain.sizing import laws
from malletrain.sizing.constrained import size_within_constraints
from malletrain.sizing.constraints import cap, check
from malletrain.sizing.policies.equal import Equal
from malletrain.sizing.policies.exact import Auto, Exact
from malletrain.sizing.policies.lp import Lp
from malletrain.sizing.policies.milp.milp_policy import Milp
from malletrain.sizing.policy import Policy
from malletrain.sizing.problem import Problem, Value, id_order
from malletrain.sizing.values import value_table
from tests.sizing.problems import constrained, every_plan, examples, full_dp, job, magnitude, problems

EXACT: list[Policy] = [Exact(), Milp(), Lp(), Auto()]


def same(a: float, b: float, problem: Problem) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), magnitude(value_table(problem)))


@examples(300)
@given(problems())
def test_exact_is_the_full_dynamic_programme(problem: Problem) -> None:
    answer = Exact().size(problem)
    table = value_table(problem)
    assert answer.status is SizingStatus.OPTIMAL
    assert same(answer.objective, full_dp(table, problem.nodes), problem)
    assert answer.objective == table.worth(table.rows_of(dict(answer.sizes)))
    assert answer.objective <= answer.bound
    assert check(problem, answer.sizes) == []


@given(problems(wild=False))
def test_milp_lp_and_auto_give_the_sizes_of_exact(problem: Problem) -> None:
    expected = Exact().size(problem)
    for policy in (Milp(), Lp(), Auto()):
        answer = policy.size(problem)
        assert answer.sizes == expected.sizes, policy.name
        assert answer.objective == expected.objective
        assert answer.status is SizingStatus.OPTIMAL


@examples(150)
@given(problems(most_jobs=3, most=5, most_nodes=10))
def test_ties_go_to_the_fewest_changes_then_nodes_then_to_low_ids(problem: Problem) -> None:
    plans = every_plan(problem)
    best = max(worth for worth, _ in plans)
    close = 1e-13 * max(abs(best), magnitude(value_table(problem)))
    order = sorted((j.id for j in problem.jobs), key=id_order)
    current = {j.id: j.current for j in problem.jobs}
    _, expected = min(
        ((worth, plan) for worth, plan in plans if worth >= best - close),
        key=lambda found: (
            sum(found[1][name] != current[name] for name in order),
            sum(found[1].values()),
            [-found[1][name] for name in order],
        ),
    )
    assert Exact().size(problem).sizes == expected


@examples(150)
@given(constrained())
def test_side_constraints_against_every_plan(problem: Problem) -> None:
    plans = every_plan(problem)
    for policy in (Milp(), Auto()):
        answer = policy.size(problem)
        if not plans:
            assert answer.status is SizingStatus.FALLBACK
            assert answer.reason
            continue
        assert answer.status is SizingStatus.OPTIMAL
        assert check(problem, answer.sizes) == []
        assert same(answer.objective, max(worth for worth, _ in plans), problem)
        assert answer.objective <= answer.bound


@examples(60)
@given(constrained(most_jobs=7, most=12, most_nodes=40, wild=False))
def test_side_constraints_against_pulp(problem: Problem) -> None:
    ours, theirs = Milp().size(problem), Lp().size(problem)
    assert ours.status is theirs.status
    assert repr(size_within_constraints(Auto(), problem)) == repr(
        size_within_constraints(Exact(), problem)
    )  # under constraints `exact` means `auto`
    if ours.status is SizingStatus.OPTIMAL:
        assert same(ours.objective, theirs.objective, problem)
        assert same(Auto().size(problem).objective, theirs.objective, problem)
        current = {j.id: j.current for j in problem.jobs}
        changes = [sum(a.sizes[name] != current[name] for name in current) for a in (ours, theirs)]
        # HiGHS through PuLP tells plans apart less finely: theirs may change fewer jobs if it is worth a little less.
        if theirs.objective >= ours.objective - 1e-12 * magnitude(value_table(problem)):
            assert changes[0] <= changes[1]


@pytest.mark.parametrize("policy", [*EXACT, Equal()], ids=lambda p: p.name)
@given(problem=constrained(most_jobs=6, most=10, most_nodes=20))
@examples(25)
def test_whatever_comes_out_is_within_bounds_and_repeats(policy: Policy, problem: Problem) -> None:
    assert laws.broken(policy, problem) == []


@given(problems())
def test_the_order_of_the_jobs_does_not_matter(problem: Problem) -> None:
    turned = Problem(problem.horizon_s, problem.nodes, problem.jobs[::-1], problem.value, problem.alpha)
    assert repr(Exact().size(turned)) == repr(Exact().size(problem))


@given(problems())
def test_a_world_that_stands_still_comes_to_rest(problem: Problem) -> None:
    """Each plan taken as the present sizes trains strictly faster than the last, until nothing changes any more."""
    jobs = tuple(replace(j, weight=1.0, remaining_samples=None, must_run=False) for j in problem.jobs)
    problem = replace(problem, jobs=jobs, value=Value.ELASTIC, alpha=0.0)
    rate = -1.0
    for _ in range(200):
        sizes = Exact().size(problem).sizes
        if all(sizes[j.id] == j.current for j in problem.jobs):
            return
        faster = sum(j.curve.throughput(sizes[j.id]) for j in problem.jobs)
        fits = sum(j.current for j in problem.jobs) <= problem.nodes and all(
            j.permits(j.current) for j in problem.jobs
        )
        assert faster > rate or not fits
        rate = faster
        problem = replace(problem, jobs=tuple(replace(j, current=sizes[j.id]) for j in problem.jobs))
    raise AssertionError("still changing after 200 plans")


def _big(nodes: int, jobs: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    demands, left = [], nodes
    for i in range(jobs):
        rates = rng.uniform(10, 1000) * np.array([1, 2, 4, 8, 16, 32, 64]) ** rng.uniform(0.6, 1.0)
        curve = Curve(tuple(zip((1, 2, 4, 8, 16, 32, 64), rates.tolist(), strict=True)))
        current = min(left, int(rng.integers(0, 2 * nodes // jobs + 1)))
        left -= current
        demands.append(job(i, current, 64, curve, grow_s=18.0, shrink_s=12.0, activate_s=5.0))
    return Problem(300, nodes, tuple(demands))


@pytest.mark.parametrize(("nodes", "jobs"), [(64, 10), (1000, 100), (1000, 1000), (4734, 100)])
def test_exact_at_scale(nodes: int, jobs: int) -> None:
    problem = _big(nodes, jobs, seed=nodes + jobs)
    answer = Exact().size(problem)
    assert same(answer.objective, full_dp(value_table(problem), nodes), problem)
    assert Milp().size(problem).sizes == answer.sizes


def test_many_linear_jobs_of_any_size_are_settled() -> None:
    """Jobs without measurements are all linear: every plan ties with many others."""
    problem = Problem(300, 2000, tuple(job(i, 0, 2000) for i in range(200)))
    answer = Exact().size(problem)
    assert answer.sizes == {0: 2000} | dict.fromkeys(range(1, 200), 0)


def test_an_empty_cluster_and_no_jobs() -> None:
    for policy in [*EXACT, Equal()]:
        assert policy.size(Problem(300, 10, ())).sizes == {}
        assert policy.size(Problem(300, 0, (job(1, 4, 8),))).sizes == {1: 0}


def test_equal_splits_evenly() -> None:
    demands = (job(1, 0, 64), job(2, 0, 64, sizes=(1, 2, 4, 8, 16)), job(3, 0, 3), job(4, 0, 64, min=50))
    assert Equal().size(Problem(300, 30, demands)).sizes == {1: 19, 2: 8, 3: 3, 4: 0}


def test_exact_is_auto_by_its_other_name() -> None:
    problem = Problem(300, 10, (job(1, 4, 8),), constraints=(cap("c", [1], 2),))
    assert Exact().size(problem) == Auto().size(problem)
