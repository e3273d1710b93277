"""Signing in to the page, over a real socket: links, sessions of two halves, the site's proxy."""

from __future__ import annotations

import logging
from collections.abc import Callable

import httpx
import pytest

from malletrain.api.http_server import SAFE_HEADERS
from malletrain.api.roles import Roles
from malletrain.domain.event import Event, PoolCounted
from malletrain.web.sign_in import KEY_HEADER, LINK_LIFETIME_S
from malletrain.wire.address import Address
from malletrain.wire.daemon import client_at
from tests.api.house import NO_TLS, URL, Caller, House
from tests.messages import says

FIGURES = ("me", "summary", "machine", "jobs", "jobs/1", "promise")


def link_of(house: House, uid: int = 1001) -> str:
    answer = Caller(house, house.token(uid)).post("/v1/web/links")
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["link"])


def browser(house: House, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=house.address, timeout=20, trust_env=False, verify=NO_TLS, headers=headers)


def test_a_link_opens_the_page_once(house: House) -> None:
    link = link_of(house)
    with browser(house) as http:
        answer = http.post("/web/session", json={"link": link})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"))
        me = http.get("/web/data/me", headers={KEY_HEADER: answer.json()["key"]})
        assert me.json() == {"user": "1001", "role": "user", "nodes": True}
    again = browser(house).post("/web/session", json={"link": link})
    assert again.status_code == 401
    assert says(again.json()["error"], "run out")
    assert "set-cookie" not in again.headers


def test_a_link_runs_out(house: House) -> None:
    link = link_of(house)
    house.clock.ahead += LINK_LIFETIME_S + 1
    assert browser(house).post("/web/session", json={"link": link}).status_code == 401


def test_a_session_runs_out(house: House) -> None:
    with house.viewer(1001) as http:
        assert http.get("/web/data/me").status_code == 200
        house.clock.ahead += 8 * 3600 + 1
        assert http.get("/web/data/me").status_code == 401


def test_signing_out_ends_the_session_in_the_daemon(house: House) -> None:
    with house.viewer(1001) as http:
        cookie = http.cookies[house.sign_in.cookie]
        assert http.delete("/web/session").status_code == 204
        http.cookies.set(house.sign_in.cookie, cookie)
        assert http.get("/web/data/me").status_code == 401


@pytest.mark.parametrize("name", FIGURES)
def test_a_stranger_is_shown_nothing(house: House, name: str) -> None:
    answer = browser(house).get(f"/web/data/{name}")
    assert answer.status_code == 401
    assert "malletrain web" in answer.json()["error"]


def test_half_a_session_is_worth_nothing(house: House) -> None:
    """A cookie goes to every port of a host, a key stays with one: another program on the host has no use for one."""
    whole = house.viewer(1001)
    cookie, key = whole.cookies[house.sign_in.cookie], whole.headers[KEY_HEADER]
    for http in (
        httpx.Client(base_url=house.address, timeout=60, verify=NO_TLS, cookies={house.sign_in.cookie: cookie}),
        httpx.Client(base_url=house.address, timeout=60, verify=NO_TLS, headers={KEY_HEADER: key}),
        httpx.Client(
            base_url=house.address,
            timeout=60,
            verify=NO_TLS,
            headers={KEY_HEADER: key},
            cookies={house.sign_in.cookie: key},
        ),
        httpx.Client(
            base_url=house.address,
            timeout=60,
            verify=NO_TLS,
            headers={KEY_HEADER: cookie},
            cookies={house.sign_in.cookie: cookie},
        ),
        httpx.Client(
            base_url=house.address,
            timeout=60,
            verify=NO_TLS,
            headers={KEY_HEADER: ""},
            cookies={house.sign_in.cookie: cookie},
        ),
    ):
        assert http.get("/web/data/me").status_code == 401


