"""Plain attributes of a data set that the script may set while it trains: `dataset.epoch = epoch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from malletrain.elastic.errors import ElasticError

#: How deep data sets and transforms within data sets are looked into, and how many attributes of all are looked at.
MAX_DEPTH, MAX_ATTRIBUTES = 4, 1000

_PLAIN = (bool, int, float, str, bytes, type(None))


def plain_attributes(dataset: Any) -> dict[str, Any]:
    """Attributes that are numbers, text or short tuples of such, by path: `epoch`, `dataset.transform.size`."""
    found: dict[str, Any] = {}
    for name, value in _walk(dataset, "", MAX_DEPTH, set()):
        found[name] = value
        if len(found) >= MAX_ATTRIBUTES:
            break
    return found


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
