"""Slurm's PrivateData, by an ordinary user on every route and with every command, over a running loop.

Alice asks. Mallory has a job of the same daemon, Carol one in the main queue, for which pilots of Alice's give way; a
reservation takes another node. Nothing of theirs may be named.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Roles
from malletrain.api.visibility import Visibility
from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.domain.event import ArrayAttached, Event, JobAnnounced, OperatorRequest
from malletrain.domain.job import Curve, MalleableJob
from malletrain.domain.snapshot import NodeState, Reservation
from malletrain.loop.membership.admission import admit
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryWorkers
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy as policy_named
from malletrain.slurm.site.site_facts import Harvest
from malletrain.store.journal import SqliteJournal
from tests.api.house import URL, Caller, House
from tests.messages import says
from tests.security.two_users import Site
from tests.world import RULES, START, main_job, node

ALICE, MALLORY, OPERATOR = 1001, 1002, 1003
HERS, HIS, MAIN = 3, 880066, 990177

#: What only its owner and operators may read.
HIDDEN = ("880066", "mallory", "hush", "secret-account", "770077", "990177", "carol", "staff-meeting", "operator-bob")

PRIVATE = ("jobs", "usage", "nodes", "reservations", "accounts", "users", "partitions")


class Stage:
    """A loop over a journal on disk, with what the module's docstring says."""

    def __init__(self, journal: SqliteJournal) -> None:
        self.clock = ManualClock(START)
        self.cluster = MemoryCluster([node(f"n{i}") for i in range(8)], self.clock)
        workers = MemoryWorkers(self.clock)
        self.loop = Loop(self.cluster, workers, journal, self.clock, policy_named("exact"), RULES)
        curve = Curve(((1, 100.0), (4, 390.0)))
        for number, user, uid, name, account, array in (
            (HERS, "alice", ALICE, "digits", "harvest", 40),
            (HIS, "mallory", MALLORY, "hush", "secret-account", 770077),
        ):
            wanted = MalleableJob(number, name, user, uid, account, 1, 4, START, given_curve=curve)
            self.cluster._next_array = array
            array = self.cluster.submit_array(user, 12)
            self.loop.record(
                [Event(START, JobAnnounced(wanted), number), Event(START, ArrayAttached(array, 12), number)]
            )
        for _ in range(3):
            self.tick()
        drain = OperatorRequest("drain", "operator-bob", ("n7",), START + 9000)
        self.loop.record([Event(self.clock.now(), drain, reason="drain by operator-bob")])
        mine = sorted(p.node for p in self.loop.views[HERS].active)
        assert len(mine) == 4
        carols = main_job(MAIN, planned=mine[:1], start=self.clock.now() + 60)
        object.__setattr__(carols, "user", "carol")
        self.cluster.main = (carols,)
        self.cluster.reservations = (Reservation("staff-meeting", self.clock.now(), START + 9e4, (mine[1],)),)
        broken = self.cluster.nodes[mine[2]]
        self.cluster.nodes[mine[2]] = node(broken.name, NodeState.DRAINED, reason="operator-bob looks at it")
        for _ in range(3):
            self.tick()

    def tick(self) -> None:
        self.clock.advance(10.0)
        self.loop.tick()

    @property
    def views(self) -> Any:
        return self.loop.views


def _take(members: Membership) -> None:
    members.reports()


@pytest.fixture
def private() -> list[str]:
    return list(PRIVATE)


@pytest.fixture
def played(new_house: Callable[..., House], private: list[str]) -> Iterator[House]:
    stages: list[Stage] = []

    def requests(journal: SqliteJournal, _clock: Any) -> LoopRequests:
        stage = Stage(journal)
        stages.append(stage)
        ids = iter(range(880067, 880100))
        return LoopRequests(
            stage.loop, threading.RLock(), stage.clock, Harvest("harvest"),
            lambda count: tuple(journal.read(max(0, journal.last - count))), lambda: next(ids),
        )  # fmt: skip

    def router(house: House) -> Any:
        members = Membership(
            MembershipSettings(), house.clock, lambda claim: admit(stages[0].views, claim), None, lambda *_: None
        )
        house.gate = WorkersGate(members, threading.RLock(), lambda: _take(members), house.clock)
        return WorkersRouter(house.gate, house.auth.worker_uid, house.connections)

    house = new_house(
        roles=Roles(operators=[OPERATOR], private_data=lambda: private),
        requests=requests,
        router=router,
        views={
            "snapshot": lambda: stages[0].loop.last_snapshot,
            "decision": lambda: stages[0].loop.last_decision,
            "notices": lambda: ["nothing starts beside main job 990177"],
        },
    )
    house.auth._audiences = (house.address, URL)
    house.stage = stages[0]  # type: ignore[attr-defined]
    house.nodes = {n.name: n.state for n in stages[0].loop.last_snapshot.nodes}  # type: ignore[union-attr]
    yield house


