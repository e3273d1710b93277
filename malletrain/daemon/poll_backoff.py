"""How often the light look at the queue may be taken: never for more than a tenth of the time, whatever Slurm takes
for it; and again at once where it found main jobs to give way to, since those seldom come alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: A look that took a second is followed by ten of rest.
REST = 10.0

#: After a look that found something the next one comes so soon (seconds), however quick Slurm is.
SOON_S = 0.2


class PollBackoff:
    """Times looks, and says when the next one may come. One thread at a time."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._ended = float("-inf")
        self._took = 0.0

    @property
    def rest_s(self) -> float:
        """Seconds of rest after the last look."""
        return REST * self._took

    @property
    def soon_s(self) -> float:
        """Seconds until the next look when the last one found something to do."""
        return max(SOON_S, self.rest_s)

    def may_look(self) -> bool:
        """Whether the rest is over."""
        return self._elapsed() - self._ended >= self.rest_s

    def timed(self, look: Callable[[], T]) -> T:
        """Take a look, and keep how long it took, also when it fails."""
        begun = self._elapsed()
        try:
            return look()
        finally:
            self._ended = self._elapsed()
            self._took = self._ended - begun
