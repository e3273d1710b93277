"""The fit of step times in the simulators of Pollux and Sia, with its gradient in closed form.

Both simulators (Qiao et al., OSDI 2021; Jayaram Subramanya et al., SOSP 2023) fit a job's step times anew whenever it
runs on a size, or with a batch, that it did not run with before, and spend nine tenths of their time in autograd
there. Objective, bounds, start and solver (L-BFGS-B) are theirs (`fit_perf_params` in their goodput.py); only the
gradient is written out. For b samples a GPU, on r GPUs of n nodes:

    A = alpha_c + beta_c b                      seconds of compute
    N = alpha_n + beta_n max(r - 2, 1e-8)       seconds of network, on several nodes
    N = alpha_r + beta_r max(r - 2, 1e-8)       on several GPUs of one node; 1e-8 on one GPU
    T = (A^gamma + N^gamma)^(1 / gamma)         seconds a step

    min  rms(log A - log compute) + rms(log T - log step) + .001 (gamma - 1)^2
         + .01 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)
"""

from __future__ import annotations

from hashlib import blake2b
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

Floats = NDArray[np.float64]

#: What stands for no time at all, in both simulators.
NO_TIME_S = 1e-8


def loss(
    parameters: Floats, nodes: Floats, gpus: Floats, batch: Floats, compute_s: Floats, step_s: Floats
) -> tuple[float, Floats]:
    """The objective at (alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma), and its gradient."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = parameters
    several, local = nodes > 1, (nodes <= 1) & (gpus > 1)
    more = np.maximum(gpus - 2, NO_TIME_S)
    compute = alpha_c + beta_c * batch
    network = np.where(
        several, alpha_n + beta_n * more, np.where(local, alpha_r + beta_r * more, NO_TIME_S * (1 + more))
    )
    log_compute, log_network = np.log(compute), np.log(network)
    log_sum = np.logaddexp(gamma * log_compute, gamma * log_network)
    off_compute = log_compute - np.log(compute_s)
    off_step = log_sum / gamma - np.log(step_s)
    rms_compute, rms_step = np.sqrt(np.mean(off_compute**2)), np.sqrt(np.mean(off_step**2))
    ratio_n, ratio_r = beta_n / alpha_n, beta_r / alpha_r
    value = rms_compute + rms_step + 1e-3 * (gamma - 1) ** 2 + 1e-2 * (ratio_n**2 + ratio_r**2)

    by_compute = off_compute / (len(batch) * rms_compute) if rms_compute else np.zeros_like(off_compute)
    by_step = off_step / (len(batch) * rms_step) if rms_step else np.zeros_like(off_step)
    part = np.exp(gamma * log_compute - log_sum)  # of compute in the sum of powers
    to_compute = (by_compute + by_step * part) / compute
    to_network = by_step * (1 - part) / network
    to_gamma = by_step * ((part * log_compute + (1 - part) * log_network) / gamma - log_sum / gamma**2)
    penalty_n = 2e-2 * ratio_n / alpha_n * np.array([-ratio_n, 1.0])
    penalty_r = 2e-2 * ratio_r / alpha_r * np.array([-ratio_r, 1.0])
    gradient = np.array([
        to_compute.sum(), (to_compute * batch).sum(),
        to_network[several].sum() + penalty_n[0], (to_network * more)[several].sum() + penalty_n[1],
        to_network[local].sum() + penalty_r[0], (to_network * more)[local].sum() + penalty_r[1],
        to_gamma.sum() + 2e-3 * (gamma - 1),
    ])  # fmt: skip
    return float(value), gradient


def fit(
    nodes: Floats,
    gpus: Floats,
    batch: Floats,
    compute_s: Floats,
    step_s: Floats,
    tolerance: float | None = None,
    near: Floats | None = None,
) -> Floats:
    """The seven parameters as L-BFGS-B leaves them: from the simulators' own start, or from a fit `near` by."""
    nodes, gpus, batch, compute_s, step_s = (
        np.asarray(each, dtype=np.float64) for each in (nodes, gpus, batch, compute_s, step_s)
    )
    start = [1e-1, 1e-2] * 3 + [1.001]
    lower, upper = [1e-8] * 6 + [1.0], [np.inf] * 6 + [10.0]
    if len(np.unique(batch)) == 1:
        start[0] = upper[0] = lower[0] = float(np.mean(compute_s)) / 2
    for i in fixed_parameters(nodes, gpus):
        start[i] = upper[i] = lower[i]
    if near is not None:
        start = np.clip(near, lower, upper).tolist()
    found = minimize(
        loss, start, args=(nodes, gpus, batch, compute_s, step_s), jac=True, method="L-BFGS-B", tol=tolerance,
        bounds=Bounds(lower, upper, keep_feasible=True),
    )  # fmt: skip
    return np.asarray(found.x)


