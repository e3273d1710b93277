"""The routes of workers: hello, report, and the long poll for what is wanted of them.

`WorkersGate` joins three things: the membership, the daemon's lock, and those who wait. Every change is made under
the lock, written to the journal by `persist` before the lock is given up, and only then shown to whoever waits.
Figures that change nothing are written a moment later."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import RLock
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from malletrain.api.auth import TicketTable
from malletrain.api.connections import ConnectionTable
from malletrain.api.rate_limits import FIGURES, ApiLimits, ReportBudget
from malletrain.api.visibility import Visibility
from malletrain.domain.decision import LeavePilot
from malletrain.domain.errors import ContradictsRecord, Refused
from malletrain.domain.event import Event
from malletrain.domain.job import ScriptCheck
from malletrain.loop.membership.admission import Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.ports import Clock
from malletrain.wire import messages as wire

MAX_WAIT_S = 60.0
HEARTBEAT_S = 20.0

#: Seconds that a worker's token lives. Workers get a new one at half of that: munged may be away for the rest.
WORKER_TOKEN_LIFETIME_S = 3600.0

#: Bytes that a hello costs the journal, or the log where it is refused.
HELLO_BYTES = 500

#: Tokens of one worker; beyond, the oldest ends.
MAX_TOKENS_PER_WORKER = 4

#: Longer than `WorkersGate.tick` is ever late on a machine that runs; shorter than any silence that counts.
ASLEEP_S = 4.0


class WorkersGate:
    """The membership, safe to call from any thread. This is the `Workers` port of the live loop.

    Args:
        lock: the daemon's one lock; re-entrant, or not held by callers of this class.
        persist: writes `membership.reports()` to the journal; called under the lock after every change that workers
            may see, before they do. The owner takes `reports` every moment besides.
        budget: of the figures that workers report; None for the usual limits.
        sight: what the user with this uid may see: reasons sent to workers are limited by it.
        is_banned: whether the user with this uid is refused: tokens of his workers are worth nothing then.
        checked: what a check has found of the script with this digest in a job of the user with this uid."""

    def __init__(
        self,
        membership: Membership,
        lock: RLock,
        persist: Callable[[], None],
        clock: Clock,
        budget: ReportBudget | None = None,
        sight: Callable[[int], Visibility] = lambda _uid: Visibility(),
        is_banned: Callable[[int], bool] = lambda _uid: False,
        checked: Callable[[int, str], ScriptCheck | None] = lambda _uid, _digest: None,
    ) -> None:
        self.membership, self.clock, self._lock, self._persist = membership, clock, lock, persist
        self.budget = budget or ReportBudget(ApiLimits(), clock)
        self._sight, self._is_banned, self._checked = sight, is_banned, checked
        self._awake_at = clock.elapsed()
        self._ends = False
        self._waiting = defaultdict[int, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]](set)  #: by job
        self.tokens = TicketTable[str](clock, WORKER_TOKEN_LIFETIME_S, MAX_TOKENS_PER_WORKER)

    def leave(self, action: LeavePilot) -> None:
        self.change(lambda: self.membership.leave(action))

    def pilots_ended(self, job_id: int, pilots: Collection[str]) -> None:
        self.change(lambda: self.membership.pilots_ended(job_id, pilots))

    def end_job(self, job_id: int, reason: str) -> None:
        self.change(lambda: self.membership.end_job(job_id, reason))

    def top_up(self, job_id: int, tasks: int) -> bool:
        return bool(self.change(lambda: self.membership.top_up(job_id, tasks)))

    def choose_batches(self, job_id: int, batches: tuple[tuple[int, int], ...]) -> None:
        with self._lock:
            self.membership.choose_batches(job_id, batches)

    def climb(self, jobs: frozenset[int]) -> None:
        with self._lock:
            self.membership.climb(jobs)

    def reports(self) -> Sequence[Event]:
        with self._lock:
            return self.membership.reports()

    def tick(self) -> None:
        """Let deadlines pass. Called every second or more often, by the daemon's own timer in case no worker polls.
        If it was not, this process did not run (suspended, swapped out, its machine paused), and silence of workers
        in that time is not held against them."""
        with self._lock:
            now = self.clock.elapsed()
            gap, self._awake_at = now - self._awake_at, now
            if gap > ASLEEP_S:
                self.membership.slept(gap)
            due = self.membership.due()
            if due is not None and due <= now:
                self.change(self.membership.tick)

    def change(self, action: Callable[[], Any]) -> Any:
        """Run `action` under the lock, journal what it caused, and wake the waiting polls of the jobs concerned.

        Figures, of which nothing follows, are left to whoever next takes `reports`: a transaction for each would be
        most of what thousands of workers cost."""
        with self._lock:
            try:
                return action()
            finally:
                if jobs := self.membership.settled():
                    self._persist()
                    self._wake(jobs)

    def answered(self, worker: str) -> None:
        """The worker's poll was answered."""
        with self._lock:
            self.membership.answered(worker)

    def end_polls(self) -> None:
        """Answers every poll at once, now and from now on: the daemon ends, and workers look for the next one."""
        self._ends = True
        self._wake(list(self._waiting))

    def hung_up(self, worker: str) -> None:
        """The connection of the worker's last poll has ended."""
        if self.membership.worker(worker) is not None:
            self.change(lambda: self.membership.hung_up(worker))

    def _wake(self, jobs: Collection[int]) -> None:
        for job in jobs:
            for loop, event in list(self._waiting.get(job, ())):
                with suppress(RuntimeError):  # its loop has just closed
                    loop.call_soon_threadsafe(event.set)

    def holds_token(self, worker: str, header: str | None) -> bool:
        """Whether an Authorization header carries a token of this worker that has not run out."""
        known = self.membership.worker(worker)
        return known is not None and self.tokens.bearer(header) == worker and not self._is_banned(known.uid)

    def is_to_check(self, worker: str, digest: str) -> bool:
        """Whether the worker's script is to be checked beside it. What a check has found of it in another job of its
        owner counts for this one, and none is made."""
        known = self.membership.worker(worker)
        before = None if known is None else self._checked(known.uid, digest)

        def ask() -> bool:
            if self.membership.worker(worker) is None or not self.membership.may_check(worker, digest):
                return False
            if before is not None:
                self.membership.note_check(worker, before)
            return before is None

        return bool(self.change(ask))

    def report(self, worker: str, said: Sequence[wire.Message]) -> bool:
        """Takes a report; whether all of it was within the worker's and the user's budget of figures."""
        return bool(self.change(lambda: self._take(worker, said)))

    def report_at_once(self, worker: str, said: Sequence[wire.Message]) -> bool | None:
        """As `report`, where it is certain not to wait: for figures of which nothing follows, while the lock is free.
        None otherwise: nothing was taken."""
        if not all(isinstance(message, FIGURES) for message in said) or not self._lock.acquire(blocking=False):
            return None
        try:
            known = self.membership.worker(worker)
            job = None if known is None else self.membership.job(known.job)
            # A job that climbs may be given another world, which is written to the journal.
            return None if job is None or job.climbs else self._take(worker, said)
        finally:
            self._lock.release()

    def _take(self, worker: str, said: Sequence[wire.Message]) -> bool:
        self.membership.alive(worker)
        known = self.membership.worker(worker)
        if known is None:
            return True
        taken, before = self.budget.within(worker, known.uid, said), len(self.membership.pending)
        for message in taken:
            self.membership.report(worker, message)
        self.budget.wrote(known.uid, self.membership.pending[before:])
        return len(taken) == len(said)

    def look(self, worker: str) -> tuple[wire.Directive, float | None]:
        """What is wanted of the worker, for reasons that its user may read, and when something of its job is due
        (`Clock.elapsed`)."""
        with self._lock:
            self.tick()
            directive, known = self.membership.directive_for(worker), self.membership.worker(worker)
            if known is None:
                return directive, None
            due, sight, own = self.membership.due_of(known.job), self._sight(known.uid), {known.job}
        if sight.is_whole:
            return directive, due
        plan = directive.plan and replace(directive.plan, reason=sight.words(directive.plan.reason, own))
        leave, end = (text if text is None else sight.words(text, own) for text in (directive.leave, directive.end))
        return replace(directive, plan=plan, leave=leave, end=end), due

    async def poll(self, worker: str, after: int, wait_s: float, gone: asyncio.Future[None]) -> wire.Directive:
        """The worker's directive as soon as its number is above `after` or its caller is `gone`, or as it is after
        `wait_s`; membership counts the poll as open until then."""
        stirred = asyncio.Event()  # there may be something new for it
        gone.add_done_callback(lambda _: stirred.set())
        entry = (asyncio.get_running_loop(), stirred)
        known = self.membership.worker(worker)
        job = known.job if known is not None else 0
        self._waiting[job].add(entry)
        end, is_open, begins = self.clock.elapsed() + wait_s, True, True
        try:
            while True:
                stirred.clear()
                over = gone.done() or self._ends or self.clock.elapsed() >= end
                waits, due = (False, None) if over else self._waits_at_once(worker, after, begins)
                if not waits:
                    directive, due, is_open = await run_in_threadpool(self._one_look, worker, after, begins, over)
                    if not is_open:
                        return directive
                begins, now = False, self.clock.elapsed()
                until = end if due is None else min(end, max(due, now + 0.005))
                with suppress(TimeoutError):
                    async with asyncio.timeout(until - now):
                        await stirred.wait()
        finally:
            self._waiting[job].discard(entry)
            if not self._waiting[job]:
                del self._waiting[job]
            if is_open:
                await run_in_threadpool(self.answered, worker)

    def _waits_at_once(self, worker: str, after: int, begins: bool) -> tuple[bool, float | None]:
        """One look of a poll where it is certain not to wait: whether the worker has nothing new to hear, and when
        something of its job is due. False where `_one_look` must find out: the lock is taken, or something is due,
        which may be written to the journal."""
        if not self._lock.acquire(blocking=False):
            return False, None
        try:
            due = self.membership.due()
            if due is not None and due <= self.clock.elapsed():
                return False, None
            if begins:
                self.membership.polled(worker)
            known = self.membership.worker(worker)
            nothing_new = self.membership.directive_for(worker).seq <= after
            return nothing_new, self.membership.due_of(known.job) if known is not None else None
        finally:
            self._lock.release()

    def _one_look(
        self, worker: str, after: int, begins: bool, over: bool
    ) -> tuple[wire.Directive, float | None, bool]:
        """One look of a poll, with the lock held: as `look`, and whether the poll stays open."""
        with self._lock:
            if begins:
                self.membership.polled(worker)
            directive, due = self.look(worker)
            stays = directive.seq <= after and not over
            if not stays:
                self.membership.answered(worker)
            return directive, due, stays


