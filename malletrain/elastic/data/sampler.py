"""Which samples a step takes, and who takes which: every sample once an epoch, at any sequence of sizes.

An epoch is one permutation, known to all from (seed, epoch). A position in it is a count of samples, whatever the
sizes were before: the next global batch is what follows, split over the members of the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from malletrain.elastic.errors import ElasticError


@dataclass(frozen=True, slots=True)
class Share:
    """One member's part of a global batch. `weight` of its samples count; a share that would be empty holds one
    sample of weight 0, so that the script needs no special case."""

    indices: list[int]
    weight: int
    batch: int


class Sampler:
    """Global batches of `batch_size` out of `length` samples; the last of an epoch may be smaller, or is dropped."""

    def __init__(self, length: int, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool) -> None:
        if batch_size < 1:
            raise ElasticError(f"batch_size must be at least 1, not {batch_size}")
        if length < 1:
            raise ElasticError("the data set is empty")
        if length < batch_size:
            raise ElasticError(
                f"the data set has {length} samples, fewer than one batch of {batch_size}: make batch_size smaller"
            )
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        #: Samples that an epoch uses.
        self.epoch_length = length - length % batch_size if drop_last else length
        self._orders: dict[int, list[int]] = {}

    def order(self, epoch: int) -> list[int]:
        """The permutation of one epoch."""
        if epoch not in self._orders:
            if self.shuffle:
                generator = torch.Generator().manual_seed(mix(self.seed, epoch))
                order = torch.randperm(self.length, generator=generator).tolist()
            else:
                order = list(range(self.length))
            self._orders = {other: kept for other, kept in self._orders.items() if abs(other - epoch) == 1}
            self._orders[epoch] = order
        return self._orders[epoch]

    def following(self, epoch: int, cursor: int) -> tuple[int, int]:
        """Where the batch after the one at `cursor` begins: epoch and cursor."""
        after = cursor + self.next_batch(cursor)
        return (epoch, after) if after < self.epoch_length else (epoch + 1, 0)

    def next_batch(self, cursor: int) -> int:
        """Samples of the batch that begins at `cursor`."""
        return min(self.batch_size, self.epoch_length - cursor)

    def share(self, epoch: int, cursor: int, rank: int, size: int, counts: Sequence[int] | None = None) -> Share:
        """What member `rank` of `size` takes of the batch that begins at `cursor`.

        Lower ranks take one more; or `counts`, which add up to the batch, say how many each takes.
        """
        count = self.next_batch(cursor)
        if count <= 0:
            raise ElasticError(f"epoch {epoch} has no sample at {cursor}")
        each, extra = divmod(count, size)
        if counts is None:
            counts = [each + (1 if other < extra else 0) for other in range(size)]
        if sum(counts) != count or len(counts) != size:
            raise ElasticError(f"shares of {list(counts)} are not {count} samples of {size} workers")
        start = cursor + sum(counts[:rank])
        weight = counts[rank]
        order = self.order(epoch)
        return Share(order[start : start + weight] or [order[cursor]], weight, count)


def mix(*numbers: int) -> int:
    """A 63-bit seed from several numbers; neighbours give unrelated seeds (splitmix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + (number & (2**64 - 1)) + 0x9E3779B97F4A7C15) & (2**64 - 1)
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        state ^= state >> 31
    return state >> 1
