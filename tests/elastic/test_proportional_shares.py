"""Shares of a batch in proportion to measured speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.data.proportional_shares import STEPS_BETWEEN_REBALANCES, ProportionalShares, apportion
from malletrain.elastic.data.sampler import Sampler
from malletrain.elastic.errors import ElasticError


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40))
def test_shares_add_up_and_are_within_one_of_the_exact_ones(count: int, parts: list[float]) -> None:
    given_out = apportion(count, parts)
    assert sum(given_out) == count
    for share, part in zip(given_out, parts, strict=True):
        assert abs(share - count * part / sum(parts)) < 1


def told(proportional_shares: ProportionalShares, nanoseconds: list[int], steps: int) -> None:
    for step in range(1, steps + 1):
        proportional_shares.update(step, nanoseconds)


def test_a_worker_half_as_fast_gets_half_as_much() -> None:
    proportional_shares = ProportionalShares(balance=True)
    proportional_shares.reset(3)
    told(proportional_shares, [100, 100, 200], STEPS_BETWEEN_REBALANCES - 1)
    assert proportional_shares.shares(60) is None
    proportional_shares.update(STEPS_BETWEEN_REBALANCES, [100, 100, 200])
    assert proportional_shares.shares(60) == [24, 24, 12]
    assert proportional_shares.samples_per_s()[0] == pytest.approx(1e7)


def test_even_ones_stay_even_and_a_new_world_begins_even() -> None:
    proportional_shares = ProportionalShares(balance=True)
    proportional_shares.reset(2)
    told(proportional_shares, [100, 104], 3 * STEPS_BETWEEN_REBALANCES)
    assert proportional_shares.shares(60) is None
    told(proportional_shares, [100, 300], 3 * STEPS_BETWEEN_REBALANCES)
    assert (proportional_shares.shares(60) or [0])[0] > 42
    proportional_shares.reset(2)
    assert proportional_shares.shares(60) is None


def test_shares_are_even_without_balance() -> None:
    proportional_shares = ProportionalShares(balance=False)
    proportional_shares.reset(2)
    told(proportional_shares, [100, 300], 3 * STEPS_BETWEEN_REBALANCES)
    assert proportional_shares.shares(60) is None
    assert proportional_shares.samples_per_s()[1] == pytest.approx(1e9 / 300)


def test_figures_from_another_world_are_ignored() -> None:
    proportional_shares = ProportionalShares(balance=True)
    proportional_shares.reset(2)
    proportional_shares.update(STEPS_BETWEEN_REBALANCES, [1, 2, 3])
    proportional_shares.update(STEPS_BETWEEN_REBALANCES, [])
    assert proportional_shares.samples_per_s() == [0.0, 0.0]


def test_a_member_without_samples_delays_no_rebalance() -> None:
    proportional_shares = ProportionalShares(balance=True)
    proportional_shares.reset(2)
    told(proportional_shares, [100, 0], 2 * STEPS_BETWEEN_REBALANCES)
    assert proportional_shares.shares(60) is None, "its speed is not known"


def test_uneven_shares_take_every_sample_once() -> None:
    sampler = Sampler(100, 30, seed=1, shuffle=True, drop_last=False)
    seen: list[int] = []
    for cursor in range(0, 100, 30):
        counts = apportion(sampler.next_batch(0, cursor), [5.0, 1.0, 0.01])
        shares = [sampler.share(0, cursor, rank, 3, counts) for rank in range(3)]
        assert [share.weight for share in shares] == counts
        seen += [index for share in shares for index in share.indices[: share.weight]]
    assert sorted(seen) == list(range(100))


def test_shares_that_are_not_the_batch_are_refused() -> None:
    sampler = Sampler(100, 30, seed=1, shuffle=True, drop_last=False)
    with pytest.raises(ElasticError, match="are not 30 samples of 2 workers"):
        sampler.share(0, 0, 0, 2, [10, 10])


def test_a_data_set_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ElasticError, match="10 samples, fewer than one batch of 64"):
        Sampler(10, 64, seed=0, shuffle=True, drop_last=False)