class WorkersRouter(Router):
    """The routes of workers, which `malletrain.wire.messages` describes. Starlette's own: FastAPI's way through
    parameters and exit stacks would be most of what a report or a poll costs.

    `authenticate` gives the uid behind a MUNGE credential made for `wire.WORKER_PURPOSE`; raises `MalletrainError`
    when it proves nothing. `connections` are those of its server: a worker that is killed between two polls
    is noticed there."""

    def __init__(self, gate: WorkersGate, authenticate: Callable[[str], int], connections: ConnectionTable) -> None:
        self._gate, self._authenticate, self._connections = gate, authenticate, connections
        self.budget = gate.budget
        super().__init__(
            [
                Route(f"/v1/workers/{path}", _guarded(handle), methods=[method])
                for path, method, handle in (
                    ("{worker}/report", "POST", self._report),
                    ("{worker}/plan", "GET", self._plan),
                    ("{worker}/check", "POST", self._check),
                    ("hello", "POST", self._hello),
                )
            ]
        )

    async def _hello(self, request: Request) -> Response:
        said = wire.parse(wire.Hello, await _body(request))
        return await run_in_threadpool(_welcome, self._gate, self._authenticate, said)

    async def _report(self, request: Request) -> Response:
        gate, worker = self._gate, _worker(self._gate, request)
        raw = await _body(request)
        events = raw.get("events") if isinstance(raw, dict) else None
        if not isinstance(events, list) or len(events) > wire.MAX_EVENTS_PER_REPORT:
            raise HTTPException(400, f"events: must be a list of at most {wire.MAX_EVENTS_PER_REPORT} messages")
        said = [wire.message_of(event) for event in events]
        within = gate.report_at_once(worker, said)
        if within is None:  # the lock is taken, or something follows: an event loop waits for neither
            within = await run_in_threadpool(gate.report, worker, said)
        if not within:
            await asyncio.sleep(gate.budget.refusal_seconds)
        return Response(status_code=204)

    async def _check(self, request: Request) -> Response:
        """Whether a script is to be checked: asked once it is known which one runs."""
        worker, raw = _worker(self._gate, request), await _body(request)
        digest = raw.get("digest") if isinstance(raw, dict) else None
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise HTTPException(400, "digest: must be 16 to 64 hexadecimal digits")
        return JSONResponse({"check": await run_in_threadpool(self._gate.is_to_check, worker, digest)})

    async def _plan(self, request: Request) -> Response:
        gate, worker = self._gate, _worker(self._gate, request)
        try:
            after, wait = int(request.query_params.get("after", 0)), float(request.query_params.get("wait", 0.0))
        except ValueError as error:
            raise HTTPException(400, f"after, wait: {error}") from error
        if not 0 <= wait <= MAX_WAIT_S or after < 0:
            raise HTTPException(400, f"wait: must be from 0 to {MAX_WAIT_S:g} seconds, after: not negative")
        loop = asyncio.get_running_loop()
        if request.client is not None:

            def ended() -> None:
                with suppress(RuntimeError):  # the server is ending
                    loop.run_in_executor(None, gate.hung_up, worker)

            self._connections.watch((request.client.host, request.client.port), ended)
        gone = loop.create_task(_hang_up(request))
        try:
            directive = await gate.poll(worker, after, wait, gone)
        finally:
            is_there = gone.cancel()
        if not is_there:
            await run_in_threadpool(gate.change, lambda: gate.membership.disconnected(worker))
            return Response(status_code=204)
        return JSONResponse(wire.to_json(directive))


