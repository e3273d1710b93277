"""The web page over an invented past, without a Slurm: for pictures, tests and benches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from malletrain.api.app import create_app
from malletrain.api.auth import Auth
from malletrain.api.connections import ConnectionTable
from malletrain.api.http_server import serve
from malletrain.api.people_routes import JournalNotifier, PeopleRoutes
from malletrain.api.people_rows import promise_row
from malletrain.api.rate_limits import ApiLimits
from malletrain.api.requests import DAY_S, LoopRequests
from malletrain.api.roles import Identity, NotFound, Roles
from malletrain.api.visibility import Visibility
from malletrain.daemon.process.timers import SystemClock
from malletrain.decide.rules import Rules
from malletrain.domain.errors import Refused
from malletrain.domain.snapshot import Node, Snapshot
from malletrain.loop.trackers.main_promise import PromiseTracker
from malletrain.store.history_views import StoreHistory
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews
from malletrain.web.page_routes import WebPages
from malletrain.web.sign_in import SignIn
from malletrain.wire.rows import ProfileRow, PromiseRow, SizeRow
from tests.web.invented_past import USERS, InventedMachine


class _Shown:
    """What the routes ask of a daemon's loop, from the journal alone; nothing can be changed."""

    def __init__(self, views: StoreViews, journal: SqliteJournal) -> None:
        self._views, self._journal = views, journal

    def explain(self, subject: str, sight: Visibility) -> Sequence[str]:
        """A job's nodes."""
        row = self._views.job(int(subject.removeprefix("job ")))
        if row is None or row.ended_at is not None:
            raise NotFound("it is over")
        held = ", ".join(f"{pilot.node} ({pilot.id})" for pilot in row.pilots) or "none"
        return (f"job {row.id} ({row.name}) of {row.user}: {row.phase}, {row.min_nodes}-{row.max_nodes} nodes",
                f"  nodes: {held}; {row.held_tasks} tasks wait for a hole")  # fmt: skip

    def profile(self, job: int) -> ProfileRow:
        """A curve with its band: narrow where it was measured."""
        row = self._views.job(job)
        most = row.max_nodes if row is not None else 4
        sizes = []
        for nodes in range(1, most + 1):
            rate, is_measured = 420.0 * nodes**0.86, nodes <= 2 or nodes % 3 == 0
            doubt = 0.03 if is_measured else 0.05 + 0.012 * nodes
            sizes.append(SizeRow(nodes, rate, rate * (1 - doubt), rate * (1 + doubt), 3 if is_measured else 0))
        return ProfileRow(job, "active", tuple(sizes), "amdahl", 0.02, next="next 4 nodes: the widest band")

    def promise(self, days: int, sight: Visibility) -> PromiseRow:
        """What main jobs were delayed by."""
        tracker, now = PromiseTracker(), SystemClock().now()
        for event in self._journal.read():
            tracker.apply(event)
        return promise_row(tracker, Rules(), now - days * DAY_S, now, sight)

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object) -> None:
            raise Refused(f"an invented machine is only looked at: no {name}")

        return refuse


class PageServer:
    """Serves until it is closed. `names` of users who may sign in: those of the past, and `root`."""

    def __init__(self, journal: Path, machine: InventedMachine, host: str = "127.0.0.1", port: int = 0) -> None:
        self.journal = SqliteJournal(journal)
        states = machine.write(self.journal)
        clock, roles, notifier = SystemClock(), Roles(), JournalNotifier()
        self.journal.on_append(notifier.ring)
        nodes = tuple(Node(name, state, ("batch",)) for name, state in states.items())
        self._views = StoreViews(journal, lambda: Snapshot(clock.now(), nodes), version="demo")
        self._history = StoreHistory(journal)
        self._sign_in = SignIn(roles, clock, "")
        connections = ConnectionTable(ApiLimits(), 1024)
        self._pages = WebPages(self._sign_in, self._history, lambda: states)
        shown = cast(LoopRequests, _Shown(self._views, self.journal))
        people = PeopleRoutes(shown, self._views, Auth((), roles, clock), roles, notifier, clock)
        app = create_app(people, None, connections, pages=self._pages)
        self._server = serve(app, host, port, connections)
        self.url = f"http://{host}:{self._server.port}"

    def link(self, user: str) -> str:
        """The page's address that signs this user in, once."""
        uid = {name: uid for name, uid, _ in USERS}.get(user, 0)
        who = Identity(uid, uid, user, "user" if uid else "operator")
        return f"{self.url}/web/#{self._sign_in.issue_link(who)}"

    def status(self) -> int:
        """Bytes of what /v1/status answers, made anew: what a page is compared with."""
        return len(json.dumps(self._views.status(SystemClock().now()).to_json()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._views.close()
        self._history.close()
        self.journal.close()
