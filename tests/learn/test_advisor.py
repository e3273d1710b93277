"""What is worth measuring: within what is permitted, bounded, once, and never without reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.job import Curve, MalleableJob, Probe, Profile, ResizeCosts, ThroughputSample
from malletrain.learn.advisor import (
    Advice,
    Candidate,
    JobKnowledge,
    Market,
    ProbeRules,
    advise,
    max_explored_size,
    next_size_down,
    probe_end_reason,
)
from malletrain.learn.curve import fit_curve
from malletrain.learn.prior_jobs import PriorJobs, application
from malletrain.learn.value_of_information import information_values
from malletrain.sizing.knapsack import best_price
from malletrain.sizing.policies.exact import Exact
from malletrain.sizing.problem import JobDemand, Problem
from malletrain.sizing.values import value_table
from tests.messages import says

RULES = ProbeRules()


def windows(rates: dict[int, float], count: int = 2) -> list[ThroughputSample]:
    return [ThroughputSample(0.0, n, 10 * rate, 10.0, 20) for n, rate in rates.items() for _ in range(count)]


def speedups(curve: Curve) -> Curve:
    return Curve(tuple((n, rate / curve.throughput(1)) for n, rate in curve.points))


def candidate(
    job: int, rates: dict[int, float], current: int, sizes: range = range(1, 17), **more: object
) -> Candidate:
    found = fit_curve(windows(rates))
    assert found is not None
    fields = {"probe": None, "probes": (), "application": ("alice", str(job)), "prior_jobs": None} | more
    known = JobKnowledge(fit=found, **fields)  # type: ignore[arg-type]
    curve = found.curve(max(sizes))
    return Candidate(job, current, tuple(sizes), speedups(curve), 1.0, ResizeCosts(), known, Profile.ACTIVE)


def test_knowing_is_worth_nothing_where_every_outcome_leads_to_the_same_size() -> None:
    found = fit_curve(windows({n: 100.0 * n for n in (1, 2, 4, 8, 16)}))
    assert found is not None
    best, (worth,) = information_values(found, range(1, 17), [12], 0.01, 2)
    assert best == 16
    assert worth.gain < 1e-3 * 16
    assert worth.loss > 0


def test_where_a_node_brings_as_much_to_a_job_that_has_none_a_second_one_is_not_worth_trying() -> None:
    """Only beyond perfect scaling would it be the better place."""
    found = fit_curve(windows({1: 10.0}))
    assert found is not None
    _, (first,) = information_values(found, range(1, 5), [2], 0.97, 2)
    assert first.gain < 0.01
    _, (abundant,) = information_values(found, range(1, 5), [2], 0.8, 2)
    assert abundant.gain > 0.01, "it might be the better place"


def test_a_job_that_was_seen_at_one_size_is_measured_at_another() -> None:
    advice = advise([candidate(1, {8: 400.0}, 8)], Market(0.7, 16, 300.0, 0.0, RULES))
    (nodes, bonus) = advice.bonus[1]
    assert nodes != 8 and bonus > 0
    assert "next" in advice.reasons[1]


def test_sizes_that_are_far_from_the_present_one_are_no_reason_not_to_measure() -> None:
    """On its way up a job with its peak on two nodes was measured on eight and beyond, where it loses."""
    flat = {n: 100.0 * min(n, 2) / (1 + 0.4 * max(n - 2, 0)) for n in (1, 8, 16, 32)}
    beside_its_peak = advise([candidate(1, flat, 1, range(1, 65))], Market(0.3, 64, 300.0, 0.0, RULES))
    assert beside_its_peak.bonus[1][0] in (2, 4)
    near = {n: 100.0 * n**0.9 for n in (4, 8, 16)}
    surrounded = advise([candidate(1, near, 8, range(1, 65))], Market(0.3, 64, 300.0, 0.0, RULES))
    assert not surrounded.bonus and says(surrounded.reasons[1], "3 sizes", "8 nodes")


@pytest.mark.parametrize("peak", [2, 4, 8, 16])
def test_a_falling_curve_is_driven_one_probe_past_its_peak_at_most(peak: int) -> None:
    """From one node up, the way by which a peak can be overrun; allocation and probes are both bounded by reach."""

    def rate(n: int) -> float:
        return 100.0 * min(n, peak) * math.pow(peak / max(n, peak), 0.5)

    tried = {1: rate(1)}
    past: list[int] = []
    for _ in range(8):
        found = fit_curve(windows(tried))
        assert found is not None
        most = min(64, max_explored_size(JobKnowledge(fit=found), 1, 1, 1))
        wanted = max(range(1, most + 1), key=lambda n: found.at([n])[0].rate)
        if wanted in tried:
            break
        tried[wanted] = rate(wanted)
        past += [wanted] if wanted > peak else []
    assert len(past) <= 1, tried
    assert found is not None
    assert max(found.curve(64).points, key=lambda point: point[1])[0] <= 2 * peak


#: Samples/s of bert in Pollux's measurements, by nodes.
BERT = {1: 50.2, 2: 37.8, 4: 101.7, 8: 187.8, 16: 344.2}


def test_reach_is_twice_what_was_measured_on_it_or_its_application() -> None:
    found = fit_curve(windows({4: 100.0}))
    assert (
        max_explored_size(JobKnowledge(), 1, 0, 5) == 5
        and max_explored_size(JobKnowledge(), 8, 0, 5) == 8
        and max_explored_size(JobKnowledge(), 1, 9, 5) == 9
    )
    assert max_explored_size(JobKnowledge(fit=found), 1, 4, 5) == 8
    assert (
        max_explored_size(JobKnowledge(prior_jobs=PriorJobs((((1, 1.0, 4, 0.02), (32, 32.0, 4, 0.02)),))), 1, 0, 5)
        == 64
    )
    falls = fit_curve(windows({2: 100.0, 4: 150.0, 8: 90.0}))
    assert max_explored_size(JobKnowledge(fit=falls), 1, 8, 5) == 8
    flat = fit_curve(windows({1: 6.03, 2: 8.64, 4: 10.36}))
    assert max_explored_size(JobKnowledge(fit=flat), 1, 4, 5) == 4, "beyond a measured knee nothing is a guess away"


def test_who_is_as_others_were_goes_where_they_were_seen() -> None:
    """Bert of Pollux loses from one node to two: who could go to two only, once seen on one, would stay on one."""
    siblings = PriorJobs(tuple(tuple((n, scale * r, 4, 0.02) for n, r in BERT.items()) for scale in (1.0, 1.1)))
    alike = fit_curve(windows({1: 50.0}), siblings)
    assert alike is not None and alike.seen == 16
    assert max_explored_size(JobKnowledge(fit=alike), 1, 1, 1) == 32
    other = fit_curve(windows({1: 50.0, 2: 95.0, 4: 180.0}), siblings)
    assert other is not None and other.seen == 4
    assert max_explored_size(JobKnowledge(fit=other), 1, 4, 1) == 8


def test_what_fell_rises_again_where_others_were_seen_to() -> None:
    """YOLOv3 of Pollux trains less on eight nodes than on four, and on sixteen twice as much."""
    here = {1: 84.2, 2: 69.6, 4: 174.9, 8: 165.5}
    alone = fit_curve(windows(here))
    assert alone is not None and alone.falls
    assert max_explored_size(JobKnowledge(fit=alone), 1, 8, 1) == 8
    sibling = PriorJobs((tuple((n, r, 4, 0.02) for n, r in {**here, 12: 262.0, 16: 345.3}.items()),))
    told = fit_curve(windows(here), sibling)
    assert told is not None and told.falls
    assert max_explored_size(JobKnowledge(fit=told), 1, 8, 1) == 32
    assert told.at([16])[0].rate == pytest.approx(345.3, rel=0.1)


def test_a_boundary_that_costs_is_not_taken_for_the_end() -> None:
    """Bert of Pollux loses from one node to two, and then gains up to sixteen."""
    found = fit_curve(windows({1: 50.2, 2: 37.8}))
    assert found is not None and not found.falls
    assert max_explored_size(JobKnowledge(fit=found), 1, 2, 5) == 4


def test_probes_end_with_a_reason() -> None:
    assert probe_end_reason(Probe(8, 0.0, 1, True), 8, 10.0, RULES) == ""
    assert "measured" in probe_end_reason(Probe(8, 0.0, 2, True), 8, 10.0, RULES)
    assert "lost" in probe_end_reason(Probe(8, 0.0, 1, True), 7, 10.0, RULES)
    assert probe_end_reason(Probe(8, 0.0, 0, False), 7, 10.0, RULES) == "", "its nodes are still to come"
    assert "given up" in probe_end_reason(Probe(8, 0.0, 0, False), 7, 1000.0, RULES)
    assert probe_end_reason(Probe(8, 1e9, 0, False), 8, 0.0, RULES) == "", "a clock that went back ends nothing"


def test_applications_take_turns_and_nodes_under_probe_are_capped() -> None:
    wave = [candidate(j, {4: 100.0}, 4, application=("bob", "nas")) for j in range(1, 21)]
    alone = candidate(99, {4: 100.0}, 4)
    advice = advise([*wave, alone], Market(0.7, 84, 300.0, 0.0, RULES))
    assert 99 in advice.bonus, "a wave does not starve a single job"
    assert sum(n for n, _ in advice.bonus.values()) <= 42
    assert set(advice.reasons) == {*range(1, 21), 99}


def test_a_tenth_sibling_needs_no_probe_where_the_first_needs_some() -> None:
    def asks(pooled: PriorJobs | None) -> bool:
        found = fit_curve(windows({8: 100.0}), pooled)
        assert found is not None
        job = candidate(1, {8: 100.0}, 8)
        known = JobKnowledge(fit=found, application=("bob", "nas"))
        job = Candidate(1, 8, job.sizes, speedups(found.curve(16)), 1.0, job.costs, known, Profile.ACTIVE)
        return bool(advise([job], Market(0.5, 16, 300.0, 0.0, RULES)).bonus)

    siblings = [tuple((n, scale * n**0.8, 4, 0.02) for n in (1, 2, 4, 8, 16)) for scale in range(1, 9)]
    assert asks(None)
    assert not asks(PriorJobs(tuple(siblings)))


@pytest.mark.parametrize(
    ("name", "same"),
    [("trial-0007", "trial"), ("trial_8", "trial"), ("resnet50", "resnet"), ("7", ""), ("a b 3", "a b")],
)
def test_numbered_names_are_one_application(name: str, same: str) -> None:
    assert application(MalleableJob(1, name, "bob", 1, "", 1, 2, 0.0)) == ("bob", same)


rates = st.dictionaries(st.integers(1, 32), st.floats(1, 1e4), max_size=5)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    jobs = []
    for job in range(1, draw(st.integers(1, 5)) + 1):
        found = fit_curve(windows(draw(rates), draw(st.integers(1, 3))))
        sizes = tuple(sorted(draw(st.sets(st.integers(1, 32), max_size=6))))
        probe = draw(
            st.none() | st.builds(Probe, st.integers(1, 32), st.floats(-500, 500), st.integers(0, 3), st.booleans())
        )
        curve = found.curve(32) if found else Curve.linear(32)
        begun = st.tuples(st.floats(-4000, 0), st.integers(1, 32))
        known = JobKnowledge(found, None, probe, tuple(draw(st.lists(begun, max_size=6))))
        jobs.append(
            Candidate(
                job, draw(st.integers(0, 32)), sizes, speedups(curve),
                draw(st.sampled_from([1e-3, 1.0, 300.0])), ResizeCosts(),
                known, draw(st.sampled_from(list(Profile))), draw(st.none() | st.floats(0, 1e6)),
            )
        )  # fmt: skip
    return jobs


@given(jobs=candidates(), price=st.floats(0, 50), nodes=st.integers(0, 64))
def test_advice_keeps_to_what_is_permitted(jobs: list[Candidate], price: float, nodes: int) -> None:
    def ask(order: Callable[[list[Candidate]], list[Candidate]]) -> Advice:
        return advise(order(jobs), Market(price, nodes, 300.0, 0.0, RULES))

    advice = ask(list)
    assert repr(ask(lambda given: given[::-1])) == repr(advice), "same input, same bytes, in any order"
    by_id = {job.id: job for job in jobs}
    for job, (size, bonus) in advice.bonus.items():
        assert size in by_id[job].sizes and size <= nodes
        assert 0 < bonus < float("inf")
        assert by_id[job].profile is Profile.ACTIVE and job not in advice.locked
        assert by_id[job].known.tries(0.0)[size] < 2 and by_id[job].known.windows.get(size, 0) < RULES.windows
    for job, size in advice.locked.items():
        assert size in by_id[job].sizes
        probe = by_id[job].known.probe
        assert probe is not None and probe.nodes == size
        assert job not in advice.ended
    assert sum(advice.locked.values()) <= nodes


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_the_price_and_the_worth_are_in_the_objectives_unit(alpha: float) -> None:
    """At the price of the alpha-fair plan the size that is best by what is known is the one that the plan gives."""
    curves = {1: {n: 100.0 * n**0.9 for n in (1, 2, 4, 8, 16)}, 2: {n: 50.0 * n**0.6 for n in (1, 2, 4, 8, 16)}}
    fits = {j: fit_curve(windows(rates, 8)) for j, rates in curves.items()}
    demands = []
    for j, fit in fits.items():
        assert fit is not None
        demands.append(JobDemand(j, 0, 1, 16, speedups(fit.curve(16))))
    problem = Problem(300.0, 16, tuple(demands), alpha=alpha)
    sizes = Exact().size(problem).sizes
    price = best_price(value_table(problem), 16).node / problem.horizon_s
    for j, fit in fits.items():
        assert fit is not None
        best, _ = information_values(fit, range(1, 17), [8], price, 2, alpha)
        assert abs(best - sizes[j]) <= 1, (alpha, j, best, sizes[j])


# --- from large to small --------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 64), min_size=1).map(sorted), st.data())
def test_from_large_to_small_each_halving_is_measured_once(sizes: list[int], data: st.DataObject) -> None:
    first = data.draw(st.sampled_from(sizes))
    measured, way = {first: 2}, [first]
    while (size := next_size_down(sizes, measured, 2, {})) is not None:
        assert size in sizes and size not in measured
        assert size <= way[-1] // 2 or size == sizes[0] < way[-1]
        measured[size] = 2
        way.append(size)
    assert way[-1] == sizes[0]
    assert len(way) <= 1 + math.log2(64) + 1


def test_a_size_that_was_tried_in_vain_is_passed_over() -> None:
    assert next_size_down(range(1, 17), {16: 2}, 2, {8: 1}) == 8
    assert next_size_down(range(1, 17), {16: 2}, 2, {8: 2}) == 4
    assert next_size_down(range(1, 17), {}, 2, {}) is None, "its first size is measured first"


def test_downward_is_taken_by_the_sizing_whatever_it_is_worth() -> None:
    """Down to one node on a job that scales perfectly, where the value of information is nothing."""
    rates, way = {16: 1600.0}, []
    for _ in range(8):
        found = fit_curve(windows(rates))
        assert found is not None
        known = JobKnowledge(fit=found, application=("alice", "1"))
        curve = speedups(found.curve(16))
        current = min(rates)
        down = Candidate(1, current, tuple(range(1, 17)), curve, 1.0, ResizeCosts(), known, Profile.DOWNWARD)
        advice = advise([down], Market(0.9, 16, 300.0, 0.0, RULES))
        if 1 not in advice.bonus:
            break
        demand = JobDemand(1, current, 1, 16, curve, grow_s=0.3, shrink_s=0.1, activate_s=10.0,
                           bonus=(advice.bonus[1],))  # fmt: skip
        size = Exact().size(Problem(300.0, 16, (demand,))).sizes[1]
        assert size == advice.bonus[1][0]
        way.append(size)
        rates[size] = 100.0 * size
    assert way == [8, 4, 2, 1]
    assert says(advice.reasons[1], "smallest")


def test_jobs_of_an_application_that_was_measured_do_not_go_down() -> None:
    prior = PriorJobs((((8, 800.0, 2, 0.02), (16, 1600.0, 2, 0.02)),))
    down = replace(candidate(1, {16: 1600.0}, 16, prior_jobs=prior), profile=Profile.DOWNWARD)
    assert not advise([down], Market(0.9, 16, 300.0, 0.0, RULES)).bonus
