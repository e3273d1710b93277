"""The way to a state that an exhaustive search has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

State = TypeVar("State")


def shortest_history(state: State, came_from: Mapping[State, tuple[State, str] | None]) -> tuple[str, ...]:
    """The steps to `state` from the first one.

    `came_from`: the state before, and the step from there; None for the first state.
    """
    found = []
    at = came_from[state]
    while at is not None:
        found.append(at[1])
        at = came_from[at[0]]
    return tuple(reversed(found))
