"""The routes of people: log in, look, ask. Each checks who calls and what they may; the daemon does the rest."""

# No `from __future__ import annotations`: FastAPI evaluates the routes' annotations, and some are local.

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, TypeVar
from weakref import WeakValueDictionary

import anyio
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from malletrain.api.auth import Auth
from malletrain.api.journal_notifier import JournalNotifier
from malletrain.api.rate_limits import ROW_BYTES, ApiLimits, TokenBuckets, TooManyRequests
from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Conflict, Identity, NotFound, Roles, uids_of, user_name
from malletrain.api.schemas import MAX_NUMBER, ArrayBody, BanBody, DrainBody, JobBody, SessionBody
from malletrain.domain.errors import InvalidInput
from malletrain.loop.ports import Clock
from malletrain.store.views import StoreViews
from malletrain.wire.rows import JobRow

#: Seconds that a long poll may wait.
MAX_WAIT_S = 60.0

#: Days of main jobs that one answer is about: the journal keeps 30.
MAX_PROMISE_DAYS = 90

#: Threads that people's requests may use at once, one for each of the views' connections: workers have the others.
_THREADS = 4

JobNumber = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Day = Annotated[str, Query(pattern=r"^(\d{4}-\d{2}-\d{2})?$", max_length=10)]
Result = TypeVar("Result")


def address_of(request: Request) -> str:
    """The address that a request comes from, as a caller of `PeopleRoutes.off_loop`."""
    return f"at {request.client.host if request.client else ''}"


class PeopleRoutes:
    """What the routes share."""

    def __init__(
        self, requests: LoopRequests, views: StoreViews, auth: Auth, roles: Roles, notifier: JournalNotifier,
        clock: Clock, limits: ApiLimits, site: Mapping[str, str], journal: TokenBuckets | None = None,
    ) -> None:  # fmt: skip
        """`journal`: bytes of the journal by user id, shared with the users' workers (`ReportBudget.journal`)."""
        self.requests, self.views, self.auth, self.roles = requests, views, auth, roles
        self.notifier, self.clock, self.limits, self.site = notifier, clock, limits, dict(site)
        self.journal = journal or TokenBuckets(limits.user_journal_bytes_rate, limits.user_journal_bytes_burst, clock)
        self.logins = TokenBuckets(limits.user_login_rate, limits.user_login_burst, clock)
        self.announcements = TokenBuckets(limits.announcements_a_day / 86_400, limits.announcements_a_day, clock)
        self._polls: Counter[int] = Counter()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: while a request has one

    async def off_loop(self, caller: str, call: Callable[[], Result]) -> Result:
        """Run what may block in a thread. A caller (a user, or an address without one) has one at a time: those that
        ask for more wait for themselves."""
        lock = self._locks.setdefault(caller, asyncio.Lock())
        async with lock:
            return await anyio.to_thread.run_sync(call, limiter=self._threads)

    def caller(self, request: Request) -> Identity:
        """Who calls, by token; a dependency of every route but the login."""
        identity = self.auth.identify(request.headers.get("authorization"))
        request.scope["malletrain.sight"] = self.roles.sight(identity)
        if request.method != "GET":
            self._charge(identity, request)
        return identity

    def _charge(self, caller: Identity, request: Request) -> None:
        """What a request that changes something may have written, by its body.
        Raises TooManyRequests: the user has had too much written lately."""
        if self.journal.is_empty(str(caller.uid)):
            raise TooManyRequests(f"too much is written to the journal for {caller.user}: wait a moment")
        chunked = "transfer-encoding" in request.headers
        body = self.limits.body_bytes if chunked else int(request.headers.get("content-length", 0))
        self.journal.charge(str(caller.uid), ROW_BYTES + body)

    @contextmanager
    def long_poll(self, uid: int) -> Iterator[None]:
        """Count a long poll of one user. Raises TooManyRequests: it is one too many."""
        if self._polls[uid] >= self.limits.long_polls_per_user:
            raise TooManyRequests(f"at most {self.limits.long_polls_per_user} long polls at a time: end one first")
        self._polls[uid] += 1
        try:
            yield
        finally:
            self._polls[uid] -= 1
            if not self._polls[uid]:
                del self._polls[uid]


