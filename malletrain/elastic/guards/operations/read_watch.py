"""Counts the numbers that a script reads from tensors: such a number is of a worker's own samples."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_READERS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__")


class ReadWatch:
    """While started, counts calls of `Tensor.item()` and the like, other than malletrain's own.

    Attributes:
        reads: since it was started.
    """

    def __init__(self) -> None:
        self.reads = 0
        self._replaced: dict[str, Any] = {}

    def start(self) -> None:
        """Count from 0."""
        self.reads = 0
        if not self._replaced:
            for name in _READERS:
                self._replaced[name] = vars(torch.Tensor).get(name)
                setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def stop(self) -> None:
        """Count no longer."""
        for name, method in self._replaced.items():
            if method is not None:
                setattr(torch.Tensor, name, method)
            elif name in vars(torch.Tensor):
                delattr(torch.Tensor, name)  # which shows the inherited one again
        self._replaced = {}

    def _counted(self, reader: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("malletrain."):
                self.reads += 1
            return reader(tensor, *args, **more)

        return counted
