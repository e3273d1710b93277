"""JSON to dataclasses by their annotations: one codec for workers' messages, people's rows, and their API schemas.

An annotation is read once into a `Shape`; `Codec.decode` checks a JSON value against it, `api.schemas` describes it.
Annotations may be scalars, dataclasses, `X | None`, `tuple[X, ...]` and mappings. Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from malletrain.wire.errors import WireError

T = TypeVar("T")

#: Whole numbers beyond this are no floats.
MAX_MAGNITUDE = 1e300

#: The key of a field's metadata that bounds it: characters of a text, entries of a mapping. What an untrusted sender
#: has beyond is cut off: a report is refused whole, and what a world depends on may be in it.
MOST = "most"

#: Entries of one object of plain JSON.
MAX_PLAIN_ENTRIES = 64


class ShapeKind(Enum):
    """What a JSON value must look like."""

    SCALAR = auto()
    OPTIONAL = auto()  #: the inner shape, or null
    LIST = auto()
    MAPPING = auto()  #: text keys; values of the annotated type
    RECORD = auto()  #: the object of a dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """One annotation. `type` is that of a scalar, a record or a mapping's values; `inner` that of an item."""

    kind: ShapeKind
    type: Any
    inner: Shape | None = None


@cache
def shape_of(annotation: Any) -> Shape:
    """The shape of an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is types.UnionType and types.NoneType in arguments:
        inner = next(kind for kind in arguments if kind is not types.NoneType)
        return Shape(ShapeKind.OPTIONAL, None, shape_of(inner))
    if origin is tuple:
        return Shape(ShapeKind.LIST, None, shape_of(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return Shape(ShapeKind.MAPPING, arguments[1])
    kind = ShapeKind.RECORD if dataclasses.is_dataclass(annotation) else ShapeKind.SCALAR
    return Shape(kind, annotation)


@dataclass(frozen=True, slots=True)
class _Fields:
    shapes: Mapping[str, Shape]
    required: tuple[str, ...]
    most: Mapping[str, int]


_FIELDS: dict[type[Any], _Fields] = {}


def _fields(record: type[Any]) -> _Fields:
    if record not in _FIELDS:
        hints, given = typing.get_type_hints(record), dataclasses.fields(record)
        required = (f.name for f in given if f.default is f.default_factory is dataclasses.MISSING)
        most = {f.name: f.metadata[MOST] for f in given if MOST in f.metadata}
        _FIELDS[record] = _Fields({f.name: shape_of(hints[f.name]) for f in given}, tuple(required), most)
    return _FIELDS[record]


def fields_of(record: type[Any]) -> Mapping[str, Shape]:
    """The shapes of a dataclass's fields, in order."""
    return _fields(record).shapes


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest text (characters), list, mapping and whole number of an untrusted sender."""

    text: int
    items: int
    entries: int
    integer: int


@dataclass(frozen=True, slots=True)
class Codec:
    """Decodes JSON values.

    Attributes:
        error: raised, with the path of the field and what it must be.
        bounds: of what an untrusted sender may send. None: the sender is trusted. Nothing is bounded, mappings are
            taken as they came, and numbers may be infinite or not a number.
        missing: what is said of a key that is not there.
    """

    error: type[WireError]
    bounds: Bounds | None = None
    missing: str = "missing"

    def record(self, record: type[T], raw: object, where: str = "") -> T:
        """An object of the dataclass `record`; `where` is its path. Unknown keys (a newer peer) are passed over.

        Raises:
            WireError: of class `error`: a key is missing, of another type, or beyond its bounds.
        """
        if not isinstance(raw, dict):
            raise self.error(f"{where or record.__name__.lower()}: must be an object")
        shapes = fields_of(record)
        most = _fields(record).most if self.bounds is not None else {}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key in shapes:
                decoded = self.decode(shapes[key], value, _join(where, key))
                values[key] = _cut(decoded, most[key]) if key in most else decoded
        for name in _fields(record).required:
            if name not in values:
                raise self.error(f"{_join(where, name)}: {self.missing}")
        return record(**values)

    def decode(self, shape: Shape, value: object, where: str) -> Any:
        """The value that `shape` asks for.

        Raises:
            WireError: as `record`.
        """
        if shape.kind is ShapeKind.OPTIONAL and shape.inner is not None:
            return None if value is None else self.decode(shape.inner, value, where)
        if shape.kind is ShapeKind.LIST and shape.inner is not None:
            limit = None if self.bounds is None else self.bounds.items
            if not isinstance(value, list | tuple) or not _fits(value, limit):
                raise self.error(f"{where}: must be a list{_at_most(limit)}")
            item = shape.inner
            return tuple(self.decode(item, each, f"{where}[{i}]") for i, each in enumerate(value))
        if shape.kind is ShapeKind.MAPPING:
            return self._mapping(shape.type, value, where)
        if shape.kind is ShapeKind.RECORD:
            return self.record(shape.type, value, where)
        return self.scalar(shape.type, value, where)

    def scalar(self, wanted: Any, value: object, where: str) -> Any:
        """A bool, int, float or text; a whole number is taken for a float.

        Raises:
            WireError: as `record`.

        Text of an untrusted sender comes without what could steer a terminal: see `steers_nothing`.
        """
        if wanted is bool:
            if isinstance(value, bool):
                return value
            raise self.error(f"{where}: must be true or false")
        if wanted is int:
            limit = None if self.bounds is None else self.bounds.integer
            if isinstance(value, int) and not isinstance(value, bool) and (limit is None or abs(value) <= limit):
                return value
            raise self.error(f"{where}: must be a whole number")
        if wanted is float:
            if isinstance(value, float) and self.bounds is None:
                return value
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_MAGNITUDE:
                return float(value)
            raise self.error(f"{where}: must be a finite number")
        limit = None if self.bounds is None else self.bounds.text
        if isinstance(value, str) and _fits(value, limit) and (limit is None or "\0" not in value):
            return value if limit is None else steers_nothing(value)
        raise self.error(f"{where}: must be text{_at_most(limit, ' characters')}")

    def plain(self, value: object, where: str, depth: int = 3) -> Any:
        """JSON of bounded size and depth, as it came; numbers that JSON cannot hold become None.

        Raises:
            WireError: it is too deep, too long, or nothing that JSON holds.
        """
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.scalar(int, value, where)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, str):
            return self.scalar(str, value, where)
        if depth and isinstance(value, list | tuple) and len(value) <= 256:
            return [self.plain(each, f"{where}[{i}]", depth - 1) for i, each in enumerate(value)]
        if (
            depth
            and isinstance(value, dict)
            and len(value) <= MAX_PLAIN_ENTRIES
            and all(isinstance(key, str) for key in value)
        ):
            return {
                steers_nothing(key[:200]): self.plain(each, f"{where}.{key}", depth - 1)
                for key, each in value.items()
            }
        raise self.error(f"{where}: must be plain JSON, at most three levels deep")

    def _mapping(self, wanted: Any, value: object, where: str) -> dict[str, Any]:
        limit = None
        if self.bounds is not None:
            limit = self.bounds.entries if wanted is float else MAX_PLAIN_ENTRIES
        if not isinstance(value, dict) or not _fits(value, limit):
            raise self.error(f"{where}: must be an object{_at_most(limit, ' entries')}")
        if limit is None:
            return dict(value)
        result: dict[str, Any] = {}
        for key, each in value.items():
            if not isinstance(key, str) or len(key) > 200:
                raise self.error(f"{where}: a key must be text of at most 200 characters")
            path = f"{where}.{key}"
            name = steers_nothing(key)
            result[name] = self.scalar(float, each, path) if wanted is float else self.plain(each, path)
        return result


def one_line(text: str, characters: int) -> str:
    """The first so many characters, with a blank for each that is not printable, such as a line break."""
    return "".join(each if each.isprintable() else " " for each in text[:characters])


def steers_nothing(text: str) -> str:
    """The text with U+FFFD for each character that is not printable, line breaks and tabs apart.

    Escape sequences, marks that reverse the direction of writing, and halves of surrogate pairs go.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _cut(value: object, most: int) -> object:
    """The first `most` characters of a text, or entries of a mapping; anything else as it is."""
    if isinstance(value, dict):
        return dict(islice(value.items(), most))
    return value[:most] if isinstance(value, str) else value


def _fits(value: Sized, limit: int | None) -> bool:
    return limit is None or len(value) <= limit


def _at_most(limit: int | None, unit: str = "") -> str:
    return "" if limit is None else f" of at most {limit}{unit}"


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
