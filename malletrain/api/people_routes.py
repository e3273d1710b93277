"""The routes of people: log in, look, ask. Each checks who calls and what they may; the daemon does the rest."""

# No `from __future__ import annotations`: FastAPI evaluates the routes' annotations, and some are local.

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, TypeVar
from weakref import WeakValueDictionary

import anyio
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from malletrain.api.auth import Auth
from malletrain.api.rate_limits import ROW_BYTES, ApiLimits, TokenBuckets, TooManyRequests
from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Conflict, Identity, NotFound, Roles
from malletrain.api.schemas import MAX_NUMBER, ArrayBody, BanBody, DrainBody, JobBody, SessionBody
from malletrain.api.visibility import Visibility
from malletrain.domain.errors import Refused
from malletrain.loop.ports import Clock
from malletrain.store.views import StoreViews
from malletrain.wire.munge import user_id, user_name
from malletrain.wire.rows import EventRow, JobRow

#: Seconds that a long poll may wait.
MAX_WAIT_S = 60.0

#: Days of main jobs that one answer is about: the journal keeps 30.
MAX_PROMISE_DAYS = 90

JobNumber = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Day = Annotated[str, Query(pattern=r"^(\d{4}-\d{2}-\d{2})?$", max_length=10)]
Result = TypeVar("Result")


def address_of(request: Request) -> str:
    """The address that a request comes from, as a caller of `PeopleRoutes.off_loop`."""
    return f"at {request.client.host if request.client else ''}"


class JournalNotifier:
    """Wakes long polls when the journal has grown. Rung by the thread that appends (`SqliteJournal.on_append`), heard
    by coroutines of the API."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._last = 0
        self.is_over = False  #: nothing is waited for any more: the daemon ends

    def ring(self, last: int) -> None:
        """The journal has grown to number `last`. Safe from any thread."""
        self._last = max(self._last, last)
        for loop, event in tuple(self._waiting):
            with suppress(RuntimeError):  # its loop has just closed
                loop.call_soon_threadsafe(event.set)

    def end(self) -> None:
        """Ends every wait at once, now and from now on."""
        self.is_over = True
        self.ring(self._last)

    async def wait(self, after: int, seconds: float) -> None:
        """Wait until the journal has grown beyond `after`, or the time is over."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        self._waiting.add(entry)
        try:
            # Looked at only after being in the set: a ring in between is not missed.
            if self._last <= after and not self.is_over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await event.wait()
        finally:
            self._waiting.discard(entry)


