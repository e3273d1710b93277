"""What people's programs ask of the daemon: the routes of people, as calls that return rows."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from malletrain.wire.address import Address, find
from malletrain.wire.errors import WireError
from malletrain.wire.http import Http
from malletrain.wire.rows import EventRow, JobRow, ProfileRow, PromiseRow, StatusRow, UsageRow

Part = TypeVar("Part")

#: Jobs of a list.
MAX_JOBS = 1000


class BadAnswer(WireError):
    """The daemon answered something that was not asked for."""


class DaemonClient(Http):
    """The daemon, as people's commands see it. Each call may raise what `Http` raises, and `BadRow`."""

    def __init__(self, address: Address, munge_socket: str | None = None) -> None:
        super().__init__(address.url, munge_socket=munge_socket, ca=address.ca)
        self.address = address

    def site(self) -> Mapping[str, str]:
        """Partition, account and QOS of pilots, as the daemon answers a login."""
        if not self.identity:
            self.get("/v1/jobs", {"limit": 1})  # logs in
        site = self.identity.get("site")
        return {k: v for k, v in site.items() if isinstance(v, str)} if isinstance(site, dict) else {}

    def status(self) -> StatusRow:
        """The whole picture."""
        return StatusRow.from_json(self.get("/v1/status"))

    def jobs(self, *, over: bool = True, mine: bool = False) -> tuple[JobRow, ...]:
        """The newest `MAX_JOBS` jobs, or without those that are over, or the caller's alone."""
        rows: list[JobRow] = []
        query: dict[str, bool | int] = {"over": over, "mine": mine} if mine or not over else {}
        while len(rows) < MAX_JOBS:
            answer = self.get("/v1/jobs", query)
            rows[:0] = [JobRow.from_json(row) for row in self._part(answer, "jobs", list)]
            before = answer.get("before")  # None at the end, and of a daemon that gives all at once
            if not isinstance(before, int):
                break
            query["before"] = before
        return tuple(rows[-MAX_JOBS:])

    def job(self, job: int) -> JobRow:
        """One job."""
        return JobRow.from_json(self.get(f"/v1/jobs/{job}").get("job"))

    def submit(self, wanted: Mapping[str, Any]) -> JobRow:
        """Announce a job."""
        return JobRow.from_json(self.post("/v1/jobs", wanted).get("job"))

    def attach(self, job: int, array_id: int, tasks: int) -> None:
        """Tell the daemon which held array serves the job."""
        self.post(f"/v1/jobs/{job}/arrays", {"array_id": array_id, "tasks": tasks})

    def ask(self, job: int, verb: str) -> None:
        """`cancel`, `hold` or `release` a job."""
        self.post(f"/v1/jobs/{job}/{verb}")

    def events(
        self, *, after: int = 0, wait_s: float = 0.0, job: int | None = None, kinds: Sequence[str] = ()
    ) -> tuple[tuple[EventRow, ...], int]:
        """Events after number `after`, waiting up to `wait_s` for the first; and the number to go on from.

        With `kinds`, those of these kinds alone.
        """
        return self._events({"after": after, "wait": wait_s, "job": job}, wait_s, kinds)

    def latest_events(self, count: int) -> tuple[tuple[EventRow, ...], int]:
        """The newest `count` events in order, and the number to go on from."""
        return self._events({"latest": max(1, count)}, 0.0)

    def _events(
        self, query: Mapping[str, int | float | None], wait_s: float, kinds: Sequence[str] = ()
    ) -> tuple[tuple[EventRow, ...], int]:
        answer = self.get("/v1/events", {**query, "kind": kinds}, wait_s=wait_s)
        rows = self._part(answer, "events", list)
        return tuple(EventRow.from_json(row) for row in rows), self._part(answer, "last", int)

    def explain(self, subject: str) -> Sequence[str]:
        """Why a job or node has what it has, in lines."""
        lines = self._part(self.get(f"/v1/explain/{quote(subject, safe='')}"), "lines", list)
        return [str(line) for line in lines]

    def profile(self, job: int) -> ProfileRow:
        """What is known of how a job scales."""
        return ProfileRow.from_json(self.get(f"/v1/jobs/{job}/profile"))

    def promise(self, *, days: int) -> PromiseRow:
        """What the main queue is promised, what that costs, and how it was kept in the last `days`."""
        return PromiseRow.from_json(self.get("/v1/promise", {"days": days}))

    def usage(self, *, since: str = "") -> tuple[UsageRow, ...]:
        """What was given to whom, from day `since` on."""
        rows = self._part(self.get("/v1/usage", {"since": since or None}), "usage", list)
        return tuple(UsageRow.from_json(row) for row in rows)

    def web_link(self) -> tuple[str, float]:
        """The address of the web page that signs the caller in once, and for how many seconds it does."""
        answer = self.post("/v1/web/links")
        link, lifetime_s = self._part(answer, "link", str), self._part(answer, "lifetime_s", float)
        return f"{self.url}/web/#{link}", lifetime_s

    def drain(self, *, nodes: str, until: float) -> Sequence[str]:
        """Keep pilots off `nodes` (empty: all) until then; the names that it comes to."""
        names = self._part(self.post("/v1/drain", {"nodes": nodes, "until": until}), "nodes", list)
        return [str(name) for name in names]

    def drains(self) -> Mapping[str, float]:
        """Until when (Unix seconds) operators keep pilots off each node."""
        rows = self._part(self.get("/v1/drain"), "drains", list)
        return {str(row["node"]): float(row["until"]) for row in rows if isinstance(row, dict)}

    def bans(self) -> Sequence[Mapping[str, Any]]:
        """Users who are refused: `user`, `uid`, `reason`."""
        return [row for row in self._part(self.get("/v1/bans"), "bans", list) if isinstance(row, dict)]

    def ban(self, user: str, reason: str) -> None:
        """Refuse a user, and end the user's jobs."""
        self.post("/v1/bans", {"user": user, "reason": reason})

    def unban(self, user: str) -> None:
        """Admit a user again."""
        self.delete(f"/v1/bans/{quote(user, safe='')}")

    def _part(self, answer: Mapping[str, Any], name: str, kind: type[Part]) -> Part:
        """What the answer has under `name`.
        Raises BadAnswer: nothing, or something of another kind."""
        found = answer.get(name)
        if not isinstance(found, kind):
            words = f"{self.url}: {name!r} is not in the answer as it should be: is the daemon of another release?"
            raise BadAnswer(words)
        return found


def connect(environ: Mapping[str, str] | None = None) -> DaemonClient:
    """The daemon that MALLETRAIN_URL or a client file names; nothing is sent yet.

    MUNGE_SOCKET names munged's socket where it is not the system's.
    Raises AddressError: no daemon is known; WireError: the file of certificates cannot be used."""
    environ = os.environ if environ is None else environ
    return client_at(find(environ), environ)


def client_at(address: Address, environ: Mapping[str, str]) -> DaemonClient:
    """The daemon at an address; nothing is sent yet.
    Raises WireError: the URL or the file of certificates cannot be used."""
    return DaemonClient(address, environ.get("MUNGE_SOCKET") or None)
