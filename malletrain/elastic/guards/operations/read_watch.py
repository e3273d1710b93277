"""Counts the numbers that a script reads from tensors: such a number is of a worker's own samples."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

_READERS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__")


class ReadWatch:
    """While started, counts calls of `Tensor.item()` and the like, other than malletrain's own.

    Several may count at a time, and stop in any order.

    Attributes:
        reads: since it was started.
        values: how many numbers these have read.
    """

    def __init__(self) -> None:
        self.reads = self.values = 0

    def start(self) -> None:
        """Count from 0."""
        self.reads = self.values = 0
        _counting.add(self)
        if not _replaced:
            _replace_readers()

    def stop(self) -> None:
        """Count no longer."""
        _counting.discard(self)
        if not _counting:
            _bring_readers_back()


#: Those that count; one that is forgotten without a stop is none.
_counting: weakref.WeakSet[ReadWatch] = weakref.WeakSet()

#: The methods of `torch.Tensor` that are replaced meanwhile; None for one that it inherits.
_replaced: dict[str, Any] = {}


def _replace_readers() -> None:
    for name in _READERS:
        _replaced[name] = vars(torch.Tensor).get(name)
        setattr(torch.Tensor, name, _counted(getattr(torch.Tensor, name)))


def _bring_readers_back() -> None:
    for name, method in _replaced.items():
        if method is None:
            delattr(torch.Tensor, name)  # which shows the inherited one again
        else:
            setattr(torch.Tensor, name, method)
    _replaced.clear()


def _counted(reader: Callable[..., Any]) -> Callable[..., Any]:
    def counted(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("malletrain."):
            for watch in _counting:
                watch.reads += 1
                watch.values += tensor.numel()
        return reader(tensor, *args, **more)

    return counted
