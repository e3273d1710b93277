"""The batch as the number of workers changes; learning rates, averages and schedules that follow it; and the gradient
noise scale."""

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
from malletrain.elastic.gradients.noise_scale import MIN_MEASUREMENTS, STEPS_BETWEEN_MEASUREMENTS, NoiseScale

sizes = st.integers(1, 4096)


@given(low=sizes, high=sizes, chosen=st.integers(0, 10**6))
def test_a_batch_stays_within_its_rule(low: int, high: int, chosen: int) -> None:
    high = max(low, high)
    by_daemon = Chosen(high, low=low, high=high).batch(chosen, high)
    assert low <= by_daemon <= high
    assert by_daemon == chosen or not low <= chosen <= high
    assert as_rule(low).batch(chosen, 1) == low
    assert Chosen(256, low=64, high=1024).batch(0, 512) == 512, "without a choice of the daemon the batch stays"
    assert Chosen(256).batch(4096, 256) == 4096


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: as_rule(0), "at least 1"),
        (lambda: as_rule(True), "number or Chosen"),
        (lambda: as_rule(cast(Any, "64")), "number or Chosen"),
        (lambda: Chosen(64, low=128, high=256), "not within 128 to 256"),
        (lambda: Chosen(64, low=8, high=4), "no range"),
        (lambda: LearningRate(cast(Any, "cubic")), "none, linear, sqrt, adascale"),
        (lambda: LearningRate("linear", warm_up=-1), "of samples"),
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
    """Johnson et al. 2020, eq. 4: (s2 + m2) / (s2 / S + m2), s2 the variance at the reference batch, m2 = |G|^2.
    Linear with much noise, and constant without."""
    rule, variance_of_one, signal, b0, b = LearningRate("adascale"), 50.0, 0.7, 32, 256
    s2 = variance_of_one / b0
    assert rule.gain(b, b0, variance_of_one / signal) == pytest.approx((s2 + signal) / (s2 / (b / b0) + signal))
    assert rule.gain(1024, 64, 1e12) == pytest.approx(16.0)
    assert rule.gain(1024, 64, 1e-9) == pytest.approx(1.0)


def test_the_rate_warms_up_over_samples_and_from_where_it_is() -> None:
    rates = LearningRateScaling(LearningRate("linear", warm_up=1000), 100, lambda: None)
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
    linear = LearningRateScaling(LearningRate("linear"), 64, lambda: None)
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
    rates = LearningRateScaling(LearningRate("linear"), 16, lambda: None)
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
    one = LearningRateScaling(LearningRate("linear", warm_up=500), 100, lambda: None)
    one.change(300)
    one.committed(300)
    two = LearningRateScaling(LearningRate("linear", warm_up=500), 100, lambda: None)
    two.load_state_dict(one.state_dict())
    assert (two.gain, two.batch, two.progress) == (one.gain, one.batch, one.progress)


LENGTH = 400
ZERO = torch.zeros(())


def gradients(
    generator: torch.Generator, weights: list[int], signal: torch.Tensor, spread: float
) -> list[torch.Tensor]:
    """Mean gradients over `weights` samples, of samples with covariance spread^2 I around `signal`."""
    return [
        signal + spread / weight**0.5 * torch.randn(LENGTH, generator=generator, dtype=torch.float64)
        for weight in weights
    ]


@pytest.mark.parametrize("weights", [[16, 16], [5, 20, 7], [1, 63], [8, 0, 8]], ids=str)
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_the_estimate_is_unbiased_with_uneven_shares(weights: list[int], mean: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    signal = 0.1 * torch.ones(LENGTH, dtype=torch.float64)
    truth = LENGTH * 0.5**2 / float(signal @ signal)
    noise = NoiseScale()
    total = sum(weights)
    for step in range(400):
        parts = gradients(generator, [max(w, 1) for w in weights], signal, 0.5)
        rows, flats = [], []
        for weight, part in zip(weights, parts, strict=True):
            factor = weight / (total if mean else 1)
            noise.begin()
            for piece in (part[:100], part[100:]):
                noise.add_local(piece * factor)
            rows.append(noise.contribution(factor, weight))
            flats.append(part * factor)
        assert noise.measures(step * STEPS_BETWEEN_MEASUREMENTS)
        noise.apply_sums(sum(rows, ZERO), [sum(flats, ZERO)], total, total, mean)
    assert noise.samples == pytest.approx(truth, rel=0.25)


def test_a_single_worker_estimates_it_from_consecutive_steps() -> None:
    generator = torch.Generator().manual_seed(2)
    signal = 0.1 * torch.ones(LENGTH, dtype=torch.float64)
    noise = NoiseScale()
    for step in range(400 * STEPS_BETWEEN_MEASUREMENTS):
        if step % STEPS_BETWEEN_MEASUREMENTS < 2:
            (part,) = gradients(generator, [16], signal, 0.5)
            noise.measure_alone(step, [part[:100], None, part[100:]], 1.0, 16, 16)
    assert noise.samples == pytest.approx(LENGTH * 0.25 / float(signal @ signal), rel=0.25)


def test_tokens_are_counted_in_samples() -> None:
    """Twice as many tokens as samples: the same noise in samples is half as large in number."""
    generator = torch.Generator().manual_seed(3)
    signal = 0.1 * torch.ones(LENGTH, dtype=torch.float64)
    by_tokens, by_samples = NoiseScale(), NoiseScale()
    for _ in range(50):
        parts = gradients(generator, [16, 16], signal, 0.5)
        for noise, batch in ((by_tokens, 16), (by_samples, 32)):
            rows = []
            for part in parts:
                noise.begin()
                noise.add_local(part * 0.5)
                rows.append(noise.contribution(0.5, 16))
            noise.apply_sums(sum(rows, ZERO), [sum(parts, ZERO) * 0.5 * (32 / batch)], 32, batch, True)
    assert by_tokens.samples is not None
    assert by_samples.samples == pytest.approx(2 * by_tokens.samples)


def test_estimates_begin_after_some_measurements_leave_out_overflows_and_are_part_of_the_state() -> None:
    def measured(*row: float, times: int) -> NoiseScale:
        noise = NoiseScale()
        for _ in range(times):
            noise.apply_sums(torch.tensor(row, dtype=torch.float64), [torch.tensor([row[0] / 4])], 20, 20, True)
        return noise

    assert NoiseScale().samples is None
    assert measured(4.0, 0.1, 1.0, times=2 * MIN_MEASUREMENTS).samples is None, "from one member"
    assert measured(float("inf"), 0.2, 2.0, times=1).state_dict()["taken"] == 0
    one, two = measured(4.0, 0.4, 2.0, times=MIN_MEASUREMENTS), NoiseScale()
    two.load_state_dict(one.state_dict())
    assert two.samples == one.samples is not None
