"""The routes of workers: hello, report, and the long poll for what is wanted of them.

`WorkersGate` joins three things: the membership, the daemon's lock, and those who wait. Every change is made under
the lock, written to the journal by `persist` before the lock is given up, and only then shown to whoever waits.
Figures that change nothing are written a moment later.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from malletrain.api.connections import ConnectionTable
from malletrain.api.rate_limits import RateLimits
from malletrain.api.report_budget import ReportBudget
from malletrain.api.visibility import Visibility
from malletrain.domain.decision import LeavePilot
from malletrain.domain.errors import ContradictsRecord, Refused
from malletrain.domain.event import Event
from malletrain.loop.membership.admission import Claim
from malletrain.loop.membership.members import Membership
from malletrain.loop.ports import Clock
from malletrain.wire import messages as wire
from malletrain.wire.errors import WireError

MAX_WAIT_S = 60.0
HEARTBEAT_S = 20.0

#: Seconds that a worker's token lives. Workers get a new one at half of that: munged may be away for the rest.
WORKER_TOKEN_LIFETIME_S = 3600.0

#: Tokens of one worker; beyond, the oldest ends.
MAX_TOKENS_PER_WORKER = 4

#: Longer than `WorkersGate.beat` is ever late on a machine that runs; shorter than any silence that counts.
ASLEEP_S = 4.0


def _everything(_uid: int) -> Visibility:
    return Visibility()


def _none_banned(_uid: int) -> bool:
    return False


class WorkersGate:
    """The membership, safe to call from any thread. This is the `Workers` port of the live loop.

    Args:
        membership: the pure state machine.
        lock: the daemon's one lock; re-entrant, or not held by callers of this class.
        persist: writes `membership.reports()` to the journal; called under the lock after every change that workers
            may see, before they do. The owner takes `reports` every moment besides.
        clock: time.
        budget: of the figures that workers report; None for the usual limits.
        sight: what the user with this uid may see: reasons sent to workers are limited by it.
        is_banned: whether the user with this uid is refused: tokens of his workers are worth nothing then.
    """

    def __init__(
        self,
        membership: Membership,
        lock: AbstractContextManager[Any],
        persist: Callable[[], None],
        clock: Clock,
        budget: ReportBudget | None = None,
        sight: Callable[[int], Visibility] = _everything,
        is_banned: Callable[[int], bool] = _none_banned,
    ) -> None:
        self.membership = membership
        self._sight = sight
        self._is_banned = is_banned
        self.budget = budget or ReportBudget(RateLimits(), clock)
        self.clock = clock
        self._lock = lock
        self._persist = persist
        self._awake_at = clock.elapsed()
        self._waiting: dict[int, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}  #: by job
        self._tokens: dict[str, deque[tuple[bytes, float]]] = {}  # by worker: digest, and when it ends
        self._sweep_at = 64

    def leave(self, action: LeavePilot) -> None:
        self.change(lambda: self.membership.leave(action))

    def pilots_ended(self, job_id: int, pilots: Collection[str]) -> None:
        self.change(lambda: self.membership.pilots_ended(job_id, pilots))

    def end_job(self, job_id: int, reason: str) -> None:
        self.change(lambda: self.membership.end_job(job_id, reason))

    def top_up(self, job_id: int, tasks: int) -> bool:
        """Ask a worker of the job to submit more held tasks; False when it has none."""
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
        """Let deadlines pass: for the daemon's own timer, in case no worker polls."""
        self.change(self.membership.tick)

    def beat(self) -> None:
        """Called every second or more often: if it was not, this process did not run (suspended, swapped out, its
        machine paused), and silence of workers in that time is not held against them."""
        with self._lock:
            now = self.clock.elapsed()
            gap, self._awake_at = now - self._awake_at, now
            if gap > ASLEEP_S:
                self.membership.slept(gap)

    def change(self, action: Callable[[], Any]) -> Any:
        """Run `action` under the lock, journal what it caused, and wake the waiting polls of the jobs concerned.

        Figures, of which nothing follows, are left to whoever next takes `reports`: a transaction for each would be
        most of what thousands of workers cost.
        """
        with self._lock:
            try:
                return action()
            finally:
                if jobs := self.membership.settled():
                    self._persist()
                    self._wake(jobs)

    def polled(self, worker: str, *, open: bool) -> None:
        """The worker's poll has come, or was answered."""
        with self._lock:
            (self.membership.polled if open else self.membership.answered)(worker)

    def hung_up(self, worker: str) -> None:
        """The connection of the worker's last poll has ended."""
        if self.membership.worker(worker) is not None:
            self.change(lambda: self.membership.hung_up(worker))

    def _wake(self, jobs: Collection[int]) -> None:
        for job in jobs:
            for loop, event in list(self._waiting.get(job, ())):
                with suppress(RuntimeError):  # its loop has just closed
                    loop.call_soon_threadsafe(event.set)

    def issue_token(self, worker: str) -> str:
        """A new secret for the worker, good for `WORKER_TOKEN_LIFETIME_S`; older ones stay good for theirs.

        Only digests are kept, of the newest `MAX_TOKENS_PER_WORKER` tokens of each known worker.
        """
        if len(self._tokens) >= self._sweep_at:
            self._tokens = {name: kept for name, kept in self._tokens.items() if self.membership.worker(name)}
            self._sweep_at = 64 + 2 * len(self._tokens)
        token = secrets.token_urlsafe(32)
        own = self._tokens.setdefault(worker, deque(maxlen=MAX_TOKENS_PER_WORKER))
        own.append((_digest(token), self.clock.elapsed() + WORKER_TOKEN_LIFETIME_S))
        return token

    def holds_token(self, worker: str, header: str | None) -> bool:
        """Whether an Authorization header carries a token of this worker that has not run out."""
        scheme, _, token = (header or "").partition(" ")
        own, known = self._tokens.get(worker), self.membership.worker(worker)
        if scheme.lower() != "bearer" or own is None or known is None or self._is_banned(known.uid):
            return False
        digest, now = _digest(token.strip()), self.clock.elapsed()
        return any(each == digest and now < ends for each, ends in own)

    def look(self, worker: str) -> tuple[wire.Directive, float | None]:
        """What is wanted of the worker, and when something of its job is due (`Clock.elapsed`)."""
        with self._lock:
            self.beat()
            due = self.membership.due()
            if due is not None and due <= self.clock.elapsed():
                self.change(self.membership.tick)
            known = self.membership.worker(worker)
            due = self.membership.due_of(known.job) if known is not None else None
            return self._shown(worker, self.membership.directive_for(worker)), due

    def _shown(self, worker: str, directive: wire.Directive) -> wire.Directive:
        """The directive with reasons that the worker's user may read."""
        known = self.membership.worker(worker)
        if known is None or (sight := self._sight(known.uid)).is_whole:
            return directive
        own = {known.job}
        plan = directive.plan and replace(directive.plan, reason=sight.words(directive.plan.reason, own))
        leave, end = (text if text is None else sight.words(text, own) for text in (directive.leave, directive.end))
        return replace(directive, plan=plan, leave=leave, end=end)

    async def poll(self, worker: str, after: int, wait_s: float, gone: asyncio.Event) -> wire.Directive:
        """The worker's directive as soon as its number is above `after`, or as it is after `wait_s`."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        known = self.membership.worker(worker)
        job = known.job if known is not None else 0
        self._waiting.setdefault(job, set()).add(entry)
        end = self.clock.elapsed() + wait_s
        try:
            while True:
                event.clear()
                directive, due = await run_in_threadpool(self.look, worker)
                now = self.clock.elapsed()
                if directive.seq > after or now >= end or gone.is_set():
                    return directive
                until = end if due is None else min(end, max(due, now + 0.005))
                with suppress(TimeoutError):
                    async with asyncio.timeout(until - now):
                        await _first(event, gone)
        finally:
            self._waiting[job].discard(entry)
            if not self._waiting[job]:
                del self._waiting[job]


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def make_workers_router(
    gate: WorkersGate, authenticate: Callable[[str], int], connections: ConnectionTable
) -> APIRouter:
    """The router that api/app.py mounts.

    Args:
        gate: see there.
        authenticate: the uid behind a MUNGE credential made for `wire.WORKER_PURPOSE`; raises `WireError` or
            `Refused` when it proves nothing.
        connections: of the server that it is mounted on: a worker that is killed between two polls is noticed there.
    """
    router = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=_Route)

    @router.post("/hello")
    async def hello(request: Request) -> Response:
        said = wire.parse(wire.Hello, await _body(request, 64 * 1024))
        return await run_in_threadpool(_hello, gate, authenticate, said)

    @router.post("/{worker}/report")
    async def report(worker: str, request: Request) -> Response:
        _check_token(gate, worker, request)
        raw = await _body(request, wire.MAX_REPORT_BYTES)
        events = raw.get("events") if isinstance(raw, dict) else None
        if not isinstance(events, list) or len(events) > wire.MAX_EVENTS_PER_REPORT:
            raise HTTPException(400, f"events: must be a list of at most {wire.MAX_EVENTS_PER_REPORT} messages")
        said = [wire.message_of(event) for event in events]
        if not await run_in_threadpool(_report, gate, worker, said):
            await asyncio.sleep(gate.budget.refusal_seconds)
        return Response(status_code=204)

    @router.get("/{worker}/plan")
    async def plan(worker: str, request: Request, after: int = 0, wait: float = 0.0) -> Response:
        _check_token(gate, worker, request)
        if not 0 <= wait <= MAX_WAIT_S or after < 0:
            raise HTTPException(400, f"wait: must be from 0 to {MAX_WAIT_S:g} seconds, after: not negative")
        await run_in_threadpool(lambda: gate.polled(worker, open=True))
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        if request.client is not None:
            peer = (request.client.host, request.client.port)
            connections.watch(peer, lambda: _in_thread(loop, lambda: gate.hung_up(worker)))
        watch = asyncio.ensure_future(_watch(request, gone))
        try:
            directive = await gate.poll(worker, after, wait, gone)
        finally:
            await run_in_threadpool(lambda: gate.polled(worker, open=False))
            watch.cancel()
        if gone.is_set():
            await run_in_threadpool(gate.change, lambda: gate.membership.disconnected(worker))
            return Response(status_code=204)
        return JSONResponse(wire.to_json(directive))

    return router


class _Route(APIRoute):
    """Every refusal is one line under `error`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except HTTPException as error:
                return JSONResponse({"error": str(error.detail)}, error.status_code)
            except RequestValidationError as error:
                return JSONResponse({"error": f"after, wait: {error.errors()[0]['msg']}"}, 400)
            except wire.MessageError as error:
                return JSONResponse({"error": str(error)}, 400)
            except WireError as error:
                return JSONResponse({"error": str(error)}, 401)
            except ContradictsRecord as error:
                return JSONResponse({"error": str(error)}, 409)
            except Refused as error:
                return JSONResponse({"error": str(error)}, 403)

        return guarded


