"""`Session.state`: plain values, tensors and random generators of the script that are part of the training state."""

from __future__ import annotations

import random
import sys
from collections import UserDict
from collections.abc import Iterator
from typing import Any, Self

import torch

from malletrain.elastic.state.training_state import SCRIPT_VALUES, require_plain

_GENERATOR, _PYTHON, _NUMPY = "\0generator", "\0random", "\0numpy"


class SharedValues(UserDict[str, Any]):
    """A dictionary whose values a worker that joins, or a job that resumes, gets as they are in the training.

    Values are numbers, text, None, tensors, lists, tuples and dictionaries of such, `torch.Generator`,
    `random.Random`, and numpy's `Generator` and `RandomState`. Set their first values before the first epoch. Raises
    `ElasticError`: a value is of another kind."""

    def __setitem__(self, name: str, value: Any) -> None:
        require_plain(_captured(value), "tracked", SCRIPT_VALUES, name)
        self.data[name] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)  # UserDict's own would look at no value
        return self

    def plain(self) -> dict[str, Any]:
        """The values that are numbers or text."""
        return {name: value for name, value in self.data.items() if isinstance(value, bool | int | float | str)}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, and those of dictionaries and lists, by path."""
        for name, value in self.data.items():
            yield from _tensors(name, value)

    def state_dict(self) -> dict[str, Any]:
        return {name: _captured(value) for name, value in self.data.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.data[name] = _restored(value, self.data.get(name))


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(f"{name}.{key}", each)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _tensors(f"{name}.{place}", each)


def _captured(value: Any) -> Any:
    """A value with plain data and tensors in place of random generators."""
    if isinstance(value, dict):
        return {key: _captured(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        captured = [_captured(each) for each in value]
        return captured if isinstance(value, list) else tuple(captured)
    if isinstance(value, torch.Generator):
        return {_GENERATOR: value.get_state()}
    if isinstance(value, random.Random):
        version, internal, gauss = value.getstate()
        return {_PYTHON: [version, list(internal), gauss]}
    if _is_numpy(value, "Generator"):
        return {_NUMPY: _numbers(value.bit_generator.state)}
    if _is_numpy(value, "RandomState"):
        return {_NUMPY: _numbers(value.get_state(legacy=False))}
    return value


def _restored(value: Any, present: Any) -> Any:
    """What `_captured` gave, in the objects that are there: whoever else holds them sees the values."""
    if isinstance(value, dict):
        if _GENERATOR in value:
            generator = present if isinstance(present, torch.Generator) else torch.Generator()
            generator.set_state(value[_GENERATOR].cpu().clone())
            return generator
        if _PYTHON in value:
            version, internal, gauss = value[_PYTHON]
            twister = present if isinstance(present, random.Random) else random.Random()
            twister.setstate((version, tuple(internal), gauss))
            return twister
        if _NUMPY in value:
            if _is_numpy(present, "Generator"):
                present.bit_generator.state = value[_NUMPY]
            elif _is_numpy(present, "RandomState"):
                present.set_state(value[_NUMPY])
            return present
        table = present if isinstance(present, dict) else {}
        restored = {key: _restored(each, table.get(key)) for key, each in value.items()}
        table.clear()
        table.update(restored)
        return table
    if isinstance(value, list | tuple):
        same = isinstance(present, list | tuple) and len(present) == len(value)
        each = [_restored(*pair) for pair in zip(value, present if same else [None] * len(value), strict=True)]
        if isinstance(value, tuple):
            return type(present)(*each) if hasattr(present, "_fields") else tuple(each)
        row = present if isinstance(present, list) else []
        row[:] = each
        return row
    if isinstance(value, torch.Tensor):
        if not isinstance(present, torch.Tensor) or present.shape != value.shape:
            return value.clone()
        with torch.no_grad():
            present.copy_(value)
        return present
    return value


def _is_numpy(value: Any, kind: str) -> bool:
    """Whether a value is one of numpy's generators of this class."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy.random, kind))


def _numbers(node: Any) -> Any:
    """A bit generator's state without numpy's types."""
    if isinstance(node, dict):
        return {key: _numbers(value) for key, value in node.items()}
    return node.tolist() if hasattr(node, "tolist") else node
