"""Commands and workers find the active one of two daemons; `malletrain doctor` says whether either may fail."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.admin.failover_findings import failover_findings
from malletrain.config import Config
from malletrain.config.load import parse
from malletrain.slurm.site.site_facts import Level
from malletrain.store.pair.register import Register, Term
from malletrain.wire import worker_client
from malletrain.wire.address import Address, AddressError, at
from malletrain.wire.failover import ROLE_PATH
from malletrain.wire.pair_http import open_http
from malletrain.wire.worker_client import DaemonUnreachable, PilotIdentity, WorkerClient
from tests.waiting import wait_until


class Daemon:
    """Says a role; workers' reports are taken by the active one."""

    def __init__(self) -> None:
        self.active, self.reports = False, 0
        daemon = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                daemon.reports += self.path.endswith("/report") and daemon.active
                body = json.dumps({"role": "active" if daemon.active else "passive"}).encode()
                self.send_response(200 if daemon.active else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def daemons() -> Iterator[tuple[Daemon, Daemon]]:
    both = (Daemon(), Daemon())
    yield both
    for each in both:
        each.close()


def test_a_command_asks_the_active_one_and_the_other_once_it_has_taken_over(daemons: tuple[Daemon, Daemon]) -> None:
    first, second = daemons
    second.active = True
    both = open_http(f"{first.url}, {second.url}")
    assert both.url == f"{first.url},{second.url}"
    assert both.active_url == second.url
    first.active, second.active = True, False
    assert json.loads(both.text(ROLE_PATH)) == {"role": "active"}
    assert both.active_url == first.url
    both.close()


def test_addresses_may_be_lists() -> None:
    listed = at("http://a:1/, http://b:2", Address(""), "here")
    assert listed.url == "http://a:1,http://b:2"
    with pytest.raises(AddressError, match="'b' is no URL"):
        at("http://a:1,b", Address(""), "here")


def test_a_worker_leaves_a_suspended_daemon_with_its_poll(
    daemons: tuple[Daemon, Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, active = daemons
    active.active = True
    with socket.create_server(("127.0.0.1", 0)) as suspended:  # the kernel takes connections, and nobody answers
        url = f"http://127.0.0.1:{suspended.getsockname()[1]}"
        client = WorkerClient(f"{url},{active.url}", PilotIdentity(1, 1, 1, 0, 0, "n0"), lambda: "none")
        ended: list[float] = []

        def poll() -> None:
            with pytest.raises(DaemonUnreachable):
                client.poll(0, 60.0)
            ended.append(time.monotonic())

        polling = threading.Thread(target=poll)
        polling.start()
        wait_until(lambda: bool(client._open), 60, "the poll is sent")
        with monkeypatch.context() as impatient, pytest.raises(DaemonUnreachable):
            impatient.setattr(worker_client, "TIMEOUT_S", 0.3)
            client.report([])
        polling.join(40)
        assert ended, "the poll would have waited a minute"
        client.report([])
        assert active.reports == 1


def config_of(shared: Path) -> Config:
    return parse(
        f'[api]\nurl = "http://a:1"\n[failover]\nurls = ["http://a:1", "http://b:2"]\nshared = "{shared}"\n', "f"
    )


def test_doctor_says_whether_either_may_fail(tmp_path: Path) -> None:
    assert list(failover_findings(parse("", "f"))) == []
    config = config_of(tmp_path)
    roles = {"http://a:1": "active", "http://b:2": "passive"}
    levels = [Level.ERROR, Level.WARNING, Level.OK]
    register = Register(tmp_path)
    for number, pairing in ((0, 0), (1, 0), (2, 2)):
        if number:
            assert register.decide(Term(number, 1, "http://a:1", pairing))
        *_, last = failover_findings(config, roles.__getitem__)
        assert last.level is levels[number], last
    *_, last = failover_findings(config, lambda url: "active")
    assert last.level is Level.ERROR
    (missing,) = failover_findings(config_of(tmp_path / "none"), roles.__getitem__)
    assert "failover.shared" in missing.what
    register.close()
