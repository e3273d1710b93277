"""The API on a real socket over a real journal, with the daemon behind it recorded."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from malletrain.api.app import create_app
from malletrain.api.auth import Auth
from malletrain.api.connections import ConnectionTable
from malletrain.api.http_server import HttpServer, serve
from malletrain.api.people_routes import JournalNotifier, PeopleRoutes
from malletrain.api.rate_limits import ApiLimits
from malletrain.api.roles import Identity, NotFound, Roles
from malletrain.api.schemas import JobBody
from malletrain.api.visibility import Visibility
from malletrain.domain.snapshot import NodeState
from malletrain.store.history_views import StoreHistory
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews
from malletrain.web.page_routes import WebPages
from malletrain.web.sign_in import KEY_HEADER, SignIn
from malletrain.wire import munge
from malletrain.wire.http import Http
from malletrain.wire.rows import MainJobDelayRow, ProfileRow, PromiseCostRow, PromiseKeptRow, PromiseRow, SizeRow
from tests.world import announced, event_of

URL = "http://head.example.org:8470"

#: For `verify`, where all is plain HTTP: to read the machine's certificates takes longer than most requests do.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class HandClock:
    """A clock that goes on by itself; time of day and elapsed time can be moved ahead by hand, each alone."""

    def __init__(self) -> None:
        self.day_ahead = 0.0
        self.ahead = 0.0

    def now(self) -> float:
        return time.time() + self.day_ahead

    def elapsed(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class RecordedRequests:
    """The daemon behind the routes: keeps what was asked, and writes it to the journal."""

    journal: SqliteJournal
    clock: HandClock
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def announce(self, job: JobBody, identity: Identity) -> int:
        number = self.journal.last + 1
        self.asked.append(("announce", job, identity.uid))
        wanted = job.job(number, identity.user, identity.uid, self.clock.now(), job.account, "")
        self._record("job_announced", number, announced(wanted))
        return number

    def attach_array(self, job: int, array_id: int, tasks: int, identity: Identity) -> None:
        self.asked.append(("attach", job, array_id, tasks, identity.uid))

    def cancel(self, job: int, identity: Identity) -> None:
        self.asked.append(("cancel", job, identity.uid))
        self._record("job_cancelled", job, {"by": identity.user})

    def hold(self, job: int, identity: Identity) -> None:
        self.asked.append(("hold", job, identity.uid))

    def release(self, job: int, identity: Identity) -> None:
        self.asked.append(("release", job, identity.uid))

    def explain(self, subject: str, sight: Visibility) -> Sequence[str]:
        if subject == "nowhere":
            raise NotFound("nothing is known of nowhere")
        return [f"{subject} has what it has"]

    def profile(self, job: int) -> ProfileRow:
        sizes = (SizeRow(2, 190.0, 180.0, 200.0, 3), SizeRow(4, 350.0, 300.0, 400.0))
        return ProfileRow(job, "active", sizes, "log", 0.02, 2, {"the rate is absurd": 1}, "next 4 nodes")

    def promise(self, days: int, sight: Visibility) -> PromiseRow:
        delays = [
            MainJobDelayRow("41", "ada", 1e9, 1e9 + 12.5, ("n001",), 12.5, 12.0, 0, "leaving", "workers left"),
            MainJobDelayRow("42", "eve", 1e9, 1e9 + 3, ("n002", "n003"), 0.0, 0.0, 0, "none", "no delay"),
        ]  # fmt: skip
        return PromiseRow(
            {"main_delay_p95": 2.0, "chance": 0.9}, 400, "of this hour", 2, 12.0, 30.0, 6, "[promise] because", 1,
            "3 of 40 main jobs started more than 2 s later for pilots",
            curve=(PromiseCostRow(0.0, 9.0, 0.5), PromiseCostRow(2.0, 6.0, 0.75)),
            kept=PromiseKeptRow(1e9, 1e9 + 86_400 * days, 400, 2, 1, 0.0, 0.03, 12.5, 2.0, 0.9975, 0.99),
            main_jobs=tuple(each for each in delays if sight.sees_main_job_of(each.user)),
        )  # fmt: skip

    def ban(self, user: str, uid: int, reason: str, identity: Identity) -> None:
        self.asked.append(("ban", user, uid, reason, identity.uid))

    def unban(self, user: str, uid: int, identity: Identity) -> None:
        self.asked.append(("unban", user, uid, identity.uid))

    def bans(self) -> Mapping[int, str]:
        return {1002: "banned by root: mines"}

    def drains(self) -> Mapping[str, float]:
        return {"n001": 2e9, "n002": 2e9, "n007": 3e9}

    def drain(self, nodes: str, until: float, identity: Identity) -> Sequence[str]:
        self.asked.append(("drain", nodes, until, identity.uid))
        return ["n001", "n002"]

    def _record(self, kind: str, job: int, data: dict[str, Any]) -> None:
        self.journal.append([event_of(self.clock.now(), kind, job, data=data)])


class House:
    """A running API and what stands behind it."""

    def __init__(self, folder: Path, munge_socket: str, **settings: Any) -> None:
        self.munge_socket = munge_socket
        self.clock = HandClock()
        self.journal = SqliteJournal(folder / "journal.db")
        self.notifier = JournalNotifier()
        self.journal.on_append(self.notifier.ring)
        make = settings.pop("requests", RecordedRequests)
        self.requests: Any = make(self.journal, self.clock)
        self.views = StoreViews(self.journal.path, version="test", **settings.pop("views", {}))
        self.history = StoreHistory(self.journal.path)
        self.nodes: dict[str, NodeState] = {}
        self.roles = settings.pop("roles", None) or Roles(operators=())
        self.ailments: list[str] = []
        self.gate: Any = None
        #: The uid that the next credential is taken for: one process cannot be several users without being root.
        self.uid_seen: int | None = None
        self.auth = Auth(
            [URL], self.roles, self.clock, munge_socket=munge_socket, decode=self._decode,
            **settings.pop("auth", {}),
        )  # fmt: skip
        self.sign_in = SignIn(self.roles, self.clock, settings.pop("page_url", URL))
        self.pages = WebPages(self.sign_in, self.history, lambda: self.nodes)
        connections = ConnectionTable(settings.pop("connections", ApiLimits()), 1024)
        self.connections = connections
        limits = settings.pop("limits", ApiLimits())
        if limits.refusal_seconds == ApiLimits().refusal_seconds:
            limits = replace(limits, refusal_seconds=0.0)  # tests make many
        router, site = (
            settings.pop("router", lambda _: None)(self),
            {"partition": "harvest", **settings.pop("site", {})},
        )
        self.app = create_app(
            PeopleRoutes(
                self.requests, self.views, self.auth, self.roles, self.notifier, self.clock, limits, site,
                None if router is None else router.budget.journal,
            ),
            router, connections, holds_token=self._holds_token, metrics=lambda: b"malletrain_up 1\n",
            ailments=lambda: self.ailments, pages=self.pages,
        )  # fmt: skip
        assert not settings
        self.server: HttpServer = serve(self.app, "127.0.0.1", 0, connections)

    def _holds_token(self, worker: str, header: str) -> bool:
        return self.gate is not None and bool(self.gate.holds_token(worker, header))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def _decode(self, credential: str, socket: str | None) -> munge.Credential:
        opened = munge.decode(credential, socket)
        return opened if self.uid_seen is None else munge.Credential(
            self.uid_seen, self.uid_seen, opened.payload, opened.encoded_at
        )  # fmt: skip

    def credential(self, purpose: str = "malletrain-session-v1", audience: str = URL) -> str:
        return munge.encode(munge.statement(purpose, audience), self.munge_socket)

    def token(self, uid: int) -> str:
        """A token as if user `uid` had logged in."""
        self.uid_seen = uid
        try:
            return self.auth.log_in(self.credential())[0]
        finally:
            self.uid_seen = None

    def viewer(self, uid: int) -> httpx.Client:
        """A browser in which user `uid` has opened a link to the page."""
        session = self.sign_in.open_session(self.sign_in.issue_link(self.roles.identify(uid, uid)))
        assert session is not None
        return httpx.Client(
            base_url=self.address, timeout=60, trust_env=False, verify=NO_TLS, headers={KEY_HEADER: session[1]},
            cookies={self.sign_in.cookie: session[0]},
        )  # fmt: skip

    def close(self) -> None:
        self.server.close()
        self.views.close()
        self.history.close()
        self.journal.close()


class Caller:
    """Plain HTTP requests with a given token."""

    def __init__(self, house: House, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=house.address, headers=headers, timeout=60, trust_env=False, verify=NO_TLS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.http, name)


def http_of(house: House) -> Http:
    """The commands' own client. The daemon is known by URL, while it listens on a port that was free."""
    client = Http(house.address, munge_socket=house.munge_socket)
    client.url = URL
    return client
