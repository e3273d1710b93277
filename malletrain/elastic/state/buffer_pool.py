"""Memory that is allocated before a training state is received.

The operating system allocates and clears a page when it is first written; for a whole training state that takes
longer than sending it. So a newcomer asks for the types and shapes of the state while the others still train, and
touches the memory then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch

#: A tensor's type and shape.
Spec = tuple[torch.dtype, tuple[int, ...]]

#: Smaller tensors are allocated when they are needed.
MIN_POOLED_BYTES = 1024 * 1024


def specs_to_text(specs: Iterable[Spec]) -> str:
    """Encode specs as text for a `PeerStore`."""
    return json.dumps([[str(dtype).removeprefix("torch."), list(shape)] for dtype, shape in specs])


def specs_from_text(text: str) -> list[Spec]:
    """The inverse of `to_text`.

    Raises:
        ValueError: the text is not a list of specs.
    """
    try:
        specs = [(getattr(torch, name), tuple(int(n) for n in shape)) for name, shape in json.loads(text)]
    except (AttributeError, TypeError, OverflowError) as error:
        raise ValueError(f"no list of types and shapes: {text[:100]!r}") from error
    if not all(isinstance(dtype, torch.dtype) and min(shape, default=0) >= 0 for dtype, shape in specs):
        raise ValueError(f"no list of types and shapes: {text[:100]!r}")
    return specs


class BufferPool:
    """Tensors whose memory is already allocated; each is handed out once.

    Args:
        specs: types and shapes of the tensors that will be needed.
        pinned: whether they will be copied to a GPU, which is ten times as fast from pinned memory.
    """

    def __init__(self, specs: Iterable[Spec], *, pinned: bool = False) -> None:
        self._free: dict[Spec, list[torch.Tensor]] = {}
        for dtype, shape in specs:
            if torch.Size(shape).numel() * dtype.itemsize >= MIN_POOLED_BYTES:
                self._free.setdefault((dtype, shape), []).append(torch.zeros(shape, dtype=dtype, pin_memory=pinned))

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor from the pool if one fits, else a new one. Its content is undefined."""
        kept = self._free.get((dtype, shape))
        return kept.pop() if kept else torch.empty(shape, dtype=dtype)
