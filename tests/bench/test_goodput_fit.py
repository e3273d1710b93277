"""The closed gradient of the simulators' fit of step times, and fits that begin where the last one ended."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from scripts.bench.goodput_fit import Fits, Floats, fit, loss, with_prior

ON_ONE_NODE, ON_SEVERAL = (1, 1, 1, 1), (1, 2, 4, 1)


def measured(nodes: tuple[int, ...]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Step times of 1, 8, 16 and 2 GPUs, off by some per cent."""
    on, gpus = np.array(nodes, dtype=np.float64), np.array([1.0, 8.0, 16.0, 2.0])
    batch = np.array([64.0, 96.0, 128.0, 32.0])
    compute = 0.02 + 4e-4 * batch
    network = np.where(gpus > 1, 0.01 * on + 1e-3 * gpus, 1e-8)
    step = (compute**1.5 + network**1.5) ** (1 / 1.5) * np.array([1.01, 0.98, 1.03, 0.99])
    return on, gpus, batch, compute * np.array([0.99, 1.02, 1.0, 0.98]), step


@pytest.mark.parametrize("nodes", [ON_ONE_NODE, ON_SEVERAL])
def test_the_gradient_is_that_of_the_objective(nodes: tuple[int, ...]) -> None:
    at = np.array([0.1, 0.01, 0.2, 0.03, 0.3, 0.02, 1.7])
    data = measured(nodes)
    _, gradient = loss(at, *data)
    assert gradient == pytest.approx(approx_fprime(at, lambda each: loss(each, *data)[0], 1e-7), rel=1e-3, abs=1e-6)


def test_a_fit_predicts_what_was_measured() -> None:
    data = measured(ON_SEVERAL)
    found = fit(*data)
    assert loss(found, *data)[0] < 0.1
    assert 1.0 <= found[6] <= 10.0


def test_between_nodes_the_network_is_no_faster_than_within_one() -> None:
    data = measured(ON_ONE_NODE)
    found = with_prior(fit(*data), data[0])
    assert found[2] >= 1.1 * found[4] and found[3] >= 1.1 * found[5]


def test_a_fit_from_the_one_before_is_as_good() -> None:
    data = measured(ON_SEVERAL)
    fits = Fits(None)
    for count in range(1, 5):
        grown = fits(*(each[:count] for each in data))
    assert loss(np.array(grown), *data)[0] <= loss(fit(*data), *data)[0] + 0.01
    assert fits(*data) == grown, "what was measured before is found"
