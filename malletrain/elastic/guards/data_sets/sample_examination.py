"""Loads some samples twice, and collates them twice, before training begins: what a sample is must follow from its
index, the epoch and the global random generators, which are seeded by these.

A data set that counts its reads or keeps its last sample, and a `collate` that counts batches, give other samples on
each worker, and begin anew on one that joins. A `collate` that mixes samples (mixup), cuts them to the shortest or
draws random numbers makes what the model sees depend on which samples a worker has together.

The numbers of these samples are kept, so that workers whose data sets were made with other random numbers are found;
also as `collate` gives them, which may cut or scale them by what the script counts.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import gt
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from malletrain.elastic.data.random_seeds import kept_random_state
from malletrain.elastic.data.sample_loader import SampleLoader
from malletrain.elastic.data.streams import StreamReader
from malletrain.elastic.guards.chance import have_drawn, random_states
from malletrain.elastic.guards.script_place import is_script

log = logging.getLogger("malletrain.elastic")

#: Samples that are looked at, evenly over the data set. How deep a data set is searched for random generators.
SAMPLES, MAX_DEPTH = 4, 4

#: Parts of a sample, and numbers of each, that are compared between workers.
MAX_PARTS, MAX_NUMBERS = 4, 4096

#: Fingerprints of each part: one vector added to all samples may leave any one of them as it was.
WEIGHTINGS = 4

#: Fingerprints that differ by less are those of one sample, read on another processor or by another decoder.
TOLERANCE, RELATIVE_TOLERANCE = 1e-2, 1e-5

#: What the name of a fingerprint begins with where `collate` has made it.
COLLATED = "collate("

MIXES = "samples that meet in collate (mixup, a statistic over them)"
CUTS = "samples that collate cuts by what else a worker has in its batch, as to the shortest"
OWN_DRAWS = (
    "random numbers of the data set from a generator of its own, which depend on what a worker has loaded before"
)

_CURE = (
    "depends on what was loaded before (a count, the last sample), or on unseeded random numbers: a worker loads "
    "its own part, and one that joins begins anew. Let it follow from the index, the epoch (`dataset.epoch = epoch` "
    "before the loop over batches) and the global generators of torch, numpy or random, which are seeded by sample"
)


class Fingerprint(float):
    """A number made of a sample's numbers, which rounding changes little."""

    @staticmethod
    def differ(one: float, other: float) -> bool:
        """Whether two are those of other samples."""
        return abs(one - other) > max(TOLERANCE, RELATIVE_TOLERANCE * abs(one))


@dataclass(slots=True)
class Examination:
    """What was found.

    Attributes:
        wrong: what is wrong, with the cure; "" if nothing is.
        seen: what makes the result depend on the workers, with the script's line.
        draws: whether `collate` draws random numbers.
        fingerprints: of the samples, by name; those of parts that are numbers.
        pads: whether `collate` makes samples of unlike lengths as long as the longest of a batch.
    """

    wrong: str = ""
    seen: dict[str, str] = field(default_factory=dict)
    draws: bool = False
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    pads: bool = False


