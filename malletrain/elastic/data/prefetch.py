"""Loads samples by index, and this member's part of each global batch, if so asked ahead of time in worker processes
(as the workers of PyTorch's DataLoader do).

Batches are loaded for the case that the world stays as it is and every step is committed. If the next share is
another one, batches loaded for the old share are dropped, and the member that has their samples now loads them again;
so each sample counts once. Random augmentation depends on (seed, epoch, sample) only, so a batch does not depend on
when and where it is loaded.

Worker processes have a copy of the data set. Numbers and text that the script sets on it later (`dataset.epoch =
epoch`) are sent along, and batches loaded with earlier values are dropped.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from itertools import islice
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import TensorDataset, default_collate

from malletrain.elastic.data.random_seeds import kept_torch_state, seed_sample
from malletrain.elastic.data.sampler import DrawnOrder, Sampler, Share, mix
from malletrain.elastic.data.virtual_shards import Shard, ShardedBatch, VirtualShards
from malletrain.elastic.errors import ElasticError

#: Batches that each worker process loads ahead (DataLoader's `prefetch_factor`).
PREFETCH_FACTOR = 2

#: An epoch, and the indices of the samples to load.
LoadRequest = tuple[int, tuple[int, ...]]

#: How deep data sets and transforms within data sets are looked into for attributes, and how many are looked at.
MAX_DEPTH, MAX_ATTRIBUTES = 4, 1000

_PLAIN = (bool, int, float, str, bytes, type(None))
_UNSET = object()

_PR_SET_PDEATHSIG = 1  # prctl(2)

_loader: SampleLoader | None = None  #: set in worker processes


class SampleLoader:
    """Loads batches from a map-style data set. `elsewhere`: loads in other processes in place of this one, if it is
    set: what a data set opens as it is read, this process must not have. Raises `ElasticError`: the data set is not
    map-style."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any] | None) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ElasticError(
                f"{type(dataset).__name__} has no length or no items by index: give torch's DataLoader or a "
                "map-style data set; an iterable one is given as elastic.Streams(open_stream, count), or made "
                "map-style (see docs/how-to/researcher-data.md)"
            )
        self.dataset = dataset
        self._seed = seed
        self.collate = collate or default_collate
        self.elsewhere: Callable[[int, Sequence[int]], Any] | None = None

    def load(self, epoch: int, indices: Sequence[int]) -> Any:
        """Load the samples at `indices` as one batch. Torch's generator stays as it is; Python's and numpy's are left
        as the last sample has them: the caller seeds or keeps them."""
        if type(self.dataset) is TensorDataset and self.collate is default_collate:
            chosen = torch.frombuffer(array("q", indices), dtype=torch.int64)  # five times as fast as of a list
            return [tensor.index_select(0, chosen) for tensor in self.dataset.tensors]
        if self.elsewhere is not None:
            return self.elsewhere(epoch, indices)
        with kept_torch_state():
            return self.collate([self._item(epoch, index) for index in indices])

    def _item(self, epoch: int, index: int) -> Any:
        seed_sample(mix(self._seed, epoch, index))
        return self.dataset[index]


