"""Notices random numbers that a step draws: its result then depends on how samples lie on workers, by right."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

#: What is claimed of a script whose steps draw, in the words of `Session.equality`.
STATISTICAL = (
    "statistical: like a static run, not equal to it, because a step draws random numbers (noise, mixup, a sampled "
    "latent), which depend on the workers. Where equality matters: virtual_shards=N, or random numbers drawn in the "
    "data set's __getitem__."
)


class RandomDraws:
    """Watches the global generators from one call to the next. `found`: whether they were drawn from."""

    def __init__(self) -> None:
        self.found = False
        self._before: list[Any] | None = None

    def begin(self) -> None:
        """What follows may draw."""
        self._before = None if self.found else _states()

    def end(self) -> None:
        """Whatever was to be watched is over."""
        before, self._before = self._before, None
        if before is not None and not all(_same(*pair) for pair in zip(before, _states(), strict=False)):
            self.found = True


def _states() -> list[Any]:
    states: list[Any] = [torch.get_rng_state(), random.getstate()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append([generator.get_offset() for generator in torch.cuda.default_generators])
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        key = numpy.random.get_state()
        states.append((key[1].tobytes(), key[2:]))
    return states


def _same(old: Any, new: Any) -> bool:
    return torch.equal(old, new) if isinstance(old, torch.Tensor) else bool(old == new)
