"""A start from an image and the events after it gives the state that a start from all events gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.daemon.image import image_maker
from malletrain.daemon.image.image_maker import FoldedState, folded_on, from_image, last_image, next_image, to_image
from malletrain.daemon.image.state_codec import NotEncodable
from malletrain.domain.event import Event, JobAnnounced, JobCompleted, Payload, SamplesReported
from malletrain.loop.ledger import Ledger
from malletrain.store.journal import SqliteJournal
from malletrain.store.ledger_image import LedgerImage, keep_image
from scripts.bench.journal_year import day_of_site
from tests.loop.test_histories import history
from tests.world import START, job

HISTORIES = 4


@cache
def events_of(seed: int) -> Sequence[Event]:
    """The journal of a day of jobs (0), or of a random history of decisions. (In scripts/simulation daemons begin
    from images among faults.)"""
    if seed:
        return history(seed, 15).journal.events
    one_day = list(itertools.islice(day_of_site(0, jobs=2, pilots_a_job=2, window_s=300.0), 3000))
    end = one_day[-1].at
    ends = [Event(end + job, JobCompleted(), job) for job in (1, 2)]  # curves are fitted then
    return [replace(event, seq=number) for number, event in enumerate([*one_day, *ends], start=1)]


@given(seed=st.integers(0, HISTORIES), data=st.data())
@settings(max_examples=25)
def test_an_image_and_the_rest_are_the_whole(seed: int, data: st.DataObject) -> None:
    events = events_of(seed)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), min_size=1, max_size=3), label="images after"))
    state, done = FoldedState(), 0
    for cut in cuts:  # each image is folded on the one before
        state = folded_on(state, events[done:cut])
        state, done = from_image(to_image(state)), cut
    state = folded_on(state, events[done:])
    whole = folded_on(FoldedState(), events)
    assert to_image(state) == to_image(whole)
    assert state.ledger.views() == whole.ledger.views()
    assert state.worlds == whole.worlds


@pytest.fixture
def journal(tmp_path: Path) -> SqliteJournal:
    return SqliteJournal(tmp_path / "journal.db")


def test_a_start_reads_what_came_after_the_image(journal: SqliteJournal) -> None:
    events = list(events_of(0))
    with journal:
        assert last_image(journal.path).seq == 0
        assert next_image(journal.path) is None, "there is nothing to fold"
        journal.append(events[:1500])
        image = next_image(journal.path)
        assert image is not None
        keep_image(journal, image)
        assert next_image(journal.path) is None, "nothing has come since"
        journal.append(events[1500:])
        begun = last_image(journal.path)
        assert begun.seq == 1500
        later = folded_on(begun, journal.read(begun.seq))
        whole = folded_on(FoldedState(), journal.read())
        assert to_image(later) == to_image(whole)
        second = next_image(journal.path)
        assert second is not None
        assert second.seq == len(events), "it is folded on the one before"


def test_jobs_that_are_long_over_are_not_in_an_image(journal: SqliteJournal) -> None:
    with journal:
        for day in range(4):
            events = day_of_site(day, jobs=1, pilots_a_job=1, window_s=3600.0)
            journal.append(event for event in events if event.job is not None)
        whole = folded_on(FoldedState(), journal.read())
        image = next_image(journal.path)
        assert image is not None
        kept = from_image(image)
    assert whole.ledger.jobs() == {1, 2}
    assert kept.ledger.jobs() == {2}
    assert set(kept.worlds) == {2}


def test_a_job_that_was_measured_and_has_ended_is_in_an_image() -> None:
    facts: list[Payload] = [JobAnnounced(job(1)), *(measured(n) for n in (1, 1, 2, 2, 4, 4)), JobCompleted()]
    ended = [Event(START + 60.0 * number, fact, 1, seq=number + 1) for number, fact in enumerate(facts)]
    whole = folded_on(FoldedState(), ended)
    kept = from_image(to_image(whole))
    views = kept.ledger.views()
    assert views == whole.ledger.views()
    assert views[1].curve is not None
    after = [Event(START + 1e3, JobAnnounced(job(2)), 2, seq=len(ended) + 1)]
    assert to_image(folded_on(kept, after)) == to_image(folded_on(FoldedState(), [*ended, *after]))


def measured(nodes: int) -> SamplesReported:
    return SamplesReported(nodes=nodes, samples=600.0 * nodes**0.8, seconds=20.0, steps=40)


def test_an_image_of_other_code_is_not_used(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    with journal:
        journal.append(events_of(0)[:100])
        image = next_image(journal.path)
        assert image is not None
        keep_image(journal, image)
        monkeypatch.setattr(image_maker, "fold_name", lambda: "of another release")
        begun = last_image(journal.path)
    assert (begun.seq, begun.ledger.last_seq) == (0, 0)


@pytest.mark.parametrize("state", [b"[[],null]", b"not JSON", b"[[],[0,1,2]]"])
def test_an_image_that_is_none_is_not_used(journal: SqliteJournal, state: bytes) -> None:
    with journal:
        journal.append(events_of(0)[:100])
        keep_image(journal, LedgerImage(100, image_maker.fold_name(), state))
        begun = last_image(journal.path)
    assert begun.seq == 0


def test_an_image_says_itself_up_to_which_event_it_goes(journal: SqliteJournal) -> None:
    ledger = Ledger()
    ledger.apply(events_of(0)[:50])
    with pytest.raises(NotEncodable, match="up to event 60"):
        from_image(LedgerImage(60, "", to_image(FoldedState(50, ledger)).state))
    journal.close()