def _pilots(house: House, job: int) -> list[str]:
    return list(house.stage.views[job].pilots)  # type: ignore[attr-defined]


def _explained(house: House, caller: Caller) -> list[Any]:
    nodes = [f"n{i}" for i in range(8)]
    own = [p for p in _pilots(house, HERS) if house.stage.views[HERS].pilots[p].node]  # type: ignore[attr-defined]
    subjects = [
        *nodes, f"job {HERS}", str(HERS), *own, f"main-job {MAIN}", f"job {HIS}", str(HIS), f"0{HIS}",
        f"{HIS:030}", str(HIS).translate({48 + i: 0xFF10 + i for i in range(10)}), f"job{HIS}", f"job  {HIS}",
        *_pilots(house, HIS)[:3], f"main-job  {MAIN}", "main-job 1", f"node n{1}",
    ]  # fmt: skip
    return [caller.get(f"/v1/explain/{subject}") for subject in subjects]


def _hello(house: House, _caller: Caller) -> list[Any]:
    found = []
    house.uid_seen = ALICE
    for job in (HERS, HIS):
        body = {
            "credential": house.credential("malletrain-worker-v1", house.address), "job": job, "slurm_job_id": 1,
            "array_id": 7701, "task": 0, "restart": 0, "node": "n1", "pid": 1, "standing": None,
        }  # fmt: skip
        found.append(Caller(house).post("/v1/workers/hello", json=body))
    house.uid_seen = None
    return found


#: Every figure of the web page, as its viewer's browser asks for them.
PAGE_FIGURES = (
    "me", "summary", "machine", "machine?hours=24", "jobs", f"jobs/{HERS}", f"jobs/{HIS}", "promise",
)  # fmt: skip


def _page(house: House, caller: Caller) -> list[Any]:
    uid = house.auth.identify(caller.http.headers["authorization"]).uid
    with house.viewer(uid) as http:
        return [http.get(f"/web/data/{name}") for name in PAGE_FIGURES]


def _log_in(house: House, _caller: Caller) -> list[Any]:
    house.uid_seen = ALICE
    answer = Caller(house).post("/v1/session", json={"credential": house.credential(audience=house.address)})
    house.uid_seen = None
    return [answer]


NEW = {"name": "x", "min_nodes": 1, "max_nodes": 2, "total_samples": 1e9, "curve": [[1, 1.0], [2, 2.0]]}
ARRAY = {"array_id": 7701, "tasks": 1}

Ask = Callable[[House, Caller], list[Any]]


def _get(*paths: str) -> Ask:
    return lambda _house, caller: [caller.get(path) for path in paths]


def _post(path: str, body: Any = None) -> Ask:
    return lambda _house, caller: [caller.post(path.format(job=job), json=body) for job in (HERS, HIS)]


