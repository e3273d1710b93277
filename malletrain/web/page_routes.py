"""The routes of the web page: its files, signing in, and the figures that it draws."""

# No `from __future__ import annotations`: FastAPI evaluates the routes' annotations, and some are local.

import gzip
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import Field
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from malletrain.api.auth import NotAuthenticated
from malletrain.api.people_routes import MAX_PROMISE_DAYS, Caller, JobNumber, PeopleRoutes
from malletrain.api.roles import Identity, NotFound
from malletrain.api.schemas import Body
from malletrain.api.visibility import Visibility
from malletrain.domain.errors import MalletrainError
from malletrain.domain.snapshot import NodeState
from malletrain.store.history_views import StoreHistory
from malletrain.store.kept_answers import KeptAnswers, text_of
from malletrain.web import series
from malletrain.web.machine_strip import Axis, strip
from malletrain.web.sign_in import LINK_LIFETIME_S, SESSION_S, SignIn

#: Seconds for which an answer is given again to whoever may see the same: many viewers cost one look. One that took
#: long is kept so many times as long as it took, too.
KEPT_S, KEPT_TIMES = 2.0, 5.0

#: Of the strip: nodes that have a row each, rows of a larger machine, and bins of time of the one and the other.
NODES_ONE_BY_ONE, STRIP_ROWS, STRIP_BINS, GROUPED_BINS = 128, 64, 180, 120

#: Points of a plot; rows of a job's page.
PLOT_POINTS, MAX_WINDOWS, MAX_WORLDS, MAX_STAYS, MAX_EVENTS = 240, 2000, 500, 2000, 60

#: Jobs that are over, which the list shows.
MAX_JOBS = 1000

HOUR_S = 3600.0


class LinkBody(Body):
    """POST /web/session."""

    link: Annotated[str, Field(min_length=8, max_length=200)]


