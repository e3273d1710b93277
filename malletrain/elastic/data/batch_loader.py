"""Loads this member's part of each global batch."""

from __future__ import annotations

from typing import Any

from malletrain.elastic.data.prefetch import LoadRequest, Prefetcher
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.sampler import DrawnOrder, Sampler, Share
from malletrain.elastic.data.virtual_shards import Shard, ShardedBatch, VirtualShards


class BatchLoader:
    """Loads one member's parts of global batches, with so many `loaders`, processes that load ahead."""

    def __init__(self, sampler: Sampler, loader: SampleLoader, shards: VirtualShards | None, loaders: int) -> None:
        self._sampler = sampler
        self._loader = loader
        self._shards = shards
        self._prefetch = Prefetcher(loader, loaders) if loaders else None

    def load(self, epoch: int, cursor: int, rank: int, size: int) -> tuple[Share, Any]:
        """Load the part of member `rank` of `size` of the batch that begins at `cursor`.

        Returns:
            The share, and the batch; a `ShardedBatch` with virtual shards.
        """
        parts = self._parts_of(cursor, epoch, rank, size)
        requests = [(epoch, tuple(part.indices)) for _, part in parts]
        if self._prefetch is None:
            loaded = [self._loader.load(*request) for request in requests]
        else:
            loaded = self._prefetch.load(requests, self._coming(epoch, cursor, rank, size, self._prefetch.ahead))
        if self._shards is None:
            return parts[0][1], loaded[0]
        shards = [Shard(number, part.weight, data) for (number, part), data in zip(parts, loaded, strict=True)]
        indices = [index for _, part in parts for index in part.indices]
        return Share(indices, sum(part.weight for _, part in parts), parts[0][1].batch), ShardedBatch(shards)

    def _parts_of(self, cursor: int, epoch: int, rank: int, size: int) -> list[tuple[int, Share]]:
        """This member's virtual shards by number, or its share as number 0."""
        if self._shards is not None:
            return self._shards.parts(self._sampler, epoch, cursor, rank, size)
        return [(0, self._sampler.share(epoch, cursor, rank, size))]

    def _coming(self, epoch: int, cursor: int, rank: int, size: int, batches: int) -> list[LoadRequest]:
        """What this member will load for the next `batches` if the world stays as it is."""
        requests: list[LoadRequest] = []
        for _ in range(batches):
            following, cursor = self._sampler.following(epoch, cursor)
            if following != epoch and isinstance(self._sampler.order, DrawnOrder):
                break  # what the script does at the end of an epoch may change what its sampler draws
            epoch = following
            requests += [(epoch, tuple(part.indices)) for _, part in self._parts_of(cursor, epoch, rank, size)]
        return requests
