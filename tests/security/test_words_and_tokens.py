"""What is of little harm by itself: escape sequences in the journal's file, values of variables, tokens that last."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.api.worker_routes import MAX_TOKENS_PER_WORKER, WORKER_TOKEN_LIFETIME_S
from malletrain.domain.event import Event
from malletrain.slurm.submission.directives import from_environment
from malletrain.slurm.submission.mtbatch_options import FROM_ENVIRONMENT
from malletrain.store.journal import SqliteJournal
from malletrain.wire import messages, worker_client
from malletrain.wire.codec import steers_nothing
from malletrain.wire.errors import WireError
from malletrain.wire.worker_client import PilotIdentity, WorkerClient
from scripts.lab.ports import free_port
from tests.api.house import Caller
from tests.elastic.coordinator import ARRAY, JOB, SECRET, Coordinator
from tests.messages import says
from tests.security.two_users import HERS, HIS, MALLORY, RUNNING, Site, name_of
from tests.world import announced, event_of, job

ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202egnp.exe\ud800\x7f"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]")


def texts_in(path: Path) -> Iterator[str]:
    """Every text in every table, as sqlite3 shows it."""
    with sqlite3.connect(path) as file:
        for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in file.execute(f'SELECT * FROM "{table}"'):
                yield from (value for value in row if isinstance(value, str))


def test_a_workers_words_reach_the_journals_file_without_escape_sequences(site: Site, tmp_path: Path) -> None:
    site.begin(MALLORY, HIS)
    token = site.hello(MALLORY, HIS, RUNNING[0]).json()["token"]
    said = [
        {"type": "metric", "name": f"loss{ESCAPES}", "value": 1.0, "samples": 1},
        {"type": "leaving", "why": f"SIGTERM{ESCAPES}"},
        {"type": "failed", "step": 3, "message": f"Traceback:\n\tline{ESCAPES}"},
        {"type": "finished", "result": {f"key{ESCAPES}": [ESCAPES, {"deep": ESCAPES}]}},
    ]
    seen: list[Event] = []
    site.members._shared.events.clear()
    site.house.gate._persist = lambda: seen.extend(site.members.reports())
    path = f"/v1/workers/{name_of(HIS, RUNNING[0])}/report"
    answer = Caller(site.house, token).post(path, content=json.dumps({"events": said}))
    assert answer.status_code == 204, answer.text
    assert any("SIGTERM" in event.reason or "Traceback" in event.reason for event in seen)
    journal = tmp_path / "escapes.db"
    with SqliteJournal(journal) as opened:
        opened.append([event_of(1.0, "job_announced", HIS, data=announced(job(HIS)))])
        opened.append(seen)
    assert [text for text in texts_in(journal) if STEERS.search(text)] == []
    assert any("Traceback" in text for text in texts_in(journal))


def test_slurms_words_reach_it_without_them_too(tmp_path: Path) -> None:
    """The reason that an operator gave for a drained node, the name of a main job."""
    journal = tmp_path / "escapes.db"
    with SqliteJournal(journal) as opened:
        opened.append([
            event_of(1.0, "job_announced", HERS, data=announced(job(HERS))),
            event_of(2.0, "job_held", HERS, reason=f"held{ESCAPES}", data={"by": "ann"}),
        ])  # fmt: skip
        assert "held" in next(event.reason for event in opened.read(1))
    assert [text for text in texts_in(journal) if STEERS.search(text)] == []


@given(st.text())
def test_what_is_printable_stays(text: str) -> None:
    made = steers_nothing(text)
    assert len(made) == len(text)
    assert not STEERS.search(made)
    assert all(a == b for a, b in zip(text, made, strict=True) if a.isprintable() or a in "\n\t")
    assert steers_nothing(made) == made


@pytest.mark.parametrize("variable", FROM_ENVIRONMENT)
@pytest.mark.parametrize("value", ["x\n#SBATCH --uid=0", "x\x1b[2J", "x\x9b31m", "x\r"])
def test_sbatch_variables_are_checked_like_options(variable: str, value: str) -> None:
    found = from_environment({variable: value})
    assert [says(fault, f"{variable}:", "control") for fault in found.faults] == [True]
    assert from_environment({variable: "plain"}).faults == ()


def test_a_workers_token_runs_out(site: Site) -> None:
    site.begin(MALLORY, HIS)
    token = site.hello(MALLORY, HIS, RUNNING[0]).json()["token"]
    name, header = name_of(HIS, RUNNING[0]), f"Bearer {token}"
    gate = site.house.gate
    site.house.clock.ahead += WORKER_TOKEN_LIFETIME_S - 60
    assert gate.holds_token(name, header)
    site.house.clock.ahead += 120
    assert site.members.worker(name) is not None
    assert not gate.holds_token(name, header)
    path = f"/v1/workers/{name}/report"
    assert Caller(site.house, token).post(path, json={"events": []}).status_code == 401


def test_a_worker_has_few_tokens_however_often_it_says_hello(site: Site) -> None:
    site.begin(MALLORY, HIS)
    name = name_of(HIS, RUNNING[0])
    tokens = [site.hello(MALLORY, HIS, RUNNING[0]).json()["token"] for _ in range(MAX_TOKENS_PER_WORKER + 3)]
    good = [site.house.gate.holds_token(name, f"Bearer {token}") for token in tokens]
    assert good == [False] * 3 + [True] * MAX_TOKENS_PER_WORKER
    assert not site.house.gate.holds_token(name_of(HERS, RUNNING[0]), f"Bearer {tokens[-1]}")


@pytest.fixture
def daemon() -> Iterator[Coordinator]:
    coordinator = Coordinator(free_port())
    coordinator.start()
    yield coordinator
    coordinator.stop()


class Ahead:
    """This machine's clocks, and what a test adds."""

    ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def elapsed(self) -> float:
        return time.monotonic() + self.ahead


