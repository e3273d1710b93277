"""The ledger that a passive daemon has followed is the one that a start would have folded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from malletrain.daemon.failover.warm_ledger import WarmLedger
from malletrain.loop.ledger import Ledger
from malletrain.store.event_reader import READ_BATCH, read_events
from malletrain.store.journal import SqliteJournal
from malletrain.store.pair.replica import Replica, ShippingReader
from scripts.bench.journal_year import day_of_site


def test_it_is_that_of_the_whole_journal_however_it_came(tmp_path: Path) -> None:
    events = []
    for event in day_of_site(0, jobs=2, pilots_a_job=2, window_s=1200.0):
        events.append(event)
        if len(events) > READ_BATCH + 500:
            break
    warm = WarmLedger(tmp_path / "b")
    with SqliteJournal(tmp_path / "a") as journal, Replica(tmp_path / "b") as copy:
        last = 0
        for first in range(0, len(events), 400):
            journal.append(events[first : first + 400])
            with closing(ShippingReader(journal.path)) as reader:
                for rows in reader.after(last):
                    last = copy.receive(rows, 1)
            if first % 800 == 0:
                warm.follow()
    found, whole = warm.finish(), Ledger()
    whole.apply(read_events(tmp_path / "a"))
    assert found.last_seq == whole.last_seq == len(events)
    assert found.views() == whole.views()
    assert found.holes.open() == whole.holes.open()
    warm.restart()
    assert warm.finish().views() == whole.views()
