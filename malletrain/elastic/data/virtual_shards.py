"""Virtual shards: layers that depend on the whole batch see the same batches at every number of workers.

Each global batch is divided into a fixed number of shards; a worker runs several of them in sequence. Random numbers
(dropout) are drawn by shard. Buffers (BatchNorm's running averages) are reset to the start of the step before each
shard; afterwards statistics change by the mean of the shards' changes, counters by their sum. So a step depends on
the number of shards and not on which worker runs them. (The idea is that of virtual nodes in Or et al., VirtualFlow,
MLSys 2022.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from malletrain.elastic.data.random_seeds import seed_all
from malletrain.elastic.data.sampler import Sampler, Share, mix, part_of
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.buffer_copies import BufferCopies


@dataclass(frozen=True, slots=True)
class Shard:
    """A virtual shard: its number in the global batch, how many of its samples count, and its data."""

    number: int
    weight: int
    data: Any


@dataclass(frozen=True, slots=True)
class ShardedBatch:
    """A worker's part of a global batch, which a script iterates over: the data of one shard after the other."""

    shards: list[Shard]
    run: Callable[[list[Shard]], Iterator[Any]]

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[Any]:
        return self.run(self.shards)


class VirtualShards:
    """The shards of one session: `count` of a global batch, so that at most so many workers have samples."""

    def __init__(self, count: int, model: torch.nn.Module, reducer: GradientReducer, seed: int) -> None:
        if count < 1:
            raise ElasticError(f"virtual_shards must be at least 1, not {count}")
        self.count = count
        self._reducer = reducer
        self._seed = seed
        self._places = [
            (module._buffers, name)
            for module in model.modules()
            for name, each in module._buffers.items()
            if each is not None and each.dtype != torch.bool
        ]
        #: As the step began. (A module may have others by now: self.count = self.count + 1.)
        self._buffers: list[torch.Tensor] = []
        self._start = BufferCopies(model)
        self._changes: list[torch.Tensor] = []
        self._step = 0
        self._in_shard = False
        reducer.add_extras(len(self._places), self._contribute, self._apply)

    def parts(self, sampler: Sampler, epoch: int, cursor: int, rank: int, size: int) -> list[tuple[int, Share]]:
        """The shards of one worker by number: contiguous, one more for lower ranks, without empty ones. A worker that
        has none gets the first shard with weight 0: layers that depend on the whole shard need all of it."""
        mine = part_of(self.count, rank, size)
        shares = [(number, sampler.share(epoch, cursor, number, self.count)) for number in mine]
        if full := [(number, share) for number, share in shares if share.weight]:
            return full
        lead = sampler.share(epoch, cursor, 0, self.count)
        return [(self.count, Share(lead.indices, 0, lead.batch))]

    def begin(self, step: int) -> None:
        """Begin the step of this number."""
        self._step, self._in_shard = step, False
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._start.take()
        self._buffers = self._present()
        self._changes = [torch.zeros_like(each) for each in self._buffers]

    def _present(self) -> list[torch.Tensor]:
        found = (table[name] for table, name in self._places)
        return [each for each in found if each is not None]

    def run(self, shards: list[Shard]) -> Iterator[Any]:
        """Yield the data of one shard after the other; the last one's backward reduces the gradients."""
        for position, shard in enumerate(shards):
            seed_all(mix(self._seed, self._step, shard.number))
            self._start.restore()
            self._reducer.scale_gradients(self._reducer.factor_of(shard.weight))
            self._reducer.accumulating = position < len(shards) - 1
            self._in_shard = shard.weight > 0
            yield shard.data
            if position < len(shards) - 1:
                self._record_change()
        self._reducer.scale_gradients(None)

    def _record_change(self) -> None:
        if self._in_shard:
            self._in_shard = False
            for change, before, now in zip(self._changes, self._buffers, self._present(), strict=True):
                change += now.detach() - self._start.of(before)

    def _contribute(self) -> list[torch.Tensor]:
        """How much this worker's shards changed the buffers; summed beside the gradients."""
        self._record_change()
        return [change.reshape(-1) for change in self._changes]

    def _apply(self, sums: list[torch.Tensor]) -> None:
        shards = min(self.count, self._reducer.batch)
        self._start.restore()
        with torch.no_grad():
            for each, change in zip(self._buffers, sums, strict=True):
                each += change.view_as(each) / shards if each.is_floating_point() else change.view_as(each)
        self._begin_pass()
