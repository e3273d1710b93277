"""Memory for a state that is to come.

New memory is dear: the system finds and clears each page in the moment when it is first written, which for a whole
training state takes longer than to send it. So a newcomer asks what the state looks like while the others still
train, and gets the memory then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch

#: A tensor's type and shape.
Spec = tuple[torch.dtype, tuple[int, ...]]

#: Smaller ones cost nothing.
MIN_POOLED_BYTES = 1024 * 1024


def specs_to_text(specs: Iterable[Spec]) -> str:
    """Specs as a line that a member can put on its board."""
    return json.dumps([[str(dtype).removeprefix("torch."), list(shape)] for dtype, shape in specs])


def specs_from_text(text: str) -> list[Spec]:
    """The inverse of `to_text`.

    Raises:
        ValueError: the text is none.
    """
    try:
        specs = [(getattr(torch, name), tuple(int(n) for n in shape)) for name, shape in json.loads(text)]
    except (AttributeError, TypeError, OverflowError) as error:
        raise ValueError(f"no list of types and shapes: {text[:100]!r}") from error
    if not all(isinstance(dtype, torch.dtype) and min(shape, default=0) >= 0 for dtype, shape in specs):
        raise ValueError(f"no list of types and shapes: {text[:100]!r}")
    return specs


class BufferPool:
    """Tensors that the system has backed by memory, each to be had once.

    Args:
        specs: of the tensors that will be asked for.
    """

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._free: dict[Spec, list[torch.Tensor]] = {}
        for dtype, shape in specs:
            if torch.Size(shape).numel() * dtype.itemsize >= MIN_POOLED_BYTES:
                self._free.setdefault((dtype, shape), []).append(torch.zeros(shape, dtype=dtype))

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """One of the kept ones, or a new one. What is in it means nothing."""
        kept = self._free.get((dtype, shape))
        return kept.pop() if kept else torch.empty(shape, dtype=dtype)
