"""A digest of what a data set consists of, as far as it can be seen without loading samples: lengths, indices of
subsets, lists of files. Workers whose data sets differ (`random_split` without a seed, a listing in another order)
would train and validate on each other's samples."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from malletrain.elastic.errors import ElasticError

#: Entries of a long list that are looked at: the first, the last, and others evenly between them.
MAX_ENTRIES = 20_000

#: How deep data sets within data sets are looked into.
MAX_DEPTH = 4


def dataset_digest(dataset: Any) -> str:
    """A digest, in hexadecimal digits, that is equal where two workers have the same data set."""
    digest = hashlib.sha256()
    for line in _lines(dataset, MAX_DEPTH):
        digest.update(line.encode(errors="replace"))
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _lines(dataset: Any, depth: int) -> Iterator[str]:
    yield type(dataset).__name__
    if hasattr(dataset, "__len__"):
        yield str(len(dataset))
    fields = getattr(dataset, "__dict__", None)
    if not isinstance(fields, dict):
        return
    for name, value in sorted(fields.items(), key=lambda item: str(item[0])):
        if isinstance(value, torch.utils.data.Dataset):
            if depth:
                yield from _lines(value, depth - 1)
        elif isinstance(value, list | tuple) and value and all(isinstance(each, torch.Tensor) for each in value[:8]):
            # As in TensorDataset: its labels.
            yield from (f"{name}[{place}] " + " ".join(_entries(each)) for place, each in enumerate(value[:8]))
        else:
            entries = _entries(value)
            if entries:
                yield f"{name} {len(entries)} " + " ".join(entries)


def _entries(value: Any) -> list[str]:
    """The entries of a list of plain values; empty for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        value = value[_chosen(len(value))].tolist() if value.ndim == 1 and value.dtype.kind in "iuSU" else []
    elif isinstance(value, torch.Tensor):
        whole = value.ndim and not value.is_floating_point() and not value.is_complex()
        value = value.reshape(-1)[_chosen(value.numel())].tolist() if whole else []
    elif isinstance(value, list | tuple | range):
        value = [value[place] for place in _chosen(len(value))]
    else:
        return []
    texts = [_text(each) for each in value]
    return [] if None in texts else [text for text in texts if text is not None]


def _chosen(length: int) -> list[int]:
    if length <= MAX_ENTRIES:
        return list(range(length))
    return [place * (length - 1) // (MAX_ENTRIES - 1) for place in range(MAX_ENTRIES)]


def _text(value: Any) -> str | None:
    """A plain value as text, of a path the last two parts: nodes may have it in other places. None for the rest."""
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, str | bytes | os.PathLike):
        text = os.fsdecode(value) if not isinstance(value, str) else value
        return "/".join(text.split("/")[-2:])
    if isinstance(value, tuple | list) and len(value) <= 4:
        parts = [_text(each) for each in value]
        return None if None in parts else ",".join(part for part in parts if part is not None)
    return None


class DatasetChanges:
    """What a script does to its data set between two epochs: new negatives, another subset, corrected labels. All
    workers must do it alike, also one that joins later. What changes while samples are loaded (a cache) is each
    worker's own, and passed over.

    Args:
        begun: the digest as the session begins.
        in_processes: whether processes load, which have the data set as it was first.

    Attributes:
        digest: of the data set as the script has set it; "" while it has not changed it.
    """

    def __init__(self, dataset: Any, begun: str, *, in_processes: bool) -> None:
        self._dataset = dataset
        self._in_processes = in_processes
        self._before = begun
        self.digest = ""

    def epoch_begins(self) -> None:
        """Call it before an epoch's first sample is loaded. Raises `ElasticError`: the data set has changed, and the
        processes that load do not see it."""
        now = dataset_digest(self._dataset)
        if now == self._before and not self.digest:
            return
        if self._in_processes and now != self._before:
            raise ElasticError(
                "the script has changed a list or tensor of its data set, and the processes that load have the old "
                "one: load without processes (num_workers=0). Numbers and text that it sets reach them"
            )
        self.digest = self._before = now

    def epoch_ended(self) -> None:
        """Call it when the samples of an epoch are loaded."""
        self._before = dataset_digest(self._dataset)
