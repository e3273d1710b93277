"""The daemon's half of the workers' protocol on this machine: the daemon's own membership and routes, without
Slurm."""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from malletrain.api.worker_routes import WorkersGate, make_workers_router
from malletrain.domain.errors import Refused
from malletrain.domain.event import Event
from malletrain.loop.membership.admission import Admission
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms
from malletrain.loop.membership.state import MembershipSettings

START_TIMEOUT_S = 20.0


class MachineClock:
    """This machine's clocks."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()


@dataclass
class LocalCoordinator:
    """Names the worlds of one job whose workers run on this machine, and keeps their events.

    Args:
        port: of 127.0.0.1 to listen on; 0 lets the kernel choose.
        user: numeric id of the workers' user.
        secret: that workers present as their credential.
        job: the number of the job.
        terms: the sizes that it may have.
        settings: time limits of membership.
        generations: the last generation of jobs that are known already.

    Attributes:
        events: what happened, in order.
    """

    port: int
    user: int
    secret: str
    job: int
    terms: JobTerms = field(default_factory=JobTerms)
    settings: MembershipSettings = field(default_factory=MembershipSettings)
    generations: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = MachineClock()
        self.lock = threading.RLock()
        self.membership = Membership(
            self.settings, clock, lambda claim: Admission(self.terms), self.generations, make_secret=secrets.token_hex
        )
        self.gate = WorkersGate(self.membership, self.lock, self._persist, clock)
        app = FastAPI()
        app.include_router(make_workers_router(self.gate, self._authenticate))
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def _authenticate(self, credential: str) -> int:
        if not hmac.compare_digest(credential, self.secret):
            raise Refused("wrong credential")
        return self.user

    def _persist(self) -> None:
        self.events.extend(self.membership.reports())

    def start(self) -> None:
        """Begin to serve. Raises `TimeoutError` if this machine does not let it."""
        self._thread.start()
        wait_until(lambda: self._server.started, START_TIMEOUT_S, "the coordinator listens")
        threading.Thread(target=self._tick_for_ever, daemon=True).start()

    def _tick_for_ever(self) -> None:
        """As the daemon's own timer does, in case no worker polls."""
        while self._thread.is_alive():
            self._thread.join(1.0)
            self.gate.beat()
            self.gate.tick()

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def world(self) -> tuple[str, ...]:
        """The pilots of the newest world."""
        with self.lock:
            plan = self.membership.world(self.job)
            return tuple(seat.pilot for seat in plan.members) if plan else ()


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Return once `condition()` holds. Raises `TimeoutError`, with `what`, after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.01)
