"""JSON to dataclasses and back by their annotations: one codec for workers' messages, people's rows and their API
schemas, and the journal's events.

A `Codec` makes of an annotation, once, a function that checks a JSON value. Annotations may be scalars, enums,
dataclasses, `X | None`, `tuple[X, ...]`, `tuple[X, Y]`, mappings, and unions, which are any JSON. Of the metadata of
a field `MOST` bounds it, `key` is its name in JSON, and a `sparse` one is not written while it has its default.
Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

#: Whole numbers beyond this are no floats.
MAX_MAGNITUDE = 1e300

#: The key of a field's metadata that bounds it: characters of a text, entries of a mapping. What an untrusted sender
#: has beyond is cut off: a report is refused whole, and what a world depends on may be in it.
MOST = "most"

#: The largest text (characters), list and mapping, and whole number of an untrusted sender.
MAX_TEXT_CHARS = 4000
MAX_ITEMS = 4096
MAX_INTEGER = 2**62

#: Entries of one object of plain JSON.
MAX_PLAIN_ENTRIES = 64

Reader = Callable[[Any], Any]


class _Field(NamedTuple):
    name: str
    key: str
    annotation: Any
    default: Any  # MISSING: none
    is_sparse: bool
    most: int | None


def _new_fields(record: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(record)
    return tuple(
        _Field(
            each.name,
            each.metadata.get("key", each.name),
            hints[each.name],
            each.default if each.default_factory is dataclasses.MISSING else each.default_factory(),
            bool(each.metadata.get("sparse")),
            each.metadata.get(MOST),
        )
        for each in dataclasses.fields(record)
    )


#: The fields of a dataclass.
_fields: Callable[[Any], tuple[_Field, ...]] = cache(_new_fields)


class _Fault(Exception):
    """`what` a value must be, and the path to it, innermost first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def under(self, step: str) -> _Fault:
        """The same fault, one step further up."""
        self.path.append(step)
        return self

    def said(self, where: str) -> str:
        """The fault in words; `where` is the path of the whole."""
        path = where
        for step in reversed(self.path):
            path += step if step.startswith("[") or not path else f".{step}"
        return f"{path}: {self.what}"


