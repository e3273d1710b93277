"""Finds gradients that are nan or infinite, without waiting for a device in the middle of a step.

Gradients in host memory are judged at once. Of those on a device one row is made there, in which each member fills
its own place; it is summed beside the gradients and read together with them. A worker that trains alone on a device
sums nothing and waits for nothing: its verdict is read as soon as it has arrived, `MAX_STEPS_UNREAD` steps later at
most, and before the training state is saved or sent (`GradientReducer.settle`).
"""

from __future__ import annotations

from collections import deque

import torch

from malletrain.elastic.comm import late_read
from malletrain.elastic.comm.late_read import LateRead

#: Elements of a bucket that are looked at: a loss that is not finite spoils all of them.
FINITE_CHECK_ELEMENTS = 64 * 1024

#: Steps of a worker that trains alone after which a verdict is waited for.
MAX_STEPS_UNREAD = 2


class FinitenessCheck:
    """What one member finds in its own gradients of one backward pass."""

    def __init__(self) -> None:
        self._host: list[torch.Tensor] = []
        self._device: list[torch.Tensor] = []

    def look(self, gradient: torch.Tensor) -> None:
        """Look at a gradient, or at a bucket of them, as it is now."""
        part = gradient.detach().reshape(-1)[:FINITE_CHECK_ELEMENTS].sum(dtype=torch.float64)
        (self._device if late_read.runs_ahead(part.device) else self._host).append(part)

    def is_host_finite(self) -> bool:
        """Whether what lies in host memory is finite."""
        return all(bool(torch.isfinite(part)) for part in self._host)

    def row(self, rank: int, size: int) -> torch.Tensor | None:
        """A row for each member's finding, to be summed: 1 at this member's place if it found what is not finite on
        its device. None where nothing lies on a device."""
        if not self._device:
            return None
        total = torch.stack(self._device).sum()
        row = torch.zeros(size, dtype=torch.float32, device=total.device)
        row[rank] = (~torch.isfinite(total)).to(torch.float32)
        return row


class LateVerdicts:
    """Findings of a worker that trains alone, on their way from its device."""

    def __init__(self) -> None:
        self._unread: deque[tuple[int, LateRead]] = deque()

    def add(self, step: int, row: torch.Tensor) -> None:
        """Keep the row of a step."""
        self._unread.append((step, LateRead(row)))

    def first_bad(self, *, wait: bool = False) -> int | None:
        """The first step found to be bad, of those whose rows have arrived; None if there is none.

        Args:
            wait: for all rows, not only for those that have been on their way for too long.
        """
        while self._unread:
            step, read = self._unread[0]
            if not (wait or read.is_complete or len(self._unread) > MAX_STEPS_UNREAD):
                return None
            self._unread.popleft()
            if any(read.values()):
                self._unread.clear()
                return step
        return None
