"""The order of samples, and the share of each member: every sample once an epoch, however the world changes.

An epoch is one permutation, which every member derives from (seed, epoch). A position in it is a number of samples
and does not depend on earlier world sizes: the next global batch starts there and is divided among the present
members.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from malletrain.elastic.errors import ElasticError


@dataclass(frozen=True, slots=True)
class Share:
    """One member's part of a global batch.

    Attributes:
        indices: its samples. A share that would be empty has one sample, so that scripts need no special case.
        weight: how many of its samples count.
        batch: samples of the global batch.
    """

    indices: list[int]
    weight: int
    batch: int


@dataclass(frozen=True, slots=True)
class DrawnOrder:
    """The order of a script's own sampler, which may leave samples out, and repeat some.

    Attributes:
        draw: called with an epoch; returns indices, or batches of them.
        samples: of an epoch.
        name: of the sampler, for people.
    """

    draw: Callable[[int], Sequence[Any]]
    samples: int
    name: str

    def __call__(self, epoch: int) -> Sequence[Any]:
        return self.draw(epoch)


class Sampler:
    """Divides epochs of `length` samples into global batches of `batch_size`; the last of an epoch may be smaller, or
    is dropped with `drop_last`.

    Args:
        order: returns the order of an epoch's samples, or its batches, each a list of at most `batch_size`; by
            default a random permutation, or as they lie. A `DrawnOrder` may leave samples out and repeat some.

    Attributes:
        epoch_length: samples of an epoch that are used.

    Raises:
        ElasticError: the data set is smaller than one batch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        order: Callable[[int], Sequence[Any]] | None = None,
    ) -> None:
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
        self.epoch_length = length - length % batch_size if drop_last else length
        self.order = order
        #: The order of an epoch, and where its batches end, if the script's own order consists of batches.
        self._epochs: dict[int, tuple[list[int], list[int]]] = {}

    def permutation(self, epoch: int) -> list[int]:
        """The permutation of one epoch. Raises `ElasticError`: the script's own order is none."""
        return self._of(epoch)[0]

    def batch_ends(self, epoch: int) -> list[int]:
        """Where the batches of an epoch end, if the script's order consists of batches; else nothing."""
        return self._of(epoch)[1]

    def _of(self, epoch: int) -> tuple[list[int], list[int]]:
        if epoch not in self._epochs:
            near = {other: held for other, held in self._epochs.items() if abs(other - epoch) == 1}
            self._epochs = near | {epoch: self._made(epoch)}
        return self._epochs[epoch]

    def _made(self, epoch: int) -> tuple[list[int], list[int]]:
        if self.order is None:
            if not self.shuffle:
                return list(range(self.length)), []
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            return torch.randperm(self.length, generator=generator).tolist(), []
        drawn = list(self.order(epoch))
        batches = bool(drawn) and isinstance(drawn[0], list | tuple)
        order = [int(index) for index in (itertools.chain.from_iterable(drawn) if batches else drawn)]
        sizes = [len(batch) for batch in drawn if len(batch)] if batches else []
        if max(sizes, default=0) > self.batch_size:
            raise ElasticError(
                f"order({epoch}) has a batch of {max(sizes)} samples: batch_size, {self.batch_size}, is that of the "
                "largest"
            )
        if batches and self.epoch_length != self.length:
            raise ElasticError("drop_last=True and an order that consists of batches: leave drop_last out")
        if isinstance(self.order, DrawnOrder):
            if len(order) != self.length:
                raise ElasticError(
                    f"{self.order.name} gives {len(order)} samples in epoch {epoch}, and {self.length} in epoch 0: "
                    "every epoch needs as many"
                )
        elif sorted(order) != list(range(self.length)):
            raise ElasticError(
                f"order({epoch}) must return each index from 0 to {self.length - 1} once; it returned {len(order)} "
                f"indices, {len(set(order))} of them different"
            )
        return order, list(itertools.accumulate(sizes))

    def following(self, epoch: int, cursor: int) -> tuple[int, int]:
        """Epoch and cursor of the batch that follows the one at `cursor`."""
        after = cursor + self.next_batch(epoch, cursor)
        return (epoch, after) if after < self.epoch_length else (epoch + 1, 0)

    def next_batch(self, epoch: int, cursor: int) -> int:
        """Samples of the batch that begins at `cursor`."""
        if self.order is not None:
            ends = self.batch_ends(epoch)
            if cursor < self.epoch_length and ends:
                return ends[bisect_right(ends, cursor)] - cursor
        return min(self.batch_size, self.epoch_length - cursor)

    def share(self, epoch: int, cursor: int, rank: int, size: int) -> Share:
        """The share of member `rank` of `size` in the batch that begins at `cursor`. Raises `ElasticError`: the epoch
        has no sample at `cursor`."""
        count = self.next_batch(epoch, cursor)
        if count <= 0:
            raise ElasticError(f"epoch {epoch} has no sample at {cursor}")
        part, order = part_of(count, rank, size), self.permutation(epoch)
        return Share(order[cursor + part.start : cursor + part.stop] or [order[cursor]], len(part), count)


def part_of(count: int, rank: int, size: int) -> range:
    """The part of member `rank` of `size` in a row of so many things; lower ranks may have one more."""
    each, extra = divmod(count, size)
    first = rank * each + min(rank, extra)
    return range(first, first + each + int(rank < extra))


def mix(*numbers: int) -> int:
    """Hash numbers to a 63-bit seed; adjacent numbers give unrelated seeds (splitmix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + (number & (2**64 - 1)) + 0x9E3779B97F4A7C15) & (2**64 - 1)
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        state ^= state >> 31
    return state >> 1