@dataclass(frozen=True, slots=True)
class Codec:
    """Reads and writes JSON values."""

    error: type[Exception]  #: raised, with the path of the field and what it must be
    #: Whether what is read is bounded. Else the sender is trusted: numbers stay as they were written, whole or not,
    #: and those that JSON lacks are words (nan, inf).
    is_bounded: bool = False
    missing: str = "missing"  #: what is said of a key that is not there
    bare: tuple[type[Any], ...] = ()  #: dataclasses of one field that stands for them
    _records: dict[type[Any], Reader] = field(default_factory=dict, init=False, repr=False, compare=False)

    def record(self, record: type[T], raw: object, where: str = "") -> T:
        """An object of the dataclass `record`; `where` is its path. Unknown keys (a newer peer) are passed over.
        Raises Exception: of class `error`: a key is missing, of another type, or beyond its bounds."""
        try:
            made: T = self._record_reader(record)(raw)
        except _Fault as fault:
            is_whole = not fault.path and not where
            raise self.error(fault.said(record.__name__.lower() if is_whole else where)) from None
        return made

    def plain(self, value: object, where: str) -> Any:
        """JSON of bounded size and depth, as it came; numbers that JSON cannot hold become None.
        Raises Exception: of class `error`: it is too deep, too long, or nothing that JSON holds."""
        try:
            return self._plain(value)
        except _Fault as fault:
            raise self.error(fault.said(where)) from None

    def to_json(self, record: Any) -> dict[str, Any]:
        """A JSON object of a dataclass's fields; tuples become lists.
        Raises TypeError: something in it is not JSON."""
        found: dict[str, Any] = {}
        for each in _fields(type(record)):
            value = getattr(record, each.name)
            if not each.is_sparse or value != each.default:
                # Most values are plain: asking each for its kind would take most of the time of 10,000 nodes.
                found[each.key] = value if type(value) in _PLAIN else self.dump(value)
        return found

    def dump(self, value: Any) -> Any:
        """A value as JSON has it.
        Raises TypeError: it is not JSON."""
        if value is None or isinstance(value, str | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, list | tuple):
            return [self.dump(item) for item in value]
        if isinstance(value, Mapping):
            return {_key(key): self.dump(item) for key, item in value.items()}
        if isinstance(value, self.bare):
            return self.dump(getattr(value, _fields(type(value))[0].name))
        if dataclasses.is_dataclass(value):
            return self.to_json(value)
        raise TypeError(f"{type(value).__name__} has no place in JSON")

    # -- readers: each checks one JSON value, or raises _Fault

    def _record_reader(self, record: type[Any]) -> Reader:
        if record not in self._records:
            self._records[record] = self._new_record_reader(record)
        return self._records[record]

    def _new_record_reader(self, record: type[Any]) -> Reader:
        fields = _fields(record)
        readers = {
            each.key: (each.name, self._kinds_read(each.annotation), self._field_reader(each)) for each in fields
        }
        required = [(each.name, each.key) for each in fields if each.default is dataclasses.MISSING]

        def read(raw: Any) -> Any:
            if not isinstance(raw, dict):
                raise _Fault("must be an object")
            values: dict[str, Any] = {}
            for key, value in raw.items():
                if key in readers:
                    name, as_it_is, reader = readers[key]
                    try:
                        values[name] = value if type(value) in as_it_is else reader(value)
                    except _Fault as fault:
                        raise fault.under(key) from None
            for name, key in required:
                if name not in values:
                    raise _Fault(self.missing).under(key)
            return record(**values)

        return read

    def _kinds_read(self, annotation: Any) -> frozenset[type[Any]]:
        """Of which classes a value is taken as it is: most of a journal is so, and a call takes long."""
        if self.is_bounded:
            return frozenset()
        is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
        kinds = typing.get_args(annotation) if is_union else (annotation,)
        return frozenset(kinds) & _PLAIN | ({float, int} if float in kinds else set())

    def _field_reader(self, each: _Field) -> Reader:
        read, most = self._reader(each.annotation), each.most
        return read if most is None or not self.is_bounded else lambda value: _cut(read(value), most)

    def _reader(self, annotation: Any) -> Reader:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        inner = [kind for kind in arguments if kind is not types.NoneType]
        is_union = origin in (types.UnionType, typing.Union)
        if annotation is Any or (is_union and len(inner) > 1):
            return self._plain if self.is_bounded else _as_it_came
        if is_union:
            read = self._reader(inner[0])
            return lambda value: None if value is None else read(value)
        if origin is tuple and arguments[-1] is ...:
            return self._list_reader(self._reader(arguments[0]))
        if origin is tuple:
            return self._pair_reader(tuple(map(self._reader, arguments)))
        if origin is not None:
            return self._mapping_reader(*arguments)
        if annotation in self.bare:
            read = self._reader(_fields(annotation)[0].annotation)
            return lambda value: annotation(read(value))
        kind: type[Any] = annotation
        if dataclasses.is_dataclass(kind):
            return self._record_reader(kind)
        if issubclass(kind, Enum):
            return _made_by(kind)
        if kind is bool:
            return _flag
        if kind is int:
            return _whole if self.is_bounded else _made_by(lambda value: int(_loose_number(value)))
        if kind is float:
            return _number if self.is_bounded else _loose_number
        return self._text

    def _list_reader(self, item: Reader) -> Reader:
        limit = MAX_ITEMS if self.is_bounded else None

        def read(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, list | tuple) or not _fits(value, limit):
                raise _Fault(f"must be a list{_at_most(limit)}")
            found: list[Any] = []
            try:
                for each in value:
                    found.append(item(each))  # noqa: PERF401 - its length says which is at fault
            except _Fault as fault:
                raise fault.under(f"[{len(found)}]") from None
            return tuple(found)

        return read

    def _pair_reader(self, items: tuple[Reader, ...]) -> Reader:
        def read(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, list | tuple) or len(value) != len(items):
                raise _Fault(f"must be a list of {len(items)}")
            return tuple(item(each) for item, each in zip(items, value, strict=True))

        return read

    def _mapping_reader(self, key_kind: Any, kind: Any) -> Reader:
        limit = None
        if self.is_bounded:
            limit = MAX_ITEMS if kind is float else MAX_PLAIN_ENTRIES
        read_item, as_it_is = self._reader(kind), self._kinds_read(kind)
        read_key: Reader = _as_it_came
        if key_kind is int:
            read_key = _made_by(int)
        elif limit is not None:
            read_key = steers_nothing

        def read(value: Any) -> dict[Any, Any]:
            if not isinstance(value, dict) or not _fits(value, limit):
                raise _Fault(f"must be an object{_at_most(limit, ' entries')}")
            if read_key is _as_it_came and as_it_is.issuperset(map(type, value.values())):
                return value
            found: dict[Any, Any] = {}
            for key, each in value.items():
                if limit is not None and (not isinstance(key, str) or len(key) > 200):
                    raise _Fault("a key must be text of at most 200 characters")
                try:
                    found[read_key(key)] = read_item(each)
                except _Fault as fault:
                    raise fault.under(str(key)) from None
            return found

        return read

    def _text(self, value: Any) -> str:
        """Text; that of an untrusted sender comes without what could steer a terminal: see `steers_nothing`."""
        limit = MAX_TEXT_CHARS if self.is_bounded else None
        if isinstance(value, str) and _fits(value, limit) and (limit is None or "\0" not in value):
            return value if limit is None else steers_nothing(value)
        raise _Fault(f"must be text{_at_most(limit, ' characters')}")

    def _plain(self, value: Any, depth: int = 3) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return _whole(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, str):
            return self._text(value)
        if depth and isinstance(value, list | tuple) and len(value) <= 256:
            return [self._plain_under(f"[{at}]", each, depth - 1) for at, each in enumerate(value)]
        if (
            depth
            and isinstance(value, dict)
            and len(value) <= MAX_PLAIN_ENTRIES
            and all(isinstance(key, str) for key in value)
        ):
            return {steers_nothing(key[:200]): self._plain_under(key, each, depth - 1) for key, each in value.items()}
        raise _Fault("must be plain JSON, at most three levels deep")

    def _plain_under(self, step: str, value: Any, depth: int) -> Any:
        try:
            return self._plain(value, depth)
        except _Fault as fault:
            raise fault.under(step) from None


_PLAIN = frozenset({int, str, bool, types.NoneType})


def _as_it_came(value: Any) -> Any:
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _Fault("must be true or false")


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER:
        return value
    raise _Fault("must be a whole number")


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_MAGNITUDE:
        return float(value)
    raise _Fault("must be a finite number")


def _loose_number(value: Any) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Fault(f"must be a number, not {value!r}"[:200])
    return value


def _made_by(convert: Callable[[Any], Any]) -> Reader:
    """What `convert` makes of a value; where it makes nothing of it, its words are the fault."""

    def read(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, OverflowError) as error:
            raise _Fault(str(error)) from None

    return read


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


def _key(key: object) -> str:
    if not isinstance(key, str | int):
        raise TypeError("keys must be text")
    return str(key)
