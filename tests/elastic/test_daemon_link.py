"""The worker's link to a daemon that has restarted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from malletrain.elastic.link.daemon_link import Link
from malletrain.wire import messages
from malletrain.wire.worker_client import DaemonUnreachable, TokenUnknown, WorkerClient
from tests.waiting import wait_until

WARM = messages.Warm("host:1", {})
STANDING = messages.Standing(3, (messages.Seat("9_0.0", "host:1"),), 40, "", 3)


class Daemon:
    """A daemon that does not know the worker until it has said hello, in place of the HTTP client."""

    def __init__(self) -> None:
        self.knows, self.fixed, self.away = True, False, False
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
        if self.away:
            raise DaemonUnreachable("nobody answers")
        if not self.knows:
            raise TokenUnknown("say hello")
        with self.changed:
            self.changed.wait(0.01)
        return None if self.plan is None else messages.Directive(1, self.plan, fixed=self.fixed)

    def wait_for(self, message: messages.Message) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: message in self.reports, 60.0)


class Worker:
    """What the link asks."""

    def __init__(self, standing: messages.Standing | None) -> None:
        self._standing = standing
        self.meetings = 0  #: how often the members were asked for a world of their own

    def on_plan(self, plan: messages.Plan) -> None: ...

    def check_in(self, number: int) -> messages.CheckedIn:
        return messages.CheckedIn(number, 0, 0, False)

    def standing(self) -> messages.Standing | None:
        return self._standing

    def on_top_up(self, tasks: int) -> None: ...

    def while_away(self) -> messages.Plan | None:
        self.meetings += 1
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


@pytest.mark.parametrize("fixed", [False, True])
def test_members_of_a_job_that_keeps_its_size_make_no_world_among_themselves(fixed: bool) -> None:
    """While the daemon is away: it would be a smaller one."""
    daemon, worker = Daemon(), Worker(STANDING)
    daemon.plan, daemon.fixed = messages.Plan(4, STANDING.members), fixed
    link = Link(cast(WorkerClient, daemon), worker)
    link.start()
    try:
        with link.changed:
            assert link.changed.wait_for(lambda: link.plan is not None, 60.0)
        daemon.away = True
        wait_until(lambda: link.away_since is not None, 60, "the daemon away")
        if not fixed:
            wait_until(lambda: worker.meetings > 0, 60, "a meeting")
        assert link.fixed == fixed
        assert fixed == (worker.meetings == 0)
    finally:
        link.close()
