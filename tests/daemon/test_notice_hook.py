"""Messages to owners of jobs, by a real program."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Identity
from malletrain.api.schemas import JobBody
from malletrain.daemon.notice_hook import NoticeHook, message
from malletrain.daemon.process.timers import SystemClock
from malletrain.domain.errors import Refused
from malletrain.domain.event import Event, JobAnnounced, JobCancelled, JobFailed, JobNotified, JsonValue
from malletrain.domain.job import JobPhase, MailType, MalleableJob
from malletrain.loop.job_state import MAX_NOTICE_AGE_S, JobNotice
from malletrain.loop.ledger import Ledger
from malletrain.slurm.site.site_facts import Harvest
from malletrain.wire.address import Address
from malletrain.wire.daemon import client_at
from scripts.lab import Lab
from tests.daemon.running import Running, file, start, url_of
from tests.messages import naming, says
from tests.waiting import wait_until
from tests.world import START, World, event_of, job

__all__ = ["file", "start"]  # fixtures

HOSTILE = "x'; touch /tmp/owned; $(id) `id` {address} -X\n~!id\n.\n\x1b[2J"
ADDRESS = "ada@example.org"
JOB = replace(job(3), name=HOSTILE, mail=(MailType.END,), mail_user=ADDRESS)
NOTICE = JobNotice(JOB, MailType.END, JobPhase.FAILED, START, f"train.py:3: {HOSTILE}", 640.0)

MAILER = """#!{python}
import json, sys, time
with open("{folder}/sent", "a") as file:
    print(json.dumps({{"argv": sys.argv[1:], "input": sys.stdin.read()}}), file=file)
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


def hook(*command: str, timeout_s: float = 45.0) -> NoticeHook:
    return NoticeHook(command, SystemClock(), timeout_s)


def test_a_program_is_given_the_message_and_no_shell_sees_it(tmp_path: Path) -> None:
    assert hook(program(tmp_path), "-s", "{address}", "$HOME").send(NOTICE) == ""
    ((argv, message, line),) = [(each["argv"], json.loads(each["input"]), each["input"]) for each in sent(tmp_path)]
    assert argv == ["-s", "{address}", "$HOME"], "as the site wrote them"
    assert {key: message[key] for key in ("job", "event", "state", "address", "samples")} == {
        "job": 3, "event": "end", "state": "failed", "address": ADDRESS, "samples": 640.0,
    }  # fmt: skip
    assert message["subject"].startswith("MalleTrain job 3 (x'; touch")
    assert message["subject"].endswith("is over: failed")
    assert all(str(value).isprintable() for value in message.values())
    assert line.count("\n") == 1 and len(line) < 4096


def test_the_longest_message_is_less_than_a_pipe_holds() -> None:
    wide = "\U0001f41f" * 5000
    longest = replace(NOTICE, job=replace(JOB, name=wide, mail_user="a" * 320), reason=wide)
    assert len(message(longest)) < select.PIPE_BUF * 4


def test_what_goes_wrong_with_a_program_is_said(tmp_path: Path) -> None:
    failing = program(tmp_path, "print('no relay\\x1b[2J', file=sys.stderr); sys.exit(75)")
    said = hook(failing).send(NOTICE)
    assert says(said, failing, "status 75: no relay")
    assert said.isprintable()
    assert "No such file" in hook("/nowhere/mail").send(NOTICE)


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
    said = hook(hanging, timeout_s=1.0).send(NOTICE)
    assert says(said, hanging, "1 s")
    assert time.monotonic() - began < 45


def test_a_daemon_that_ends_does_not_wait_for_a_program(tmp_path: Path) -> None:
    sender = hook(program(tmp_path, "time.sleep(60)"), timeout_s=60.0)
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(sender.send(NOTICE)))
    thread.start()
    wait_until(lambda: bool(sent(tmp_path)) or not thread.is_alive(), 45, "the program runs")
    sender.end()
    thread.join(45)
    assert said and "status -9" in said[0]


# --- what is permitted --------------------------------------------------------------------------------------------


def test_messages_to_one_user_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.daemon.notice_hook.MAX_MESSAGES_PER_HOUR", 2)
    now, clock = [0.0], SystemClock()
    monkeypatch.setattr(clock, "elapsed", lambda: now[0])
    sender = NoticeHook([program(tmp_path)], clock)
    others = replace(NOTICE, job=replace(JOB, uid=1002))
    assert [sender.send(NOTICE) for _ in range(2)] == ["", ""]
    assert says(sender.send(NOTICE), "2 messages", "hour")
    assert sender.send(others) == ""
    now[0] = 3600.0
    assert sender.send(NOTICE) == ""
    assert len(sent(tmp_path)) == 4


def test_a_site_that_sends_nothing_refuses_and_says_what_to_do() -> None:
    with pytest.raises(Refused, match=r"--mail-type: .*no notify\.hook.*malletrain wait JOB"):
        announced(sends=False)


def test_a_message_goes_to_an_address_or_to_the_owner() -> None:
    assert announced().mail_user == "ada"
    assert announced("ada").mail_user == "ada"
    assert announced(ADDRESS).mail_user == ADDRESS
    with pytest.raises(Refused, match=naming("--mail-user=root")):
        announced("root")


def announced(mail_user: str = "", *, sends: bool = True) -> MalleableJob:
    """What becomes of a job of ada's that asks for a message at its end."""
    world = World()
    requests = LoopRequests(
        world.loop, nullcontext(), world.clock, Harvest("harvest"), lambda count: (), lambda: 1, sends_notices=sends
    )
    number = requests.announce(
        JobBody(name="digits", min_nodes=1, max_nodes=4, mail=["end"], mail_user=mail_user),
        Identity(1001, 1001, "ada"),
    )
    return world.loop.views[number].job


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
    file.write_text(f'{file.read_text()}[notify]\nhook = ["{program(tmp_path)}"]\n')
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
    assert [json.loads(each["input"])["job"] for each in sent(tmp_path)] == [number, other]
    rows, _ = daemon.events(after=0, job=number)
    assert not any(ADDRESS in json.dumps(row.data) for row in rows)