def test_workers_renew_their_tokens_before_they_run_out(daemon: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A life of some tokens, moved on by hand: no call meets one that has run out; munged may be away."""
    clock = Ahead()
    monkeypatch.setattr(daemon.gate, "clock", clock)
    monkeypatch.setattr(worker_client, "time", SimpleNamespace(monotonic=clock.elapsed))
    made: list[int] = []

    def credential() -> str:
        made.append(1)
        if len(made) % 2 == 0:
            raise WireError("munged is away")
        return SECRET

    worker = WorkerClient(daemon.url, PilotIdentity(JOB, 1, ARRAY, 0, 0, "n0"), credential)
    first = worker.hello()
    assert first.token_s == WORKER_TOKEN_LIFETIME_S
    assert messages.parse(messages.Welcome, json.loads(json.dumps(messages.to_json(first)))) == first
    seen = {first.token}
    while len(seen) < 6:
        clock.ahead += WORKER_TOKEN_LIFETIME_S / 10
        assert worker.poll(0, 0.0) is not None
        worker.report([])
        assert worker.welcome is not None
        seen.add(worker.welcome.token)
    assert clock.ahead > 2 * WORKER_TOKEN_LIFETIME_S


def test_a_token_of_a_daemon_that_names_no_life_is_kept(daemon: Coordinator) -> None:
    worker = WorkerClient(daemon.url, PilotIdentity(JOB, 1, ARRAY, 0, 0, "n0"), lambda: SECRET)
    token = worker.hello().token
    worker._renew_at = 0.0
    worker.poll(0, 0.0)
    assert worker.welcome is not None
    assert worker.welcome.token != token
    worker.poll(0, 0.0)
    older = messages.Welcome(worker.worker, worker.welcome.token, "", 20.0)
    kept = WorkerClient(daemon.url, worker.identity, lambda: "none", older)
    kept.poll(0, 0.0)
    assert kept.welcome is older
