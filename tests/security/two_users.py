"""Two users, a job of each, and their pilots as the journal has them; the workers' routes on a real socket.

Alice's job 1 has array 7, Mallory's job 2 has array 8. Tasks 0 to 2 of both run on a node each, task 3 waits.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.domain.decision import LeaveCause, LeavePilot, StartPilot
from malletrain.domain.event import ActionIntent, ActionOutcome, Event
from malletrain.domain.job import MalleableJob
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.admission import admit
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import LastWorlds
from malletrain.loop.membership.state import MembershipSettings, Worker
from malletrain.wire.messages import Plan
from tests.api.house import Caller, House
from tests.world import announced, event_of

ALICE, MALLORY = 1001, 1002
HERS, HIS = 1, 2  #: jobs
ARRAYS = {HERS: 7, HIS: 8}
RUNNING, WAITING = (0, 1, 2), 3


def node_of(job: int, task: int) -> str:
    return f"n{job}{task}"


class Journalled:
    """What the journal says of both jobs."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        for job, user, uid in ((HERS, "alice", ALICE), (HIS, "mallory", MALLORY)):
            wanted = MalleableJob(job, f"{user}'s", user, uid, "harvest", 1, 8, 1000.0)
            self.add(event_of(1000.0, "job_announced", job, data=announced(wanted)))
            tasks: Any = [*RUNNING, WAITING]
            self.add_array(job, {"array_id": ARRAYS[job], "tasks": tasks})
            for task in RUNNING:
                self.start(job, task)

    def add(self, *events: Event) -> None:
        self.ledger.apply(events)
        self.views = self.ledger.views()

    def add_array(self, job: int, data: Any) -> None:
        self.add(event_of(1001.0, "tasks_added", job, data=data))

    def start(self, job: int, task: int, restarts: int | None = 0) -> None:
        self.start_pilot(job, f"{ARRAYS[job]}_{task}", node_of(job, task), restarts)

    def start_pilot(self, job: int, pilot: str, node: str, restarts: int | None = 0) -> None:
        action = StartPilot(job, pilot, node, 600.0, "")
        self.add(
            event_of(1002.0, "pilot_held", job, pilot),
            Event(1002.0, ActionIntent(action), job, pilot, node),
            Event(1003.0, ActionOutcome(action, True, restarts=restarts), job, pilot, node),
            event_of(1004.0, "pilot_started", job, pilot, node, data={"started_at": 1003.0, "ends_at": 9e9}),
        )

    def end(self, job: int, task: int) -> None:
        self.add(event_of(1005.0, "pilot_ended", job, f"{ARRAYS[job]}_{task}", data={"state": "preempted"}))

    def leave(self, job: int, task: int) -> LeavePilot:
        """The intent alone: what a daemon has written that dies before it asks."""
        pilot, node = f"{ARRAYS[job]}_{task}", node_of(job, task)
        action = LeavePilot(job, pilot, node, LeaveCause.YIELD, 2000.0, "wanted by main job 99")
        self.add(Event(1006.0, ActionIntent(action), job, pilot, node, action.reason))
        return action


class Site:
    """The routes over HTTP, each call made by the user that it names."""

    def __init__(self, folder: Path, munge_socket: str, generations: dict[int, int] | None = None) -> None:
        self.journal = Journalled()
        self.refusals: list[tuple[int, str]] = []
        self._generations = generations or {}
        self.house = House(folder, munge_socket, router=self._router)

    def _router(self, house: House) -> Any:
        self.members = make_membership(self.journal, house.clock, self._generations, self.refusals)
        gate = house.gate = WorkersGate(self.members, threading.RLock(), self._persist, house.clock)
        return WorkersRouter(gate, house.auth.worker_uid, house.connections)

    def _persist(self) -> None:
        self.members.reports()

    def hello(self, uid: int, job: int, task: int, standing: dict[str, Any] | None = None, **changes: Any) -> Any:
        """What the daemon answers to a process of user `uid`; by default it is an honest one."""
        body = {
            "credential": self.house.credential("malletrain-worker-v1"), "job": job, "slurm_job_id": 1,
            "array_id": ARRAYS[job], "task": task, "restart": 0, "node": node_of(job, task), "pid": 1,
            "standing": standing,
        }  # fmt: skip
        self.house.uid_seen = uid
        try:
            return Caller(self.house).post("/v1/workers/hello", json=body | changes)
        finally:
            self.house.uid_seen = None

    def begin(self, uid: int, job: int) -> None:
        """The world of a job that trains on its running pilots; adopted from its members."""
        for task in RUNNING:
            assert self.hello(uid, job, task, standing_of(job, 5, RUNNING)).status_code == 200

    def worker(self, job: int, task: int, restart: int = 0) -> Worker | None:
        return self.members.worker(name_of(job, task, restart))

    def world(self, job: int) -> Plan | None:
        return self.members.world(job)

    def directive(self, job: int, task: int, token: str) -> Any:
        path = f"/v1/workers/{name_of(job, task)}/plan?after=0&wait=0"
        return Caller(self.house, token).get(path).json()

    def close(self) -> None:
        self.house.close()


def name_of(job: int, task: int, restart: int = 0) -> str:
    return f"{ARRAYS[job]}_{task}.{restart}"


def seat(job: int, task: int, address: str = "") -> dict[str, str]:
    return {"worker": name_of(job, task), "address": address or f"{node_of(job, task)}:1"}


def standing_of(job: int, generation: int, tasks: Any, **changes: Any) -> dict[str, Any]:
    """What an honest member says of the world that it trains in."""
    members = [seat(job, task) for task in tasks]
    return {"generation": generation, "members": members, "step": 40, "address": "", "seen": generation} | changes


def make_membership(
    journal: Journalled, clock: Any, generations: dict[int, int], refusals: list[tuple[int, str]]
) -> Membership:
    """A daemon's, as the service makes it, with what it refuses in `refusals`."""
    return Membership(
        MembershipSettings(), clock, lambda claim: admit(journal.views, claim),
        {job: LastWorlds(number) for job, number in generations.items()},
        lambda job, why: refusals.append((job, why)),
    )  # fmt: skip
