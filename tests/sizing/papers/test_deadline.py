"""`deadline`: shares that meet a deadline, as far as nodes reach, the earliest first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve
from malletrain.sizing.deadlines import SLACK_FACTOR, satisfactory_share, shares_by_deadline
from malletrain.sizing.papers.deadline import Deadline
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import Due, JobDemand, Problem
from tests.messages import says
from tests.sizing.problems import examples, job, problems

LINEAR = Curve.linear(16, 10.0)  # ten samples a second and node


def due(name: str, seconds: float, samples: float, **more: object) -> JobDemand:
    return job(name, 0, 16, LINEAR, due=Due(seconds, samples), **more)


def test_the_share_is_the_fewest_nodes_that_do_it() -> None:
    assert satisfactory_share(due("a", 110.0, 4000.0)) == 4
    assert satisfactory_share(due("a", 110.0, 4001.0)) == 5
    assert satisfactory_share(due("a", 130.0, 4000.0, activate_s=20.0)) == 4
    assert satisfactory_share(due("a", 110.0, 4000.0, sizes=(2, 6, 8))) == 6
    assert satisfactory_share(due("a", 1.0, 4000.0)) is None
    assert satisfactory_share(due("a", 100.0, 0.0)) == 0


def test_the_earliest_deadline_comes_first_and_a_share_that_does_not_fit_stands_back() -> None:
    late, early = due("late", 1100.0, 40_000.0), due("early", 110.0, 8_000.0)
    assert shares_by_deadline((late, early), 12) == {"early": 8, "late": 4}
    assert shares_by_deadline((late, early), 11) == {"early": 8}


def test_who_has_a_deadline_has_its_nodes_and_the_rest_is_shared_best() -> None:
    first = due("a", 110.0, 4000.0, weight=0.01)
    other = job("b", 0, 16, LINEAR)
    answer = Deadline().size(Problem(300.0, 10, (first, other)))
    assert answer.sizes == {"a": 4, "b": 6}
    assert "4 nodes" in answer.reason
    assert Exact().size(Problem(300.0, 10, (first, other))).sizes["a"] == 0
    none = Deadline().size(Problem(300.0, 10, (due("a", 1.0, 4000.0), other)))
    assert says(none.reason, "late")


def test_when_nodes_are_few_the_earliest_keeps_its_own() -> None:
    early, late = due("early", 110.0, 4000.0, weight=0.01), due("late", 220.0, 8000.0, weight=0.01)
    answer = Deadline().size(Problem(300.0, 6, (early, late, job("c", 0, 16, LINEAR))))
    assert answer.sizes["early"] >= 4
    assert says(answer.reason, "job 'late': 4 nodes")


@examples(100)
@given(problems(wild=False), st.floats(1.0, 1e4), st.floats(0.0, 1e6))
def test_shares_are_kept_whatever_the_problem(problem: Problem, seconds: float, samples: float) -> None:
    # A job that must run for another reason may come first: none does here.
    free = [replace(job, must_run=False) for job in problem.jobs]
    jobs = tuple(replace(j, due=Due(seconds, samples)) if i % 2 else j for i, j in enumerate(free))
    problem = replace(problem, jobs=jobs)
    answer = Deadline().size(problem)
    assert sum(answer.sizes.values()) <= problem.nodes
    assert all(j.permits(answer.sizes[j.id]) for j in problem.jobs)
    shares = shares_by_deadline(jobs, problem.nodes)
    assert sum(shares.values()) <= problem.nodes
    for of in jobs:
        share = shares.get(of.id)
        if share:
            assert answer.sizes[of.id] >= share
            assert of.activate_s + SLACK_FACTOR * samples / of.curve.throughput(share) <= seconds
