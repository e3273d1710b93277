"""What every journal keeps to: the one on disk and the one in memory, which replay and tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.cli import jobs, top
from malletrain.domain.event import FACTS, Event, Fact, JobCompleted
from malletrain.loop.ports import Journal
from malletrain.store import start, upkeep, views
from malletrain.store.journal import SqliteJournal
from malletrain.study.cluster_runs import EVENT_KINDS
from malletrain.wire.codec import MAX_INTEGER, steers_nothing
from tests.world import data_of, event_of

NewJournal = Callable[[], Journal]


def _memory(_folder: Path, _stack: ExitStack) -> Journal:
    memory = pytest.importorskip("malletrain.loop.memory")
    if not hasattr(memory, "MemoryJournal"):
        pytest.skip("loop.memory has no MemoryJournal")
    journal: Journal = memory.MemoryJournal()
    return journal


def _sqlite(folder: Path, stack: ExitStack) -> Journal:
    number = len(list(folder.glob("*.db")))
    return stack.enter_context(SqliteJournal(folder / f"journal{number}.db"))


@pytest.fixture(params=[_sqlite, _memory], ids=["sqlite", "memory"])
def new_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewJournal]:
    with ExitStack() as stack:
        yield lambda: request.param(tmp_path, stack)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
#: Of every kind. Infinite and undefined figures have tests of their own.
PAYLOADS: list[type[Fact]] = list(FACTS.values())
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
st.register_type_strategy(str, _text)
st.register_type_strategy(JobCompleted, st.builds(JobCompleted, st.dictionaries(_text, _json, max_size=3)))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


def _fits(event: Event) -> bool:
    """Whether each number is one that the API and the wire let through (wire.codec.MAX_INTEGER)."""

    def fits(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(fits, value.values()))
        if isinstance(value, list | tuple):
            return all(map(fits, value))
        return not isinstance(value, int) or abs(value) <= MAX_INTEGER

    return fits(data_of(event))


_events = st.builds(
    Event,
    at=st.floats(0, 4e9),
    payload=st.sampled_from(PAYLOADS).flatmap(st.from_type),
    job=st.none() | st.integers(1, 5),
    pilot=st.none() | st.sampled_from(["7_0", "7_1", "8_0"]),
    node=st.none() | st.sampled_from(["n000", "n001"]),
    reason=st.text(max_size=30).map(steers_nothing),
).filter(_fits)


def test_numbers_are_given_in_order_from_one(new_journal: NewJournal) -> None:
    journal = new_journal()
    first = journal.append([event_of(10.0, "daemon_started"), event_of(11.0, "pool")])
    second = journal.append(iter([event_of(9.0, "daemon_stopped")]))
    assert [e.seq for e in (*first, *second)] == [1, 2, 3]
    assert [(e.seq, e.at) for e in journal.read()] == [(1, 10.0), (2, 11.0), (3, 9.0)]


def test_nothing_is_appended_by_an_empty_append(new_journal: NewJournal) -> None:
    journal = new_journal()
    assert list(journal.append([])) == []
    assert [e.seq for e in journal.append([event_of(1.0, "pool")])] == [1]


def test_read_begins_after_the_given_number(new_journal: NewJournal) -> None:
    journal = new_journal()
    journal.append([event_of(float(i), "pool") for i in range(10)])
    assert [e.seq for e in journal.read(after=7)] == [8, 9, 10]
    assert list(journal.read(after=10)) == []


def test_the_caller_number_is_ignored(new_journal: NewJournal) -> None:
    journal = new_journal()
    assert [e.seq for e in journal.append([event_of(1.0, "pool", seq=77)])] == [1]


@given(events=st.lists(_events, max_size=8))
@settings(deadline=None)
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    for make in (_sqlite, _memory):
        with ExitStack() as stack:
            journal = make(tmp_path_factory.mktemp("j"), stack)
            written = list(journal.append(events))
            assert list(journal.read()) == written
            assert [(e.at, e.kind, e.job, e.pilot, e.node, e.reason, dict(data_of(e))) for e in written] == [
                (e.at, e.kind, e.job, e.pilot, e.node, e.reason, dict(data_of(e))) for e in events
            ]


def test_kinds_that_are_chosen_by_their_word_are_kinds() -> None:
    by_word = {*start._ALWAYS, *upkeep._NOTE_KINDS, *upkeep._FIGURES, *views.OPEN_KINDS, *top._QUIET, *jobs._FIGURES}
    assert by_word | set(EVENT_KINDS) <= FACTS.keys()
