"""Plans arrive on one thread and are entered on another, in any order: each gets one group."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch

from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.gloo_group import make_group
from malletrain.elastic.comm.group import Group, SoloGroup, Work
from malletrain.elastic.errors import PeerLost
from malletrain.elastic.resize.pending_groups import PendingGroups
from malletrain.wire import messages
from tests.elastic.stores import meeting, serve
from tests.elastic.test_schedules import held
from tests.waiting import wait_until


def plan(generation: int, *, urgent: bool = False) -> messages.Plan:
    seats = (messages.Seat("a", "here:1"), messages.Seat("b", "there:1"))
    return messages.Plan(generation, seats, "here:1", urgent=urgent)


class Fake(SoloGroup):
    """A group that records whether it was abandoned."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.is_abandoned = False
        self.breaks = breaks

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        if self.breaks:
            raise PeerLost("gone")
        return super().all_reduce(tensor)

    def abandon(self) -> None:
        self.is_abandoned = True


class Maker:
    """Makes groups once `let` is set, and records them."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.groups: dict[int, Fake] = {}
        self.made: list[int] = []
        self.failed: list[int] = []
        self.let = threading.Event()
        self.pending_groups = PendingGroups(lambda generation, why: self.failed.append(generation))

    def make(self, wanted: messages.Plan) -> Group:
        self.made.append(wanted.generation)
        self.let.wait(90)
        group = self.groups[wanted.generation] = Fake(breaks=self.breaks)
        return group

    def wait_ready(self, generation: int) -> None:
        wait_until(lambda: self.pending_groups.ready == generation, 90, f"generation {generation} is ready")

    @contextmanager
    def entering(self, wanted: messages.Plan) -> Iterator[list[Group | None]]:
        """The training thread asks for a plan's group, and waits for it until the end."""
        got: list[Group | None] = []
        thread = threading.Thread(
            target=lambda: got.append(self.pending_groups.group(wanted, self.make, lambda: None))
        )
        thread.start()
        wait_until(lambda: wanted.generation in self.made, 90, "the group is being made")
        yield got
        self.let.set()
        thread.join(90)


@pytest.mark.parametrize("urgent", [False, True])
def test_a_plan_heard_after_it_is_entered_is_made_once(urgent: bool) -> None:
    """Found by a world that waited a minute for a member whose two groups stood in each other's way."""
    maker = Maker()
    with maker.entering(plan(1, urgent=urgent)) as got:
        maker.pending_groups.hear(plan(1, urgent=urgent), maker.make)
    assert len(got) == 1
    assert isinstance(got[0], SoloGroup), "and it is not given up"
    assert maker.made == [1]


def test_a_plan_heard_when_its_world_trains_already_is_not_made_again() -> None:
    maker = Maker()
    with maker.entering(plan(1)):
        pass
    maker.pending_groups.entered(1)
    maker.pending_groups.hear(plan(1), maker.make)
    maker.pending_groups.hear(plan(2), maker.make)
    maker.wait_ready(2)
    assert maker.made == [1, 2]
    assert maker.failed == []


def test_a_group_that_is_made_after_a_newer_one_was_entered_is_abandoned() -> None:
    maker = Maker()
    maker.pending_groups.hear(plan(1), maker.make)
    wait_until(lambda: maker.made == [1], 90, "the older one is being made")
    maker.pending_groups.entered(2)
    maker.let.set()
    wait_until(lambda: 1 in maker.groups and maker.groups[1].is_abandoned, 90, "it is abandoned")


def test_only_the_group_that_is_entered_is_kept() -> None:
    maker = Maker()
    maker.let.set()
    for generation in (1, 2):
        maker.pending_groups.hear(plan(generation), maker.make)
        maker.wait_ready(generation)
    maker.pending_groups.entered(2)
    assert maker.groups[1].is_abandoned
    assert not maker.groups[2].is_abandoned


def test_a_group_whose_barrier_breaks_is_abandoned() -> None:
    maker = Maker(breaks=True)
    maker.let.set()
    maker.pending_groups.hear(plan(1), maker.make)
    wait_until(lambda: maker.failed == [1], 90, "it is said")
    assert maker.groups[1].is_abandoned


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Python does not look for cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_nothing_is_kept_of_a_group_that_nobody_else_came_to() -> None:
    """Found by hundreds of changes: sockets and a thread stayed until Python looked for cycles, as it seldom does."""
    server = serve()
    failed: list[int] = []

    def make(wanted: messages.Plan) -> Group:
        return make_group(meeting(server.address, wanted.generation), 0, 2, "127.0.0.1", timedelta(seconds=0.3))

    def nothing_more() -> bool:
        now = held(os.getpid())
        return now.threads <= before.threads and now.files <= before.files and now.sockets <= before.sockets

    pending_groups = PendingGroups(lambda generation, why: failed.append(generation))
    before = held(os.getpid())
    pending_groups.hear(plan(1), make)
    wait_until(lambda: failed == [1], 90, "no peer came")
    pending_groups.entered(1)
    wait_until(nothing_more, 90, f"as before: {before}")


@pytest.mark.usefixtures("without_collection")
def test_what_a_call_that_failed_had_in_hand_is_let_go() -> None:
    class Buffer:
        pass

    seen: list[weakref.ref[Buffer]] = []

    def call() -> None:
        buffer = Buffer()
        seen.append(weakref.ref(buffer))
        raise PeerLost("half-way")

    work = Background(call, "test")
    for _ in range(2):
        with pytest.raises(PeerLost, match="half-way"):
            work.wait(60)
    assert seen[0]() is None