#: How each route is asked. A route that is not here fails the test: say what it shows of others' jobs.
ROUTES: dict[tuple[str, str], Ask] = {
    ("POST", "/v1/session"): _log_in,
    ("DELETE", "/v1/session"): lambda house, _: [Caller(house, house.token(ALICE)).delete("/v1/session")],
    ("POST", "/v1/jobs"): _post("/v1/jobs", NEW),
    ("GET", "/v1/jobs"): _get("/v1/jobs", "/v1/jobs?over=false", "/v1/jobs?mine=true"),
    ("GET", "/v1/jobs/{job_id}"): _get(f"/v1/jobs/{HERS}", f"/v1/jobs/{HIS}"),
    ("POST", "/v1/jobs/{job_id}/arrays"): _post("/v1/jobs/{job}/arrays", ARRAY),
    ("GET", "/v1/jobs/{job_id}/profile"): _get(f"/v1/jobs/{HERS}/profile", f"/v1/jobs/{HIS}/profile"),
    ("POST", "/v1/jobs/{job_id}/cancel"): lambda _, caller: [caller.post(f"/v1/jobs/{HIS}/cancel")],
    ("POST", "/v1/jobs/{job_id}/hold"): lambda _, caller: [caller.post(f"/v1/jobs/{HIS}/hold")],
    ("POST", "/v1/jobs/{job_id}/release"): lambda _, caller: [caller.post(f"/v1/jobs/{HIS}/release")],
    ("GET", "/v1/status"): _get("/v1/status", "/v1/status?nodes=false"),
    ("GET", "/v1/events"): _get(
        "/v1/events?limit=5000", "/v1/events?latest=5000", f"/v1/events?job={HIS}", f"/v1/events?job={HERS}",
        f"/v1/events?job={HIS}&latest=50", "/v1/events?kind=operator&kind=holes_opened&kind=decided",
    ),
    ("GET", "/v1/explain/{subject:path}"): _explained,
    ("GET", "/v1/usage"): _get("/v1/usage"),
    ("GET", "/v1/promise"): _get("/v1/promise", "/v1/promise?days=90"),
    ("GET", "/v1/drain"): _get("/v1/drain"),
    ("POST", "/v1/drain"): lambda _, caller: [caller.post("/v1/drain", json={"nodes": "n1", "until": 9e9})],
    ("GET", "/v1/bans"): _get("/v1/bans"),
    ("POST", "/v1/bans"): lambda _, caller: [caller.post("/v1/bans", json={"user": "root", "reason": "x"})],
    ("DELETE", "/v1/bans/{user}"): lambda _, caller: [caller.request("DELETE", "/v1/bans/root")],
    ("GET", "/v1/health"): _get("/v1/health"),
    ("GET", "/v1/metrics"): _get("/v1/metrics"),
    ("GET", "/metrics"): _get("/metrics"),
    ("GET", "/v1/openapi.json"): _get("/v1/openapi.json"),
    ("POST", "/v1/web/links"): lambda _, caller: [caller.post("/v1/web/links")],
    ("POST", "/web/session"): lambda house, _: [Caller(house).post("/web/session", json={"link": "x" * 43})],
    ("DELETE", "/web/session"): lambda house, _: [house.viewer(ALICE).delete("/web/session")],
    **{("GET", f"/web/data/{name}"): _page for name in (
        "me", "summary", "machine", "jobs", "jobs/{job_id}", "promise",
    )},
    ("GET", "/web"): _get("/web"),
    ("GET", "/web/{path:path}"): _get("/web/", "/web/page.js", "/web/nothing"),
    ("POST", "/v1/workers/hello"): _hello,
    ("POST", "/v1/workers/{worker}/report"): _post("/v1/workers/7701_0.0/report", {"events": []}),
    ("POST", "/v1/workers/{worker}/check"): _post("/v1/workers/7701_0.0/check", {"digest": "0" * 64}),
    ("GET", "/v1/workers/{worker}/plan"): _get("/v1/workers/7701_0.0/plan?after=0&wait=0"),
}  # fmt: skip

#: Routes on which an operator does read of others: else the test would show nothing.
TELLING = (
    "/web/data/jobs", "/v1/jobs", "/v1/jobs/{job_id}", "/v1/status", "/v1/events", "/v1/explain/{subject:path}",
    "/v1/usage",
)  # fmt: skip


def shown(answers: list[Any]) -> str:
    """What the answers say beside what was asked: a refusal may repeat the caller's own words."""
    words = []
    for answer in answers:
        text = json.dumps(answer.json()) if "json" in answer.headers.get("content-type", "") else answer.text
        asked = answer.request.url.path
        text = re.sub(r"\b1[789]\d{8}(\.\d+)?\b", "", text)  # times: their digits may be anybody's number
        refused = answer.status_code >= 400
        words.append(text if not refused else _without(text, asked, answer.request.content.decode()))
    return "\n".join(words)


def _without(text: str, *asked: str) -> str:
    for word in (*HIDDEN, "7701_0.0", "7701"):
        if any(word in each for each in asked):
            text = text.replace(word, "")
    return text


def leaks(text: str) -> list[str]:
    return [word for word in HIDDEN if word in text]


