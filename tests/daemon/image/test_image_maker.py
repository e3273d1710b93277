"""When images are made, by a process of their own, and what becomes of it when that fails or the daemon ends."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.daemon.image import image_maker
from malletrain.daemon.image.image_maker import (
    COMMAND,
    REST_FACTOR,
    FoldedState,
    ImageMaker,
    folded_on,
    last_image,
    to_image,
)
from malletrain.store.errors import StoreError
from malletrain.store.journal import SqliteJournal
from scripts.bench.journal_year import day_of_site
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_maker, "EVENTS_BETWEEN_IMAGES", 500)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(tmp_path / "journal.db") as opened:
        opened.append(list(day_of_site(0, jobs=1, pilots_a_job=1, window_s=3600.0))[:600])
        yield opened


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_an_image_is_made_once_enough_has_come(journal: SqliteJournal) -> None:
    time = [0.0]
    maker = ImageMaker(journal, 0, lambda: time[0])
    image = maker.make_if_due()
    assert image is not None
    assert image == to_image(folded_on(FoldedState(), journal.read()))
    assert last_image(journal.path).seq == 600
    assert maker.make_if_due() is None, "nothing has come since"


def test_what_takes_long_is_not_done_often(journal: SqliteJournal) -> None:
    seconds = itertools.count()  # each look at the clock takes one
    maker = ImageMaker(journal, 0, lambda: float(next(seconds)), script('print(\'{"seq": 10, "fold": "f"}\')'))
    assert maker.make_if_due() is not None
    begun = next(seconds)
    while maker.make_if_due() is None:
        pass
    assert REST_FACTOR < next(seconds) - begun < 4 * REST_FACTOR


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (script("import sys; print('first'); sys.exit('no room')"), "no room"),
        (script("import os; os.kill(os.getpid(), 9)"), "exit status -9"),
        (("/nonexistent/python",), "cannot be made"),
        (script('print(\'{"seq": 700, "fold": "f"}\')'), "has no event 700"),
        (script("print('words')"), "was not made"),
    ],
)
def test_a_process_that_fails_leaves_the_image_before(
    journal: SqliteJournal, command: tuple[str, ...], said: str
) -> None:
    with pytest.raises(StoreError, match=said):
        ImageMaker(journal, 0, lambda: 0.0, command).make_if_due()
    assert last_image(journal.path).seq == 0


def test_a_daemon_that_ends_does_not_wait_for_an_image(journal: SqliteJournal, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    maker = ImageMaker(journal, 0, lambda: 0.0, script(f"import time; open({str(begun)!r}, 'w'); time.sleep(1000)"))
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(maker.make_if_due()))
    thread.start()
    wait_until(begun.exists)
    maker.end()
    thread.join(60)
    assert found == [None]


def test_the_command_is_this_python() -> None:
    assert COMMAND[0] == sys.executable
