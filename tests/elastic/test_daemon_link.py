"""The worker's link to a daemon that has restarted: one that has told it that it is in no world enters none that an
earlier daemon has planned."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.launch.restart import Restarter
from malletrain.elastic.link.daemon_link import Directives, Link, LinkHandler
from malletrain.elastic.resize.pending_groups import PendingGroups
from malletrain.elastic.resize.reconfigure import FORGONE, Reconfigurer
from malletrain.elastic.state.training_state import Position, TrainingState
from malletrain.wire import messages
from malletrain.wire.worker_client import DaemonUnreachable, TokenUnknown, WorkerClient
from tests.elastic.stores import Calm
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


@contextmanager
def linked(daemon: Daemon, worker: Worker) -> Iterator[Link]:
    """A link that has heard of a plan."""
    daemon.plan = messages.Plan(4, STANDING.members)
    link = Link(cast(WorkerClient, daemon), worker)
    link.start()
    try:
        with link.changed:
            assert link.changed.wait_for(lambda: link.plan is not None, 60.0)
        yield link
    finally:
        link.close()


@pytest.mark.parametrize("standing", [None, STANDING])
def test_a_worker_without_a_world_begins_anew_with_a_daemon_that_has_restarted(
    standing: messages.Standing | None,
) -> None:
    """It says again that it is warm, and takes no plan that the earlier daemon showed."""
    daemon = Daemon()
    with linked(daemon, Worker(standing)) as link:
        link.say(WARM)
        assert daemon.wait_for(WARM)
        daemon.restart()
        after = messages.Metric("loss", 1.0, 1)
        link.say(after)
        assert daemon.wait_for(after)
        assert (WARM in daemon.reports) == (link.plan is None) == (standing is None)


@pytest.mark.parametrize("fixed", [False, True])
def test_members_of_a_job_that_keeps_its_size_make_no_world_among_themselves(fixed: bool) -> None:
    """While the daemon is away: it would be a smaller one."""
    daemon, worker = Daemon(), Worker(STANDING)
    daemon.fixed = fixed
    with linked(daemon, worker) as link:
        daemon.away = True
        wait_until(lambda: link.away_since is not None, 60, "the daemon away")
        if not fixed:
            wait_until(lambda: worker.meetings > 0, 60, "a meeting")
        assert link.fixed == fixed
        assert fixed == (worker.meetings == 0)


ME = "9_0.0"
SEATS = (messages.Seat(ME, "127.0.0.1:1"),)


class Told(Directives):
    """What a daemon said last, which has just been heard."""

    last_contact = time.monotonic()


class Newcomer(Calm):
    """Member and state recovery of a newcomer; the link says hello while it recovers the state for the first time."""

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self.worker, self.host, self.local_rank, self.local_leader = ME, "127.0.0.1", LocalRank(), None
        self.ending = ""
        self.committer = StepCommitter(self)
        self.pending_groups = PendingGroups(lambda generation, reason: None)
        self.link = Told(cast(LinkHandler, self))
        self.link.plan = messages.Plan(4, SEATS)
        self.reconfigurer: Reconfigurer | None = None
        self.told: list[messages.Standing | None] = []
        self.faults: list[tuple[int, str, str]] = []

    def check_newer(self, plan: messages.Plan) -> None: ...

    def need_link(self) -> Any:
        return self.link

    def has_seat(self, plan: messages.Plan) -> bool:
        return True

    def fault(self, generation: int, how: str, detail: str) -> None:
        self.faults.append((generation, how, detail))
        self.link.plan = messages.Plan(5, SEATS)

    def compare(self, plan: messages.Plan) -> None: ...

    def recover(self, plan: messages.Plan, group: Group) -> frozenset[int]:
        self.state.has_state = True
        if self.reconfigurer is not None and not self.told:
            self.told.append(self.reconfigurer.standing())
        return frozenset()


def test_a_worker_that_says_hello_while_it_enters_its_first_world_enters_the_next_one() -> None:
    model = torch.nn.Linear(1, 1)
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), 0.1)], Position())
    fake: Any = Newcomer(state)
    unused = cast(Any, None)
    fake.reconfigurer = reconfigurer = Reconfigurer(
        fake, state, fake, unused, unused,
        entered=lambda: None, top_up=lambda _: None, store_server=None,
        carrier=None, tries=lambda _world, _following: False,
    )  # fmt: skip
    reconfigurer.join()
    assert fake.told == [None]
    assert fake.faults == [(4, "build", FORGONE)]
    standing = reconfigurer.standing()
    assert standing is not None and standing.generation == 5


def test_a_launcher_without_a_script_starts_none_for_a_plan_that_it_has_seen_before_its_hello() -> None:
    client: Any = SimpleNamespace(identity=SimpleNamespace(job=1), worker=ME)
    launcher = Restarter(cast(WorkerClient, client), ["true"], {"MALLETRAIN_URL": "http://x"}, threading.Event())
    launcher._link.plan = messages.Plan(4, SEATS)
    assert launcher.standing() is None
    launcher._poll()
    said = [each for each in launcher._link._queue if isinstance(each, messages.Fault)]
    assert [(each.generation, each.how) for each in said] == [(4, "build")]
    launcher._poll()
    assert len(launcher._link._queue) == 1, "it is said once"
    launcher._link.plan = messages.Plan(5, SEATS)
    launcher._take(launcher._link.plan)
    standing = launcher.standing()
    assert standing is not None and standing.generation == 5
