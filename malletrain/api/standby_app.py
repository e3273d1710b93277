"""What a passive daemon answers: its peer, which keeps its copy of the journal up to date; and to all others where
the active daemon is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from malletrain.api.auth import Auth, NotAuthenticated
from malletrain.api.connections import ConnectionTable
from malletrain.api.ports import Unavailable
from malletrain.api.rate_limits import RateLimits
from malletrain.api.request_guard import RequestGuard
from malletrain.domain.errors import InvalidInput, MalletrainError, Refused
from malletrain.loop.ports import Clock
from malletrain.wire.failover import ROLE_PATH, Verb, path_of

#: Longest body of a peer's request, in bytes: a shipment of events, or a piece of a copied journal.
MAX_BODY_BYTES = 32 * 1024 * 1024

#: The peer's requests in a second. It sends one for each append of its journal.
PEER_RATE, PEER_BURST = 5_000.0, 10_000.0


class Copy(Protocol):
    """The passive daemon's copy of the journal. Called from any thread."""

    def take(self, verb: Verb, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do what the active daemon asks, and answer it."""
        ...

    def active_url(self) -> str:
        """Where the active daemon is, as far as is known."""
        ...


def standby_app(
    copy: Copy,
    auth: Auth,
    connections: ConnectionTable,
    clock: Clock,
    statuses: tuple[tuple[type[MalletrainError], int], ...],
    metrics: Callable[[], bytes],
) -> ASGIApp:
    """The application. `auth` admits the daemons' own user alone; `statuses` are the HTTP statuses of errors of
    `copy`, and 503 that of all others."""

    async def log_in(request: Request) -> Response:
        credential = _object(await request.body()).get("credential")
        if not isinstance(credential, str):
            raise InvalidInput("credential", "a MUNGE credential as text is missing")
        opened = await anyio.to_thread.run_sync(auth.log_in, credential)
        return JSONResponse({"token": opened.token, "lifetime_s": opened.lifetime_s})

    async def vouch(_request: Request) -> Response:
        return JSONResponse({"credential": await anyio.to_thread.run_sync(auth.vouch)})

    def take(verb: Verb) -> Callable[[Request], Any]:
        async def taken(request: Request) -> Response:
            auth.identify(request.headers.get("authorization"))
            body = _object(await request.body())
            return JSONResponse(dict(await anyio.to_thread.run_sync(copy.take, verb, body)))

        return taken

    async def tell_role(_request: Request) -> Response:
        return JSONResponse({"role": "passive", "active": copy.active_url()}, 503)

    async def show_health(_request: Request) -> Response:
        return JSONResponse({"status": "passive", "active": copy.active_url()}, 503)

    async def show_metrics(_request: Request) -> Response:
        return PlainTextResponse(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def elsewhere(_request: Request) -> Response:
        where = copy.active_url() or "not known yet"
        return JSONResponse({"error": f"this daemon is the passive one; the active one is {where}"}, 503)

    async def on_known(_request: Request, error: Exception) -> Response:
        known: tuple[tuple[type[Exception], int], ...] = (
            *statuses,
            (InvalidInput, 400),
            (NotAuthenticated, 401),
            (Refused, 403),
            (Unavailable, 503),
        )
        status = next((code for kind, code in known if isinstance(error, kind)), 503)
        return JSONResponse({"error": " ".join(str(error).split())[:1000]}, status)

    app = Starlette(
        routes=[
            Route("/v1/session", log_in, methods=["POST"]),
            Route("/v1/certificate", vouch),
            Route(ROLE_PATH, tell_role),
            *(Route(path_of(verb), take(verb), methods=["POST"]) for verb in Verb),
            Route("/v1/health", show_health),
            *(Route(path, show_metrics) for path in ("/v1/metrics", "/metrics")),
            Route("/{path:path}", elsewhere, methods=["GET", "POST", "DELETE", "PUT", "PATCH"]),
        ],
        exception_handlers={MalletrainError: on_known},
    )
    return RequestGuard(
        app,
        RateLimits(body_bytes=MAX_BODY_BYTES, token_rate=PEER_RATE, token_burst=PEER_BURST),
        clock,
        lambda scope: _caller(scope, auth),
        {"/v1/session": 16 * 1024},
        connections,
    )


class ActiveOnly:
    """Before an active daemon's API: answers /v1/failover, and nothing else once `may_act` is False.

    A daemon that was suspended while another took over must not answer for it when it wakes.
    """

    def __init__(self, app: ASGIApp, may_act: Callable[[], bool]) -> None:
        self._app = app
        self._may_act = may_act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            acts = self._may_act()
            if scope["path"] == ROLE_PATH:
                role = {"role": "active" if acts else "unsure"}
                await JSONResponse(role, 200 if acts else 503)(scope, receive, send)
                return
            if not acts and scope["path"] not in ("/v1/metrics", "/metrics", "/v1/health"):
                words = "this daemon cannot say whether it still is the active one: ask again"
                await JSONResponse({"error": words}, 503)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("body", "not JSON") from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "not a JSON object")
    return value


def _caller(scope: Scope, auth: Auth) -> str | None:
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    try:
        return f"user {auth.identify(header).uid}"
    except NotAuthenticated:
        return None