class Prefetcher:
    """Loads batches ahead. Make it before this process opens connections: worker processes are forked, as those of
    PyTorch's DataLoader are, and would hold them open.

    Attributes:
        ahead: how many batches to announce to `load`.
        dropped: batches whose loading had begun and that were not needed.
    """

    def __init__(self, loader: SampleLoader, processes: int) -> None:
        if processes < 1:
            raise ElasticError(f"loaders must be at least 1, not {processes}")
        self.ahead = processes * PREFETCH_FACTOR
        self.dropped = 0
        self._loading: dict[LoadRequest, Future[Any]] = {}
        self._dataset = loader.dataset
        self._forked = plain_attributes(loader.dataset)
        self._attributes: dict[str, Any] = {}  #: that the script has set since, on its own copy
        fork = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(processes, fork, initializer=_begin, initargs=(loader, os.getpid()))
        self._pool.submit(int).result()  # the first call forks all of them
        loader.elsewhere = lambda epoch, indices: self.load([(epoch, tuple(indices))], list(self._loading))[0]

    def load(self, requests: Sequence[LoadRequest], coming: Sequence[LoadRequest]) -> list[Any]:
        """Return the batches of some requests, and load others ahead.

        Args:
            requests: the batches to return.
            coming: the requests that probably follow, soonest first.

        Raises:
            ElasticError: a worker process ended unexpectedly.
            Exception: whatever the data set raised.
        """
        self._follow_script()
        wanted = dict.fromkeys([*requests, *coming])
        self._drop([each for each in self._loading if each not in wanted])
        try:
            for each in wanted:
                if each not in self._loading:
                    self._loading[each] = self._pool.submit(_load, each, self._attributes)
            return [self._loading.pop(request).result() for request in requests]
        except BrokenExecutor as error:
            raise ElasticError(f"a process that loads batches is gone (out of memory?): {error}") from error

    def _follow_script(self) -> None:
        """Drop batches loaded with values that the script has set anew since."""
        # (Also those that are as at first again: a worker process may have the value between.)
        attributes = {
            name: value
            for name, value in plain_attributes(self._dataset).items()
            if name in self._attributes or self._forked.get(name, _UNSET) != value
        }
        if attributes != self._attributes:
            self._attributes = attributes
            self._drop(list(self._loading))

    def _drop(self, requests: Sequence[LoadRequest]) -> None:
        for each in requests:
            self._loading.pop(each).cancel()
        self.dropped += len(requests)


class BatchLoader:
    """Loads one member's parts of global batches, with so many `loaders`, processes that load ahead."""

    def __init__(self, sampler: Sampler, loader: SampleLoader, shards: VirtualShards | None, loaders: int) -> None:
        self._sampler = sampler
        self._loader = loader
        self._shards = shards
        self._prefetch = Prefetcher(loader, loaders) if loaders else None

    def load(self, epoch: int, cursor: int, rank: int, size: int) -> tuple[Share, Any]:
        """Load the part of member `rank` of `size` of the batch that begins at `cursor`: the share, and the batch, a
        `ShardedBatch` with virtual shards."""
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
        share = Share(indices, sum(part.weight for _, part in parts), parts[0][1].batch)
        return share, ShardedBatch(shards, self._shards.run)

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


def _begin(loader: SampleLoader, parent: int) -> None:
    """Initialise a worker process. It ends with its parent, however that ends."""
    global _loader
    _loader = loader
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)


def _load(request: LoadRequest, attributes: dict[str, Any]) -> Any:
    if _loader is None:
        raise ElasticError("a worker process has no loader")
    set_attributes(_loader.dataset, attributes)
    return _loader.load(*request)


def plain_attributes(dataset: Any) -> dict[str, Any]:
    """Attributes that are numbers, text or short tuples of such, by path: `epoch`, `dataset.transform.size`."""
    return dict(islice(_walk(dataset, "", MAX_DEPTH, set()), MAX_ATTRIBUTES))


def set_attributes(dataset: Any, values: Mapping[str, Any]) -> None:
    """Set attributes by path, as `plain_attributes` names them. Raises `ElasticError`: the data set has no such
    object."""
    for path, value in values.items():
        *owners, name = path.split(".")
        owner = dataset
        for each in owners:
            owner = getattr(owner, "__dict__", {}).get(each)
        if owner is None:
            raise ElasticError(
                f"the script has set {path} on its data set, and the processes that load have no "
                f"{'.'.join(owners)}: make such objects before the Session, or load without processes (num_workers=0)"
            )
        setattr(owner, name, value)


def _walk(thing: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    fields = getattr(thing, "__dict__", None)
    if not isinstance(fields, dict) or id(thing) in seen or isinstance(thing, type | torch.nn.Module | torch.Tensor):
        return
    seen.add(id(thing))
    for name, value in fields.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, _PLAIN) or (
            isinstance(value, tuple) and len(value) <= 8 and all(isinstance(each, _PLAIN) for each in value)
        ):
            yield path + name, value
        elif depth and not isinstance(value, list | dict | set | tuple):
            yield from _walk(value, f"{path}{name}.", depth - 1, seen)
