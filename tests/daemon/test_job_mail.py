"""Messages to owners of jobs: by a real program and a real socket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from malletrain.api.ports import Identity, NewJob
from malletrain.config import NotifySection
from malletrain.daemon.job_mail import JobMail, subject
from malletrain.daemon.requests import LoopRequests
from malletrain.daemon.site_rules import webhook_token_of
from malletrain.domain.errors import InvalidInput, Refused
from malletrain.domain.event import Event, JobAnnounced, JobCancelled, JobFailed, JobNotified, JsonValue
from malletrain.domain.job import JobPhase, MailType, MalleableJob
from malletrain.loop.job_notices import MAX_NOTICE_AGE_S, JobNotice
from malletrain.loop.ledger import Ledger
from malletrain.slurm.site.site_facts import Harvest
from malletrain.wire.address import Address
from malletrain.wire.daemon import client_at
from scripts.lab import Lab
from tests.daemon.running import Running, file, start, url_of
from tests.waiting import wait_until
from tests.world import START, World, event_of, job

__all__ = ["file", "start"]  # fixtures

HOSTILE = "x'; touch /tmp/owned; $(id) `id` {address} -X\n~!id\n.\n\x1b[2J"
ADDRESS = "ada@example.org"
JOB = replace(job(3), name=HOSTILE, mail=(MailType.END,), mail_user=ADDRESS)
NOTICE = JobNotice(JOB, MailType.END, JobPhase.FAILED, START, f"train.py:3: {HOSTILE}", 640.0)

MAILER = """#!{python}
import json, os, sys, time
facts = {{name: value for name, value in os.environ.items() if name.startswith("MALLETRAIN_")}}
with open("{folder}/sent", "a") as file:
    print(json.dumps({{"argv": sys.argv[1:], "input": sys.stdin.read(), "facts": facts}}), file=file)
{more}
"""


def program(folder: Path, more: str = "") -> str:
    path = folder / "mailer"
    path.write_text(MAILER.format(python=sys.executable, folder=folder, more=more))
    path.chmod(0o755)
    return str(path)


def sent(folder: Path) -> list[dict[str, Any]]:
    path = folder / "sent"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def mail(settings: NotifySection, token: str = "") -> JobMail:
    return JobMail(settings, token, time.monotonic)


# --- a program ----------------------------------------------------------------------------------------------------


def test_a_program_is_given_the_message_and_no_shell_sees_it(tmp_path: Path) -> None:
    command = [program(tmp_path), "-s", "{subject}", "--to={address}", "$HOME", "{address}"]
    assert mail(NotifySection(command=command)).send(NOTICE) == ""
    (message,) = sent(tmp_path)
    line = subject(NOTICE)
    assert message["argv"] == ["-s", line, f"--to={ADDRESS}", "$HOME", ADDRESS]
    assert line.startswith("MalleTrain job 3 (x'; touch") and line.endswith("is over: failed")
    assert message["facts"]["MALLETRAIN_JOB"] == "3"
    assert message["facts"]["MALLETRAIN_EVENT"] == "end"
    assert message["facts"]["MALLETRAIN_STATE"] == "failed"
    assert message["facts"]["MALLETRAIN_ADDRESS"] == ADDRESS
    assert "Trained:  640 samples" in message["input"]
    assert all(text.isprintable() for text in [*message["facts"].values(), *message["input"].split("\n")])
    assert not any(text.startswith(("~", ".", "-")) for text in message["input"].split("\n"))


def test_what_goes_wrong_with_a_program_is_said(tmp_path: Path) -> None:
    failing = program(tmp_path, "print('no relay\\x1b[2J', file=sys.stderr); sys.exit(75)")
    said = mail(NotifySection(command=[failing])).send(NOTICE)
    assert said.startswith(f"{failing} ended with status 75: no relay")
    assert said.isprintable()
    assert "No such file" in mail(NotifySection(command=["/nowhere/mail"])).send(NOTICE)


@pytest.mark.parametrize(
    "more",
    [
        "time.sleep(60)",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "[sys.stderr.write('x' * 10000) for _ in range(100000)]",
    ],
    ids=["sleeps", "has a child", "says too much"],
)
def test_a_program_that_does_not_end_is_ended(tmp_path: Path, more: str) -> None:
    hanging = program(tmp_path, more)
    began = time.monotonic()
    said = mail(NotifySection(command=[hanging], timeout_s=1.0)).send(NOTICE)
    assert said == f"{hanging} has not ended within 1 s"
    assert time.monotonic() - began < 45


def test_a_daemon_that_ends_does_not_wait_for_a_program(tmp_path: Path) -> None:
    sender = mail(NotifySection(command=[program(tmp_path, "time.sleep(60)")], timeout_s=60.0))
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(sender.send(NOTICE)))
    thread.start()
    wait_until(lambda: bool(sent(tmp_path)) or not thread.is_alive(), 45, "the program runs")
    sender.end()
    thread.join(45)
    assert said and "status -9" in said[0]


# --- a webhook ----------------------------------------------------------------------------------------------------


class Hook(BaseHTTPRequestHandler):
    heard: list[tuple[str, dict[str, str], Any]]
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.heard.append((self.path, dict(self.headers), body))
        self.send_response(self.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def hook(status: int = 200, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, type[Hook]]]:
    kind = type("OneHook", (Hook,), {"heard": [], "status": status})
    server = HTTPServer(("127.0.0.1", 0), kind)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, kind
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_webhook_is_sent_json_and_the_token() -> None:
    with hook() as (port, heard):
        sender = mail(NotifySection(webhook=f"http://127.0.0.1:{port}/jobs?site=a"), "s3cret")
        assert sender.send(NOTICE) == ""
    ((path, headers, body),) = heard.heard
    assert path == "/jobs?site=a"
    assert headers["Authorization"] == "Bearer s3cret"
    assert {name: body[name] for name in ("job", "event", "state", "address")} == {
        "job": 3, "event": "end", "state": "failed", "address": ADDRESS,
    }  # fmt: skip
    assert body["name"].isprintable() and len(json.dumps(body)) < 4096


def test_what_goes_wrong_with_a_webhook_is_said() -> None:
    for status in (500, 302):
        with hook(status) as (port, heard):
            assert mail(NotifySection(webhook=f"http://127.0.0.1:{port}")).send(NOTICE).endswith(f"answers {status}")
        assert len(heard.heard) == 1, "sent once, and no redirect is followed"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert "cannot be reached" in mail(NotifySection(webhook=f"http://127.0.0.1:{port}")).send(NOTICE)


def test_a_webhook_that_answers_a_byte_at_a_time_is_given_up() -> None:
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            try:
                line.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                while not over.wait(0.05):
                    line.sendall(b"x")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began = time.monotonic()
        said = mail(NotifySection(webhook=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5)).send(
            NOTICE
        )
        assert said == "the webhook has not answered within 0.5 s"
        assert time.monotonic() - began < 30
        over.set()
        thread.join()


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl: apt-get install openssl")
def test_a_webhooks_certificate_is_checked(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out",
         str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with hook(context=context) as (port, heard):
        url = f"https://localhost:{port}/"
        assert mail(NotifySection(webhook=url, webhook_ca=str(certificate))).send(NOTICE) == ""
        assert "certificate" in mail(NotifySection(webhook=url)).send(NOTICE)
    assert len(heard.heard) == 1


# --- what is permitted --------------------------------------------------------------------------------------------


def test_messages_to_one_user_are_bounded(tmp_path: Path) -> None:
    now = [0.0]
    sender = JobMail(NotifySection(command=[program(tmp_path)], per_hour=2), "", lambda: now[0])
    others = replace(NOTICE, job=replace(JOB, uid=1002))
    assert [sender.send(NOTICE) for _ in range(2)] == ["", ""]
    assert "more than 2 messages in an hour" in sender.send(NOTICE)
    assert sender.send(others) == ""
    now[0] = 3601.0
    assert sender.send(NOTICE) == ""
    assert len(sent(tmp_path)) == 4


def test_addresses() -> None:
    sender = mail(NotifySection(command=["/bin/true"], mail_domain="cluster.example", domains=["Example.org"]))
    assert sender.address_of("ada", "") == "ada@cluster.example"
    assert sender.address_of("ada", ADDRESS) == ADDRESS
    for given in ("root", "ada@elsewhere.org", "ada@example.org.elsewhere.net"):
        with pytest.raises(Refused, match="--mail-user"):
            sender.address_of("ada", given)
    assert mail(NotifySection(command=["/bin/true"])).address_of("ada", "") == "ada"


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": ["mail", "-s"]},
        {"command": ["/usr/bin/mail", "{name}"]},
        {"webhook": "http://hooks.example.org"},
        {"webhook": "https://user:secret@hooks.example.org/"},
        {"webhook": "http://localhost.example.org/"},
        {"mail_domain": "-x"},
    ],
)
def test_configurations_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NotifySection(**wrong)


def test_the_token_is_the_daemons_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match=r"notify\.webhook_token_file"):
        webhook_token_of(NotifySection(webhook_token_file=str(path)))
    path.chmod(0o400)
    assert webhook_token_of(NotifySection(webhook_token_file=str(path))) == "0123456789abcdef0123456789abcdef"


def test_a_site_that_sends_nothing_refuses_and_says_what_to_do() -> None:
    world, ada = World(), Identity(1001, 1001, "ada")
    wanted = NewJob("digits", 1, 4, mail=("end",))

    def requests(address: Callable[[str, str], str] | None) -> LoopRequests:
        return LoopRequests(
            world.loop, nullcontext(), world.clock, Harvest("harvest"), lambda count: (), lambda: 1,
            mail_address=address,
        )  # fmt: skip

    with pytest.raises(Refused, match=r"--mail-type: .*no \[notify\].*malletrain wait JOB"):
        requests(None).announce(wanted, ada)
    number = requests(lambda user, given: f"{user}@site").announce(wanted, ada)
    kept = world.loop.views[number].job
    assert (kept.mail, kept.mail_user) == ((MailType.END,), "ada@site")


# --- once ---------------------------------------------------------------------------------------------------------


def told(events: list[Event], now: float = START + 60) -> list[tuple[int, str, str]]:
    ledger = Ledger()
    ledger.apply(events)
    return [(notice.job.id, notice.what.value, notice.phase.value) for notice in ledger.notices_due(now)]


def asked(wanted: MalleableJob) -> Event:
    return Event(START, JobAnnounced(wanted), wanted.id)


def with_mail(number: int, *what: MailType) -> MalleableJob:
    return replace(job(number), mail=what, mail_user=ADDRESS)


def test_each_message_is_due_once_also_after_a_restart() -> None:
    begin, end, fail = MailType.BEGIN, MailType.END, MailType.FAIL
    events = [asked(with_mail(1, begin, end, fail)), asked(with_mail(2, fail)), asked(job(3))]
    assert told(events) == []
    for number in (1, 2, 3):
        world: dict[str, JsonValue] = {"generation": 1, "members": [f"{number}0_0"]}
        events.append(event_of(START, "generation", number, data=world))
    assert told(events) == [(1, "begin", "running")]
    events.append(Event(START, JobNotified(begin), 1))
    assert told(events) == []
    events += [Event(START, JobFailed(), 1, reason="no"), Event(START, JobFailed(), 2, reason="no")]
    assert told(events) == [(1, "end", "failed"), (2, "end", "failed")]
    assert told(events, START + MAX_NOTICE_AGE_S + 1) == [], "no news"
    events += [Event(START, JobNotified(end), number) for number in (1, 2)]
    events.append(Event(START, JobNotified(end, failed=True), 2, reason="no relay"))
    assert told(events) == []


def test_a_job_that_is_cancelled_has_ended_and_not_failed() -> None:
    events = [asked(with_mail(1, MailType.END)), asked(with_mail(2, MailType.FAIL))]
    events += [Event(START, JobCancelled("ada"), number) for number in (1, 2)]
    assert told(events) == [(1, "end", "cancelled")]


@pytest.mark.slurm
def test_a_daemon_tells_once_over_a_restart(
    start: Callable[..., Running], file: Path, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is killed as soon as the program has been called."""

    monkeypatch.setenv("MUNGE_SOCKET", str(lab.munge_socket))
    file.write_text(f'{file.read_text()}[notify]\ncommand = ["{program(tmp_path)}", "{{address}}"]\n')
    running = start("--config", str(file))
    daemon = client_at(Address(url_of(file)), os.environ)
    body = {"name": "digits", "min_nodes": 1, "max_nodes": 2, "mail": ["end"], "mail_user": ADDRESS}
    number = daemon.submit(body).id
    daemon.ask(number, "cancel")
    deadline = time.monotonic() + 60
    while not sent(tmp_path):
        assert time.monotonic() < deadline, running.log.read_text()
        time.sleep(0.05)
    running.process.kill()
    running.process.wait()
    again = start("--config", str(file))
    daemon = client_at(Address(url_of(file)), os.environ)
    other = daemon.submit(body).id
    daemon.ask(other, "cancel")
    while len(sent(tmp_path)) < 2:
        assert time.monotonic() < deadline + 60, again.log.read_text()
        time.sleep(0.05)
    assert [message["facts"]["MALLETRAIN_JOB"] for message in sent(tmp_path)] == [str(number), str(other)]
    rows, _ = daemon.events(after=0, job=number)
    assert not any(ADDRESS in json.dumps(row.data) for row in rows)
