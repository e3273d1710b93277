"""The gradient noise scale: the batch size beyond which a larger batch speeds training up little per sample.

After McCandlish, Kaplan, Amodei and the OpenAI Dota team, An Empirical Model of Large-Batch Training (2018, arXiv
1812.06162), appendix A.1. A mean gradient over w samples has the expected squared norm |G|^2 + tr(S) / w, with G the
true gradient and S the covariance of one sample's gradient. Two batch sizes give both unknowns. Members' own
gradients are the small batches and their sum is the large one, so a measurement costs two norms:

    tr(S) = (mean_i |g_i|^2 - |g|^2) / (mean_i 1/w_i - 1/W)        |G|^2 = |g|^2 - tr(S) / W        B = tr(S) / |G|^2

Numerator and denominator are averaged over time before they are divided. A single worker uses two consecutive steps
as the small batches, as Pollux does (Qiao et al., OSDI 2021); the model changes between them, which overestimates the
noise a little. One step in `STEPS_BETWEEN_MEASUREMENTS` is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

#: Distance between two measured steps.
STEPS_BETWEEN_MEASUREMENTS = 16
#: Weight of the past in the averages, per measurement: they reach over about the last three hundred steps.
AVERAGE_DECAY = 0.95
#: Measurements before an estimate is given.
MIN_MEASUREMENTS = 8


class NoiseScale:
    """The estimate of one session. It is part of the training state, so all members have the same one."""

    def __init__(self) -> None:
        self._variance = 0.0  #: decayed sum of tr(S)
        self._signal = 0.0  #: decayed sum of |G|^2
        self._taken = 0
        self._local: list[torch.Tensor] = []
        self._earlier: tuple[float, float, list[torch.Tensor | None]] | None = None

    @property
    def samples(self) -> float | None:
        """The noise scale in samples; None until there is an estimate, or while the averages are too noisy for
        one."""
        if self._taken < MIN_MEASUREMENTS or self._signal <= 0.0 or self._variance <= 0.0:
            return None
        return self._variance / self._signal

    def measures(self, step: int) -> bool:
        return step % STEPS_BETWEEN_MEASUREMENTS == 0

    # --- several members -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._local = []

    def add_local(self, flat: torch.Tensor) -> None:
        """Add the squared norm of a part of this member's gradient; all parts are multiplied by the same factor."""
        self._local.append(_square(flat))

    def contribution(self, factor: float, weight: float) -> torch.Tensor:
        """This member's row to be summed: |g_i|^2, 1 / w_i, and 1; zeros if it has no samples. `factor`: what its
        gradient, a mean over its samples, was multiplied by. `weight`: its samples or tokens."""
        row = torch.zeros(3, dtype=torch.float64)
        if weight and factor:
            row[0], row[1], row[2] = _read_sum(self._local) / factor**2, 1.0 / weight, 1.0
        return row

    def apply_sums(
        self, row: torch.Tensor, sums: Sequence[torch.Tensor], total: float, batch: int, mean: bool
    ) -> None:
        """Take a measurement from the sums of all members' rows, and of their gradients: `total / batch` times their
        mean if `mean`, else `total` times it. `total`: the sum of weights. `batch`: samples of the step; the estimate
        is in samples even if weights are tokens."""
        squares, inverse, members = row.tolist()
        if members >= 2:
            square = _read_sum([_square(flat) for flat in sums]) * ((batch if mean else 1.0) / total) ** 2
            self._count(squares / members, inverse / members, square, 1.0 / total, batch / total)

    # --- a single worker -----------------------------------------------------------------------------------------

    def measure_alone(
        self, step: int, gradients: Sequence[torch.Tensor | None], factor: float, weight: float, batch: int
    ) -> None:
        """Record a step of a single worker. Gradients times `factor` are means over its `weight` samples or
        tokens."""
        earlier, self._earlier = self._earlier, None
        if weight <= 0:
            return
        if self.measures(step):
            square = _read_sum([_square(g) for g in gradients if g is not None])
            self._earlier = weight, square, [None if g is None else g.detach().clone() for g in gradients]
        elif earlier is not None and earlier[0] == weight:
            _, before, kept = earlier
            pairs = [(a, b) for a, b in zip(kept, gradients, strict=True) if a is not None and b is not None]
            both = _read_sum([_square(a.add_(b)) for a, b in pairs]) / 4.0
            now = _read_sum([_square(b) for _, b in pairs])
            small, large = (before + now) / 2.0 * factor**2, both * factor**2
            self._count(small, 1.0 / weight, large, 0.5 / weight, batch / weight)

    # --- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"variance": self._variance, "signal": self._signal, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._variance, self._signal = float(state["variance"]), float(state["signal"])
        self._taken = int(state["taken"])

    def _count(self, small: float, inverse_small: float, large: float, inverse_large: float, samples: float) -> None:
        """Add one measurement: the squared norms at two batch sizes, and the inverses of these sizes."""
        variance = (small - large) / (inverse_small - inverse_large)
        signal = large - variance * inverse_large
        variance *= samples
        if not (math.isfinite(variance) and math.isfinite(signal)):
            return  # an overflow; the gradient scaler skips this step
        self._variance = AVERAGE_DECAY * self._variance + (1.0 - AVERAGE_DECAY) * variance
        self._signal = AVERAGE_DECAY * self._signal + (1.0 - AVERAGE_DECAY) * signal
        self._taken += 1


def _square(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    return torch.dot(flat, flat).double()


def _read_sum(squares: Sequence[torch.Tensor]) -> float:
    """The sum of numbers, read from each device at once."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for each in squares:
        by_device.setdefault(each.device, []).append(each)
    return sum(sum(torch.stack(each).tolist()) for each in by_device.values())
