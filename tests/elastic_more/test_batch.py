"""The batch as the number of workers changes, and learning rates, averages and schedules that follow it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from malletrain.elastic.data.batch_size import Chosen, as_rule
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.learning_rate import LearningRate, LearningRateScaling

sizes = st.integers(1, 4096)


def unknown() -> None:
    return None


@given(low=sizes, high=sizes, chosen=st.integers(0, 10**6))
def test_a_batch_stays_within_its_rule(low: int, high: int, chosen: int) -> None:
    high = max(low, high)
    by_daemon = Chosen(high, low=low, high=high).batch(chosen, high)
    assert low <= by_daemon <= high
    assert by_daemon == chosen or not low <= chosen <= high
    assert as_rule(low).batch(chosen, 1) == low


def test_without_a_choice_of_the_daemon_the_batch_stays() -> None:
    assert Chosen(256, low=64, high=1024).batch(0, 512) == 512
    assert Chosen(256).batch(4096, 256) == 4096


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: as_rule(0), "at least 1"),
        (lambda: as_rule(True), "must be a number or Chosen"),
        (lambda: as_rule(cast(Any, "64")), "must be a number or Chosen"),
        (lambda: Chosen(64, low=128, high=256), "not within 128 to 256"),
        (lambda: Chosen(64, low=8, high=4), "make no range"),
        (lambda: LearningRate(cast(Any, "cubic")), "none, linear, sqrt, adascale"),
        (lambda: LearningRate("linear", warm_up=-1), "number of samples"),
    ],
)
def test_bad_rules_are_refused_by_name(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ElasticError, match=words):
        make()


@given(b0=sizes, b=sizes, noise=st.floats(1e-3, 1e9))
def test_gains(b0: int, b: int, noise: float) -> None:
    ratio = b / b0
    assert LearningRate().gain(b, b0, noise) == 1.0
    assert LearningRate("linear").gain(b, b0, noise) == ratio
    assert LearningRate("sqrt").gain(b, b0, None) == math.sqrt(ratio)
    gain = LearningRate("adascale").gain(b, b0, noise)
    assert min(1.0, ratio) * (1 - 1e-9) <= gain <= max(1.0, ratio) * (1 + 1e-9)
    assert LearningRate("adascale").gain(b, b0, None) == 1.0


def test_adascale_is_the_papers_gain() -> None:
    """Johnson et al. 2020, eq. 4: (s2 + m2) / (s2 / S + m2), s2 the variance at the reference batch, m2 = |G|^2."""
    variance_of_one, signal, b0, b = 50.0, 0.7, 32, 256
    s2 = variance_of_one / b0
    paper = (s2 + signal) / (s2 / (b / b0) + signal)
    assert LearningRate("adascale").gain(b, b0, variance_of_one / signal) == pytest.approx(paper)


def test_adascale_is_linear_with_much_noise_and_constant_without() -> None:
    rule = LearningRate("adascale")
    assert rule.gain(1024, 64, 1e12) == pytest.approx(16.0)
    assert rule.gain(1024, 64, 1e-9) == pytest.approx(1.0)


def test_the_rate_warms_up_over_samples_and_from_where_it_is() -> None:
    rates = LearningRateScaling(LearningRate("linear", warm_up=1000), 100, unknown)
    assert rates.gain == 1.0
    rates.change(400)
    seen = []
    for step in range(1, 5):
        rates.committed(400 * step)
        seen.append(rates.gain)
    assert seen == pytest.approx([2.2, 3.4, 4.0, 4.0])
    rates.change(200)
    rates.committed(1800)
    rates.change(400)
    assert rates.gain == pytest.approx(3.6), "a change half-way begins where the last one was"


def test_progress_counts_samples_and_by_adascale_gains() -> None:
    linear = LearningRateScaling(LearningRate("linear"), 64, unknown)
    adascale = LearningRateScaling(LearningRate("adascale"), 64, lambda: 192.0)
    for rates in (linear, adascale):
        rates.change(192)
        for step in range(1, 11):
            rates.committed(192 * step)
    assert linear.progress == 30.0
    assert adascale.progress == pytest.approx(10 * 3 * 256 / 384)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
def test_the_script_sees_its_own_rate_and_the_step_takes_the_gain(make: Callable[..., torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    other = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer, plain = make([weight], lr=0.1), make([other], lr=0.4)
    rates = LearningRateScaling(LearningRate("linear"), 16, unknown)
    rates.attach([optimizer])
    rates.change(64)
    for _ in range(5):
        for parameter, its in ((weight, optimizer), (other, plain)):
            parameter.grad = torch.full_like(parameter, 0.5)
            its.step()
        assert optimizer.param_groups[0]["lr"] == 0.1
    torch.testing.assert_close(weight, other)
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.1


def test_a_restored_state_continues_alike() -> None:
    one = LearningRateScaling(LearningRate("linear", warm_up=500), 100, unknown)
    one.change(300)
    one.committed(300)
    two = LearningRateScaling(LearningRate("linear", warm_up=500), 100, unknown)
    two.load_state_dict(one.state_dict())
    assert (two.gain, two.batch, two.progress) == (one.gain, one.batch, one.progress)
