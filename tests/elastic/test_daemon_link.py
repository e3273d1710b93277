"""The worker's link to a daemon that has restarted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from malletrain.elastic.link.daemon_link import Link
from malletrain.wire import messages
from malletrain.wire.worker_client import TokenUnknown, WorkerClient

WARM = messages.Warm("host:1", {})
STANDING = messages.Standing(3, (messages.Seat("9_0.0", "host:1"),), 40, "", 3)


class Daemon:
    """A daemon that does not know the worker until it has said hello, in place of the HTTP client."""

    def __init__(self) -> None:
        self.knows = True
        self.plan: messages.Plan | None = None
        self.reports: list[messages.Message] = []
        self.changed = threading.Condition()

    def restart(self) -> None:
        with self.changed:
            self.knows, self.reports, self.plan = False, [], None

    def hello(self, standing: messages.Standing | None) -> None:
        self.knows = True

    def report(self, said: Sequence[messages.Message]) -> None:
        with self.changed:
            if not self.knows:
                raise TokenUnknown("say hello")
            self.reports += said
            self.changed.notify_all()

    def poll(self, after: int, wait_s: float) -> messages.Directive | None:
        if not self.knows:
            raise TokenUnknown("say hello")
        with self.changed:
            self.changed.wait(0.01)
        return None if self.plan is None else messages.Directive(1, self.plan)

    def wait_for(self, message: messages.Message) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: message in self.reports, 60.0)


class Worker:
    """What the link asks."""

    def __init__(self, standing: messages.Standing | None) -> None:
        self._standing = standing

    def on_plan(self, plan: messages.Plan) -> None: ...

    def check_in(self, number: int) -> messages.CheckedIn:
        return messages.CheckedIn(number, 0, 0, False)

    def standing(self) -> messages.Standing | None:
        return self._standing

    def on_top_up(self, tasks: int) -> None: ...

    def while_away(self) -> messages.Plan | None:
        return None


@pytest.mark.parametrize("standing", [None, STANDING])
def test_a_worker_without_a_world_says_again_that_it_is_warm(standing: messages.Standing | None) -> None:
    daemon = Daemon()
    link = Link(cast(WorkerClient, daemon), Worker(standing))
    link.start()
    try:
        link.say(WARM)
        assert daemon.wait_for(WARM)
        daemon.restart()
        after = messages.Metric("loss", 1.0, 1)
        link.say(after)
        assert daemon.wait_for(after)
        assert (WARM in daemon.reports) == (standing is None)
    finally:
        link.close()


@pytest.mark.parametrize("standing", [None, STANDING])
def test_a_worker_without_a_world_takes_no_plan_that_an_earlier_daemon_showed(
    standing: messages.Standing | None,
) -> None:
    daemon = Daemon()
    daemon.plan = messages.Plan(4, STANDING.members)
    link = Link(cast(WorkerClient, daemon), Worker(standing))
    link.start()
    try:
        with link.changed:
            assert link.changed.wait_for(lambda: link.plan is not None, 60.0)
        daemon.restart()
        link.say(WARM)
        assert daemon.wait_for(WARM)
        assert (link.plan is None) == (standing is None)
    finally:
        link.close()
