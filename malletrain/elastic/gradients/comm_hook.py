"""A communication hook: what of a bucket of gradients goes over the network.

Gradients are weighted by each worker's samples before they are summed, so a hook must commute with weights and sums:
compress(a x + b y) = a compress(x) + b compress(y). Casts do up to rounding, and so do sketches and a choice of
elements that is the same on every worker. A hook that keeps what it left out for the next step does not, since the
workers change; nor does one that needs several rounds (PowerSGD).
"""

from __future__ import annotations

from typing import Protocol

import torch

from malletrain.elastic.errors import ElasticError

#: Elements of the buckets that a hook is tried with.
TRIED_ELEMENTS = 4096

#: Error of a hook that is linear up to rounding to bfloat16, and of a linear one, relative to the largest value.
MAX_ROUNDING, MAX_EXACT = 0.05, 1e-5


class CommHook(Protocol):
    """Compresses buckets. It keeps no state of its own; `step` and `bucket` are the same on every worker."""

    def compress(self, gradients: torch.Tensor, step: int, bucket: int) -> torch.Tensor:
        """What to sum over workers instead of these gradients, which are a row: a new tensor on their device, whose
        size depends on theirs, `step` and `bucket` alone."""
        ...

    def decompress(self, total: torch.Tensor, gradients: torch.Tensor, step: int, bucket: int) -> None:
        """Write what `total`, a sum of what `compress` gave, stands for into `gradients`. Leaves `total` alone."""
        ...


def check_hook(hook: CommHook, dtype: torch.dtype, device: torch.device) -> bool:
    """Try a hook; returns whether it is linear up to the rounding of `dtype`, else it is up to bfloat16's.

    Raises:
        ElasticError: it cannot be called, gives something else each time, or is not linear.
    """
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(TRIED_ELEMENTS, generator=generator).to(device, dtype) for _ in range(2))
    try:
        x, y, again = (hook.compress(row.clone(), 3, 1) for row in (a, b, a))
        mixed = hook.compress(2.0 * a - 3.0 * b, 3, 1)
        out = torch.full_like(a, torch.nan)
        hook.decompress(mixed.clone(), out, 3, 1)
        expected = torch.full_like(a, torch.nan)
        hook.decompress(2.0 * x - 3.0 * y, expected, 3, 1)
        same = x.shape == again.shape == mixed.shape and torch.equal(x, again)
        error = (out - expected).abs().max() / expected.abs().max() if same else torch.tensor(torch.nan)
    except (RuntimeError, TypeError, ValueError, AttributeError) as failed:
        raise ElasticError(f"comm_hook cannot be used: {type(failed).__name__}: {failed}") from failed
    if not same:
        raise ElasticError(
            "comm_hook gives something else for the same gradients, step and bucket: workers would add "
            "up unlike things; draw what is random from step and bucket"
        )
    if not float(error) <= MAX_ROUNDING:
        raise ElasticError(
            f"comm_hook does not commute with weights and sums (error {float(error):.2g}), and gradients are "
            "weighted by each worker's samples: compress(a*x + b*y) must be a*compress(x) + b*compress(y)"
        )
    return float(error) <= MAX_EXACT
