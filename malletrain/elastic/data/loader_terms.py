"""What a script's DataLoader says: its data set, batch, collate function, processes and order.

An order that is a permutation of the whole data set, or the data set as it lies, is the session's own
(`sampler.Sampler`). Any other sampler is asked for its indices of each epoch, with the random generators that it can
draw from seeded by seed and epoch: so all workers, and one that joins later, get the same ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from malletrain.elastic.data.random_seeds import kept_random_state, seed_sample
from malletrain.elastic.data.sampler import DrawnOrder, mix
from malletrain.elastic.errors import ElasticError


def loader_terms(loader: DataLoader[Any], seed: int, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """What a DataLoader says, by the names of a session's arguments and options. Call it once.

    Args:
        seed: of the session.
        arguments: those of the session that the script gave, and that the loader says.

    Raises:
        ElasticError: both say something, or the loader something that cannot be divided among workers; the message
            names it.
    """
    _refuse(loader, arguments)
    plain = loader.batch_sampler if type(loader.batch_sampler) is BatchSampler else None
    own_batches = plain is None
    sampler: Any = loader.batch_sampler if plain is None else plain.sampler
    whole = not own_batches and _takes_all(sampler, len(loader.dataset))  # type: ignore[arg-type]  # map-style
    order = None if whole else _drawn(sampler, [loader, sampler, getattr(sampler, "sampler", None)], seed)
    size = max(map(len, order(0))) if plain is None and order is not None else plain and plain.batch_size
    return {
        "batch_size": int(size or 1),
        "shuffle": isinstance(sampler, RandomSampler),
        "drop_last": plain is not None and plain.drop_last,
        "collate": None if loader.collate_fn is default_collate else loader.collate_fn,
        "loaders": loader.num_workers,
        "order": order,  # None: the session's own
    }


def _refuse(loader: DataLoader[Any], arguments: Sequence[str]) -> None:
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ElasticError(
            f"{type(loader).__name__} makes its batches in an __iter__ of its own, which the session does not call: "
            "do it in collate_fn, or in the loop over batches"
        )
    if arguments:
        raise ElasticError(
            f"Session(..., {arguments[0]}=...): say it to the DataLoader, which is given to the session"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise ElasticError(
            f"the loader's data set, {type(loader.dataset).__name__}, is iterable: it is given as "
            "elastic.Streams(open_stream, count), or made map-style (see docs/how-to/researcher-data.md)"
        )
    if loader.batch_sampler is None:
        raise ElasticError("a DataLoader with batch_size=None makes no batches: give it the batch of all workers")
    if isinstance(loader.sampler, DistributedSampler) and loader.sampler.num_replicas > 1:
        raise ElasticError(
            "leave DistributedSampler out: DataLoader(dataset, batch_size=N, shuffle=True) with the batch of all "
            "workers together; the session divides each batch, and orders every epoch anew without set_epoch"
        )
    if loader.num_workers and loader.worker_init_fn is not None:
        raise ElasticError(
            "leave worker_init_fn out: the session seeds each sample by itself; what a data set opens, such as a "
            "file, it opens where it first reads a sample"
        )


def _takes_all(sampler: Any, samples: int) -> bool:
    """Whether a sampler takes each sample once, in random order or as they lie."""
    if type(sampler) not in (RandomSampler, SequentialSampler):
        return False
    return len(sampler) == len(sampler.data_source) == samples and not getattr(sampler, "replacement", False)


def _drawn(sampler: Any, holders: Iterable[Any], seed: int) -> DrawnOrder:
    """The order of a sampler, or of a batch sampler, for each epoch. `holders`: of generators that it may use."""
    name = type(sampler).__name__
    if not hasattr(sampler, "__len__"):
        raise ElasticError(f"{name} has no length: give it __len__(), the number of what it yields in an epoch")
    found = [getattr(holder, "generator", None) for holder in holders]
    generators = [each for each in found if isinstance(each, torch.Generator)]

    def draw(epoch: int) -> list[Any]:
        with kept_random_state(*generators):
            seed_sample(mix(seed, epoch), *generators)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            drawn = list(itertools.islice(iter(sampler), len(sampler) + 1))
        if len(drawn) > len(sampler):
            raise ElasticError(f"{name} yields more in an epoch than its length, {len(sampler)}")
        return [_plain(each) for each in drawn]

    first = draw(0)
    if first != draw(0):
        raise ElasticError(
            f"{name} gives another order each time it is asked: a worker that joins would get another one than the "
            "rest. Let it draw from torch's, Python's or numpy's global generator, or by set_epoch(epoch)"
        )
    samples = sum(len(each) if isinstance(each, list) else 1 for each in first)
    return DrawnOrder(draw, samples, name)


def _plain(drawn: Any) -> Any:
    """What a sampler yields as a number, or as a list of them: it may be a tensor or an array."""
    values = drawn.tolist() if hasattr(drawn, "tolist") else drawn
    return [int(index) for index in values] if isinstance(values, list | tuple) else int(values)
