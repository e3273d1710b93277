"""The gradient noise scale: unbiased where the true value is known, and part of the training state."""

from __future__ import annotations

import pytest
import torch

from malletrain.elastic.gradients.noise_scale import MIN_MEASUREMENTS, NoiseScale

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
        assert noise.measures(step * noise.every)
        noise.apply_sums(sum(rows, ZERO), [sum(flats, ZERO)], total, total, mean)
    assert noise.samples == pytest.approx(truth, rel=0.25)


def test_a_single_worker_estimates_it_from_consecutive_steps() -> None:
    generator = torch.Generator().manual_seed(2)
    signal = 0.1 * torch.ones(LENGTH, dtype=torch.float64)
    noise = NoiseScale()
    for step in range(400 * noise.every):
        if step % noise.every < 2:
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


def test_there_is_no_estimate_too_early_or_from_one_member() -> None:
    noise = NoiseScale()
    assert noise.samples is None
    row = torch.tensor([4.0, 0.1, 1.0], dtype=torch.float64)
    for _ in range(2 * MIN_MEASUREMENTS):
        noise.apply_sums(row, [torch.ones(1)], 10, 10, True)
    assert noise.samples is None


def test_an_overflow_is_not_counted() -> None:
    noise = NoiseScale()
    row = torch.tensor([float("inf"), 0.2, 2.0], dtype=torch.float64)
    noise.apply_sums(row, [torch.tensor([float("inf")])], 20, 20, True)
    assert noise.state_dict()["taken"] == 0


def test_its_state_is_restored() -> None:
    one, two = NoiseScale(), NoiseScale()
    row = torch.tensor([4.0, 0.4, 2.0], dtype=torch.float64)
    for _ in range(MIN_MEASUREMENTS):
        one.apply_sums(row, [torch.ones(1)], 20, 20, True)
    two.load_state_dict(one.state_dict())
    assert two.samples == one.samples
    assert one.samples is not None
