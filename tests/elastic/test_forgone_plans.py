"""A worker that has told a daemon that it is in no world enters none that an earlier daemon has planned."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import torch

from malletrain.elastic.comm.group import Group
from malletrain.elastic.comm.node_group import LocalRank
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.launch.restart import Restarter
from malletrain.elastic.link.daemon_link import Directives, LinkHandler
from malletrain.elastic.resize.pending_groups import PendingGroups
from malletrain.elastic.resize.reconfigure import FORGONE, Reconfigurer
from malletrain.elastic.state.training_state import Position, TrainingState
from malletrain.wire import messages
from malletrain.wire.worker_client import WorkerClient
from tests.elastic.calm import Calm

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

    def check(self, generation: int) -> None: ...

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
