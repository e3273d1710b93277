"""An account of the daemon's machine that would be taken for the daemon, on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from malletrain.api import listening
from malletrain.api.connections import ConnectionTable
from malletrain.api.http_server import HttpServer, serve
from malletrain.api.rate_limits import ApiLimits
from malletrain.api.roles import Unavailable
from malletrain.wire.worker_client import PilotIdentity, WorkerClient
from scripts.lab.ports import free_port
from tests.api.house import NO_TLS, House
from tests.messages import naming

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.fixture(autouse=True)
def _needs_both_families() -> None:
    try:
        socket.create_server(("::1", 0), family=V6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


def impostor(host: str, port: int, *, dual: bool = False) -> socket.socket:
    """A listener as another account would make one; it gives itself every chance."""
    found = socket.socket(V6 if ":" in host else V4, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in host:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        found.bind((host, port))
        found.listen()
    except OSError:
        found.close()
        raise
    return found


@contextlib.contextmanager
def served(house: House, host: str, port: int) -> Iterator[HttpServer]:
    with contextlib.closing(serve(house.app, host, port, ConnectionTable(ApiLimits(), 64))) as server:
        yield server


@pytest.mark.parametrize("mine", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("theirs", ["::", "::1"])
def test_the_daemon_does_not_start_beside_a_listener_of_another_family(house: House, mine: str, theirs: str) -> None:
    with contextlib.closing(impostor(theirs, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Unavailable, match=rf" \[::\]:{port} .*`ss -ltnp`"):
            serve(house.app, mine, port, ConnectionTable(ApiLimits(), 64))
        socket.create_server(("127.0.0.1", port)).close()  # it has given its own back


def test_nor_one_of_ipv6_beside_a_listener_of_ipv4(house: House) -> None:
    with contextlib.closing(impostor("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Unavailable, match=naming(f"0.0.0.0:{port}")):
            serve(house.app, "::1", port, ConnectionTable(ApiLimits(), 64))


@pytest.mark.parametrize("mine", ["127.0.0.1", "0.0.0.0", "::", "::1"])
def test_nobody_listens_on_its_port_in_the_other_family(house: House, mine: str) -> None:
    with served(house, mine, free_port()) as server:
        for host, dual in (("::", False), ("::", True), ("::1", False)) if ":" not in mine else (
            ("0.0.0.0", False), ("127.0.0.1", False), ("127.0.0.2", False),
        ):  # fmt: skip
            with pytest.raises(OSError, match="in use"):
                impostor(host, server.port, dual=dual)
        at = f"http://{'[::1]' if ':' in mine else '127.0.0.1'}:{server.port}/v1/health"
        assert httpx.get(at, trust_env=False, verify=NO_TLS).status_code == 200
    impostor("::", server.port).close()  # at the end all is given back


def test_a_daemon_starts_again_on_its_port_at_once(house: House) -> None:
    with served(house, "127.0.0.1", 0) as server:
        httpx.get(f"http://127.0.0.1:{server.port}/v1/health", trust_env=False, verify=NO_TLS)
    with served(house, "127.0.0.1", server.port) as again:
        assert again.port == server.port


# --- a socket that root's unit holds --------------------------------------------------------------------------

_AS_SYSTEMD = """
import os, sys
os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = str(os.getpid()), "1"
from malletrain.api.connections import ConnectionTable
from malletrain.api.rate_limits import ApiLimits
from malletrain.api.http_server import serve
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    text = scope["client"][0].encode()
    await send({"type": "http.response.body", "body": b"ok"})
for _ in range(2):  # as a reload does
    server = serve(app, sys.argv[1], int(sys.argv[2]), ConnectionTable(ApiLimits(), 64))
    assert server.is_inherited is (sys.argv[3] != "own"), server.is_inherited
    assert server.was_held is (sys.argv[3] == "inherited")
    print(server.port, flush=True)
    sys.stdin.readline()
    server.close()
