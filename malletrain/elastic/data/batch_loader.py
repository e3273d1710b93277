"""What this member takes of each batch, loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from malletrain.elastic.data.prefetch import LoadRequest, Prefetcher
from malletrain.elastic.data.proportional_shares import ProportionalShares
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.sampler import Sampler, Share
from malletrain.elastic.data.virtual_shards import Shard, ShardedBatch, VirtualShards


class BatchLoader:
    """Parts of batches for one member.

    Args:
        sampler: which samples there are in a batch.
        loader: makes batches of samples.
        paces: how fast members are, where their parts follow that.
        shards: how batches are cut, where they are; numbered shards are taken then.
        loaders: processes that load batches ahead.
        whole: whether a part of no weight must have its samples all the same: layers look at a whole batch.
    """

    def __init__(
        self,
        sampler: Sampler,
        loader: SampleLoader,
        proportional_shares: ProportionalShares,
        shards: VirtualShards | None,
        loaders: int,
        *,
        whole: bool = False,
    ) -> None:
        self._sampler = sampler
        self._loader = loader
        self._proportional_shares = proportional_shares
        self._shards = shards
        self._whole = whole
        self._prefetch = Prefetcher(loader, loaders) if loaders else None

    def load(
        self, epoch: int, cursor: int, rank: int, size: int, recovering_ranks: frozenset[int] = frozenset()
    ) -> tuple[Share, Any]:
        """The part of the batch at `cursor` that member `rank` of `size` takes: which samples, and the data.
        `recovering_ranks` take none: they get a sample of no weight, or as many as they will have."""
        if recovering_ranks:
            parts = [(0, self._part_beside(recovering_ranks, cursor, epoch, rank, size))]
        else:
            parts = self._parts_of(cursor, epoch, rank, size)
        orders = [(epoch, tuple(part.indices)) for _, part in parts]
        if self._prefetch is None:
            loaded = [self._loader.load(*order) for order in orders]
        else:
            loaded = self._prefetch.load(orders, self._coming(epoch, cursor, rank, size, self._prefetch.ahead))
        if self._shards is None:
            return parts[0][1], loaded[0]
        batch = ShardedBatch(
            Shard(number, part.weight, data) for (number, part), data in zip(parts, loaded, strict=True)
        )
        indices = [index for _, part in parts for index in part.indices]
        return Share(indices, sum(part.weight for _, part in parts), parts[0][1].batch), batch

    def _parts_of(self, cursor: int, epoch: int, rank: int, size: int) -> list[tuple[int, Share]]:
        """Numbered shards, or one share."""
        if self._shards is not None:
            return self._shards.parts(self._sampler, epoch, cursor, rank, size)
        counts = self._proportional_shares.shares(self._sampler.next_batch(cursor)) if size > 1 else None
        return [(0, self._sampler.share(epoch, cursor, rank, size, counts))]

    def _part_beside(self, recovering_ranks: frozenset[int], cursor: int, epoch: int, rank: int, size: int) -> Share:
        if rank in recovering_ranks:
            coming = self._sampler.share(epoch, cursor, rank, size)
            return replace(coming, weight=0, indices=coming.indices if self._whole else coming.indices[:1])
        others = [other for other in range(size) if other not in recovering_ranks]
        return self._sampler.share(epoch, cursor, others.index(rank), len(others))

    def _coming(self, epoch: int, cursor: int, rank: int, size: int, batches: int) -> list[LoadRequest]:
        """What this member loads in the next `batches`, if nothing changes."""
        orders: list[LoadRequest] = []
        for _ in range(batches):
            epoch, cursor = self._sampler.following(epoch, cursor)
            orders += [(epoch, tuple(part.indices)) for _, part in self._parts_of(cursor, epoch, rank, size)]
        return orders