class WebPages:
    """The page; `malletrain.api.app.Pages`. `nodes` gives every node by name, in Slurm's order, with its state now;
    `strays` nodes of jobs in the harvest partition that are no pilots."""

    prefix = "/web/"
    logins: Mapping[str, int] = {"/web/session": 1024}

    def __init__(
        self,
        sign_in: SignIn,
        history: StoreHistory,
        nodes: Callable[[], Mapping[str, NodeState]],
        strays: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self.sign_in, self.history, self.nodes, self.strays = sign_in, history, nodes, strays
        self.kept = KeptAnswers(lambda _size, took_s: max(KEPT_S, KEPT_TIMES * took_s))

    def identify(self, scope: Scope) -> Identity | None:
        """Who looks at the page; None for a stranger."""
        return self.sign_in.identify(scope)

    def router(self, people: PeopleRoutes) -> APIRouter:
        """The routes, to be mounted by `create_app`."""
        return _make_router(self, people)


def _make_router(pages: WebPages, people: PeopleRoutes) -> APIRouter:
    router = APIRouter()
    views, clock, history = people.views, people.clock, pages.history

    async def look(request: Request) -> Caller:
        viewer = pages.identify(request.scope)
        if viewer is None:
            raise NotAuthenticated("you are not signed in, or no longer: open a new link from `malletrain web`")
        return people.known(request, viewer)

    Viewer = Annotated[Caller, Depends(look)]  # noqa: N806 - a type

    async def show(request: Request, viewer: Caller, key: Hashable, make: Callable[[Visibility], Any]) -> Response:
        """The figures that `make` gives a viewer's sight, which all viewers of the same sight share for a while."""
        sight = viewer.sight
        whose = None if sight.is_whole else sight

        def write() -> bytes:
            return text_of(make(sight))

        body = await viewer.ask(lambda: pages.kept.get((key, whose), write))
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if len(body) >= 2048 and "gzip" in request.headers.get("accept-encoding", ""):
            body = await viewer.ask(lambda: gzip.compress(body, 1))
            headers["Content-Encoding"] = "gzip"
        return Response(body, media_type="application/json", headers=headers)

    # -- signing in --------------------------------------------------------------------------------------------

    @router.post("/v1/web/links", tags=["people"], status_code=201)
    async def issue_link(caller: Annotated[Caller, Depends(people.caller)]) -> Response:
        """A token that opens the web page once: it belongs behind the `#` of `/web/#`, within its lifetime."""
        made = {"link": pages.sign_in.issue_link(caller.who), "lifetime_s": LINK_LIFETIME_S}
        return JSONResponse(made, 201, headers={"Cache-Control": "no-store"})

    @router.post("/web/session", include_in_schema=False)
    async def open_session(body: LinkBody, request: Request) -> Response:
        """The cookie, and the key that goes with it; the link is used up."""
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise NotAuthenticated("send JSON")  # what another site's form cannot do
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise NotAuthenticated("another site asks")
        session = pages.sign_in.open_session(body.link)
        if session is None:
            raise NotAuthenticated("this link has been used or has run out: make a new one with `malletrain web`")
        cookie, key = session
        answer = JSONResponse({"key": key}, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            pages.sign_in.cookie,
            cookie,
            max_age=int(SESSION_S),
            path="/",
            secure=pages.sign_in.is_https,
            httponly=True,
            samesite="strict",
        )
        return answer

    @router.delete("/web/session", include_in_schema=False, status_code=204)
    async def close_session(request: Request, _viewer: Viewer) -> Response:
        """The session ends, in this browser and here."""
        pages.sign_in.close_session(request.scope)
        answer = Response(status_code=204)
        answer.delete_cookie(pages.sign_in.cookie, path="/", httponly=True, samesite="strict")
        return answer

    # -- figures -----------------------------------------------------------------------------------------------

    @router.get("/web/data/me", include_in_schema=False)
    async def me(viewer: Viewer) -> Response:
        """Who is signed in."""
        answer = {"user": viewer.who.user, "role": viewer.who.role, "nodes": viewer.sight.nodes}
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    @router.get("/web/data/summary", include_in_schema=False)
    async def summary(request: Request, viewer: Viewer) -> Response:
        """Node counts, notices, and the jobs that are not over."""

        def make(sight: Visibility) -> dict[str, Any]:
            row = sight.status(views.status(clock.now(), False, sight.uid))
            return {
                "at": row.at,
                "taken_at": row.taken_at,
                "version": row.version,
                "notices": list(row.notices),
                "pool": row.pool.to_json(),
                "sizing": row.decision.status,
                "jobs": [series.short_job(job) for job in row.jobs],
            }

        return await show(request, viewer, "summary", make)

    @router.get("/web/data/machine", include_in_schema=False)
    async def machine(request: Request, viewer: Viewer, hours: Literal["1", "6", "24"] = "6") -> Response:
        """The strip of nodes, and node counts, over the last hours."""

        def make(sight: Visibility) -> dict[str, Any]:
            end = clock.now()
            nodes = pages.nodes() if sight.nodes else {}
            bins = STRIP_BINS if len(nodes) <= NODES_ONE_BY_ONE else GROUPED_BINS
            since = end - float(hours) * HOUR_S
            pool = history.pool(since)
            # Nothing is known from before the journal's first look.
            axis = Axis(max(since, min(pool[0].at, end - 60.0)) if pool else since, end, bins)
            stays = history.stays(axis.begin) if sight.nodes else ()
            most = len(nodes) if len(nodes) <= NODES_ONE_BY_ONE else STRIP_ROWS
            holes, strays = history.holes(axis.begin), pages.strays()
            rows = strip(nodes, stays, holes, axis, most, sight.uid, strays) if nodes else ()
            return {
                "begin": axis.begin,
                "end": axis.end,
                "bins": axis.bins,
                "rows": [
                    [row.first, row.last, row.nodes, [[bins, list(cell.items())] for bins, cell in row.runs]]
                    for row in rows
                ],
                "pool": series.pool_series(pool, axis.begin, axis.end, PLOT_POINTS),
            }

        return await show(request, viewer, ("machine", hours), make)

    @router.get("/web/data/jobs", include_in_schema=False)
    async def jobs(request: Request, viewer: Viewer) -> Response:
        """The newest jobs, those that are over, too."""

        def make(sight: Visibility) -> dict[str, Any]:
            rows = views.jobs(True, sight.uid, MAX_JOBS)
            return {"jobs": [series.short_job(sight.job(row)) for row in reversed(rows)]}

        return await show(request, viewer, "jobs", make)

    @router.get("/web/data/jobs/{job_id}", include_in_schema=False)
    async def job(request: Request, job_id: JobNumber, viewer: Viewer) -> Response:
        """One job over time."""

        def make(sight: Visibility) -> dict[str, Any]:
            row = views.job(job_id)
            if row is None or not sight.sees_job_of(row.uid):
                raise NotFound(f"there is no job {job_id}")
            row = sight.job(row)
            worlds, stays = history.worlds(job_id, MAX_WORLDS), history.stays_of(job_id, MAX_STAYS)
            begin = worlds[0].at if len(worlds) == MAX_WORLDS else row.submitted_at
            events = (sight.event(event) for event in views.latest_events(MAX_EVENTS, job_id, sight.uid)[0])
            profile = _or_none(lambda: sight.profile(people.requests.profile(job_id)).to_json())
            return {
                "job": row.to_json(),
                "profile": profile,
                "explain": _or_none(lambda: list(people.requests.explain(f"job {job_id}", sight))) or [],
                "sizes": series.size_series(worlds, stays, begin, row.ended_at or clock.now()),
                "rates": series.rate_series(history.windows(job_id, MAX_WINDOWS), PLOT_POINTS),
                "resizes": [
                    [change.at, change.before, change.nodes, change.pause_s, sight.words(change.reason, {job_id})]
                    for change in worlds
                ],
                "events": [
                    [event.at, event.kind, event.pilot or "", event.node or "", event.reason] for event in events
                ],
            }

        return await show(request, viewer, ("job", job_id), make)

    @router.get("/web/data/promise", include_in_schema=False)
    async def promise(
        request: Request, viewer: Viewer, days: Annotated[int, Query(ge=1, le=MAX_PROMISE_DAYS)] = 30
    ) -> Response:
        """What the main queue noticed."""

        def make(sight: Visibility) -> dict[str, Any]:
            return people.requests.promise(days, sight).to_json()

        return await show(request, viewer, ("promise", days), make)

    # -- the page's own files ----------------------------------------------------------------------------------

    files = StaticFiles(packages=[("malletrain.web", "page")])

    @router.get("/web", include_in_schema=False)
    async def to_the_page() -> Response:
        """Relative addresses on the page need the stroke at the end."""
        return RedirectResponse("web/", 308)

    @router.get("/web/{path:path}", include_in_schema=False)
    async def page(request: Request, path: Annotated[str, Path(max_length=100)]) -> Response:
        """A file of the page."""
        answer = await files.get_response(path or "index.html", request.scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer

    return router


def _or_none(ask: Callable[[], Any]) -> Any:
    """What is asked for; None where the daemon has nothing of it, as of a job that is over."""
    try:
        return ask()
    except MalletrainError:
        return None
