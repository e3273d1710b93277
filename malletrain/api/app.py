"""The HTTP API put together: routes of people and of workers, bounds, one shape of errors."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from malletrain import __version__
from malletrain.api.auth import Auth, NotAuthenticated
from malletrain.api.connections import ConnectionTable
from malletrain.api.people_routes import PeopleRoutes, address_of, make_people_router
from malletrain.api.rate_limits import TooManyRequests
from malletrain.api.request_guard import RequestGuard
from malletrain.api.roles import Conflict, Identity, NotFound
from malletrain.api.visibility import Visibility
from malletrain.api.worker_routes import WorkersRouter
from malletrain.domain.errors import InvalidInput, MalletrainError, Refused

_log = logging.getLogger("malletrain.api")

#: Errors of the daemon as HTTP statuses; what is not here is the daemon's own trouble, and may pass: 503.
_STATUS: Mapping[type[MalletrainError], int] = {
    InvalidInput: 400,
    NotAuthenticated: 401,
    Refused: 403,
    NotFound: 404,
    Conflict: 409,
    TooManyRequests: 429,
}

#: Where a credential is opened, and the longest body there. A worker's hello may bring the members of its world.
LOGIN_BODY_BYTES = {"/v1/session": 16 * 1024, "/v1/workers/hello": 64 * 1024}

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Pages(Protocol):
    """The web page beside the API (`malletrain.web`): all of its paths begin with `prefix`; `logins`: where a caller
    signs in, and the longest body there, in bytes."""

    prefix: str
    logins: Mapping[str, int]

    def identify(self, scope: Scope) -> Identity | None:
        """Who looks at the page, by cookie or proxy; None for anybody else. Does not block."""

    def router(self, people: PeopleRoutes) -> APIRouter:
        """The routes of the page."""


def create_app(
    people: PeopleRoutes,
    workers_router: WorkersRouter | None,
    connections: ConnectionTable,
    *,
    holds_token: Callable[[str, str], bool] = lambda _worker, _header: False,
    metrics: Callable[[], bytes] = lambda: b"",
    ailments: Callable[[], Sequence[str]] = tuple,
    pages: Pages | None = None,
) -> FastAPI:
    """The whole API as one ASGI application.

    `connections` are those of the server that serves it. `holds_token` says whether an Authorization header is a
    worker's (`WorkersGate.holds_token`). `metrics` gives Prometheus text; `ailments` one line for each thing that is
    wrong with the daemon now, none when it is well: /v1/health answers 503 with them. `pages` is the web page, if it
    is served.
    """
    limits = people.limits
    logins = {**LOGIN_BODY_BYTES, **(pages.logins if pages is not None else {})}
    app = FastAPI(
        title="MalleTrain",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            RequestValidationError: _on_invalid,
            HTTPException: _on_http,
            Exception: _on_unknown,
        },
    )
    app.include_router(make_people_router(people))
    if workers_router is not None:
        app.router.routes[:0] = workers_router.routes  # before all others: nearly all requests are theirs
    if pages is not None:
        app.include_router(pages.router(people))

    @app.get("/v1/health", tags=["daemon"])
    async def show_health() -> Response:
        """Whether the daemon is well: 200, or 503 with what ails it."""
        found = list(ailments())
        body = {"status": "ill" if found else "well", "version": __version__, "ailments": found}
        return JSONResponse(body | ({"error": "; ".join(found)} if found else {}), 503 if found else 200)

    @app.get("/metrics", include_in_schema=False)
    @app.get("/v1/metrics", tags=["daemon"], response_class=PlainTextResponse)
    async def show_metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        return PlainTextResponse(await people.off_loop(address_of(request), metrics), media_type=METRICS_TYPE)

    @app.exception_handler(MalletrainError)
    async def on_known(request: Request, error: MalletrainError) -> Response:
        failed_login = isinstance(error, NotAuthenticated) and request.url.path in logins
        if failed_login or isinstance(error, TooManyRequests):
            await anyio.sleep(limits.refusal_seconds)
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
        if status == 503:
            _log.warning("a request could not be answered: %s", error)
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(status)
        # A refusal says why, and the why may be another user's job.
        words = request.scope.get("malletrain.sight", Visibility()).words(str(error))
        return JSONResponse({"error": _line(words)}, status, headers)

    app.add_middleware(
        RequestGuard,
        limits=limits,
        clock=people.clock,
        identify=lambda scope: _caller(scope, people.auth, holds_token, pages),
        logins=logins,
        connections=connections,
    )
    return app


def _caller(scope: Scope, auth: Auth, holds_token: Callable[[str, str], bool], pages: Pages | None) -> str | None:
    """Who calls, by the token in the headers alone."""
    path = scope["path"]
    if pages is not None and path.startswith(pages.prefix):
        viewer = pages.identify(scope)
        return None if viewer is None else f"user {viewer.uid}"
    authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    if path.startswith("/v1/workers/"):
        worker = path.split("/")[3]
        return f"worker {worker}" if holds_token(worker, authorization) else None
    try:
        return f"user {auth.identify(authorization).uid}"
    except NotAuthenticated:
        return None


async def _on_invalid(_request: Request, error: RequestValidationError) -> Response:
    faults = error.errors()
    words = []
    for fault in faults[:5]:
        place = ".".join(str(part) for part in fault["loc"] if part not in ("body", "query", "path"))
        words.append(f"{place}: {fault['msg']}" if place else str(fault["msg"]))
    more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    return JSONResponse({"error": _line("; ".join(words) + more)}, 400)


async def _on_http(_request: Request, error: HTTPException) -> Response:
    words = str(error.detail)
    if error.status_code == 404 and words == "Not Found":
        words = "there is no such route: /v1/openapi.json lists them"
    return JSONResponse({"error": _line(words)}, error.status_code, error.headers)


async def _on_unknown(_request: Request, error: Exception) -> Response:
    _log.error("a request failed: this is a bug", exc_info=error)
    return JSONResponse({"error": "the daemon failed at this request: its log says why"}, 500)


def _line(words: str) -> str:
    return " ".join(words.split())[:1000]
