"""Copies gradients into buckets and sums out of them: on a device by a kernel for all tensors of a bucket."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from malletrain.elastic.comm import late_read


def fill(parts: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], factor: float) -> None:
    """Write gradients times `factor` into the parts of a bucket, whose type may be narrower. Gradients on a device
    may be multiplied in place: the sums replace them."""
    if not parts:
        return
    if not late_read.runs_ahead(parts[0].device):
        for part, gradient in zip(parts, gradients, strict=True):
            torch.mul(gradient, factor, out=part)
        return
    if factor != 1.0:
        torch._foreach_mul_(list(gradients), factor)
    torch._foreach_copy_(list(parts), list(gradients))


def spread(parts: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], factor: float) -> None:
    """Write the parts of a bucket times `factor` into the gradients, whose type may be wider."""
    if not parts:
        return
    if late_read.runs_ahead(parts[0].device):
        torch._foreach_copy_(list(gradients), list(parts))
        if factor != 1.0:
            torch._foreach_mul_(list(gradients), factor)
        return
    for part, gradient in zip(parts, gradients, strict=True):
        if factor == 1.0:
            gradient.copy_(part)
        elif gradient.dtype == part.dtype:
            torch.mul(part, factor, out=gradient)
        else:  # multiplied in the wider type
            gradient.copy_(part).mul_(factor)
