"""Numbers, lists and tensors that the script sets on its data set while it trains: the stage of a curriculum, labels.

A worker that joins begins with the first ones. So those that are no longer as at first are compared between workers;
those that the data set changes by itself as samples are loaded (a count of reads, a cache) are not.

Tensors that no worker has written to are not read: they may be larger than memory. Where one worker has written to a
tensor and another has not, the other reads it then, since what was written may be what was there.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from malletrain.elastic.data.plain_attributes import listed_attributes, plain_attributes, tensor_attributes
from malletrain.elastic.guards.digest import digest, digest_of_text

#: What identifies a tensor's values, as far as counters show. (It does not keep one that the script replaces.)
_Mark = tuple[weakref.ref[torch.Tensor], int]

#: What is compared of a number that is as at first.
AS_AT_FIRST = "as at first"


class Unread:
    """What is compared of a tensor that the script has not written to. Equal to any other one.

    Args:
        read: returns what is compared once another worker has written to the tensor.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self.read = read

    def __repr__(self) -> str:
        return AS_AT_FIRST


class DatasetAttributes:
    """See the module.

    Args:
        dataset: of the session, as the script made it.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._first = self._numbers()
        self._first_marks = self._marks()
        self._first_lists = self._lists()
        self._own: set[str] = set()
        self._digests: dict[str, tuple[_Mark, str]] = {}

    @contextmanager
    def loading(self, *, watched: bool) -> Iterator[None]:
        """A context manager around the loading of samples.

        Args:
            watched: whether to look for what the data set changes by itself.
        """
        before, marks, lists = (self._numbers(), self._marks(), self._lists()) if watched else ({}, {}, {})
        yield
        if watched:
            self._own |= {name for name, value in self._numbers().items() if before.get(name, value) != value}
            self._own |= {name for name, value in self._lists().items() if lists.get(name) != value}
            self._own |= {name for name, mark in self._marks().items() if not _same(marks.get(name, mark), mark)}

    def compared(self) -> dict[str, Any]:
        """What workers must have in common, by name."""
        return {
            f"dataset.{name}": AS_AT_FIRST if self._first.get(name) == value else value
            for name, value in self._numbers().items()
            if name not in self._own
        }

    def compared_values(self) -> dict[str, Any]:
        """Likewise of lists, arrays and tensors that are not of floating point: those that the workers computed may
        differ by rounding, and are seen in the samples. The tensors that the script has changed are read."""
        found: dict[str, Any] = {
            f"dataset.{name}": AS_AT_FIRST if self._first_lists.get(name) == value else value
            for name, value in self._lists().items()
            if name not in self._own
        }
        for name, mark in self._marks().items():
            tensor = mark[0]()
            if tensor is None or name in self._own or tensor.is_floating_point() or tensor.is_complex():
                continue
            read = functools.partial(self._digest, name, tensor, mark)
            unread = _same(self._first_marks.get(name), mark) and name not in self._digests
            found[f"dataset.{name}"] = Unread(read) if unread else read()
        return found

    def _digest(self, name: str, tensor: torch.Tensor, mark: _Mark) -> str:
        known = self._digests.get(name)
        if known is None or not _same(known[0], mark):
            known = self._digests[name] = mark, str(digest([(name, tensor)]).total)
        return known[1]

    def _marks(self) -> dict[str, _Mark]:
        found = tensor_attributes(self._dataset)
        return {
            name: (weakref.ref(each), 0 if each.is_inference() else each._version) for name, each in found.items()
        }

    def _lists(self) -> dict[str, str]:
        found = listed_attributes(self._dataset)
        return {name: str(digest_of_text(value.hex())) for name, value in found.items()}

    def _numbers(self) -> dict[str, Any]:
        found = plain_attributes(self._dataset)
        return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _same(one: _Mark | None, other: _Mark) -> bool:
    return one is not None and one[0]() is other[0]() is not None and one[1] == other[1]