def examine(loader: SampleLoader, length: int) -> Examination:
    """Examine a data set of so many samples, and its collate function. Global random generators stay as they are."""
    found = Examination()
    indices = sorted({place * (length - 1) // (SAMPLES - 1) for place in range(SAMPLES)}) if length else []
    if not indices:
        return found
    with kept_random_state():
        try:
            items, drawn = zip(*[_drawn_item(loader, 0, index) for index in indices], strict=True)
            again = loader.item(0, indices[0])
            later, draws = _drawn_item(loader, 1, indices[0]) if drawn[0] else (None, True)
        except Exception as error:  # noqa: BLE001 - whatever a data set may raise
            # Training may never ask for this sample, and raises the same if it does.
            log.info("the data set was not examined: %s", error)
            return found
        line = _line_of(type(loader.dataset).__getitem__)
        if not _same(items[0], again):
            if any(_generators(loader.dataset, MAX_DEPTH, set())):
                found.seen[OWN_DRAWS] = line
            else:
                found.wrong = (
                    f"sample {indices[0]} of the data set{_at(line)} is another when it is loaded again: it {_CURE}"
                )
        elif not draws and _same(again, later):
            found.wrong = (
                f"sample {indices[0]} of the data set{_at(line)} is made with random numbers when loaded first, "
                "and kept: a worker that joins meets it first in another epoch, and makes another. Draw from a "
                "generator that the index alone seeds, or draw each time"
            )
        else:
            for index, item in zip(indices, items, strict=True):
                found.fingerprints |= dict(_fingerprints(f"dataset[{index}]", item))
        if loader.collate is not default_collate and len(items) > 1:
            _examine_collate(loader, items, found)
            _examine_lengths(loader, items, found)
            if found.fingerprints and not (found.wrong or found.draws):
                for index, item in zip(indices, items, strict=True):
                    found.fingerprints |= _collated_fingerprints(loader, index, item)
    return found


def examine_streams(reader: StreamReader) -> Examination:
    """Examine the collate function of streams, with the first samples of the first one. Global random generators stay
    as they are."""
    found = Examination()
    if reader.collate is default_collate:
        return found
    try:
        items, _ = reader.read(0, 0, 0, SAMPLES)
    except Exception as error:  # noqa: BLE001 - whatever a stream may raise
        log.info("the streams were not examined: %s", error)  # training raises the same
        return found
    with kept_random_state():
        if len(items) > 1:
            _examine_collate(reader, items, found)
    return found


def _drawn_item(loader: SampleLoader, epoch: int, index: int) -> tuple[Any, bool]:
    """A sample, and whether loading it has drawn random numbers."""
    loader.seed(epoch, index)
    before = random_states()
    with loader.loading():
        item = loader.dataset[index]
    return item, have_drawn(before)


def look_again(loader: SampleLoader, earlier: dict[str, Fingerprint]) -> None:
    """Load one of the samples of which there are fingerprints, and replace these by what it is now.

    A worker that joins has the data set, and what `collate` reads, as the script made it: one that the script has
    changed since, such as a list that it shuffles at each epoch, is another. Global random generators stay as they
    are.
    """
    names = [name for name in earlier if name.startswith("dataset[")]
    if not names:
        return
    index = int(names[len(names) // 2].partition("[")[2].partition("]")[0])
    with kept_random_state():
        try:
            item = loader.item(0, index)
        except Exception as error:  # noqa: BLE001 - whatever a data set may raise
            log.debug("sample %d was not looked at again: %s", index, error)  # it may have become shorter
            return
        found = dict(_fingerprints(f"dataset[{index}]", item))
        if any(name.startswith(COLLATED) for name in earlier):
            found |= _collated_fingerprints(loader, index, item)
    earlier.update({name: value for name, value in found.items() if name in earlier})


def _collated_fingerprints(loader: SampleLoader, index: int, item: Any) -> dict[str, Fingerprint]:
    """Of a batch of this sample alone."""
    try:
        loader.seed(0, 0)
        batch = loader.collate([copy.deepcopy(item)])
    except Exception as error:  # noqa: BLE001 - whatever the function may raise, for one sample
        log.debug("collate was not looked at: %s", error)
        return {}
    return dict(_fingerprints(f"{COLLATED}dataset[{index}])", batch))


def _examine_lengths(loader: SampleLoader, items: Sequence[Any], found: Examination) -> None:
    """Compare the lengths that samples have in batches of one, and among each other."""
    try:
        alone = [_row_shapes(loader, [item]) for item in items]
        together = _row_shapes(loader, items)
    except Exception as error:  # noqa: BLE001 - whatever the function may raise, for one sample
        log.debug("the lengths that collate gives were not looked at: %s", error)
        return
    found.pads = len(set(map(tuple, alone))) > 1
    cut = any(_longer(one, other) for shapes in alone for one, other in zip(shapes, together, strict=False))
    if cut and not (found.wrong or found.draws):
        found.seen[CUTS] = _line_of(loader.collate)


def _row_shapes(loader: SampleLoader, items: Sequence[Any]) -> list[torch.Size | None]:
    """Of each part of a batch of these samples: the shape of a sample in it; None if it has not one row for each."""
    loader.seed(0, 0)
    parts = tree_leaves(loader.collate(copy.deepcopy(list(items))))  # many take samples to pieces
    shapes = [part.shape if isinstance(part, torch.Tensor) else torch.Size() for part in parts]
    return [shape[1:] if shape[:1] == (len(items),) else None for shape in shapes]


def _longer(one: torch.Size | None, other: torch.Size | None) -> bool:
    """Whether a shape is longer than another of as many dimensions in any of them."""
    return one is not None and other is not None and len(one) == len(other) and any(map(gt, one, other))


def _examine_collate(loader: SampleLoader | StreamReader, items: Sequence[Any], found: Examination) -> None:
    def collated(count: int) -> Any:
        loader.seed(0, 0)
        return loader.collate(copy.deepcopy(list(items[:count])))  # many take samples to pieces

    try:
        loader.seed(0, 0)
        before = random_states()
        whole = collated(len(items))
        found.draws = have_drawn(before)
        again, half = collated(len(items)), collated(len(items) // 2)
    except Exception as error:  # noqa: BLE001 - whatever the function may raise
        # It may refuse so few samples, and samples may refuse to be copied: a batch of the training will show.
        log.debug("collate was not examined: %s", error)
        return
    line = _line_of(loader.collate)
    if not _same(whole, again):
        found.wrong = found.wrong or f"collate{_at(line)} gives another batch for the same samples: it {_CURE}"
    elif not found.draws and _mixes(whole, half, len(items)):
        found.seen[MIXES] = line


def _mixes(whole: Any, half: Any, count: int) -> bool:
    """Whether a sample is another among all than among half of them. (They may lie in another order, and have another
    length.)"""
    parts = tree_leaves(whole), tree_leaves(half)
    if len(parts[0]) != len(parts[1]):
        return False
    for all_rows, some_rows in zip(*parts, strict=True):
        if not (isinstance(all_rows, torch.Tensor) and isinstance(some_rows, torch.Tensor) and all_rows.ndim):
            continue
        if len(all_rows) != count or not some_rows.ndim or len(some_rows) != count // 2:
            continue
        if all_rows.shape[1:] == some_rows.shape[1:] and not all(
            any(_same(row, other) for other in all_rows) for row in some_rows
        ):
            return True
    return False


def _same(one: Any, other: Any) -> bool:
    """Whether two samples, or batches, have the same numbers and text; other things are not compared."""
    first, second = tree_leaves(one), tree_leaves(other)
    return len(first) == len(second) and all(map(_same_leaf, first, second))


def _same_leaf(one: Any, other: Any) -> bool:
    a, b = _numbers(one), _numbers(other)
    if a is not None and b is not None:
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(one, bool | int | float | str | bytes):
        return bool(one == other) or one != one
    return True


def _numbers(leaf: Any) -> torch.Tensor | None:
    """An array, or an image (by numpy's array interface), as a tensor."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    numpy = sys.modules.get("numpy")
    if numpy is not None and (isinstance(leaf, numpy.ndarray) or hasattr(leaf, "__array_interface__")):
        array = numpy.asarray(leaf)
        return torch.from_numpy(array.copy()) if array.dtype.kind in "iufb" and array.dtype.itemsize <= 8 else None
    return None


def _fingerprints(name: str, item: Any) -> Iterator[tuple[str, Fingerprint]]:
    parts = [each for each in tree_leaves(item) if isinstance(each, int | float) or _numbers(each) is not None]
    for place, part in enumerate(parts[:MAX_PARTS]):
        numbers = torch.as_tensor(part) if isinstance(part, int | float) else _numbers(part)
        if numbers is None or not numbers.numel() or numbers.is_complex():
            continue
        values = numbers.flatten()[:: max(1, numbers.numel() // MAX_NUMBERS)].to("cpu", torch.float64)
        for weighting, value in enumerate(_weighted(values)):
            if math.isfinite(value):
                yield f"{name}[{place}]" + (f" weighted {weighting}" if weighting else ""), Fingerprint(value)


def _weighted(values: torch.Tensor) -> list[float]:
    """`WEIGHTINGS` sums of values, each with other weights, over their norm; of one value itself."""
    if len(values) == 1:
        return values.tolist()
    frequencies = torch.arange(1.0, WEIGHTINGS + 1, dtype=torch.float64)
    weights = torch.cos(torch.outer(frequencies, torch.arange(1.0, len(values) + 1, dtype=torch.float64)))
    sums: list[float] = (weights @ values / (float(values.norm()) or 1.0)).tolist()
    return sums


def _generators(thing: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Random generators that a data set, or what it holds, has of its own."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    if isinstance(thing, kinds):
        yield thing
    elif depth and id(thing) not in seen and not isinstance(thing, type | torch.Tensor):
        seen.add(id(thing))
        within = list(thing)[:100] if isinstance(thing, list | tuple) else getattr(thing, "__dict__", {})
        for each in within.values() if isinstance(within, dict) else within:
            yield from _generators(each, depth - 1, seen)


def _line_of(function: Callable[..., Any]) -> str:
    """File and line at which the script defines a function; "" if it does not."""
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None or not is_script(code.co_filename):
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _at(line: str) -> str:
    return f" ({line})" if line else ""
