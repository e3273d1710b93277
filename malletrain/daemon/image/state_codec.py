"""Folded state as bytes and back: plain values, containers, numbers of NumPy, and objects of this package's classes.

No pickle: decoding makes objects of classes that this package defines and sets their attributes, and runs nothing of
them. The text is JSON whose lists begin with a tag, and at its head the classes with the names of their attributes.
An object that can change and is held twice is one object afterwards, too."""

import importlib
import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np

from malletrain.domain.errors import MalletrainError

#: Packages whose classes may be in a state. `loop` is folded, the others are what it holds.
_ROOMS = ("malletrain.domain.", "malletrain.sizing.", "malletrain.learn.", "malletrain.decide.", "malletrain.loop.")

_ATOMS = frozenset({bool, int, float, str, type(None)})

#: By tag.
_CONTAINERS = (tuple, list, dict, set, frozenset, deque, Counter, OrderedDict)
_TAGS: Mapping[type[Any], int] = {kind: tag for tag, kind in enumerate(_CONTAINERS)}
_ENUM, _SAME, _SCALAR = range(8, 11)
_FIRST_CLASS = 16  #: Tags from here on are classes.

#: Attributes that are only kept to save work, by class, and what they are at first: they are made anew when they are
#: asked for.
_KEPT_TO_SAVE_WORK: Mapping[str, Mapping[str, object]] = {
    "malletrain.loop.ledger:Ledger": {"_views": {}, "_changed": set()},
    "malletrain.loop.job_state:JobState": {"costs": None},
}


class NotEncodable(MalletrainError):
    """A state holds something that the codec does not have, or bytes are not a state of this release."""


def encoded(value: object) -> bytes:
    """`value` as bytes. Raises NotEncodable: it holds something else than plain values, containers and objects of
    this package."""
    encoder = _Encoder()
    body = encoder.encode(value)
    return json.dumps([encoder.classes, body], separators=(",", ":")).encode()


def decoded(state: bytes) -> Any:
    """The value that `encoded` was given. Raises NotEncodable: these are other bytes."""
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
        if kind is deque:
            return [tag, value.maxlen, *map(self.encode, value)]
        items = map(self.encode, chain.from_iterable(value.items()) if issubclass(kind, dict) else value)
        # The same state, the same bytes.
        return [tag, *(sorted(items, key=repr) if kind in (set, frozenset) else items)]

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
            names = []
        elif is_dataclass(kind):
            names = [each.name for each in fields(kind)]
        elif hasattr(value, "__dict__"):
            names = sorted(vars(value))
        else:
            raise NotEncodable(f"{kind.__qualname__} has neither fields nor a __dict__: an image cannot keep it")
        found = self._kinds[kind] = (len(self.classes), names, _changes(kind))
        self.classes.append((f"{kind.__module__}:{kind.__qualname__}", names))
        return found


class _Decoder:
    def __init__(self, classes: list[Any]) -> None:
        self._classes = [(kind := _class_of(name), names, _changes(kind)) for name, names in classes]
        self._places: list[Any] = []

    def decode(self, text: Any) -> Any:
        if type(text) is not list:
            return text
        tag, rest = text[0], text[1:]
        if tag >= _FIRST_CLASS:
            kind, names, changes = self._classes[tag - _FIRST_CLASS]
            return self._object(kind, names, changes, rest)
        if tag == _ENUM:
            return self._classes[rest[0]][0](rest[1])
        if tag == _SAME:
            return self._places[rest[0]]
        if tag == _SCALAR:
            return np.dtype(rest[0]).type(rest[1])
        kind, items = _CONTAINERS[tag], [each if type(each) is not list else self.decode(each) for each in rest]
        if issubclass(kind, dict):
            return kind(dict(zip(items[::2], items[1::2], strict=True)))
        return deque(items[1:], items[0]) if kind is deque else kind(items)

    def _object(self, kind: type[Any], names: list[str], changes: bool, values: list[Any]) -> Any:
        made = object.__new__(kind)
        if changes:
            self._places.append(made)
        place: Callable[[Any, str, Any], None] = object.__setattr__  # frozen ones, too
        for name, value in zip(names, values, strict=True):
            place(made, name, value if type(value) is not list else self.decode(value))
        return made


def _changes(kind: type[Any]) -> bool:
    """Whether objects of a class can change."""
    return not issubclass(kind, Enum) and not (is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


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
