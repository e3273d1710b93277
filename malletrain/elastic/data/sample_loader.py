"""Loads samples by index and collates them. Random augmentation depends on (seed, epoch, sample) only."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from malletrain.elastic.data.sampler import mix
from malletrain.elastic.errors import ElasticError


class SampleLoader:
    """Loads batches from a map-style data set.

    Args:
        dataset: has a length, and items by index.
        seed: of random augmentation.
        collate: makes a batch from a list of samples; by default PyTorch's `default_collate`.

    Raises:
        ElasticError: the data set is not map-style.
    """

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any] | None) -> None:
        if isinstance(dataset, DataLoader):
            raise ElasticError(
                "give Session the data set, not a DataLoader: Session(model, optimizer, loader.dataset, "
                "batch_size=...); it divides batches itself (collate, shuffle, drop_last and loaders are its "
                "arguments)"
            )
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ElasticError(
                f"{type(dataset).__name__} has no length or no items by index: an iterable data set must be made "
                "map-style first (see docs/how-to/researcher-script.md)"
            )
        self.dataset = dataset
        self._seed = seed
        self._collate = collate or default_collate

    def load(self, epoch: int, indices: Sequence[int]) -> Any:
        """Load the samples at `indices` as one batch. The state of global random generators stays as it is."""
        if type(self.dataset) is TensorDataset and self._collate is default_collate:
            chosen = torch.as_tensor(indices)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        before = torch.get_rng_state(), random.getstate()
        numpy = sys.modules.get("numpy")
        numpy_before = numpy.random.get_state() if numpy else None
        try:
            return self._collate([self._item(epoch, index, numpy) for index in indices])
        finally:
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            if numpy:
                numpy.random.set_state(numpy_before)

    def _item(self, epoch: int, index: int, numpy: Any) -> Any:
        seed = mix(self._seed, epoch, index)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        return self.dataset[index]
