"""Reads small results from a device without stopping it."""

from __future__ import annotations

import time

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
