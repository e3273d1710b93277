"""Numbers that the script sets on its data set while it trains, such as the stage of a curriculum.

A worker that joins begins with the first ones. So those that are no longer as at first are compared between workers;
those that the data set changes by itself as samples are loaded (a count of reads) are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from malletrain.elastic.data.plain_attributes import plain_attributes

#: What is compared of a number that is as at first.
AS_AT_FIRST = "as at first"


class DatasetAttributes:
    """See the module.

    Args:
        dataset: of the session, as the script made it.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._first = self._numbers()
        self._own: set[str] = set()

    @contextmanager
    def loading(self, *, watched: bool) -> Iterator[None]:
        """A context manager around the loading of samples.

        Args:
            watched: whether to look for what the data set changes by itself.
        """
        before = self._numbers() if watched else {}
        yield
        if watched:
            self._own |= {name for name, value in self._numbers().items() if before.get(name, value) != value}

    def compared(self) -> dict[str, Any]:
        """What workers must have in common, by name."""
        return {
            f"dataset.{name}": AS_AT_FIRST if self._first.get(name) == value else value
            for name, value in self._numbers().items()
            if name not in self._own
        }

    def _numbers(self) -> dict[str, Any]:
        found = plain_attributes(self._dataset)
        return {name: value for name, value in found.items() if isinstance(value, int | float)}
