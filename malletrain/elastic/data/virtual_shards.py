"""Virtual shards: for layers that look at a whole batch, the same batches at every size.

Each global batch is cut into a fixed number of shards, whatever the number of workers; a worker runs several, one
after the other. Random numbers (dropout) are drawn by shard. Buffers (BatchNorm's running means) start each shard
from where the step began; then statistics move by the mean of what the shards moved them, counters by the sum. So a
step depends on the number of shards, and not on who runs them. (The idea is that of virtual nodes in Or et al.,
VirtualFlow, MLSys 2022.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from malletrain.elastic.data.sampler import Sampler, Share, mix
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import ExtraReduction, GradientReducer


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a worker's part: its number in the global batch, how many samples count, and its data."""

    number: int
    weight: int
    data: Any


class ShardedBatch(list[Shard]):
    """A worker's part of a global batch; for `Session.shards`."""


class VirtualShards:
    """The shards of one session.

    Args:
        count: how many a global batch has; as many workers at most have work.
        model: its buffers are kept alike.
        mean: whether the script's loss is a mean over a shard's samples (else a sum).
    """

    def __init__(self, count: int, model: torch.nn.Module, reducer: GradientReducer, seed: int, mean: bool) -> None:
        if count < 1:
            raise ElasticError(f"virtual_shards must be at least 1, not {count}")
        self.count = count
        self._reducer = reducer
        self._seed = seed
        self._mean = mean
        self._buffers = [buffer for buffer in model.buffers() if buffer.dtype != torch.bool]
        self._before: list[torch.Tensor] = []
        self._moved: list[torch.Tensor] = []
        self._batch = 1
        self._in_shard = False
        reducer.add_extras(ExtraReduction(len(self._buffers), self._moves, self._settle))

    def parts(self, sampler: Sampler, epoch: int, cursor: int, rank: int, size: int) -> list[tuple[int, Share]]:
        """The shards of one worker, by number: contiguous, lower ranks take one more; those without a sample are left
        out. A worker without any gets one sample of weight 0."""
        each, extra = divmod(self.count, size)
        first = rank * each + min(rank, extra)
        mine = range(first, first + each + (1 if rank < extra else 0))
        shares = [(number, sampler.share(epoch, cursor, number, self.count)) for number in mine]
        full = [(number, share) for number, share in shares if share.weight]
        if full:
            return full
        lead = sampler.share(epoch, cursor, 0, self.count)
        return [(self.count, Share(lead.indices[:1], 0, lead.batch))]

    def begin(self, batch: int) -> None:
        """A step of `batch` samples begins."""
        self._batch = batch
        self._before = [buffer.detach().clone() for buffer in self._buffers]
        self._moved = [torch.zeros_like(buffer) for buffer in self._buffers]
        self._in_shard = False

    def run(self, batch: ShardedBatch, step: int) -> Iterator[Any]:
        """One shard after the other; gradients are exchanged with the last."""
        for place, shard in enumerate(batch):
            torch.manual_seed(mix(self._seed, step, shard.number))
            self._put_back()
            weight = shard.weight / self._batch if self._mean else float(shard.weight > 0)
            self._reducer.scale_gradients(weight)
            self._reducer.set_accumulating(place < len(batch) - 1)
            self._in_shard = shard.weight > 0
            yield shard.data
            if place < len(batch) - 1:
                self._count_move()
        self._reducer.scale_gradients(None)

    def _put_back(self) -> None:
        with torch.no_grad():
            for buffer, before in zip(self._buffers, self._before, strict=True):
                buffer.copy_(before)

    def _count_move(self) -> None:
        if self._in_shard:
            self._in_shard = False
            for moved, buffer, before in zip(self._moved, self._buffers, self._before, strict=True):
                moved += buffer.detach() - before

    def _moves(self) -> list[torch.Tensor]:
        """What the shards of this worker moved the buffers by: summed with the gradients."""
        self._count_move()
        return [moved.reshape(-1) for moved in self._moved]

    def _settle(self, sums: list[torch.Tensor]) -> None:
        shards = min(self.count, self._batch)
        with torch.no_grad():
            for buffer, before, moved in zip(self._buffers, self._before, sums, strict=True):
                moved = moved.view_as(before)
                buffer.copy_(before + (moved / shards if buffer.is_floating_point() else moved))
