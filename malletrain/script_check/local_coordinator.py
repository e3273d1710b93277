"""The daemon's half of the workers' protocol on this machine: the daemon's own membership and routes, without
Slurm."""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from collections.abc import Mapping

from malletrain.api.connections import ConnectionTable
from malletrain.api.http_server import HttpServer, serve
from malletrain.api.rate_limits import ApiLimits
from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.domain.errors import Refused
from malletrain.domain.event import Event
from malletrain.loop.membership.admission import Admission
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import JobTerms, LastWorlds
from malletrain.loop.membership.state import MembershipSettings


class MachineClock:
    """This machine's clocks."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()


class LocalCoordinator:
    """Names the worlds of one job whose workers run on this machine, and keeps their events.

    Args:
        secret: that workers present as their credential.
        terms: the sizes that the job may have.
        last: the last worlds of jobs that are known already.
    """

    def __init__(
        self,
        secret: str,
        job: int,
        terms: JobTerms,
        settings: MembershipSettings,
        last: Mapping[int, LastWorlds] | None = None,
    ) -> None:
        self.secret, self.job, self.terms = secret, job, terms
        self.host, self.port = "127.0.0.1", 0  #: to listen on; 0: one that is free, which `start` sets
        self.events: list[Event] = []
        clock = MachineClock()
        self.lock = threading.RLock()
        self.membership = Membership(
            settings, clock, lambda claim: Admission(self.terms), last, make_secret=secrets.token_hex
        )
        self.gate = WorkersGate(self.membership, self.lock, self._persist, clock)
        limits = ApiLimits()
        self.connections = ConnectionTable(limits, limits.connections)
        self._app = WorkersRouter(self.gate, self._authenticate, self.connections)
        self._ended = threading.Event()
        self._server: HttpServer | None = None

    def _authenticate(self, credential: str) -> int:
        if not hmac.compare_digest(credential, self.secret):
            raise Refused("wrong credential")
        return os.getuid()

    def _persist(self) -> None:
        self.events.extend(self.membership.reports())

    def start(self) -> None:
        """Begin to serve. Raises `Unavailable`: the port is taken, or the server does not start."""
        self._server = serve(self._app, self.host, self.port, self.connections)
        self.port = self._server.port
        threading.Thread(target=self._tick_for_ever, daemon=True).start()

    def _tick_for_ever(self) -> None:
        """As the daemon's own timer does, in case no worker polls."""
        while not self._ended.wait(1.0):
            self.gate.tick()

    def stop(self) -> None:
        """Stop serving."""
        self._ended.set()
        if self._server is not None:
            self._server.close(at_once=True)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def world(self) -> tuple[str, ...]:
        """The pilots of the newest world."""
        with self.lock:
            plan = self.membership.world(self.job)
            return tuple(seat.pilot for seat in plan.members) if plan else ()