"""


@contextlib.contextmanager
def unit(host: str, port: int, held: socket.socket, how: str = "inherited") -> Iterator[subprocess.Popen[str]]:
    """A daemon that is handed `held`, as its third descriptor."""

    def third() -> None:
        os.dup2(held.fileno(), 3)

    words = [sys.executable, "-c", _AS_SYSTEMD, host, str(port), how]
    daemon = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=third, pass_fds=(3,),
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    try:
        yield daemon
    finally:
        daemon.kill()
        daemon.communicate(timeout=60)


def both_families() -> socket.socket:
    return socket.create_server(("::", 0), family=V6, dualstack_ipv6=True)


def answers(at: str, port: int) -> bool:
    try:
        return httpx.get(f"http://{at}:{port}/", trust_env=False, verify=NO_TLS, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_units_socket_is_served_and_holds_the_port_while_no_daemon_runs() -> None:
    with both_families() as held:
        port = held.getsockname()[1]
        with unit("0.0.0.0", port, held) as daemon:
            assert daemon.stdout is not None and daemon.stdin is not None
            for _ in range(2):
                assert daemon.stdout.readline() == f"{port}\n"
                assert answers("127.0.0.1", port) and answers("[::1]", port)
                daemon.stdin.write("\n")
                daemon.stdin.flush()
            daemon.wait(60)
        for host in ("::", "0.0.0.0", "127.0.0.1", "::1"):
            with pytest.raises(OSError, match="in use"):
                impostor(host, port)


def test_the_units_socket_serves_the_address_that_the_configuration_names() -> None:
    with both_families() as held:
        port = held.getsockname()[1]
        with unit("127.0.0.1", port, held) as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == f"{port}\n"
            assert answers("127.0.0.1", port)
            assert not answers("127.0.0.2", port)
            assert not answers("[::1]", port)


def test_a_name_is_served_at_the_address_that_a_socket_of_the_daemons_own_would_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """api.host = "localhost" is 127.0.0.1, also where the resolver names ::1 first: a proxy calls that."""

    def resolve(host: str, port: int, family: int = 0) -> list[tuple[object, ...]]:
        found = {V6: ("::1", port), socket.AF_INET: ("127.0.0.1", port)}
        return [(each, socket.SOCK_STREAM, 6, "", at) for each, at in found.items() if family in (0, each)]

    with both_families() as held:
        monkeypatch.setattr(listening, "FIRST_INHERITED", held.fileno())
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        handed_over = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
        found = listening.listen("localhost", held.getsockname()[1], 1, handed_over)
    assert (found.address, found.is_inherited) == ("127.0.0.1", True)
    found.close()


@pytest.mark.parametrize("mine", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_unit_that_was_edited_to_one_family(mine: str) -> None:
    """The daemon keeps others from the other one, or does not start; what was sent there before is worth nothing."""
    family = V6 if ":" in mine else socket.AF_INET
    theirs = "127.0.0.1" if ":" in mine else "::"
    with socket.create_server((mine, free_port()), family=family) as held:
        port = held.getsockname()[1]
        with unit(mine, port, held, "one family") as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == f"{port}\n"
            with pytest.raises(OSError, match="in use"):
                impostor(theirs, port)
        with contextlib.closing(impostor(theirs, port)), unit(mine, port, held, "one family") as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "", "it does not start"


def test_a_unit_of_another_port_is_left_alone() -> None:
    with both_families() as held, contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
        free.close()
        with unit("127.0.0.1", port, held, "own") as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == f"{port}\n"
            assert answers("127.0.0.1", port)


# --- credentials that somebody else was sent ------------------------------------------------------------------


def test_a_credential_that_was_sent_to_whoever_had_the_port_before_is_worth_nothing(house: House) -> None:
    """Taken while the daemon was away, and handed on once it is back."""
    people, worker = house.credential(), house.credential("malletrain-worker-v1")
    house.auth.listens_since = house.clock.elapsed() + 2.5
    for handed_on in (lambda: house.auth.log_in(people), lambda: house.auth.worker_uid(worker)):
        with pytest.raises(Unavailable, match=naming("before")):
            handed_on()
    house.auth.listens_since = house.clock.elapsed()
    assert house.auth.log_in(house.credential())[1].uid == os.getuid(), "a new one is"


def test_a_clock_that_was_ahead_as_the_daemon_began_to_listen_keeps_nobody_out(house: House) -> None:
    """Until the hour that it had been ahead was over every pilot was refused, and its job failed for good."""
    house.clock.day_ahead = 3600.0
    house.auth.listens_since = house.clock.elapsed()
    house.clock.day_ahead = 0.0
    assert house.auth.worker_uid(house.credential("malletrain-worker-v1")) == os.getuid()


def test_a_worker_shows_a_credential_on_a_connection_of_its_own() -> None:
    """Who is at the other end of a kept one may have been there before the daemon, and hand it on."""
    peers: list[tuple[str, int]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve_hellos() -> None:
            welcome = {"worker": "7_0.0", "token": "t", "pilot": "7_0", "heartbeat_s": 20.0}
            text = json.dumps(welcome).encode()
            kept = []
            while len(peers) < 2:
                connection, peer = server.accept()
                kept.append(connection)
                peers.append(peer)
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            for each in kept:
                each.close()

        serving = threading.Thread(target=serve_hellos)
        serving.start()
        client = WorkerClient(url, PilotIdentity(1, 8, 7, 0, 0, "n0"), credential=lambda: "MUNGE:x:")
        client.hello()
        client.hello()
        client.close()
        serving.join(60)
    assert len(set(peers)) == 2
