"""Finds gradients that are nan or infinite, every element of them, without waiting for a device in mid-step.

Gradients in host memory are judged at once. Of those on a device one row is made there, in which each member fills
its own place; it is summed beside the gradients and read together with them. A worker that trains alone on a device
sums nothing: its verdict is read a step later, and before the training state is saved or sent
(`GradientReducer.settle`).
"""

from __future__ import annotations

import functools
import math

import torch

from malletrain.elastic.comm import late_read


class FinitenessCheck:
    """What one member finds in its own gradients of one backward pass.

    Attributes:
        host_finite: whether what lies in host memory is finite.
    """

    def __init__(self) -> None:
        self.host_finite = True
        self._device: list[torch.Tensor] = []

    def look(self, gradients: list[torch.Tensor]) -> None:
        """Look at gradients of one type in one place, as they are now."""
        if not gradients:
            return
        if late_read.runs_ahead(gradients[0].device):
            self._device += torch._foreach_norm(gradients, math.inf)
        elif self.host_finite:
            self.host_finite = all_finite(gradients)

    def row(self, rank: int, size: int) -> torch.Tensor | None:
        """A row for each member's finding, to be summed: 1 at this member's place if it found what is not finite on
        its device. None where nothing lies on a device."""
        norms = self.device_norms()
        if norms is None:
            return None
        row = torch.zeros(size, dtype=torch.float32, device=norms.device)
        row[rank] = (~torch.isfinite(norms).all()).to(torch.float32)
        return row

    def device_norms(self) -> torch.Tensor | None:
        """The largest element of each gradient on a device, in the order in which they were looked at."""
        if not self._device:
            return None
        return torch.stack([each.to(self._device[0].device, torch.float64) for each in self._device])


def all_finite(gradients: list[torch.Tensor]) -> bool:
    """Whether every element of tensors in host memory is finite."""
    if gradients and not gradients[0].requires_grad:
        found, one = _found_and_one()
        try:  # in one call, as `GradScaler` looks: a third of the time of norms. It multiplies by one.
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, one)
            if not found.item():
                return True
            found.zero_()
            return False
        except RuntimeError:  # complex numbers
            pass
    return all(is_finite(each) for each in gradients)


@functools.cache
def _found_and_one() -> tuple[torch.Tensor, torch.Tensor]:
    """Made once: to make two tensors in each step takes as long as to look at a hundred small gradients."""
    return torch.zeros(1, device="cpu"), torch.ones(1, device="cpu")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is."""
    return bool(torch.isfinite(tensor).all())