def fixed_parameters(nodes: Floats, gpus: Floats) -> tuple[int, ...]:
    """Which parameters stay at their lower bound, since nothing measured shows them."""
    fixed: set[int] = set()
    if not np.any(nodes > 1):
        fixed |= {2, 3}
    if not np.any((nodes == 1) & (gpus > 1)):
        fixed |= {4, 5}
    if not np.any(gpus > 2):
        fixed |= {3, 5}
    return tuple(sorted(fixed))


def with_prior(parameters: Floats, nodes: Floats) -> list[float]:
    """Their prior: between nodes the network is a tenth slower than within one, or more."""
    found = [float(each) for each in parameters]
    if not np.any(nodes > 1):
        found[2], found[3] = max(found[2], found[4] * 1.1), max(found[3], found[5] * 1.1)
    return found


class Fits:
    """`fit` where what was measured grows by one sample at a time: from the fit before the last sample, if that shows
    the same parameters; as it is found, where the same was measured before."""

    def __init__(self, tolerance: float | None) -> None:
        self._tolerance = tolerance
        self._found: dict[bytes, tuple[Floats, tuple[int, ...]]] = {}

    def __call__(self, nodes: Floats, gpus: Floats, batch: Floats, compute_s: Floats, step_s: Floats) -> list[float]:
        measured = np.array([nodes, gpus, batch, compute_s, step_s], dtype=np.float64)
        key = _digest(measured)
        if key not in self._found:
            fixed = fixed_parameters(measured[0], measured[1])
            near, shown = self._found.get(_digest(measured[:, :-1]), (None, ()))
            alone = len(np.unique(measured[2, :-1])) == 1 and len(np.unique(measured[2])) > 1
            if shown != fixed or alone:
                near = None
            on, gpus, each, compute, step = measured
            self._found[key] = fit(on, gpus, each, compute, step, self._tolerance, near), fixed
        return with_prior(self._found[key][0], measured[0])


def _digest(measured: Floats) -> bytes:
    return blake2b(np.ascontiguousarray(measured).tobytes(), digest_size=16).digest()


def put_into(simulator: ModuleType, goodput: ModuleType, tolerance: float | None, *, warm: bool) -> None:
    """Let `simulator`, a module that took `fit_perf_params` from `goodput`, fit by `fit`; `warm`: by `Fits`."""
    fits = Fits(tolerance)

    def cold(nodes: Floats, gpus: Floats, batch: Floats, compute_s: Floats, step_s: Floats) -> list[float]:
        return with_prior(fit(nodes, gpus, batch, compute_s, step_s, tolerance), np.asarray(nodes))

    def fit_perf_params(nodes: Floats, gpus: Floats, batch: Floats, compute_s: Floats, step_s: Floats) -> object:
        return goodput.PerfParams(*(fits if warm else cold)(nodes, gpus, batch, compute_s, step_s))

    simulator.fit_perf_params = fit_perf_params  # type: ignore[attr-defined]
