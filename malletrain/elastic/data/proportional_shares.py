"""Shares of the batch in proportion to how fast members compute.

Each member's control vector says how many nanoseconds of its own work a sample took in the step before (data,
forward, backward and the optimizer's step, without waiting). So all members have the same figures after the same step
and compute the same shares without further communication.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Weight of a new step in the exponential moving average.
SMOOTHING = 0.1
#: Distance between two rebalances, and the steps that must be measured before the first.
STEPS_BETWEEN_REBALANCES = 20
#: Relative change of a member's share below which shares stay as they are.
MIN_SHARE_CHANGE = 0.1


class ProportionalShares:
    """The speed of each member of one world, and the shares that follow from it.

    Args:
        balance: whether shares follow the speeds; otherwise these are only reported.
    """

    def __init__(self, *, balance: bool) -> None:
        self.balance = balance
        self._nanoseconds: list[float] = []
        self._taken = 0
        self._parts: list[float] | None = None

    def reset(self, size: int) -> None:
        """Forget all measurements: a world of `size` members begins."""
        self._nanoseconds = [0.0] * size
        self._taken = 0
        self._parts = None

    def update(self, step: int, nanoseconds: Sequence[int]) -> None:
        """Record the time a sample took each member, by rank; 0 for a member without samples in `step`."""
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
        """Samples by rank, or None for even shares."""
        return None if self._parts is None else apportion(batch, self._parts)

    def samples_per_s(self) -> list[float]:
        """Samples per second of own work, by rank; 0 where it is not known."""
        return [1e9 / each if each else 0.0 for each in self._nanoseconds]

    def _weigh(self) -> None:
        rates = self.samples_per_s()
        parts = [rate / sum(rates) for rate in rates]
        before = self._parts or [1 / len(parts)] * len(parts)
        if any(abs(new - old) > MIN_SHARE_CHANGE * old for new, old in zip(parts, before, strict=True)):
            self._parts = parts


def apportion(count: int, parts: Sequence[float]) -> list[int]:
    """Divide `count` in proportion to `parts` by largest remainders (Hamilton's method); ties go to the lower
    rank."""
    exact = [count * part / sum(parts) for part in parts]
    given = [int(each) for each in exact]
    order = sorted(range(len(parts)), key=lambda rank: (given[rank] - exact[rank], rank))
    for rank in order[: count - sum(given)]:
        given[rank] += 1
    return given
