"""Notices random numbers that a step draws: a step's result then depends on how its samples lie on workers."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from malletrain.elastic.data.random_seeds import seed_all

#: Steps that are watched after training begins or a world is entered, and how often one is watched later.
FIRST_STEPS, EVERY = 8, 64


class ChanceWatch:
    """Seeds the global random generators for each step, and notices whether the step draws from them.

    Attributes:
        found: whether a step has drawn random numbers.
    """

    def __init__(self) -> None:
        self.found = False
        self._steps = 0
        self._before: list[Any] | None = None
        self._between: list[Any] | None = None

    @property
    def is_early(self) -> bool:
        """Whether this is one of the first steps."""
        return self._steps < FIRST_STEPS

    @property
    def is_watching(self) -> bool:
        """Whether the step that has begun is one of those that are watched."""
        return self._steps <= FIRST_STEPS or self._steps % EVERY == 0

    def begin_world(self) -> None:
        """A world is entered: watch the next steps."""
        self._steps = 0

    def begin_between(self, *, looks: bool = False) -> None:
        """A batch is given to the script, which may draw random numbers before the step begins.

        Args:
            looks: whether the step is one that is watched besides.
        """
        next_is_watched = looks or self._steps < FIRST_STEPS or (self._steps + 1) % EVERY == 0
        self._between = random_states() if next_is_watched and not self.found else None

    def drawn_between(self) -> bool:
        """Whether this is the first time that it has. Call it as the step begins."""
        between, self._between = self._between, None
        return self._differs_from(between)

    def begin(self, seed: int, *, missed: bool = False, looks: bool = False) -> None:
        """Begin a step: seed torch's, Python's and, where it is loaded, numpy's global generator.

        Args:
            missed: whether the others have committed the step already. It does not count: which steps are early is
                the same on all members.
            looks: whether the step is one that is watched besides.
        """
        seed_all(seed)
        self._steps += not missed
        self._before = random_states() if (looks or self.is_watching) and not self.found else None

    def committed(self) -> bool:
        """Whether this is the first step found to have drawn random numbers. Call it as backward ends."""
        before, self._before = self._before, None
        return self._differs_from(before)

    def _differs_from(self, before: list[Any] | None) -> bool:
        if before is None or self.found or not have_drawn(before):
            return False
        self.found = True
        return True


def random_states() -> list[Any]:
    """The states of the global random generators, for `have_drawn`."""
    states: list[Any] = [torch.get_rng_state(), random.getstate()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append([generator.get_offset() for generator in torch.cuda.default_generators])
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        key = numpy.random.get_state()
        states.append((key[1].tobytes(), key[2:]))
    return states


def have_drawn(before: list[Any]) -> bool:
    """Whether a global generator is in another state than `before`, of `random_states`. (One that has been loaded
    since is left out.)"""
    return not all(_same(*pair) for pair in zip(before, random_states(), strict=False))


def _same(old: Any, new: Any) -> bool:
    return torch.equal(old, new) if isinstance(old, torch.Tensor) else bool(old == new)
