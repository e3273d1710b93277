"""What the journal tells of a main job that has long ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.api.explain import explain
from malletrain.api.roles import NotFound
from malletrain.api.visibility import Visibility
from malletrain.domain.decision import LeaveCause, LeavePilot
from malletrain.domain.event import ActionIntent, Event, MainJobMet, PoolCounted
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews
from tests.messages import naming, says

DAY_S = 86_400.0
AT = 1_700_000_000.0


def asked(at: float, main_job: str, node: str = "n1") -> Event:
    leave = LeavePilot(
        1, "9_0", node, LeaveCause.YIELD, at + 15, f"main job {main_job} could start on {node}", main_job
    )
    return Event(at, ActionIntent(leave), 1, "9_0", node, leave.reason)


@pytest.fixture
def views(tmp_path: Path) -> Iterator[StoreViews]:
    with SqliteJournal(tmp_path / "j.db") as journal:
        journal.append([
            Event(AT, MainJobMet("4711", "bob", AT - 5.0)),
            asked(AT, "4711"),
            asked(AT + 1, "47119"),
            Event(AT + 9, MainJobMet("4711", "bob", AT - 5.0, AT + 3.0, AT + 2.0, False), 1, "9_0", "n1"),
            Event(AT + 9, MainJobMet("4711", "bob", AT - 5.0, AT + 3.0, AT + 2.0, True), 1, "9_1", "n2"),
            Event(AT + 9, MainJobMet("88_3", "eve", AT - 5.0, AT + 3.0, AT + 2.0, True), 1, "9_2", "n3"),
            *(Event(AT + hour * 3600.0, PoolCounted(idle=hour)) for hour in range(20 * 24)),
        ])  # fmt: skip
    found = StoreViews(tmp_path / "j.db")
    yield found
    found.close()


def told(views: StoreViews, job: str, sight: Visibility = Visibility()) -> tuple[str, ...]:  # noqa: B008 - frozen
    return explain(f"main-job {job}", {}, None, None, views.of_main_job(job), sight)


def test_it_is_answered_from_the_journal_twenty_days_later(views: StoreViews) -> None:
    first, asked, left, preempted = told(views, "4711")
    assert says(first, 4711, "bob", "2023-11-14T22:13:15Z")
    assert says(asked, "2023-11-14T22:13:20Z", "9_0", "asked", "n1")
    assert says(left, "2023-11-14T22:13:22Z", "9_0", "left", "n1", "2023-11-14T22:13:23Z")
    assert says(preempted, "2023-11-14T22:13:22Z", "9_1", "preempted", "n2", "2023-11-14T22:13:23Z")


def test_an_array_is_answered_for_with_its_tasks(views: StoreViews) -> None:
    (line,) = told(views, "88")[1:]
    assert "preempted on n3" in line
    assert told(views, "88_3")[1:] == (line,)


def test_a_job_that_the_journal_does_not_name_is_no_all_clear(views: StoreViews) -> None:
    lines = told(views, "5000")
    assert says(lines[-1], "journal", 5000)


@pytest.mark.parametrize("job", ["", "%", "4711'--", "471_", "4711%", "-1"])
def test_nothing_else_finds_it(views: StoreViews, job: str) -> None:
    assert views.of_main_job(job) == ()


def test_where_jobs_are_private_its_owner_alone_is_told(views: StoreViews) -> None:
    bob, eve = (Visibility.under(["jobs"], uid, name) for uid, name in ((5, "bob"), (6, "eve")))
    whole, his = told(views, "4711"), told(views, "4711", bob)
    assert his[1:] == tuple(re.sub(r"pilot 9_\d", "a pilot", line) for line in whole[1:])
    for job in ("4711", "5000"):
        with pytest.raises(NotFound, match=naming(job, "yours")):
            told(views, job, eve)
