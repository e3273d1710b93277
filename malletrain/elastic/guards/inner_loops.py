"""Inner loops: a copy of the model adapts to one sample (a task) within a step, as in MAML and Reptile.

What a copy learns is the sample's own, wherever the sample lies: its losses, optimizers and gradients are none that
members share. So guards look away, but for what would touch the session's model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.guards.script_place import current_line

#: What a step does whose copies learn from several samples.
TOGETHER = "one inner loop for several of a worker's samples"


class InnerLoops:
    """The inner loops of the step under way.

    Args:
        reducer: of the session; `adapting` while one is executed.
    """

    def __init__(self, reducer: GradientReducer) -> None:
        self._reducer = reducer
        self._made, self._line = 0, ""

    def begin_step(self) -> None:
        """A step begins."""
        self._made, self._line = 0, ""

    @contextmanager
    def one(self) -> Iterator[None]:
        """A context manager around one of them."""
        self._made += 1
        self._line = self._line or current_line()
        before, self._reducer.adapting = self._reducer.adapting, True
        try:
            yield
        finally:
            self._reducer.adapting = before

    def seen(self, samples: int) -> dict[str, str]:
        """What makes the result of the step, in which this member has so many samples, depend on how these lie on
        workers: with the script's line."""
        return {TOGETHER: self._line} if 0 < self._made < samples else {}
