"""Plans that were heard, and the groups of the worlds to come: each is made beside training.

A builder thread of its own makes a group and passes a barrier in it, so that being ready is known and not hoped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from malletrain.elastic.comm.background import Background
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.step_commit import POLL_INTERVAL_S
from malletrain.elastic.errors import ElasticError, PeerLost
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: Tries that fail at once do not follow each other at once.
BETWEEN_TRIES_S = 0.5


class _Build:
    """A group in the making."""

    def __init__(self, plan: messages.Plan, make: Callable[[], Group]) -> None:
        self.plan = plan
        self.group: Group | None = None
        self.given_up = False
        self._abandoned = False
        self._lock = threading.Lock()
        self._work = Background(lambda: self._make(make), f"build-{plan.generation}")

    def _make(self, make: Callable[[], Group]) -> None:
        group = make()
        try:
            barrier = group.all_reduce(torch.zeros(group.size))  # an element for each, so that all take part
            while not (met := barrier.wait(POLL_INTERVAL_S)) and not self.given_up:
                pass
        except PeerLost:
            group.abandon()
            raise
        with self._lock:
            if met and not self._abandoned:
                self.group = group
                return
        group.abandon()

    def abandon(self) -> None:
        """Give up the group, made or not."""
        self.given_up = True
        with self._lock:
            self._abandoned = True
            group, self.group = self.group, None
        if group is not None:
            group.abandon()

    def done(self, seconds: float) -> bool:
        """Whether it is made. Raises `PeerLost` when it cannot be."""
        return self._work.wait(seconds)

    def is_over(self, seconds: float) -> bool:
        """Whether nothing runs for it any more."""
        return self._work.is_over(seconds)


class PendingGroups:
    """What one member prepares.

    Args:
        make: the group of a plan; blocks until the others come, raises `PeerLost` when they do not.
        failed: told which generation cannot be built, and why.

    Attributes:
        ready: the generation that this member could switch to at once, or 0.
    """

    def __init__(self, make: Callable[[messages.Plan], Group], failed: Callable[[int, str], None]) -> None:
        self._make = make
        self._failed = failed
        self._plans: dict[int, messages.Plan] = {}
        self._builds: dict[int, _Build] = {}
        self._lock = threading.Lock()
        self._entered = 0
        self.ready = 0

    def hear(self, plan: messages.Plan, *, seated: bool) -> None:
        """Begin to prepare a plan, and give up older ones. Who has no seat has nothing to build."""
        with self._lock:
            if plan.generation <= self._entered:
                return  # the training thread was quicker
            self._plans[plan.generation] = plan
            for generation, older in self._builds.items():
                if generation < plan.generation:
                    older.given_up = True
            build = self._build(plan) if seated else None
        if plan.urgent:
            return
        if build is None:
            self.ready = plan.generation
        else:
            threading.Thread(target=self._await, args=(build,), name="malletrain-ready", daemon=True).start()

    def plan(self, generation: int) -> messages.Plan:
        """One that was heard."""
        return self._plans[generation]

    def group(self, plan: messages.Plan, check: Callable[[], None]) -> Group | None:
        """The group of a plan, once it is made; None when it was given up. `check` is called while nothing happens.

        Raises:
            PeerLost: it cannot be made.
        """
        with self._lock:
            build = self._build(plan)
        while not build.done(POLL_INTERVAL_S):
            check()
        return build.group

    def entered(self, generation: int) -> None:
        """What is older is of no more use."""
        with self._lock:
            self._entered = generation
            self._plans = {number: plan for number, plan in self._plans.items() if number >= generation}
            for number in [number for number in self._builds if number <= generation]:
                build = self._builds.pop(number)
                if number < generation:
                    build.abandon()

    def give_up(self, seconds: float) -> bool:
        """Give up every group in the making; whether none is being made any more after so long."""
        with self._lock:
            builds = list(self._builds.values())
        end = time.monotonic() + seconds
        for build in builds:
            build.given_up = True
        return all(build.is_over(max(0.0, end - time.monotonic())) for build in builds)

    def _build(self, plan: messages.Plan) -> _Build:
        """Of a plan: begun by whoever asks first, the training thread or the one that hears of plans."""
        build = self._builds.get(plan.generation)
        if build is None:
            build = self._builds[plan.generation] = _Build(plan, lambda: self._make(plan))
        return build

    def _await(self, build: _Build) -> None:
        generation = build.plan.generation
        try:
            while not build.done(1.0):
                pass
            if build.group is None:
                return
            log.debug("generation %d: ready", generation)
            self.ready = max(self.ready, generation)
        except ElasticError:
            return  # the training thread meets it
        except PeerLost as lost:
            if not build.given_up:
                time.sleep(BETWEEN_TRIES_S)
                self._failed(generation, str(lost))
