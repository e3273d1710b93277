"""The survival model of holes: laws that any must obey, and what it learns from lives of known law."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.learn.hole_forecast import AGES_S, Forecast, HoleHistory

AGES = st.floats(0, 1e5)
COHORT = st.integers(1, 300)
HOLES = st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 100), st.booleans(), st.floats(0, 1e5)), max_size=40)


def history(holes: list[tuple[float, int, bool, float]]) -> HoleHistory:
    kept = HoleHistory()
    for lasted, cohort, taken, at in holes:
        kept.add(1e6 + at, lasted, cohort, taken=taken)
    return kept


@given(HOLES, AGES, COHORT, st.lists(st.floats(0, 1e6), min_size=2, max_size=8))
def test_survival_falls_from_one(
    holes: list[tuple[float, int, bool, float]], age: float, cohort: int, times: list[float]
) -> None:
    rest = history(holes).forecast().remaining(age, cohort)
    chances = [rest.survival(t) for t in sorted(times)]
    assert rest.survival(0.0) == 1.0
    assert all(0.0 <= late <= early <= 1.0 for early, late in pairwise(chances))


@given(HOLES, COHORT, AGES, st.floats(0, 1e5))
def test_the_rest_at_any_age_is_the_marginal_given_that_age(
    holes: list[tuple[float, int, bool, float]], cohort: int, age: float, horizon: float
) -> None:
    """S(t | a) = S(a + t) / S(a); at age 0 it is the marginal itself."""
    forecast = history(holes).forecast()
    whole = forecast.remaining(0.0, cohort)
    if whole.survival(age) > 1e-200:
        expected = whole.survival(age + horizon) / whole.survival(age)
        assert forecast.survival(age, horizon, cohort) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(HOLES, AGES, COHORT, st.floats(0, 0.999))
def test_quantiles_undo_survival(
    holes: list[tuple[float, int, bool, float]], age: float, cohort: int, share: float
) -> None:
    rest = history(holes).forecast().remaining(age, cohort)
    assert rest.survival(rest.quantile(share)) == pytest.approx(1.0 - share, abs=1e-9)


@given(HOLES, AGES, COHORT, st.floats(1, 1e5))
def test_the_mean_is_the_area_under_survival_and_a_plan_only_shortens_it(
    holes: list[tuple[float, int, bool, float]], age: float, cohort: int, longest: float
) -> None:
    forecast = history(holes).forecast()
    rest = forecast.remaining(age, cohort)
    steps = 2000
    area = sum(rest.survival(longest * (i + 0.5) / steps) for i in range(steps)) * longest / steps
    mean = forecast.expected_remaining_s(age, cohort, longest)
    assert mean == pytest.approx(area, rel=2e-2)
    assert mean <= min(longest, forecast.expected_remaining_s(age, cohort)) * (1 + 1e-9)


@given(st.integers(0, 2**32), st.floats(200, 20_000), st.floats(0.3, 3.0))
def test_censoring_does_not_bias(seed: int, mean: float, how_late: float) -> None:
    """Exponential lives, each lost sight of at a random time: as the uncensored estimate, within the noise."""
    random_ = random.Random(seed)
    # A prior far off: only the data can bring the estimate here.
    whole, cut = (
        HoleHistory(prior=tuple(1 / mean for _ in AGES_S)),
        HoleHistory(prior=tuple(1 / mean for _ in AGES_S)),
    )
    for _ in range(3000):
        life, lost = random_.expovariate(1 / mean), random_.expovariate(1 / (mean * how_late))
        whole.add(1.0, life, 1, taken=True)
        cut.add(1.0, min(life, lost), 1, taken=life <= lost)
    for horizon in (mean / 4, mean):
        truth = math.exp(-horizon / mean)
        assert whole.forecast().survival(0.0, horizon) == pytest.approx(truth, abs=0.06)
        assert cut.forecast().survival(0.0, horizon) == pytest.approx(truth, abs=0.08)


def test_dropping_what_was_lost_sight_of_would_bias_and_this_does_not() -> None:
    random_ = random.Random(1)
    honest, naive = HoleHistory(), HoleHistory()
    for _ in range(4000):
        life, lost = random_.expovariate(1 / 2000), random_.expovariate(1 / 1000)
        honest.add(1.0, min(life, lost), 1, taken=life <= lost)
        if life <= lost:
            naive.add(1.0, life, 1, taken=True)
    truth = math.exp(-0.5)
    assert honest.forecast().survival(0.0, 1000.0) == pytest.approx(truth, abs=0.04)
    assert naive.forecast().survival(0.0, 1000.0) < truth - 0.15


def test_holes_still_open_count_as_time_at_risk() -> None:
    kept = HoleHistory()
    for _ in range(50):
        kept.add(1.0, 300.0, 1, taken=True)
    without, with_open = kept.forecast(), kept.forecast([(3000.0, 1, 1)] * 50)
    assert with_open.survival(0.0, 300.0) > without.survival(0.0, 300.0)
    assert kept.forecast() == without, "what is open is not kept"


def test_a_cohort_is_one_piece_of_evidence() -> None:
    one, many = HoleHistory(), HoleHistory()
    many.add(1.0, 500.0, 4, taken=True, nodes=4)
    one.add(1.0, 500.0, 4, taken=True, nodes=1)
    assert many.forecast().departures == 1.0
    assert one.forecast().departures == 0.25


def test_old_holes_hang_on_for_longer() -> None:
    """The prior is a falling hazard, as every machine's log shows; so is what is learnt from such lives."""
    random_ = random.Random(3)
    kept = HoleHistory()
    for _ in range(3000):
        kept.add(1.0, random_.lognormvariate(6.0, 1.5), 1, taken=True)
    for forecast in (Forecast(), kept.forecast()):
        rests = [forecast.expected_remaining_s(age) for age in (100.0, 400.0, 1600.0, 6400.0)]
        assert rests == sorted(rests)


def test_what_was_seen_long_ago_fades() -> None:
    kept = HoleHistory(half_life_s=86400.0)
    for _ in range(100):
        kept.add(1e6, 100.0, 1, taken=True)
    before = kept.forecast().departures
    kept.add(1e6 + 86400.0, 100.0, 1, taken=True)
    assert kept.forecast().departures == pytest.approx(before / 2 + 1)
    kept.add(0.0, 100.0, 1, taken=True)
    assert kept.forecast().departures == pytest.approx(before / 2 + 2), "a clock set back fades nothing"


@given(st.lists(st.tuples(AGES, COHORT), max_size=20))
def test_the_horizon_stays_where_it_is_known_to_serve(ages: list[tuple[float, int]]) -> None:
    assert 120.0 <= Forecast().horizon_s(ages) <= 600.0


@given(HOLES)
def test_the_same_holes_give_the_same_bytes(holes: list[tuple[float, int, bool, float]]) -> None:
    assert repr(history(holes).forecast()) == repr(history(holes).forecast())


def test_nonsense_is_left_out() -> None:
    kept = HoleHistory()
    kept.add(1.0, float("nan"), 1, taken=True)
    kept.add(1.0, -5.0, 1, taken=True)
    kept.add(1.0, 5.0, 0, taken=True)
    assert kept.forecast() == Forecast(hazards=kept.forecast().hazards)
    assert kept.forecast().departures == 0.0