class PeopleRoutes:
    """What the routes share. `site` tells whoever logs in the `partition`, `account` and `qos` of pilots; `journal`
    counts bytes of the journal by user id, those of the users' workers, too (`ReportBudget.journal`)."""

    def __init__(
        self,
        requests: LoopRequests,
        views: StoreViews,
        auth: Auth,
        roles: Roles,
        notifier: JournalNotifier,
        clock: Clock,
        limits: ApiLimits | None = None,
        site: Mapping[str, str] | None = None,
        journal: TokenBuckets | None = None,
    ) -> None:
        self.requests, self.views, self.auth, self.roles = requests, views, auth, roles
        self.notifier, self.clock, self.limits, self.site = notifier, clock, limits or ApiLimits(), dict(site or {})
        limits = self.limits
        self.journal = journal or TokenBuckets(limits.user_journal_bytes_rate, limits.user_journal_bytes_burst, clock)
        self.logins = TokenBuckets(limits.user_login_rate, limits.user_login_burst, clock)
        self.announcements = TokenBuckets(limits.announcements_a_day / 86_400, limits.announcements_a_day, clock)
        self._polls: Counter[int] = Counter()
        self._threads = anyio.CapacityLimiter(4)  # one for each of the views' connections: workers have the others
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: while a request has one

    async def off_loop(self, caller: str, call: Callable[[], Result]) -> Result:
        """Run what may block in a thread. A caller (a user, or an address without one) has one at a time: those that
        ask for more wait for themselves."""
        lock = self._locks.setdefault(caller, asyncio.Lock())
        async with lock:
            return await anyio.to_thread.run_sync(call, limiter=self._threads)

    async def caller(self, request: Request) -> "Caller":
        """Who calls, by token; a dependency of every route but the login."""
        identity = self.auth.identify(request.headers.get("authorization"))
        if request.method != "GET":
            self._charge(identity, request)
        return self.known(request, identity)

    def known(self, request: Request, identity: Identity) -> "Caller":
        """Whose request it is: what they may not see is left out of refusals, too."""
        sight = request.scope["malletrain.sight"] = self.roles.sight_of(identity.uid)
        return Caller(self, identity, sight)

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


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what they may see."""

    people: PeopleRoutes
    who: Identity
    sight: Visibility

    async def ask(self, call: Callable[[], Result]) -> Result:
        """`PeopleRoutes.off_loop` for this user."""
        return await self.people.off_loop(self.who.user, call)


def make_people_router(people: PeopleRoutes) -> APIRouter:
    """The routes of people, to be mounted by `create_app`."""
    router = APIRouter(prefix="/v1", tags=["people"])
    requests, views, roles = people.requests, people.views, people.roles

    # -- who may: dependencies ---------------------------------------------------------------------------------

    Anyone = Annotated[Caller, Depends(people.caller)]  # noqa: N806 - a type

    async def operate(caller: Anyone) -> Caller:
        if caller.who.role != "operator":
            raise Refused(f"{caller.who.user} is no operator here: the daemon's configuration names them (operators)")
        return caller

    Operator = Annotated[Caller, Depends(operate)]  # noqa: N806 - a type

    async def see(job_id: JobNumber, caller: Anyone) -> JobRow:
        """A job that is hidden and one that is not there are not told apart."""
        row = await caller.ask(lambda: views.job(job_id))
        if row is None or not caller.sight.sees_job_of(row.uid):
            raise NotFound(f"there is no job {job_id}: `malletrain status` lists them")
        return row

    SeenJob = Annotated[JobRow, Depends(see)]  # noqa: N806 - a type

    async def own(row: SeenJob, caller: Anyone) -> JobRow:
        """Pilots run as the job's owner, so an operator cannot give it any."""
        if row.uid != caller.who.uid:
            raise Refused(f"job {row.id} belongs to {row.user}: only {row.user} can give it pilots")
        return row

    async def steer(row: SeenJob, caller: Anyone) -> JobRow:
        if row.uid != caller.who.uid and caller.who.role != "operator":
            raise Refused(f"job {row.id} belongs to {row.user}: only {row.user} and operators may change it")
        return row

    # -- tokens ------------------------------------------------------------------------------------------------

    @router.post("/session")
    async def log_in(body: SessionBody, request: Request) -> Response:
        """A token for the maker of a MUNGE credential of `malletrain-session-v1 URL`."""
        token, who = await people.off_loop(address_of(request), lambda: people.auth.log_in(body.credential))
        people.logins.take(str(who.uid))
        lifetime_s = people.auth.lifetime_s
        answer = {"token": token, "expires_at": people.clock.now() + lifetime_s, "lifetime_s": lifetime_s}
        answer |= {"user": who.user, "uid": who.uid, "role": who.role, "site": people.site}
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    @router.delete("/session", status_code=204)
    async def log_out(request: Request, _caller: Anyone) -> Response:
        """End the token."""
        people.auth.log_out(request.headers.get("authorization"))
        return Response(status_code=204)

    # -- jobs --------------------------------------------------------------------------------------------------

    @router.post("/jobs", status_code=201)
    async def announce(body: JobBody, caller: Anyone) -> Response:
        """A new malleable job of the caller's."""
        who = caller.who
        if not people.announcements.has(str(who.uid)):
            most = people.limits.announcements_a_day
            raise TooManyRequests(f"{who.user} has announced {most} jobs in a day: that is the most; wait an hour")

        def take() -> JobRow | None:
            mine = views.jobs(over=False, uid=who.uid)
            if len(mine) >= people.limits.open_jobs_per_user:
                raise Conflict(f"{who.user} has {len(mine)} jobs that are not over: that is the most; cancel some")
            return views.job(requests.announce(body, who))

        row = await caller.ask(take)
        if row is None:
            raise NotFound("the new job is not to be seen: look again with `malletrain status`")
        return JSONResponse({"job": caller.sight.job(row).to_json()}, 201)

    @router.get("/jobs")
    async def jobs(
        caller: Anyone,
        over: bool = True,
        mine: bool = False,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        before: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
    ) -> Response:
        """The newest `limit` jobs, by number, or as many as make 4 MB; without those that are over with
        `over=false`. Where there are more, the answer has the `before` that asks for them."""
        uid = caller.who.uid if mine else caller.sight.uid
        rows, more = await caller.ask(lambda: views.jobs_page(over, uid, limit, before))
        found = [caller.sight.job(row).to_json() for row in rows]
        return JSONResponse({"jobs": found} | ({"before": more} if more else {}))

    @router.get("/jobs/{job_id}")
    async def job(row: SeenJob, caller: Anyone) -> Response:
        """One job."""
        return JSONResponse({"job": caller.sight.job(row).to_json()})

    @router.post("/jobs/{job_id}/arrays", status_code=202)
    async def attach(body: ArrayBody, row: Annotated[JobRow, Depends(own)], caller: Anyone) -> Response:
        """The owner has submitted a held array for the job. The daemon looks at each task before it uses one."""
        if row.ended_at is not None:
            raise Conflict(f"job {row.id} is {row.phase}: cancel the array (scancel {body.array_id})")
        await caller.ask(lambda: requests.attach_array(row.id, body.array_id, body.tasks, caller.who))
        return JSONResponse({}, 202)

    @router.get("/jobs/{job_id}/profile")
    async def profile(row: SeenJob, caller: Anyone) -> Response:
        """What is known of how the job scales, and what would be measured next."""
        found = await caller.ask(lambda: requests.profile(row.id))
        return JSONResponse(caller.sight.profile(found).to_json())

    def add_verb(verb: str, ask: Callable[[int, Identity], None], when_over: bool, words: str) -> None:
        async def route(row: Annotated[JobRow, Depends(steer)], caller: Anyone) -> Response:
            if row.ended_at is None:
                await caller.ask(lambda: ask(row.id, caller.who))
            elif not when_over:
                raise Conflict(f"job {row.id} is {row.phase} already")
            return JSONResponse({}, 202)

        path = f"/jobs/{{job_id}}/{verb}"
        router.add_api_route(path, route, methods=["POST"], status_code=202, name=verb, description=words)

    add_verb("cancel", requests.cancel, True, "End the job; done also when it is over already.")
    add_verb("hold", requests.hold, False, "Take the job's nodes until it is released.")
    add_verb("release", requests.release, False, "Let a held job run again.")

    # -- what there is to see ----------------------------------------------------------------------------------

    @router.get("/status")
    async def status(caller: Anyone, nodes: bool = True) -> Response:
        """Pool, nodes, jobs that are not over, last decision; `nodes=false` leaves the nodes out."""
        sight = caller.sight

        def look() -> bytes:
            now = people.clock.now()
            if sight.is_whole:
                return views.status_text(now, nodes)
            shown = sight.status(views.status(now, nodes and sight.nodes, sight.uid))
            return bytes(JSONResponse(shown.to_json()).body)  # here: writing 2 MB would hold up the event loop

        kept = views.kept_status_text(nodes) if sight.is_whole else None
        text = await caller.ask(look) if kept is None else kept
        return Response(text, media_type="application/json")

    @router.get("/events")
    async def events(
        caller: Anyone,
        after: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0,
        job: Annotated[int | None, Query(ge=1, le=MAX_NUMBER)] = None,
        kind: Annotated[list[Annotated[str, Query(max_length=40)]], Query(max_length=40)] = [],  # noqa: B006 - FastAPI copies it
        limit: Annotated[int, Query(ge=1, le=5_000)] = 1000,
        latest: Annotated[int | None, Query(ge=1, le=5_000)] = None,
    ) -> Response:
        """Events above number `after`, waiting up to `wait` seconds for one; `last` is the next call's `after`.

        `latest=N` gives the newest N at once, instead."""
        sight, end = caller.sight, people.clock.elapsed() + wait

        def answer(rows: Sequence[EventRow], last: int) -> Response:
            return JSONResponse({"events": [sight.event(row).to_json() for row in rows], "last": last})

        def look() -> tuple[Sequence[EventRow], int]:
            return views.events(after, job, sight.uid, kind, limit)

        if latest is not None:
            return answer(*await caller.ask(lambda: views.latest_events(latest, job, sight.uid)))
        with people.long_poll(caller.who.uid):
            while True:
                rows, after = await caller.ask(look)
                left = end - people.clock.elapsed()
                if rows or left <= 0 or people.notifier.is_over:
                    return answer(rows, after)
                await people.notifier.wait(after, left)

    @router.get("/explain/{subject:path}")
    async def explain(subject: Annotated[str, Path(min_length=1, max_length=200)], caller: Anyone) -> Response:
        """Why a job, node, pilot or main job has what it has."""
        if not subject.isprintable():
            raise NotFound("explain a job (`job 3`), a node, a pilot (`123_4`) or a main job (`main-job 99`)")
        lines = await caller.ask(lambda: requests.explain(subject, caller.sight))
        return JSONResponse({"subject": subject, "lines": list(lines)})

    @router.get("/usage")
    async def usage(caller: Anyone, since: Day = "", until: Day = "") -> Response:
        """Node-seconds and samples by day (UTC), user and account, from `since` to `until`, both included."""
        rows = await caller.ask(lambda: views.usage(people.clock.now(), since, until, caller.sight.usage_uid))
        return JSONResponse({"usage": [row.to_json() for row in rows]})

    @router.get("/promise")
    async def promise(caller: Anyone, days: Annotated[int, Query(ge=1, le=MAX_PROMISE_DAYS)] = 7) -> Response:
        """What the main queue is promised, what that costs, and how it was kept in the last `days`."""
        row = await caller.ask(lambda: requests.promise(days, caller.sight))
        return JSONResponse(row.to_json())

    # -- operators ---------------------------------------------------------------------------------------------

    @router.get("/drain")
    async def drains(caller: Anyone) -> Response:
        """The nodes that operators keep pilots off, and until when (Unix seconds)."""
        found = requests.drains() if caller.sight.nodes else {}
        return JSONResponse({"drains": [{"node": node, "until": until} for node, until in sorted(found.items())]})

    @router.post("/drain", status_code=202)
    async def drain(body: DrainBody, caller: Operator) -> Response:
        """Keep pilots off nodes until a time; for operators."""
        names = await caller.ask(lambda: requests.drain(body.nodes, body.until, caller.who))
        return JSONResponse({"nodes": list(names)}, 202)

    @router.get("/bans")
    async def bans(_caller: Operator) -> Response:
        """Users who are refused, and why; for operators."""
        found = [{"user": user_name(uid), "uid": uid, "reason": why} for uid, why in sorted(requests.bans().items())]
        return JSONResponse({"bans": found})

    @router.post("/bans", status_code=202)
    async def ban(body: BanBody, caller: Operator) -> Response:
        """Refuse a user, and end the user's jobs; for operators."""
        uid = _uid_of(body.user)
        roles.check_bannable(uid, body.user)
        await caller.ask(lambda: requests.ban(body.user, uid, body.reason, caller.who))
        return JSONResponse({}, 202)

    @router.delete("/bans/{user}", status_code=202)
    async def unban(user: Annotated[str, Path(min_length=1, max_length=64)], caller: Operator) -> Response:
        """Admit a user again; for operators."""
        uid = _uid_of(user)
        await caller.ask(lambda: requests.unban(user, uid, caller.who))
        return JSONResponse({}, 202)

    return router


def _uid_of(user: str) -> int:
    """The uid of a user's name, or of a number, as of a user that this machine no longer has.
    Raises NotFound: there is none of that name."""
    if user.isdecimal() and user.isascii() and len(user) <= 10:
        return int(user)
    uid = user_id(user)
    if uid is None:
        raise NotFound(f"this machine has no user {user!r}: give the number")
    return uid
