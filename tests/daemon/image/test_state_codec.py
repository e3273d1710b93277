"""State as bytes and back is the same state, and nothing but this package's own objects comes out."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest

from malletrain.daemon.image.state_codec import NotEncodable, decoded, encoded
from malletrain.domain.job import JobPhase, Pilot, PilotPhase
from malletrain.loop.trackers.account_usage import AccountUsage
from malletrain.loop.trackers.hole_history import HoleTracker


def test_containers_and_values_come_back_as_they_were() -> None:
    value = (
        None, True, 3, 1.5, float("inf"), "é\n", [1, [2]], {1: "a", ("b", 2): {3}}, frozenset({1, 2}),
        deque([1, 2], maxlen=5), Counter({"x": 2}), OrderedDict([("b", 1), ("a", 2)]), JobPhase.QUEUED,
        Pilot("7_0", 7, PilotPhase.HELD, 1.0),
    )  # fmt: skip
    again = decoded(encoded(value))
    assert again == value
    assert [type(each) for each in again] == [type(each) for each in value]
    assert again[9].maxlen == 5
    assert encoded(again) == encoded(value)


def test_numbers_of_numpy_come_back_as_they_were() -> None:
    value = (np.float64(0.1), np.float64("nan"), np.int64(3), np.bool_(True))
    again = decoded(encoded(value))
    for one, other in zip(value, again, strict=True):
        assert type(one) is type(other)
        assert np.array_equal(one, other, equal_nan=True)


def test_an_array_is_refused() -> None:
    """No ledger holds any: fits are dropped as jobs end, and made anew of samples."""
    with pytest.raises(NotEncodable, match="ndarray"):
        encoded(np.array([1.0]))


def test_what_is_held_twice_and_changes_is_one_object_again() -> None:
    usage = AccountUsage()
    first, second, other = decoded(encoded((usage, usage, AccountUsage())))
    assert first is second
    assert first is not other


def test_cohorts_of_holes_stay_shared() -> None:
    from malletrain.domain.event import Event, HolesEnded, HolesOpened

    holes = HoleTracker()
    holes.apply(Event(1.0, HolesOpened(("a", "b", "c"))))
    again: HoleTracker = decoded(encoded(holes))
    for each in (holes, again):
        each.apply(Event(5.0, HolesEnded(("a", "b"), taken=True)))
    assert encoded(again) == encoded(holes)


class Foreign:
    """Of no room whose state is kept."""


@pytest.mark.parametrize("value", [Foreign(), b"bytes", lambda: None, 1j])
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(NotEncodable, match="cannot keep"):
        encoded([value])


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "malletrain.daemon.service:Service",
        "malletrain.loop.ledger:Nothing",
        "malletrain.loop.ledger:Ledger.apply",
        "malletrain.loop.ledger:Counter",
        "malletrain.loop.nothing:Ledger",
    ],
)
def test_no_other_class_comes_out_of_bytes(name: str) -> None:
    with pytest.raises(NotEncodable):
        decoded(json.dumps([[[name, ["x"]]], [16, "true"]]).encode())


@pytest.mark.parametrize("state", [b"", b"[]", b"{}", b"[[], [99]]", b"[[], [9, 0]]", b"[[], [2, 1]]", b"\xff\xfe"])
def test_other_bytes_are_refused(state: bytes) -> None:
    with pytest.raises(NotEncodable):
        decoded(state)
