"""Finds gradients that are nan or infinite, every element of them.

Sums of gradients are judged before a step is committed, and are the same on all members. A worker that trains alone
on a device sums nothing: its verdict is read a step later, and before the training state is saved or sent
(`GradientReducer.settle`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from malletrain.elastic.comm import late_read
from malletrain.elastic.comm.late_read import LateRead


def are_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether every element is; waits for devices."""
    there = [each for each in tensors if late_read.runs_ahead(each.device)]
    if there and not all(map(math.isfinite, LateRead(largest(there)).values())):
        return False
    return all_finite([each for each in tensors if not late_read.runs_ahead(each.device)])


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
    return all(is_finite(each) for each in gradients)


@functools.cache
def _found_and_one() -> tuple[torch.Tensor, torch.Tensor]:
    """Made once: to make two tensors in each step takes as long as to look at a hundred small gradients."""
    return torch.zeros(1, device="cpu"), torch.ones(1, device="cpu")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is."""
    return bool(torch.isfinite(tensor).all())
