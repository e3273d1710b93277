"""Who gets in: real credentials of a real munged, used well and used badly."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

import httpx
import pytest

from malletrain.api.auth import MAX_SESSIONS_PER_USER, NotAuthenticated
from malletrain.api.roles import Roles, Unavailable
from malletrain.domain.errors import Refused
from malletrain.wire import munge
from malletrain.wire.http import DaemonRefused
from tests.api.house import NO_TLS, Caller, House, http_of
from tests.messages import says


def log_in(house: House, credential: str) -> httpx.Response:
    return httpx.post(
        f"{house.address}/v1/session", json={"credential": credential}, trust_env=False, timeout=60, verify=NO_TLS
    )


def test_a_credential_buys_a_token_for_its_maker(house: House) -> None:
    answer = log_in(house, house.credential())
    assert answer.status_code == 200
    told = answer.json()
    assert (told["uid"], told["site"], told["lifetime_s"]) == (os.getuid(), {"partition": "harvest"}, 3600.0)
    assert answer.headers["cache-control"] == "no-store"
    assert Caller(house, told["token"]).get("/v1/jobs").json() == {"jobs": []}


def test_a_credential_works_once(house: House) -> None:
    credential = house.credential()
    assert log_in(house, credential).status_code == 200
    again = log_in(house, credential)
    assert again.status_code == 401
    assert "used before" in again.json()["error"]


@pytest.mark.parametrize(
    ("purpose", "audience"),
    [
        ("malletrain-worker-v1", "http://head.example.org:8470"),
        ("malletrain-session-v1", "http://evil.example.org:8470"),
        ("malletrain-session-v1", "http://head.example.org:8470/x"),
        ("", ""),
    ],
)
def test_a_credential_for_something_else_is_refused(house: House, purpose: str, audience: str) -> None:
    answer = log_in(house, house.credential(purpose, audience))
    assert answer.status_code == 401
    assert says(answer.json()["error"], "another daemon")


def test_a_credential_of_another_cluster_is_refused(house: House) -> None:
    good = house.credential()
    for bad in (good[:-30] + "A" * 29 + ":", "MUNGE:AAAA:", "x" * 100, "MUNGE:ä" + "A" * 20):
        answer = log_in(house, bad)
        assert answer.status_code == 401, bad
        assert "\n" not in answer.json()["error"]


def test_an_old_credential_is_refused(house: House) -> None:
    credential = house.credential()
    house.clock.day_ahead = 302
    assert log_in(house, credential).status_code == 401


def test_a_worker_credential_is_not_a_persons_and_the_reverse(house: House) -> None:
    assert house.auth.worker_uid(house.credential("malletrain-worker-v1")) == os.getuid()
    with pytest.raises(NotAuthenticated, match="another purpose"):
        house.auth.worker_uid(house.credential())


def test_no_token_or_a_wrong_one_opens_nothing(house: House) -> None:
    token = house.token(1001)
    for headers in (
        {}, {"Authorization": "Bearer"}, {"Authorization": f"Basic {token}"},
        {"Authorization": f"Bearer {token[:-1]}"}, {"Authorization": "Bearer " + "x" * 5000},
        {"Authorization": token},
    ):  # fmt: skip
        for path in ("/v1/jobs", "/v1/jobs/1", "/v1/status", "/v1/events", "/v1/usage", "/v1/explain/n001"):
            answer = httpx.get(house.address + path, headers=headers, trust_env=False, timeout=60, verify=NO_TLS)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert says(answer.json()["error"], "log in") or says(answer.json()["error"], "no token")


def test_tokens_run_out_and_can_be_given_back(house: House) -> None:
    caller = Caller(house, house.token(1001))
    other = Caller(house, house.token(1001))
    assert other.delete("/v1/session").status_code == 204
    assert other.get("/v1/jobs").status_code == 401
    assert caller.get("/v1/jobs").status_code == 200
    house.clock.ahead = 3601
    assert caller.get("/v1/jobs").status_code == 401


def test_tokens_are_bounded_for_each_user(house: House) -> None:
    mine, another = house.token(1001), house.token(1002)
    for _ in range(MAX_SESSIONS_PER_USER):
        house.token(1001)
    with pytest.raises(NotAuthenticated):
        house.auth.identify(f"Bearer {mine}")
    assert house.auth.identify(f"Bearer {another}").uid == 1002


def test_expired_tokens_are_forgotten(house: House) -> None:
    for _ in range(5):
        house.token(1001)
    house.clock.ahead = 4000
    house.token(1002)
    assert len(house.auth._tickets._tickets) == len(house.auth._tickets._of_owner) == 1


def test_tokens_are_not_kept_in_the_clear(house: House) -> None:
    token = house.token(1001)
    assert token not in repr(vars(house.auth)) + repr(vars(house.auth._tickets))


def test_a_daemon_of_one_user_serves_no_other(new_house: Callable[..., House]) -> None:
    house = new_house(roles=Roles(serves=[1001]))
    assert house.token(1001)
    with pytest.raises(Refused, match="alone, not 1002"):
        house.token(1002)


def test_without_munged_the_daemon_says_so(new_house: Callable[..., House]) -> None:
    house = new_house()
    credential = house.credential()
    house.auth._socket = "/nonexistent/socket"
    answer = log_in(house, credential)
    assert answer.status_code == 503
    assert "systemctl start munge" in answer.json()["error"]
    with pytest.raises(Unavailable):
        house.auth.worker_uid(credential)


def test_the_commands_client_logs_in_and_renews(house: House) -> None:
    with closing(http_of(house)) as client:
        assert client.get("/v1/jobs") == {"jobs": []}
        assert client.identity["role"] == ("operator" if os.getuid() == 0 else "user")
        house.auth._tickets._tickets.clear()  # as after a restart of the daemon
        assert client.get("/v1/jobs", {"over": False}) == {"jobs": []}
        first = client._token
        client._token_until = 0.0
        client.get("/v1/jobs")
        assert client._token != first
        with pytest.raises(DaemonRefused, match="no job 77") as refused:
            client.get("/v1/jobs/77")
        assert refused.value.status == 404


def test_the_commands_client_needs_munge(house: House) -> None:
    with closing(http_of(house)) as client:
        client._munge_socket = "/nonexistent/socket"
        with pytest.raises(munge.MungeUnavailable, match="systemctl start munge"):
            client.get("/v1/jobs")
