"""Folded state as bytes and back: plain values, containers, numbers of NumPy, and objects of this package's classes.

No pickle: decoding makes objects of classes that this package defines and sets their attributes, and runs nothing of
them. The text is JSON whose lists begin with a tag, and at its head the classes with the names of their attributes.
An object that can change and is held twice is one object afterwards, too.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from malletrain.domain.errors import MalletrainError

#: Packages whose classes may be in a state. `loop` is folded, the others are what it holds.
_ROOMS = ("malletrain.domain.", "malletrain.sizing.", "malletrain.learn.", "malletrain.decide.", "malletrain.loop.")

_ATOMS = frozenset({bool, int, float, str, type(None)})

_TUPLE, _LIST, _DICT, _SET, _FROZENSET, _DEQUE, _COUNTER, _ORDERED, _ENUM, _SAME, _SCALAR = range(11)
_FIRST_CLASS = 16  #: Tags from here on are classes.

_CONTAINERS: Mapping[int, type[Any]] = {_TUPLE: tuple, _LIST: list, _SET: set, _FROZENSET: frozenset}
_MAPPINGS: Mapping[int, type[Any]] = {_DICT: dict, _COUNTER: Counter, _ORDERED: OrderedDict}
_UNORDERED = (_SET, _FROZENSET)
_BY_TAG: Mapping[int, type[Any]] = {**_CONTAINERS, **_MAPPINGS, _DEQUE: deque}
_TAGS: Mapping[type[Any], int] = {kind: tag for tag, kind in _BY_TAG.items()}

#: Attributes that are only kept to save work, by class, and what they are at first: they are made anew when they are
#: asked for.
_KEPT_TO_SAVE_WORK: Mapping[str, Mapping[str, object]] = {
    "malletrain.loop.ledger:Ledger": {"_views": {}, "_changed": set()},
    "malletrain.loop.job_state:JobState": {"costs": None},
}


class NotEncodable(MalletrainError):
    """A state holds something that the codec does not have, or bytes are not a state of this release."""


def encoded(value: object) -> bytes:
    """`value` as bytes.

    Raises:
        NotEncodable: it holds something else than plain values, containers and objects of this package.
    """
    encoder = _Encoder()
    body = encoder.encode(value)
    return json.dumps([encoder.classes, body], separators=(",", ":")).encode()


def decoded(state: bytes) -> Any:
    """The value that `encoded` was given.

    Raises:
        NotEncodable: these are other bytes.
    """
    try:
        classes, body = json.loads(state)
        return _Decoder(classes).decode(body)
    except (ValueError, TypeError, LookupError, AttributeError, ImportError, RecursionError) as error:
        raise NotEncodable(f"the image of the ledger cannot be read: {error}") from error


class _Encoder:
    def __init__(self) -> None:
        self.classes: list[tuple[str, list[str]]] = []
        self._kinds: dict[type[Any], tuple[int, list[str], bool]] = {}
        self._places: dict[int, int] = {}  # by id; `_alive` keeps what is named by it
        self._alive: list[object] = []

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if (tag := _TAGS.get(kind)) is None:
            return self._object(value, kind)
        if tag in _MAPPINGS:
            found: list[Any] = [tag]
            for key, item in value.items():
                found.append(self.encode(key))
                found.append(self.encode(item))
            return found
        items = map(self.encode, value)
        if kind is deque:
            return [tag, value.maxlen, *items]
        return [tag, *(sorted(items, key=repr) if tag in _UNORDERED else items)]  # the same state, the same bytes

    def _object(self, value: Any, kind: type[Any]) -> Any:
        if isinstance(value, np.generic) and value.dtype.kind in "fiub":
            return [_SCALAR, value.dtype.str, value.item()]
        number, names, changes = self._kinds.get(kind) or self._new_kind(value, kind)
        if isinstance(value, Enum):
            return [_ENUM, number, value.value]
        if changes:
            if (same := self._places.get(id(value))) is not None:
                return [_SAME, same]
            self._places[id(value)] = len(self._alive)
            self._alive.append(value)
        anew = _KEPT_TO_SAVE_WORK.get(self.classes[number][0], {})
        return [
            _FIRST_CLASS + number,
            *(self.encode(anew[name] if name in anew else getattr(value, name)) for name in names),
        ]

    def _new_kind(self, value: Any, kind: type[Any]) -> tuple[int, list[str], bool]:
        if not f"{kind.__module__}.".startswith(_ROOMS) or "<locals>" in kind.__qualname__:
            raise NotEncodable(
                f"the ledger holds a {kind.__module__}.{kind.__qualname__}, which an image cannot keep"
            )
        if issubclass(kind, Enum):
            names, changes = [], False
        elif is_dataclass(kind):
            names = [each.name for each in fields(kind)]
            changes = not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        elif hasattr(value, "__dict__"):
            names, changes = sorted(vars(value)), True
        else:
            raise NotEncodable(f"{kind.__qualname__} has neither fields nor a __dict__: an image cannot keep it")
        found = self._kinds[kind] = (len(self.classes), names, changes)
        self.classes.append((f"{kind.__module__}:{kind.__qualname__}", names))
        return found


class _Decoder:
    def __init__(self, classes: list[Any]) -> None:
        self._classes = [(_class_of(name), names) for name, names in classes]
        self._changes = [
            not issubclass(kind, Enum) and not (is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
            for kind, _ in self._classes
        ]
        self._places: list[Any] = []

    def decode(self, text: Any) -> Any:
        if type(text) is not list:
            return text
        tag, decode = text[0], self.decode
        if tag >= _FIRST_CLASS:
            number = tag - _FIRST_CLASS
            kind, names = self._classes[number]
            made = object.__new__(kind)
            if self._changes[number]:
                self._places.append(made)
            if len(names) != len(text) - 1:
                raise ValueError(f"a {kind.__qualname__} has {len(text) - 1} attributes, not {len(names)}")
            place: Callable[[Any, str, Any], None] = object.__setattr__  # frozen ones, too
            for name, item in zip(names, text[1:], strict=True):
                place(made, name, item if type(item) is not list else decode(item))
            return made
        items = text[1:]
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](map(decode, items))
        if tag in _MAPPINGS:
            return self._pairs(items, _MAPPINGS[tag]())
        if tag == _DEQUE:
            return deque(map(decode, items[1:]), maxlen=items[0])
        if tag == _ENUM:
            return self._classes[items[0]][0](items[1])
        if tag == _SAME:
            return self._places[items[0]]
        if tag == _SCALAR:
            return np.dtype(items[0]).type(items[1])
        raise ValueError(f"tag {tag!r} is none")

    def _pairs(self, items: list[Any], into: Any) -> Any:
        for key, item in zip(items[::2], items[1::2], strict=True):
            into[self.decode(key)] = self.decode(item)
        return into


def _class_of(name: str) -> type[Any]:
    module, _, path = name.partition(":")
    if not f"{module}.".startswith(_ROOMS):
        raise ValueError(f"{name} is no class of a ledger")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(f"{name} is no class of a ledger")
    return found