def _hello(gate: WorkersGate, authenticate: Callable[[str], int], said: wire.Hello) -> Response:
    uid = authenticate(said.credential)

    def enter() -> wire.Welcome:
        members = gate.membership
        claim = Claim(said.job, said.pilot, said.restart, said.node, uid)
        worker = members.hello(claim, said.standing)
        token = gate.issue_token(worker.id)
        return wire.Welcome(
            worker.id, token, said.pilot, HEARTBEAT_S, members.mode(said.job), WORKER_TOKEN_LIFETIME_S
        )

    return JSONResponse(wire.to_json(gate.change(enter)))


def _report(gate: WorkersGate, worker: str, said: Sequence[wire.Message]) -> bool:
    """Takes a report; whether all of it was within the worker's and the user's budget of figures."""

    def take() -> bool:
        gate.membership.heard(worker)
        known = gate.membership.worker(worker)
        taken = gate.budget.within(worker, known.uid, said) if known is not None else []
        for message in taken:
            gate.membership.report(worker, message)
        return known is None or len(taken) == len(said)

    return bool(gate.change(take))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _check_token(gate: WorkersGate, worker: str, request: Request) -> None:
    if not gate.holds_token(worker, request.headers.get("authorization")):
        raise HTTPException(401, "no token of this worker: say hello again with a fresh MUNGE credential")


async def _body(request: Request, limit: int) -> Any:
    """The request's JSON, refused beyond `limit` bytes before it is all read."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise HTTPException(413, f"at most {limit} bytes")
            parts.append(part)
    except ClientDisconnect as error:  # killed while it sent; the answer goes nowhere
        raise HTTPException(400, "the connection ended before the body did") from error
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body must be JSON") from error


def _in_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the server is ending
        loop.run_in_executor(None, call)


async def _watch(request: Request, gone: asyncio.Event) -> None:
    """Set `gone` when the caller hangs up: the first sign that its process is no more."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            gone.set()
            return
