"""Plain attributes of a data set that the script may set while it trains: `dataset.epoch = epoch`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from malletrain.elastic.errors import ElasticError

#: How deep data sets and transforms within data sets are looked into, and how many attributes of all are looked at.
MAX_DEPTH, MAX_ATTRIBUTES = 4, 1000

#: How many entries a list has at most whose values are looked at, and of what types they are.
MAX_LISTED, _LISTED = 1 << 16, frozenset({bool, int, str})

_PLAIN = (bool, int, float, str, bytes, type(None))


def plain_attributes(dataset: Any) -> dict[str, Any]:
    """Attributes that are numbers, text or short tuples of such, by path: `epoch`, `dataset.transform.size`."""
    found: dict[str, Any] = {}
    for name, value in _walk(dataset, "", MAX_DEPTH, set()):
        found[name] = value
        if len(found) >= MAX_ATTRIBUTES:
            break
    return found


def tensor_attributes(dataset: Any) -> dict[str, torch.Tensor]:
    """Tensors that a data set, or one within it (`Subset.dataset`), has itself or in a short sequence, by path."""
    found: dict[str, torch.Tensor] = {}
    for name, value in _fields(dataset):
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, list | tuple) and len(value) <= 8:
            found |= {f"{name}[{place}]": each for place, each in enumerate(value) if isinstance(each, torch.Tensor)}
    return found


def listed_attributes(dataset: Any) -> dict[str, bytes]:
    """Lists of whole numbers or text, and arrays of whole numbers, that a data set or one within it has itself: their
    values by path. Those of more than `MAX_LISTED` are left out."""
    found: dict[str, bytes] = {}
    for name, value in _fields(dataset):
        if isinstance(value, list) and len(value) <= MAX_LISTED and all(type(each) in _LISTED for each in value):
            found[name] = repr(value).encode(errors="surrogateescape")
        elif _is_array(value) and value.dtype.kind in "iub" and value.size <= MAX_LISTED:
            found[name] = value.tobytes()
    return found


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _fields(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of a data set, and of those within it, by path."""
    path = ""
    for _ in range(MAX_DEPTH):
        fields = getattr(dataset, "__dict__", None)
        if not isinstance(fields, dict):
            break
        yield from [(f"{path}{name}", value) for name, value in fields.items()]
        dataset, path = fields.get("dataset"), f"{path}dataset."


def set_attributes(dataset: Any, values: Mapping[str, Any]) -> None:
    """Set attributes by path, as `plain_attributes` names them.

    Raises:
        ElasticError: the data set has no such object.
    """
    for path, value in values.items():
        *owners, name = path.split(".")
        owner = dataset
        for each in owners:
            owner = getattr(owner, "__dict__", {}).get(each)
        if owner is None:
            raise ElasticError(
                f"the script has set {path} on its data set, and the processes that load have no "
                f"{'.'.join(owners)}: make such objects before Session(..., loaders=N), or load with loaders=0"
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
