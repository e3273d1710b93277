"""Counts the places at which a program would wait for a device, on a machine without one: reads of the values of
floating-point tensors, which stand for those of a device (see `device_stand_in`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from malletrain.elastic.gradients.finiteness import LateRead

READERS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A context manager with the places of the reads within it. What comes by `LateRead` is not counted: nothing
    waits for that."""
    places: list[str] = []
    sanctioned: list[None] = []
    values = LateRead.values

    def late(self: LateRead) -> list[float]:
        sanctioned.append(None)
        try:
            return values(self)
        finally:
            sanctioned.pop()

    def noted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reader(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not sanctioned:
                places.append("".join(traceback.format_stack(limit=4)[:-1]))
            return read(tensor, *args, **more)

        return reader

    with monkeypatch.context() as patch:
        patch.setattr(LateRead, "values", late)
        for name in READERS:
            patch.setattr(torch.Tensor, name, noted(getattr(torch.Tensor, name)))
        for name in ("equal", "allclose"):
            patch.setattr(torch, name, noted(getattr(torch, name)))
        yield places
