"""How often Slurm may be looked at: never for more than a tenth of the time, whatever it takes for it; and again at
once where a look found main jobs to give way to, since those seldom come alone."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: A look that took a second is followed by ten of rest.
REST = 10.0

#: After a look that found something the next one comes so soon (seconds), however quick Slurm is.
SOON_S = 0.2

#: The longest rest (seconds) after a look that Slurm did not answer, and after the first that it does again: the time
#: that these take says how long the client waits for slurmctld, and nothing of its load.
AWAY_REST_S = 5.0

#: A rest is at most this long (seconds), or twice the one before: one slow answer may be the machine's, several are
#: Slurm's.
OUTLIER_REST_S = 10.0


class PollBackoff:
    """Times looks, and says when the next one may come. One thread at a time; `longest_s`: of a rest."""

    def __init__(self, elapsed: Callable[[], float], longest_s: float = float("inf")) -> None:
        self._elapsed = elapsed
        self._longest_s = longest_s
        self._ended = float("-inf")
        self.rest_s = 0.0  #: seconds of rest after the last look
        self._answered = True

    @property
    def soon_s(self) -> float:
        """Seconds until the next look when the last one found something to do."""
        return max(SOON_S, self.rest_s)

    def may_look(self) -> bool:
        """Whether the rest is over."""
        return self._elapsed() - self._ended >= self.rest_s

    def timed(self, look: Callable[[], T | None]) -> T | None:
        """Take a look, and keep how long it took, also when it fails or has no answer (None)."""
        begun, answer = self._elapsed(), None
        try:
            answer = look()
            return answer
        finally:
            self._ended = self._elapsed()
            answered = answer is not None
            longest = self._longest_s if answered and self._answered else min(AWAY_REST_S, self._longest_s)
            growth = max(OUTLIER_REST_S, 2.0 * self.rest_s)
            self.rest_s = min(longest, growth, REST * (self._ended - begun))
            self._answered = answered