def make_people_router(people: PeopleRoutes) -> APIRouter:
    """The routes of people, to be mounted by `create_app`."""
    router = APIRouter(prefix="/v1", tags=["people"])
    requests, views, roles = people.requests, people.views, people.roles

    async def identify(request: Request) -> Identity:
        return people.caller(request)

    Caller = Annotated[Identity, Depends(identify)]  # noqa: N806 - a type

    @router.post("/session")
    async def log_in(body: SessionBody, request: Request) -> Response:
        """A token for the maker of a MUNGE credential of `malletrain-session-v1 URL`."""
        token, who = await people.off_loop(address_of(request), lambda: people.auth.log_in(body.credential))
        people.logins.take(str(who.uid))
        lifetime_s = people.auth.lifetime_s
        answer = {"token": token, "expires_at": people.clock.now() + lifetime_s, "lifetime_s": lifetime_s}
        answer |= {"user": who.user, "uid": who.uid, "role": who.role.value, "site": people.site}
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    @router.delete("/session", status_code=204)
    async def log_out(request: Request, _caller: Caller) -> Response:
        """End the token."""
        people.auth.log_out(request.headers.get("authorization"))
        return Response(status_code=204)

    @router.post("/jobs", status_code=201)
    async def announce(body: JobBody, caller: Caller) -> Response:
        """A new malleable job of the caller's."""

        if not people.announcements.has(str(caller.uid)):
            most = people.limits.announcements_a_day
            raise TooManyRequests(f"{caller.user} has announced {most} jobs in a day: that is the most; wait an hour")

        def take() -> JobRow | None:
            mine = views.jobs(over=False, uid=caller.uid)
            if len(mine) >= people.limits.open_jobs_per_user:
                raise Conflict(f"{caller.user} has {len(mine)} jobs that are not over: that is the most; cancel some")
            return views.job(requests.announce(body, caller))

        row = await people.off_loop(caller.user, take)
        if row is None:
            raise NotFound("the new job is not to be seen: look again with `malletrain status`")
        return JSONResponse({"job": roles.sight(caller).job(row).to_json()}, 201)

    @router.get("/jobs")
    async def jobs(
        caller: Caller, over: bool = True, mine: bool = False, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        before: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    ) -> Response:  # fmt: skip
        """The newest `limit` jobs, by number, or as many as make 4 MB; without those that are over with
        `over=false`. Where there are more, the answer has the `before` that asks for them."""
        sight = roles.sight(caller)
        uid = caller.uid if mine else sight.uid
        rows, more = await people.off_loop(caller.user, lambda: views.jobs_page(over, uid, limit, before))
        return JSONResponse({"jobs": [sight.job(row).to_json() for row in rows]} | ({"before": more} if more else {}))

    @router.get("/jobs/{job_id}")
    async def job(job_id: JobNumber, caller: Caller) -> Response:
        """One job."""
        row = roles.check_sees(caller, job_id, await people.off_loop(caller.user, lambda: views.job(job_id)))
        return JSONResponse({"job": roles.sight(caller).job(row).to_json()})

    @router.post("/jobs/{job_id}/arrays", status_code=202)
    async def attach(job_id: JobNumber, body: ArrayBody, caller: Caller) -> Response:
        """The owner has submitted a held array for the job. The daemon looks at each task before it uses one."""

        def take() -> None:
            row = roles.check_owns(caller, job_id, views.job(job_id))
            if row.ended_at is not None:
                raise Conflict(f"job {job_id} is {row.phase}: cancel the array (scancel {body.array_id})")
            requests.attach_array(job_id, body.array_id, body.tasks, caller)

        await people.off_loop(caller.user, take)
        return JSONResponse({}, 202)

    @router.get("/jobs/{job_id}/profile")
    async def profile(job_id: JobNumber, caller: Caller) -> Response:
        """What is known of how the job scales, and what would be measured next."""
        roles.check_sees(caller, job_id, await people.off_loop(caller.user, lambda: views.job(job_id)))
        row = await people.off_loop(caller.user, lambda: requests.profile(job_id))
        return JSONResponse(roles.sight(caller).profile(row).to_json())

    def steer(verb: str, ask: Callable[[int, Identity], None], when_over: bool, words: str) -> None:
        async def route(job_id: JobNumber, caller: Caller) -> Response:
            def take() -> None:
                row = roles.check_steers(caller, job_id, views.job(job_id))
                if row.ended_at is None:
                    ask(job_id, caller)
                elif not when_over:
                    raise Conflict(f"job {job_id} is {row.phase} already")

            await people.off_loop(caller.user, take)
            return JSONResponse({}, 202)

        router.add_api_route(
            f"/jobs/{{job_id}}/{verb}", route, methods=["POST"], status_code=202, name=verb, description=words,
        )  # fmt: skip

    steer("cancel", requests.cancel, True, "End the job; done also when it is over already.")
    steer("hold", requests.hold, False, "Take the job's nodes until it is released.")
    steer("release", requests.release, False, "Let a held job run again.")

    @router.get("/status")
    async def status(caller: Caller, nodes: bool = True) -> Response:
        """Pool, nodes, jobs that are not over, last decision; `nodes=false` leaves the nodes out."""
        sight = roles.sight(caller)

        def look() -> bytes:
            now = people.clock.now()
            if sight.is_whole:
                return views.status_text(now, nodes)
            shown = sight.status(views.status(now, nodes and sight.nodes, sight.uid))
            return bytes(JSONResponse(shown.to_json()).body)  # here: writing 2 MB would hold up the event loop

        kept = views.kept_status_text(nodes) if sight.is_whole else None
        text = await people.off_loop(caller.user, look) if kept is None else kept
        return Response(text, media_type="application/json")

    @router.get("/events")
    async def events(
        caller: Caller,
        after: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0,
        job: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
        kind: Annotated[list[Annotated[str, Query(max_length=40)]], Query(max_length=40)] = [],  # noqa: B006 - FastAPI copies it
        limit: Annotated[int, Query(ge=1, le=5_000)] = 1000,
        latest: Annotated[int | None, Query(ge=1, le=5_000)] = None,
    ) -> Response:
        """Events above number `after`, waiting up to `wait` seconds for one; `last` is the next call's `after`.

        `latest=N` gives the newest N at once, instead."""
        sight = roles.sight(caller)
        seen = sight.uid
        if latest is not None:
            rows, last = await people.off_loop(caller.user, lambda: views.latest_events(latest, job, seen))
            return JSONResponse({"events": [sight.event(row).to_json() for row in rows], "last": last})
        end = people.clock.elapsed() + wait
        with people.long_poll(caller.uid):
            while True:
                since = after
                rows, after = await people.off_loop(
                    caller.user,
                    lambda since=since: views.events(since, job, seen, kind, limit),  # type: ignore[misc]
                )
                left = end - people.clock.elapsed()
                if rows or left <= 0 or people.notifier.is_over:
                    return JSONResponse({"events": [sight.event(row).to_json() for row in rows], "last": after})
                await people.notifier.wait(after, left)

    @router.get("/explain/{subject:path}")
    async def explain(subject: Annotated[str, Path(min_length=1, max_length=200)], caller: Caller) -> Response:
        """Why a job, node, pilot or main job has what it has."""
        if not subject.isprintable():
            raise NotFound("explain a job (`job 3`), a node, a pilot (`123_4`) or a main job (`main-job 99`)")
        sight = roles.sight(caller)
        lines = await people.off_loop(caller.user, lambda: requests.explain(subject, sight))
        return JSONResponse({"subject": subject, "lines": list(lines)})

    @router.get("/usage")
    async def usage(caller: Caller, since: Day = "", until: Day = "") -> Response:
        """Node-seconds and samples by day (UTC), user and account, from `since` to `until`, both included."""
        seen = roles.sight(caller).usage_uid
        rows = await people.off_loop(caller.user, lambda: views.usage(people.clock.now(), since, until, seen))
        return JSONResponse({"usage": [row.to_json() for row in rows]})

    @router.get("/promise")
    async def promise(caller: Caller, days: Annotated[int, Query(ge=1, le=MAX_PROMISE_DAYS)] = 7) -> Response:
        """What the main queue is promised, what that costs, and how it was kept in the last `days`."""
        sight = roles.sight(caller)
        row = await people.off_loop(caller.user, lambda: requests.promise(days, sight))
        return JSONResponse(row.to_json())

    @router.get("/drain")
    async def drains(caller: Caller) -> Response:
        """The nodes that operators keep pilots off, and until when (Unix seconds)."""
        found = requests.drains() if roles.sight(caller).nodes else {}
        return JSONResponse({"drains": [{"node": node, "until": until} for node, until in sorted(found.items())]})

    @router.post("/drain", status_code=202)
    async def drain(body: DrainBody, caller: Caller) -> Response:
        """Keep pilots off nodes until a time; for operators."""
        roles.check_operates(caller)
        names = await people.off_loop(caller.user, lambda: requests.drain(body.nodes, body.until, caller))
        return JSONResponse({"nodes": list(names)}, 202)

    @router.get("/bans")
    async def bans(caller: Caller) -> Response:
        """Users who are refused, and why; for operators."""
        roles.check_operates(caller)
        found = [{"user": user_name(uid), "uid": uid, "reason": why} for uid, why in sorted(requests.bans().items())]
        return JSONResponse({"bans": found})

    @router.post("/bans", status_code=202)
    async def ban(body: BanBody, caller: Caller) -> Response:
        """Refuse a user, and end the user's jobs; for operators."""
        roles.check_operates(caller)
        uid = _uid_of(body.user)
        roles.check_bannable(uid, body.user)
        await people.off_loop(caller.user, lambda: requests.ban(body.user, uid, body.reason, caller))
        return JSONResponse({}, 202)

    @router.delete("/bans/{user}", status_code=202)
    async def unban(user: Annotated[str, Path(min_length=1, max_length=64)], caller: Caller) -> Response:
        """Admit a user again; for operators."""
        roles.check_operates(caller)
        uid = _uid_of(user)
        await people.off_loop(caller.user, lambda: requests.unban(user, uid, caller))
        return JSONResponse({}, 202)

    return router


def _uid_of(user: str) -> int:
    """The uid of a user's name, or of a number, as of a user that this machine no longer has.
    Raises NotFound: there is none of that name."""
    if user.isdecimal() and user.isascii() and len(user) <= 10:
        return int(user)
    try:
        return min(uids_of([user], "user"))
    except (InvalidInput, ValueError) as error:  # a name with a NUL
        raise NotFound(f"this machine has no user {user!r}: give the number") from error
