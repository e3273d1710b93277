"""Runs in lower precision: float32 within rounding, autocast within the noise of its seeds; final accuracy."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from malletrain.elastic.gradients.finiteness import all_finite
from tests.elastic.digits import SCRIPT, Static, assert_equal, run_alone
from tests.elastic.test_schedules import play


def figures(directory: Path) -> dict[str, float]:
    """Mean loss and accuracy over all digits, at the end."""
    found: dict[str, float] = json.loads((directory / "figures.json").read_text())
    return found


def alone(directory: Path, *options: str) -> dict[str, float]:
    run_alone(directory, SCRIPT, *options)
    return figures(directory)


@pytest.mark.nightly
@pytest.mark.alone  # as test_schedules.py, whose play it is
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_float32_is_within_its_rounding(tmp_path: Path, static: Static, seed: int) -> None:
    options = ["--epochs", "20", "--float32"]
    play(tmp_path, seed, 12, options)
    assert_equal(torch.load(tmp_path / "final.pt"), static(*options), 1e-5)


@pytest.mark.nightly
@pytest.mark.alone
def test_autocast_is_within_its_own_noise(tmp_path: Path) -> None:
    """bfloat16 rounds other sums at another split. What that does to the result has to be less than what another
    seed does."""
    options = ["--epochs", "20", "--autocast"]
    seeds = [alone(tmp_path / f"seed-{seed}", *options, "--seed", str(seed)) for seed in range(5)]
    noise = statistics.stdev(run["loss"] for run in seeds)
    assert noise > 0
    home = tmp_path / "resized"
    home.mkdir()
    play(home, 21, 12, options)
    assert abs(figures(home)["loss"] - seeds[0]["loss"]) < noise


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_every_element_of_a_gradient_is_looked_at_and_none_is_changed(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    row = torch.tensor([[largest, -largest, 1e-7, 0.0]] * 3, dtype=dtype)
    for gradients in ([row, row.t().clone(), torch.zeros(0, dtype=dtype)], [row.clone().requires_grad_()]):
        before = [each.clone() for each in gradients]
        assert all_finite(gradients)
        assert all(torch.equal(each, was) for each, was in zip(gradients, before, strict=True))
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = row.clone()
        spoilt[2, 3] = bad
        assert not all_finite([row, spoilt])