_DIGEST = re.compile(r"[0-9a-f]{16,64}")

_STATUS = ((wire.MessageError, 400), (ContradictsRecord, 409), (Refused, 403))

Handle = Callable[[Request], Awaitable[Response]]


def _guarded(handle: Handle) -> Handle:
    """Every refusal is one line under `error`."""

    async def guarded(request: Request) -> Response:
        try:
            return await handle(request)
        except HTTPException as error:
            return JSONResponse({"error": str(error.detail)}, error.status_code)
        except (wire.MessageError, Refused) as error:
            status = next(code for kind, code in _STATUS if isinstance(error, kind))
            return JSONResponse({"error": str(error)}, status)

    return guarded


def _welcome(gate: WorkersGate, authenticate: Callable[[str], int], said: wire.Hello) -> Response:
    uid = authenticate(said.credential)
    gate.budget.admit(uid)
    gate.budget.journal.charge(str(uid), HELLO_BYTES)

    def enter() -> wire.Welcome:
        members = gate.membership
        claim = Claim(said.job, said.pilot, said.restart, said.node, uid)
        worker = members.hello(claim, said.standing)
        token = gate.tokens.issue(worker.id, worker.id)
        return wire.Welcome(
            worker.id, token, said.pilot, HEARTBEAT_S, members.mode(said.job), WORKER_TOKEN_LIFETIME_S
        )

    return JSONResponse(wire.to_json(gate.change(enter)))


def _worker(gate: WorkersGate, request: Request) -> str:
    """The worker that a request's path names, and whose token it carries."""
    worker = str(request.path_params["worker"])
    if not gate.holds_token(worker, request.headers.get("authorization")):
        raise HTTPException(401, "no token of this worker: say hello again with a fresh MUNGE credential")
    return worker


async def _hang_up(request: Request) -> None:
    """Returns when the caller hangs up: the first sign that its process is no more."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> Any:
    """The request's JSON; how long it may be is bounded before (`malletrain.api.request_guard`)."""
    try:
        return json.loads(await request.body())
    except ClientDisconnect as error:  # killed while it sent; the answer goes nowhere
        raise HTTPException(400, "the connection ended before the body did") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body must be JSON") from error
