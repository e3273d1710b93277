"""The tables that people read: folded with each append, equal to those folded anew, and right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from malletrain.domain.event import Event, JsonValue
from malletrain.domain.job import JobPhase, MalleableJob
from malletrain.loop.ledger import Ledger
from malletrain.store import schema as t
from malletrain.store.database import reader_engine
from malletrain.store.folding import days
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews
from tests.messages import says
from tests.store.folded_anew import PROJECTIONS, fold_anew
from tests.world import announced, data_of, event_of

DAY = 86_400.0
NOON = 1_793_491_200.0 + DAY / 2  # 2026-11-01 12:00 UTC


def job(number: int = 1, **changes: Any) -> Event:
    fields: dict[str, Any] = {
        "id": number, "name": f"net{number}", "user": "ada", "uid": 1001, "account": "harvest",
        "min_nodes": 1, "max_nodes": 8, "submitted_at": NOON,
    }  # fmt: skip
    return event_of(NOON, "job_announced", number, data=announced(MalleableJob(**fields | changes)))


def tasks(array: int, count: int, number: int = 1) -> Event:
    return event_of(NOON + 1, "tasks_added", number, data={"array_id": array, "tasks": list(range(count))})


def ev(after: float, kind: str, pilot: str | None = None, node: str | None = None, **data: Any) -> Event:
    reason = data.pop("reason", "")
    return event_of(NOON + after, kind, 1, pilot, node, reason, data)


STORY = [
    job(),
    tasks(7, 4),
    ev(10, "intent", "7_0", "n000", type="start", limit_s=600, reason="hole until noon"),
    ev(11, "pilot_started", "7_0", "n000", started_at=NOON + 11, ends_at=NOON + 611),
    ev(11, "pilot_started", "7_1", "n001", started_at=NOON + 11, ends_at=NOON + 611),
    ev(20, "generation", generation=1, members=["7_0", "7_1"], reason="first world"),
    ev(20.5, "switched", generation=1, nodes=2, pause_s=0.0, step=0, grew=True),
    ev(30, "samples", nodes=2, samples=100.0, seconds=10.0, steps=10),
    ev(31, "metric", name="loss", value=1.5, samples=100),
    ev(40, "pilot_started", "7_2", "n002", started_at=NOON + 40, ends_at=NOON + 640),
    ev(45, "generation", generation=2, members=["7_0", "7_1", "7_2"], reason="7_2 is warm"),
    ev(45.4, "switched", generation=2, nodes=3, pause_s=0.4, step=10, grew=True),
    ev(45.5, "switched", generation=2, nodes=3, pause_s=0.6, step=10, grew=True),
    ev(50, "intent", "7_1", "n001", type="leave", cause="yield", deadline=NOON + 60, reason="job 99 can start"),
    ev(52, "pilot_held", "7_1"),
    ev(60, "samples", nodes=3, samples=300.0, seconds=10.0, steps=10),
    ev(70, "pilot_ended", "7_2", state="cancelled", preempted=True, exit_code=15),
    ev(71, "worker_lost", "7_2", worker="w", how="preempted"),
]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "journal.db") as opened:
        yield opened


@pytest.fixture
def views(journal: SqliteJournal) -> Iterator[StoreViews]:
    opened = StoreViews(journal.path)
    yield opened
    opened.close()


def test_a_story_is_told_in_one_row(journal: SqliteJournal, views: StoreViews) -> None:
    journal.append(STORY)
    row = views.job(1)
    assert row is not None
    assert (row.phase, row.nodes, row.members, row.held_tasks, row.generation) == ("running", 1, 1, 2, 2)
    assert (row.samples, row.rate, row.preemptions, row.lost_workers) == (400.0, 30.0, 1, 1)
    assert (row.resizes, row.mean_pause_s) == (1, 0.6), "a first start is no resize; the longest stall counts"
    assert row.metrics == {"loss": 1.5}
    assert [(p.id, p.phase, p.node, p.ends_at) for p in row.pilots] == [("7_0", "running", "n000", NOON + 611)]
    assert row.node_seconds == pytest.approx(41 + 30)


def test_a_diverged_loss_is_shown_as_text(journal: SqliteJournal, views: StoreViews) -> None:
    journal.append([job(), ev(1, "metric", name="loss", value=float("nan"))])
    kept = views.job(1)
    fold_anew(journal)
    assert kept == views.job(1)
    assert kept is not None
    assert kept.metrics == {"loss": "nan"}


def test_a_job_that_is_over_stays_over(journal: SqliteJournal, views: StoreViews) -> None:
    journal.append([*STORY, ev(100, "job_completed", result={"accuracy": 0.97}, reason="5 epochs done")])
    journal.append([ev(101, "job_cancelled", by="ada"), ev(102, "job_released", by="ada")])
    row = views.job(1)
    assert row is not None
    assert (row.phase, row.reason, row.ended_at) == ("completed", "5 epochs done", NOON + 100)
    assert row.result == {"accuracy": 0.97}
    assert row.members == 0
    assert views.jobs(over=False) == ()
    assert [r.id for r in views.jobs()] == [1]


def test_a_refusal_of_slurms_is_the_jobs_reason_until_it_is_over(journal: SqliteJournal, views: StoreViews) -> None:
    journal.append([job(), tasks(7, 4), ev(2, "starts_refused", reason="Invalid user id", refused=True)])
    refused = views.job(1)
    assert refused is not None
    assert refused.reason.endswith(": Invalid user id")
    journal.append([ev(3, "starts_refused", refused=False)])
    fold_anew(journal)
    accepted = views.job(1)
    assert accepted is not None
    assert accepted.reason == ""


def test_usage_is_split_at_midnight_and_ends_when_slurm_had_the_node_back(journal: SqliteJournal) -> None:
    started, ended = NOON + DAY / 2 - 100, NOON + DAY / 2 + 250
    events = [
        job(),
        tasks(7, 1),
        event_of(started, "pilot_started", 1, "7_0", "n000", data={"started_at": started, "ends_at": ended}),
        event_of(ended + 9, "pilot_held", 1, "7_0", data={"left_at": ended}),
    ]
    journal.append(events)
    ledger = Ledger()
    ledger.apply(events)
    assert ledger.usage.by_job == {1: 350.0}
    with reader_engine(journal.path).begin() as connection:
        rows = connection.execute(select(t.usage).order_by(t.usage.c.day)).all()
        report = connection.exec_driver_sql("SELECT day, user, account, node_seconds, stays FROM usage_by_day").all()
    assert [(r.day, r.node_seconds, r.stays) for r in rows] == [("2026-11-01", 100.0, 1), ("2026-11-02", 250.0, 0)]
    assert [tuple(r) for r in report] == [
        ("2026-11-01", "ada", "harvest", 100.0, 1),
        ("2026-11-02", "ada", "harvest", 250.0, 0),
    ]


def test_reporting_views_tell_resizes_preemptions_and_yields(journal: SqliteJournal) -> None:
    journal.append(STORY)
    with reader_engine(journal.path).begin() as connection:
        resizes = connection.exec_driver_sql("SELECT job, nodes_before, nodes, pause_s, reason FROM resizes").all()
        preemptions = connection.exec_driver_sql("SELECT pilot, node, held_s FROM preemptions").all()
        yields = connection.exec_driver_sql("SELECT pilot, node, held_s, reason FROM yields").all()
        holes = connection.exec_driver_sql("SELECT node, stays, preemptions FROM holes_used").all()
    assert [tuple(r) for r in resizes] == [(1, 2, 3, 0.6, "7_2 is warm")]
    assert [tuple(r) for r in preemptions] == [("7_2", "n002", 30.0)]
    assert [tuple(r) for r in yields] == [("7_1", "n001", 41.0, "job 99 can start")]
    assert [tuple(r) for r in holes] == [("n001", 1, 0), ("n002", 1, 1)]


def test_days_cover_the_whole_span() -> None:
    assert list(days(NOON, NOON)) == []
    parts = list(days(NOON, NOON + 3 * DAY))
    assert [d for d, _ in parts] == ["2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"]
    assert sum(s for _, s in parts) == 3 * DAY


def test_a_number_that_slurm_uses_again_is_the_later_jobs(journal: SqliteJournal, views: StoreViews) -> None:
    journal.append([*STORY, job(2), tasks(7, 3, 2)])
    earlier, later = views.job(1), views.job(2)
    assert earlier is not None and later is not None
    assert (earlier.held_tasks, earlier.pilots, later.held_tasks) == (1, (), 3), "7_3 is the first job's still"
    ledger = Ledger()
    ledger.apply(journal.read())
    known = ledger.views()
    assert (list(known[1].pilots), list(known[2].pilots)) == (["7_3"], ["7_0", "7_1", "7_2"])
    journal.append([ev(80, "pilot_ended", "7_0", state="failed", preempted=False)])
    assert views.job(2) == later, "what is heard late of the first job's pilots changes nothing"


# --- laws -----------------------------------------------------------------------------------------------------

_PILOTS = ["7_0", "7_1", "8_0", "9_9", "7_0+1"]
_NODES = ["n000", "n001", "n002"]
_wild = st.one_of(st.none(), st.booleans(), st.floats(), st.integers(-(2**70), 2**70), st.text(max_size=3))


_data: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "tasks_added": st.fixed_dictionaries({"tasks": st.lists(st.integers(0, 2), unique=True)}),
    "intent": st.fixed_dictionaries(
        {"type": st.sampled_from(["start", "leave", "cut", "recycle"]), "cause": st.sampled_from(["yield", "shrink"])}
    ),
    "outcome": st.fixed_dictionaries(
        {
            "type": st.sampled_from(["start", "leave", "cut", "recycle", "cancel"]), "done": st.booleans(),
            "ends_at": st.floats(NOON, NOON + 2e5), "pilots": st.lists(st.sampled_from(_PILOTS), max_size=3),
        }
    ),
    "pilot_started": st.fixed_dictionaries(
        {"started_at": st.floats(NOON, NOON + 2e5), "ends_at": st.floats(NOON, NOON + 4e5)}
    ),
    "pilot_ended": st.fixed_dictionaries({"state": st.just("failed"), "preempted": st.booleans()}),
    "generation": st.fixed_dictionaries(
        {"generation": st.integers(1, 9), "members": st.lists(st.sampled_from(_PILOTS), unique=True)}
    ),
    "switched": st.fixed_dictionaries(
        {
            "generation": st.integers(1, 9), "nodes": st.integers(1, 4), "pause_s": st.floats(0, 5),
            "grew": st.booleans(),
        }
    ),
    "samples": st.fixed_dictionaries(
        {
            "nodes": st.integers(1, 4), "samples": st.floats(0, 1e6), "seconds": st.floats(0, 60),
            "steps": st.integers(0, 9), "total": st.none() | st.integers(0, 10**6),
        }
    ),
    "metric": st.fixed_dictionaries({"name": st.sampled_from(["loss", "acc"]), "value": st.none() | st.floats()}),
    "pool": st.fixed_dictionaries({"idle": st.integers(0, 9), "main": st.integers(0, 9)}),
    "job_completed": st.fixed_dictionaries({"result": st.just({"accuracy": 0.9})}),
}  # fmt: skip
_KINDS = [
    *_data, "job_held", "job_released", "job_cancelled", "job_failed", "pilot_held", "pilot_waits", "worker_lost",
]  # fmt: skip


@st.composite
def sound_events(draw: st.DrawFn) -> Event:
    kind, number = draw(st.sampled_from(_KINDS)), draw(st.sampled_from([1, 1, 1, 2, 3]))
    data = draw(_data.get(kind, st.just({})))
    if kind == "tasks_added":
        # Slurm may use an array's number again, for another job.
        data = {"array_id": draw(st.sampled_from([6 + number] * 3 + [7])), **data}
    return event_of(
        NOON + draw(st.floats(0, 2e5)), kind, number, draw(st.sampled_from(_PILOTS)), draw(st.sampled_from(_NODES)),
        draw(st.sampled_from(["", "because"])), data,
    )  # fmt: skip


@st.composite
def wild_events(draw: st.DrawFn) -> Event:
    """An event with odd figures, as far as they are of the right type: others are refused when they are read."""
    event = draw(sound_events())
    data = data_of(event)
    for key in data:
        odd = {**data, key: draw(_wild)}
        with suppress(ValueError):
            event = event_of(event.at, event.kind, event.job, event.pilot, event.node, event.reason, odd)
            data = odd
    return event


_stories = st.lists(st.one_of(sound_events(), wild_events()), max_size=30).map(
    lambda events: [job(1), job(2, uid=1002, user="bob"), tasks(7, 2), tasks(8, 1, 2), *events]
)


def _tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    engine = reader_engine(path)
    with engine.begin() as connection:
        found = {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in PROJECTIONS
        }
    engine.dispose()
    return found


@given(story=_stories, cuts=st.lists(st.integers(0, 34), max_size=4))
@settings(deadline=None, max_examples=40)
def test_folding_anew_gives_the_rows_that_were_kept(
    tmp_path_factory: pytest.TempPathFactory, story: list[Event], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("fold") / "j.db"
    edges = [0, *sorted(cuts), len(story)]
    with SqliteJournal(path) as journal:
        for start, end in itertools.pairwise(edges):
            journal.append(story[start:end])
        kept = _tables(path)
        assert fold_anew(journal) == len(story)
        assert _tables(path) == kept


@given(
    story=st.lists(sound_events(), max_size=40).map(
        lambda events: [job(1), job(2, uid=1002, user="bob"), tasks(7, 2), tasks(8, 1, 2), *events]
    )
)
@settings(deadline=None, max_examples=40)
def test_people_are_shown_what_the_loop_knows(tmp_path_factory: pytest.TempPathFactory, story: list[Event]) -> None:
    """The projections and the ledger fold the same events apart from each other, and must agree."""
    path = tmp_path_factory.mktemp("agree") / "j.db"
    ledger = Ledger()
    with SqliteJournal(path) as journal:
        ledger.apply(journal.append(story))
        views = StoreViews(path)
        rows = {row.id: row for row in views.jobs()}
        views.close()
        pilots = _tables(path)["pilot"]
    for number, known in ledger.views().items():
        row = rows[number]
        assert row.phase == known.phase.value
        if not ledger.ignored(number):  # what the ledger does not believe it counts nowhere; people see what was said
            assert row.samples == pytest.approx(known.samples_done)
        assert row.members == (0 if known.world is None else len(known.world.members))
        assert {p[0]: (p[2], p[4], p[6]) for p in pilots if p[1] == number} == {
            p.id: (p.phase.value, p.node, p.ends_at) for p in known.pilots.values()
        }
        assert JobPhase(row.phase).is_over == (number in ledger.over_since())


def test_a_state_that_was_not_saved_is_a_jobs_reason_until_one_is(tmp_path: Path) -> None:
    ledger = Ledger()
    with SqliteJournal(tmp_path / "j.db") as journal:
        views = StoreViews(journal.path)
        ledger.apply(journal.append(STORY[:7]))
        unsaved = "not saved as it left its nodes, so that steps are done again: no space"
        for said, reason in (({}, ""), ({"unsaved": "no space"}, unsaved), ({}, unsaved), ({"saved": "step-9"}, "")):
            ledger.apply(journal.append([ev(25, "worker_left", "7_0", "n000", worker="7_0.0", step=9, **said)]))
            (row,) = views.jobs()
            assert row.reason == ledger.views()[1].reason == reason
        ledger.apply(journal.append([ev(26, "worker_left", "7_0", "n000", step=9, unsaved="no space")]))
        ledger.apply(journal.append([ev(27, "job_completed", reason="training finished")]))
        ledger.apply(journal.append([ev(28, "worker_left", "7_1", "n001", worker="7_1.0", step=9, unsaved="late")]))
        (row,) = views.jobs()
        assert row.reason == ledger.views()[1].reason == "training finished"
        views.close()


@pytest.mark.parametrize(
    "over",
    [
        ev(23, "worker_stuck", "7_1", "n001", worker="7_1.0"),
        ev(23, "worker_lost", "7_1", "n001", worker="7_1.0", how="its connection dropped"),
        ev(23, "worker_left", "7_1", "n001", worker="7_1.0", step=9),
    ],
)
def test_where_a_worker_makes_no_step_is_in_the_jobs_row_until_it_goes_on_or_is_gone(
    over: Event, tmp_path: Path
) -> None:
    with SqliteJournal(tmp_path / "j.db") as journal:
        ledger, views = Ledger(), StoreViews(tmp_path / "j.db")
        place = "train.py:57 in load: `sock.recv(9)`"
        ledger.apply(journal.append([job(1), ev(22, "worker_stuck", "7_1", "n001", worker="7_1.0", place=place)]))
        (row,) = views.jobs()
        assert row.reason == ledger.views()[1].reason
        assert says(row.reason, "7_1.0", place)
        ledger.apply(journal.append([ev(22, "worker_lost", "7_2", "n002", worker="7_2.0", how="another one")]))
        assert views.jobs()[0].reason
        ledger.apply(journal.append([over]))
        assert views.jobs()[0].reason == ledger.views()[1].reason == ""
        views.close()


def test_what_a_check_of_its_script_found_is_in_the_jobs_row(tmp_path: Path) -> None:
    digest, text = "0123456789abcdef", "the average is its own"
    found: dict[str, JsonValue] = {"digest": digest, "verdict": "different", "text": text, "nodes": 2}
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.append([job(1), job(2, trusted=True), job(3, user="bob", uid=1002)])
        for number in (1, 2):
            journal.append([event_of(NOON + 5, "script_checked", number, data=dict(found))])
        views = StoreViews(tmp_path / "j.db")
        try:
            first, second, third = (views.job(number) for number in (1, 2, 3))
            alike, other = views.script_check(1001, digest), views.script_check(1002, digest)
        finally:
            views.close()
        assert fold_anew(journal) == 5
    assert first is not None and second is not None and third is not None
    assert (first.check_verdict, first.check_text, first.check_digest) == ("different", text, digest)
    assert first.fixed_nodes == 2
    assert says(first.reason, "2 nodes", "script")
    assert (second.trusted, second.check_verdict, second.fixed_nodes, second.reason) == (True, "different", None, "")
    assert (third.check_verdict, third.fixed_nodes) == ("", None)
    assert alike is not None
    assert (alike.verdict, alike.text) == ("different", text)
    assert other is None, "a verdict counts for jobs of the same user"