def test_a_session_of_the_page_is_no_token_of_the_api(house: House) -> None:
    """It only shows: what steers jobs takes a token, and no cookie."""
    with house.viewer(0) as http:
        assert http.post("/v1/jobs/1/cancel").status_code == 401
        assert http.get("/v1/status").status_code == 401
        both = http.cookies[house.sign_in.cookie] + http.headers[KEY_HEADER]
        for token in (both, http.cookies[house.sign_in.cookie], house.sign_in.issue_link(house.roles.identify(0, 0))):
            assert http.get("/v1/status", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert house.requests.asked == []


def test_a_token_of_the_api_is_no_link(house: House) -> None:
    token = house.token(1001)
    assert browser(house).post("/web/session", json={"link": token}).status_code == 401


@pytest.mark.parametrize(
    ("sent", "headers"),
    [
        ({"content": '{"link": "%s"}'}, {"Content-Type": "text/plain"}),
        ({"content": '{"link": "%s"}'}, {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}),
        ({"content": '{"link": "%s"}'}, {"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}),
        ({"content": "link=%s"}, {"Content-Type": "application/x-www-form-urlencoded"}),
    ],
)
def test_another_site_cannot_sign_a_browser_in(house: House, sent: dict[str, str], headers: dict[str, str]) -> None:
    link = link_of(house)
    answer = browser(house).post("/web/session", content=sent["content"] % link, headers=headers)
    assert answer.status_code in (400, 401)
    assert "set-cookie" not in answer.headers


def test_nothing_that_is_asked_by_get_changes_anything(house: House) -> None:
    with house.viewer(0) as http:
        before = house.journal.last
        for name in FIGURES[:-1]:
            http.get(f"/web/data/{name}")
            for method in ("POST", "PUT", "DELETE"):
                assert http.request(method, f"/web/data/{name}").status_code == 405
        assert (house.journal.last, house.requests.asked) == (before, [])


def test_a_ban_ends_the_page_at_once(new_house: Callable[..., House]) -> None:
    banned: dict[int, str] = {}
    house = new_house(roles=Roles(bans=lambda: banned))
    link = house.sign_in.issue_link(house.roles.identify(1002, 1002))
    with house.viewer(1002) as http:
        assert http.get("/web/data/me").status_code == 200
        banned[1002] = "banned"
        assert http.get("/web/data/me").status_code == 401
    assert browser(house).post("/web/session", json={"link": link}).status_code == 401


def test_each_user_has_so_many_links(house: House) -> None:
    first = link_of(house)
    for _ in range(8):
        link_of(house)
    assert browser(house).post("/web/session", json={"link": first}).status_code == 401


def test_every_answer_is_fenced_in(house: House) -> None:
    """Also those that refuse, before any route is looked for."""
    with browser(house) as http:
        answers = [
            http.get("/web/"), http.get("/web/nothing"), http.get("/web/data/me"), http.get("/v1/health"),
            http.post("/web/data/me", content=b"x"), http.get("/web"), http.get("/nothing"),
        ]  # fmt: skip
        for answer in answers:
            assert {name: answer.headers.get_list(name) for name in SAFE_HEADERS} == {
                name: [value] for name, value in SAFE_HEADERS.items()
            }
    policy = SAFE_HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert answers[5].headers["location"] == "web/"


@pytest.mark.parametrize("path", ["../sign_in.py", "..%2fsign_in.py", "%2e%2e/sign_in.py", "vendor", "\\"])
def test_no_other_file_is_served(house: House, path: str) -> None:
    assert browser(house).get(f"/web/{path}").status_code in (404, 400)


def test_a_file_is_sent_once(house: House) -> None:
    with browser(house) as http:
        first = http.get("/web/")
        assert first.headers["content-type"] == "text/html; charset=utf-8"
        again = http.get("/web/", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_log_has_no_link_and_no_session(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "uvicorn.access"):
        link = link_of(house)
        opened = browser(house).post("/web/session", json={"link": link})
        cookies = {house.sign_in.cookie: opened.cookies[house.sign_in.cookie]}
        with httpx.Client(
            base_url=house.address,
            timeout=60,
            verify=NO_TLS,
            cookies=cookies,
            headers={KEY_HEADER: opened.json()["key"]},
        ) as http:
            assert http.get("/web/data/me").status_code == 200
    theirs = ("httpx", "httpcore")  # the test's own side
    told = repr([record.__dict__ for record in caplog.records if not record.name.startswith(theirs)])
    assert "/web/session" in told
    for secret in (link, opened.json()["key"], opened.cookies[house.sign_in.cookie]):
        assert secret not in told


def test_two_daemons_behind_one_localhost_keep_a_cookie_each(new_house: Callable[..., House]) -> None:
    names = []
    for url in ("http://login1:6780", "http://login2:6780"):
        house = new_house(page_url=url)
        with browser(house) as http:
            opened = http.post("/web/session", json={"link": link_of(house)})
            (name,) = http.cookies.keys()
            assert name == house.sign_in.cookie
            http.headers[KEY_HEADER] = opened.json()["key"]
            assert http.get("/web/data/me").status_code == 200
            assert http.delete("/web/session").status_code == 204
            assert name not in http.cookies
            assert http.get("/web/data/me").status_code == 401
        names.append(name)
    assert len(set(names)) == 2


def test_tls_makes_the_cookie_secure(new_house: Callable[..., House]) -> None:
    house = new_house(page_url="https://head1:8471")
    answer = browser(house).post("/web/session", json={"link": link_of(house)})
    assert "Secure" in answer.headers["set-cookie"]


def test_no_proxys_header_is_believed(house: House) -> None:
    with browser(house) as http:
        assert http.get("/web/data/me", headers={"X-Remote-User": "nobody"}).status_code == 401


def test_the_commands_client_makes_the_link(house: House) -> None:
    client = client_at(Address(house.address), {"MUNGE_SOCKET": house.munge_socket})
    client.url = URL  # whom the credential is made for
    link, lifetime_s = client.web_link()
    assert lifetime_s == LINK_LIFETIME_S
    page, _, token = link.partition("#")
    assert page == f"{URL}/web/"
    assert house.sign_in.open_session(token) is not None


def test_nothing_is_drawn_from_before_the_journal_began(house: House) -> None:
    begun = house.clock.now() - 600.0
    house.journal.append([Event(begun, PoolCounted(idle=1))])
    with house.viewer(0) as http:
        assert http.get("/web/data/machine").json()["begin"] == begun
