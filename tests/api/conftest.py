"""A private munged, and the API on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.house import Caller, House
from tests.munged import munged

__all__ = ["munged"]


@pytest.fixture
def new_house(tmp_path: Path, munged: str) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(**settings: Any) -> House:
        folder = tmp_path / f"house{len(houses)}"
        folder.mkdir()
        houses.append(House(folder, munged, **settings))
        return houses[-1]

    yield make
    for each in houses:
        each.close()


@pytest.fixture
def house(new_house: Callable[..., House]) -> House:
    return new_house()


@pytest.fixture
def as_user(house: House) -> Iterator[Callable[[int], Caller]]:
    callers: list[Caller] = []

    def make(uid: int) -> Caller:
        callers.append(Caller(house, house.token(uid)))
        return callers[-1]

    yield make
    for each in callers:
        each.http.close()
