"""Groups of worlds to come, each made on a thread of its own while training goes on.

A group counts as ready once a barrier has passed in it: then it works at every member.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from malletrain.elastic.comm.background import Making
from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.step_commit import POLL_INTERVAL_S
from malletrain.elastic.errors import ElasticError, PeerLost
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: A group that cannot be made is reported no sooner, so that failing plans do not follow each other at once.
FAILURE_DELAY_S = 0.5

#: Makes the group of a plan. Blocks until the other members come; raises `PeerLost` when they do not.
MakeGroup = Callable[[messages.Plan], Group]


class _Build(Making[Group]):
    """The making of one group; `ended` is called with it on its thread once it is over."""

    def __init__(self, plan: messages.Plan, make: MakeGroup, ended: Callable[[_Build], None]) -> None:
        self.plan = plan
        self.cancelled = False
        self._ended = ended
        super().__init__(lambda: self._make(make), f"build-{plan.generation}")

    def run(self) -> None:
        super().run()
        self._ended(self)

    def _make(self, make: MakeGroup) -> Group | None:
        group = make(self.plan)
        try:
            # One element a member, so that each takes part.
            barrier = group.all_reduce(torch.zeros(group.size, dtype=torch.int64))
            while not (passed := barrier.wait(POLL_INTERVAL_S)) and not self.cancelled:
                pass
        except PeerLost:
            group.abandon()
            raise
        if passed:
            return group
        group.abandon()
        return None


class PendingGroups:
    """The plans that arrived at one member, and their groups. `failed`: called with generation and reason when a
    group cannot be made. `ready`: the generation that this member could switch to at once, or 0."""

    def __init__(self, failed: Callable[[int, str], None]) -> None:
        self._failed = failed
        self._plans: dict[int, messages.Plan] = {}
        self._builds: dict[int, _Build] = {}
        self._lock = threading.Lock()
        self._entered = 0
        self.ready = 0

    def hear(self, plan: messages.Plan, make: MakeGroup | None) -> None:
        """Begin to make the group of `plan`, and give up those of older plans. `plan`: that arrived. `make`: makes
        its group; None where this worker has no seat in it."""
        with self._lock:
            if plan.generation <= self._entered:
                return  # the training thread got it first
            self._plans[plan.generation] = plan
            for generation, older in self._builds.items():
                if generation < plan.generation:
                    older.cancelled = True
            if make is not None:
                self._build(plan, make)
            elif not plan.urgent:
                self.ready = plan.generation

    def plan(self, generation: int) -> messages.Plan:
        """The plan of `generation`, which must have been heard."""
        return self._plans[generation]

    def group(self, plan: messages.Plan, make: MakeGroup, check: Callable[[], None]) -> Group | None:
        """Wait for the group of `plan`, which `make` makes unless that has begun; None when it was given up. `check`:
        called while nothing happens; may raise. Raises `PeerLost`: it cannot be made."""
        with self._lock:
            build = self._build(plan, make)
        while not build.wait(POLL_INTERVAL_S):
            check()
        return build.made

    def entered(self, generation: int) -> None:
        """Drop everything older than `generation`, which trains now."""
        with self._lock:
            self._entered = generation
            self._plans = {number: plan for number, plan in self._plans.items() if number >= generation}
            for number in [number for number in self._builds if number <= generation]:
                build = self._builds.pop(number)
                if number < generation:
                    build.cancelled = True
                    build.drop()

    def give_up(self) -> None:
        """Give up every group that is being made."""
        with self._lock:
            for build in self._builds.values():
                build.cancelled = True

    def _build(self, plan: messages.Plan, make: MakeGroup) -> _Build:
        """One for each plan, whether the training thread or the link's asks first."""
        build = self._builds.get(plan.generation)
        if build is None:
            build = self._builds[plan.generation] = _Build(plan, make, self._ended)
        return build

    def _ended(self, build: _Build) -> None:
        generation = build.plan.generation
        if build.plan.urgent:  # which members do not vote for; the training thread says whether it fails
            return
        try:
            if build.wait(0.0) and build.made is not None:
                log.debug("generation %d: ready", generation)
                self.ready = max(self.ready, generation)
        except ElasticError:
            return  # `group` raises it on the training thread
        except PeerLost as lost:
            if not build.cancelled:
                time.sleep(FAILURE_DELAY_S)
                self._failed(generation, str(lost))
