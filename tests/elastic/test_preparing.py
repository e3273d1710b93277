"""Plans are heard by one thread and entered by another, in any order: one group is made for each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from malletrain.elastic.groups import Group, Solo
from malletrain.elastic.preparing import Preparations
from malletrain.wire import messages
from tests.elastic.coordinator import wait_until


def plan(generation: int, *, urgent: bool = False) -> messages.Plan:
    seats = (messages.Seat("a", "here:1"), messages.Seat("b", "there:1"))
    return messages.Plan(generation, seats, "here:1", urgent=urgent)


class Maker:
    """Makes groups when it is let to, and counts."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.failed: list[int] = []
        self.let = threading.Event()
        self.preparations = Preparations(self.make, lambda generation, why: self.failed.append(generation))

    def make(self, wanted: messages.Plan) -> Group:
        self.made.append(wanted.generation)
        self.let.wait(10)
        return Solo()

    @contextmanager
    def entering(self, wanted: messages.Plan) -> Iterator[list[Group | None]]:
        """The training thread asks for a plan's group, and waits for it until the end."""
        got: list[Group | None] = []
        thread = threading.Thread(target=lambda: got.append(self.preparations.group(wanted, lambda: None)))
        thread.start()
        wait_until(lambda: wanted.generation in self.made, 10, "the group is being made")
        yield got
        self.let.set()
        thread.join(10)


@pytest.mark.parametrize("urgent", [False, True])
def test_a_plan_heard_after_it_is_entered_is_made_once(urgent: bool) -> None:
    """Found by a world that waited a minute for a member whose two groups stood in each other's way."""
    maker = Maker()
    with maker.entering(plan(1, urgent=urgent)) as got:
        maker.preparations.hear(plan(1, urgent=urgent), seated=True)
    assert len(got) == 1
    assert isinstance(got[0], Solo), "and it is not given up"
    assert maker.made == [1]


def test_a_plan_heard_when_its_world_trains_already_is_not_made_again() -> None:
    maker = Maker()
    with maker.entering(plan(1)):
        pass
    maker.preparations.entered(1)
    maker.preparations.hear(plan(1), seated=True)
    maker.preparations.hear(plan(2), seated=True)
    wait_until(lambda: maker.preparations.ready == 2, 10, "the next one is ready")
    assert maker.made == [1, 2]
    assert maker.failed == []


def test_a_newer_plan_gives_up_the_older() -> None:
    maker = Maker()
    maker.preparations.hear(plan(1), seated=True)
    wait_until(lambda: maker.made == [1], 10, "the older one is being made")
    maker.preparations.hear(plan(2), seated=True)
    maker.let.set()
    wait_until(lambda: maker.preparations.ready == 2, 10, "the newer one is ready")
    assert maker.made == [1, 2]
