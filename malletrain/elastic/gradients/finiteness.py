"""Finds gradients that are nan or infinite, every element of them, and reads what a device says of them late.

Sums of gradients are judged before a step is committed, and are the same on all members. A worker that trains alone
on a device sums nothing: its verdict is read a step later, and before the training state is saved or sent
(`GradientReducer.settle`).
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence

import torch

#: How often the host asks whether a copy has arrived.
POLL_INTERVAL_S = 0.0001


def runs_ahead(device: torch.device) -> bool:
    """Whether operations on this device complete later than the calls that queue them, so that reading a value in the
    middle of a step would stop both."""
    return device.type != "cpu"


class LateRead:
    """The values of a small tensor as they are when the device comes here, on their way to the host.

    Args:
        tensor: to read. It may change afterwards.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))
        else:
            self._host = tensor.detach().clone()

    def values(self) -> list[float]:
        """The values; waits for them."""
        while self._event is not None and not self._event.query():
            time.sleep(POLL_INTERVAL_S)
        found: list[float] = self._host.tolist()
        return found


def are_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether every element is; waits for devices."""
    there = [each for each in tensors if runs_ahead(each.device)]
    if there and not all(map(math.isfinite, LateRead(largest(there)).values())):
        return False
    return all_finite([each for each in tensors if not runs_ahead(each.device)])


def largest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest element of each of some tensors on devices."""
    norms = torch._foreach_norm(list(tensors), math.inf)
    return torch.stack([each.to(norms[0].device, torch.float64) for each in norms])


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
    return all(bool(torch.isfinite(each).all()) for each in gradients)


@functools.cache
def _found_and_one() -> tuple[torch.Tensor, torch.Tensor]:
    """Made once: to make two tensors in each step takes as long as to look at a hundred small gradients."""
    return torch.zeros(1, device="cpu"), torch.ones(1, device="cpu")
