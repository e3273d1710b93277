"""How fast each member computes, known to all members alike, and shares of a batch in proportion to it.

Every member tells in its words of a round how many nanoseconds of its own work a sample took it in the step before
(data, forward, backward and the optimizer's step; not the waiting). So all have the same figures after the same step,
and come to the same shares without asking each other.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Weight of a new step in the moving average.
SMOOTHING = 0.1
#: Shares are looked at again every so many steps, and not before so many were measured.
STEPS_BETWEEN_REBALANCES = 20
#: Smaller changes than this, of any member's share, are noise.
MIN_SHARE_CHANGE = 0.1


class ProportionalShares:
    """The paces of one world.

    Args:
        balance: whether shares follow them; else they are only reported.
    """

    def __init__(self, *, balance: bool) -> None:
        self.balance = balance
        self._nanoseconds: list[float] = []
        self._taken = 0
        self._parts: list[float] | None = None

    def reset(self, size: int) -> None:
        """A world of `size` members begins: nothing is known of it."""
        self._nanoseconds = [0.0] * size
        self._taken = 0
        self._parts = None

    def update(self, step: int, nanoseconds: Sequence[int]) -> None:
        """What the members told in the round of `step`, by rank; 0 where one had no sample."""
        if len(nanoseconds) != len(self._nanoseconds):
            return
        for rank, new in enumerate(nanoseconds):
            old = self._nanoseconds[rank]
            if new > 0:
                self._nanoseconds[rank] = (1 - SMOOTHING) * old + SMOOTHING * new if old else float(new)
        self._taken += 1
        if (
            self.balance
            and step % STEPS_BETWEEN_REBALANCES == 0
            and self._taken >= STEPS_BETWEEN_REBALANCES
            and all(self._nanoseconds)
        ):
            self._weigh()

    def shares(self, batch: int) -> list[int] | None:
        """Samples of a batch by rank, or None for even shares."""
        return None if self._parts is None else apportion(batch, self._parts)

    def samples_per_s(self) -> list[float]:
        """Samples per second of computing, by rank; 0 where it is not known."""
        return [1e9 / each if each else 0.0 for each in self._nanoseconds]

    def _weigh(self) -> None:
        rates = self.samples_per_s()
        parts = [rate / sum(rates) for rate in rates]
        before = self._parts or [1 / len(parts)] * len(parts)
        if any(abs(new - old) > MIN_SHARE_CHANGE * old for new, old in zip(parts, before, strict=True)):
            self._parts = parts


def apportion(count: int, parts: Sequence[float]) -> list[int]:
    """`count` things in proportion to `parts`, by the largest remainder (Hamilton); ties go to the lower rank."""
    exact = [count * part / sum(parts) for part in parts]
    given = [int(each) for each in exact]
    order = sorted(range(len(parts)), key=lambda rank: (given[rank] - exact[rank], rank))
    for rank in order[: count - sum(given)]:
        given[rank] += 1
    return given
