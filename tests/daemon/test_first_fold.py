"""What a start reads of a long journal: all of jobs that are not over, and of others what outlives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.daemon.first_fold import _that_tell, folded
from malletrain.domain.event import Event, JobAnnounced, JobCompleted, OperatorRequest, Payload, SamplesReported
from malletrain.loop.ledger import Ledger
from malletrain.store.journal import SqliteJournal
from malletrain.store.start import MeasuredJob, what_counts
from scripts.bench.journal_year import day_of_site
from tests.world import START, job

#: By the end of these days jobs 1 and 2 are over, and job 3 goes on.
DAYS = 5
MEASURED = 9


def facts() -> Iterator[Event]:
    """One job after the other for two days each, after one that was measured on several sizes; and a ban."""
    sizes = [SamplesReported(nodes=n, samples=600.0 * n**0.8, seconds=20.0, steps=40) for n in (1, 1, 2, 2, 4, 4)]
    old: list[Payload] = [JobAnnounced(replace(job(MEASURED), name="job0", user="user0")), *sizes, JobCompleted()]
    begun = next(day_of_site(0, jobs=1, pilots_a_job=1, window_s=600.0)).at
    yield from (Event(begun, fact, MEASURED) for fact in old)
    yield Event(begun, OperatorRequest("ban", "root", user="eve", uid=666), reason="ticket 1")
    for day in range(DAYS):
        events = day_of_site(day, jobs=1, pilots_a_job=1, window_s=600.0)
        yield from (event for event in events if event.job is not None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with SqliteJournal(tmp_path_factory.mktemp("long") / "journal.db") as journal:
        journal.append(facts())
        return journal.path


def test_a_start_of_a_long_journal_reads_few_events_and_knows_what_counts(path: Path) -> None:
    few, every = folded(path, whole=200), folded(path)
    assert few.events < 0.4 * every.events
    ours, whole = few.ledger, every.ledger
    view, wanted = ours.views()[3], whole.views()[3]
    for name in ("job", "phase", "pilots", "world", "curve", "samples_done", "waited_s"):
        assert getattr(view, name) == getattr(wanted, name), name
    assert few.worlds[3] == every.worlds[3]
    assert {number: each.phase for number, each in ours.views().items() if number != 3} == {
        number: each.phase for number, each in whole.views().items() if number != 3
    }
    assert ours.bans == whole.bans == {666: "ticket 1"}
    now = view.committed_at
    assert now is not None
    assert ours.used(now) == pytest.approx(whole.used(now))
    for account, days in whole.usage.by_day.items():
        assert ours.usage.by_day[account] == pytest.approx(days)
    assert ours.usage.by_job == pytest.approx(whole.usage.by_job)


def test_a_new_job_of_an_application_knows_what_earlier_ones_have_measured(path: Path) -> None:
    few, every = folded(path, whole=200).ledger, folded(path).ledger
    new = Event(START, JobAnnounced(replace(job(10), name="job0", user="user0")), 10)
    found = []
    for ledger in (few, every):
        ledger.apply([new])
        found.append(ledger.known()[10].prior_jobs)
    assert found[0] == found[1]
    assert found[0] is not None


def test_a_start_of_a_short_journal_reads_every_event(path: Path) -> None:
    stays, events = what_counts(path, lambda over: ())
    ledger = Ledger()
    with SqliteJournal(path) as journal:
        ledger.apply(journal.read())
        assert list(events) == list(journal.read())
    assert stays == ()
    assert folded(path).ledger.views() == ledger.views()


def test_of_jobs_that_are_over_the_newest_measurements_are_read() -> None:
    over = [MeasuredJob(n, "eve", f"run-{n}", "ml", 1 + n % 2) for n in range(1, 301)]
    chosen = _that_tell(over)
    assert set(chosen) == set(range(201, 301))
    over += [MeasuredJob(n, "eve", "other", "ml", 1) for n in range(301, 401)]
    assert set(_that_tell(over)) == set(range(301, 401)) | set(range(285, 301, 2))