def routes_of(router: Any) -> set[tuple[str, str]]:
    found = set()
    for route in router.routes:
        if hasattr(route, "original_router"):
            found |= routes_of(route.original_router)
        else:
            found |= {(method, route.path) for method in route.methods - {"HEAD"}}
    return found


def test_every_route_is_in_the_table(played: House) -> None:
    assert routes_of(played.app) == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), list(ROUTES))
def test_no_route_names_anothers(played: House, method: str, path: str) -> None:
    answers = ROUTES[method, path](played, Caller(played, played.token(ALICE)))
    assert all(answer.status_code < 500 for answer in answers)
    assert leaks(shown(answers)) == []
    assert (
        any(answer.status_code < 400 for answer in answers)
        or not answers
        or "worker" in path
        or method != "GET"
        or "bans" in path
    )


@pytest.mark.parametrize("path", TELLING)
def test_an_operator_reads_them(played: House, path: str) -> None:
    assert leaks(shown(ROUTES["GET", path](played, Caller(played, played.token(OPERATOR)))))


def test_without_private_data_everybody_reads_them(played: House, private: list[str]) -> None:
    private.clear()
    caller = Caller(played, played.token(ALICE))
    for path in TELLING:
        assert leaks(shown(ROUTES["GET", path](played, caller)))


def test_what_is_her_own_is_named(played: House) -> None:
    caller = Caller(played, played.token(ALICE))
    status = caller.get("/v1/status").json()
    assert [job["id"] for job in status["jobs"]] == [HERS]
    assert list(status["decision"]["sizes"]) == [str(HERS)]
    lines = "\n".join(caller.get(f"/v1/explain/job {HERS}").json()["lines"])
    assert "a main job" in lines or "a reservation" in lines
    assert caller.get("/v1/explain/n1").status_code == 404, "PrivateData=nodes"


def test_jobs_alone_leave_the_nodes(played: House, private: list[str]) -> None:
    private[:] = ["jobs"]
    caller = Caller(played, played.token(ALICE))
    nodes = caller.get("/v1/status").json()["nodes"]
    assert len(nodes) == 8
    assert {node["job"] for node in nodes} == {HERS, None}
    assert caller.get("/v1/explain/n1").status_code == 200
    told = shown([answer for answer in _explained(played, caller) if answer.status_code == 200])
    assert set(leaks(told)) <= {"staff-meeting", "operator-bob"}


def test_a_worker_is_not_told_for_whom_it_leaves(site: Site) -> None:
    """In the poll of a worker, which its user's log has."""
    site.house.gate._sight = lambda uid: Visibility.under(["jobs"], uid, "alice")
    token = site.hello(ALICE, 1, 0).json()["token"]
    site.members.leave(replace(site.journal.leave(1, 0), reason="main job 990177 could start on n10"))
    assert says(site.directive(1, 0, token)["leave"], "main job", "n10")


def test_an_array_of_another_user_says_nothing_of_it(played: House) -> None:
    """Neither that it is here, nor whose it is, by a conflict or by the inspection."""
    caller = Caller(played, played.token(ALICE))
    for array in (7701, 123456):
        answer = caller.post(f"/v1/jobs/{HERS}/arrays", json={"array_id": array, "tasks": 1})
        assert (answer.status_code, answer.json()) == (202, {})


def test_slurms_words_for_private_data() -> None:
    assert Visibility.under([], 7, "u").is_whole
    assert Visibility.under(["accounts", "users", "partitions", "cloud"], 7, "u").is_whole
    everything = Visibility.under(["all"], 7, "u")
    assert everything == Visibility.under(["jobs", "usage", "nodes", "reservations"], 7, "u")
    assert Visibility.under(["jobs"], 7, "u").usage_uid == 7, "rows of usage count jobs"


SLURM_IDS = st.sampled_from(["77", "77_3", "77_[3-5,9]", "77_[1-4]%2", "77+1", "het77"])


@given(SLURM_IDS, st.sampled_from(["", ",", ")", ";", ": x", ". And", " on n3"]))
def test_ids_of_every_shape_are_left_out(number: str, after: str) -> None:
    sight = Visibility.under(["all"], 7, "u")
    for before in ("wanted by main job ", "planned start of job ", "(job "):
        told = sight.words(f"{before}{number}{after}", {3})
        assert "77" not in told
        assert told.endswith(after)
