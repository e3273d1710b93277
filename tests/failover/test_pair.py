"""Two halves in one process, over real HTTP, MUNGE, files and register: what is acknowledged, who may write, and what
a takeover has."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from malletrain.api.auth import Auth
from malletrain.api.connections import ConnectionLimits, ConnectionTable
from malletrain.api.http_server import HttpServer, serve
from malletrain.api.roles import Roles
from malletrain.api.standby_app import standby_app
from malletrain.daemon.clock import SystemClock
from malletrain.daemon.failover.active import ActiveHalf, CopyState, ShippedJournal
from malletrain.daemon.failover.peer import Peer
from malletrain.daemon.failover.standby import StandbyHalf
from malletrain.domain.event import Event, PoolCounted
from malletrain.store.errors import Fenced, OutOfStep
from malletrain.store.journal import SqliteJournal
from malletrain.store.pair.register import Register, Term
from malletrain.store.pair.replica import ShippingReader
from malletrain.wire.failover import FENCED, OUT_OF_STEP
from scripts.lab.ports import free_port
from tests.waiting import wait_until

LEASE_S = 8.0


def note(idle: int) -> Event:
    return Event(time.time(), PoolCounted(idle=idle))


def rows_of(path: Path) -> list[list[object]]:
    with closing(ShippingReader(path)) as reader:
        return [row for rows in reader.after(0) for row in rows]


class Time:
    """CLOCK_BOOTTIME, and what was added: the time that a suspended process lets pass."""

    def __init__(self) -> None:
        self.added = 0.0

    def __call__(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.added


class Pair:
    """Both daemons' halves. The first is the active one."""

    def __init__(self, folder: Path, munge_socket: str) -> None:
        self.folder, self.munge = folder, munge_socket
        self.shared = folder / "shared"
        self.shared.mkdir(exist_ok=True)
        self.port = free_port()
        self.urls = ("http://127.0.0.1:1", f"http://127.0.0.1:{self.port}")
        self.lost: list[str] = []
        self.time, self.their_time = Time(), Time()
        self.standby: StandbyHalf | None = None
        self.server: HttpServer | None = None

    def begin(self) -> None:
        first = Register(self.shared)
        last = first.read()
        number, epoch, pairing = (0, 0, 0) if last is None else (last.number, last.epoch, last.pairing)
        term = Term(number + 1, epoch + 1, self.urls[0], pairing)
        assert first.decide(term)
        self.half = ActiveHalf(
            first, term, self.urls[1], LEASE_S, SystemClock(), self.time, self.lost.append, self.munge
        )
        self.disk = SqliteJournal(self.folder / "a", epoch=term.epoch)
        self.half.start()
        self.half.serve(self.disk, CollectorRegistry())
        self.journal = ShippedJournal(self.disk, self.half)

    def stand_by(self) -> None:
        clock = SystemClock()
        self.standby = StandbyHalf(
            self.folder / "b", Register(self.shared), self.urls, self.urls[1], LEASE_S, clock, self.their_time,
            CollectorRegistry(),
        )  # fmt: skip
        roles = Roles({os.geteuid()}, serves={os.geteuid()})
        auth = Auth((self.urls[1],), roles, clock, munge_socket=self.munge)
        table = ConnectionTable(ConnectionLimits(), 1000)
        statuses = ((Fenced, FENCED), (OutOfStep, OUT_OF_STEP))
        app = standby_app(self.standby, auth, table, clock, statuses, lambda: b"")
        self.server = serve(app, "127.0.0.1", self.port, table)

    def part(self) -> None:
        """The passive daemon is no longer heard."""
        if self.server is not None:
            self.server.close(at_once=True)
            self.server = None

    def end_standby(self) -> None:
        self.part()
        if self.standby is not None:
            self.standby.close()
            self.standby = None

    def end_active(self) -> None:
        self.half.close()
        self.disk.close()

    def turn(self) -> Term | None:
        """What the passive daemon claims once its promise is over."""
        assert self.standby is not None
        self.their_time.added += 100.0
        return self.standby.claim()

    def both(self) -> tuple[list[list[object]], list[list[object]]]:
        return rows_of(self.folder / "a"), rows_of(self.folder / "b")


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, 90)


@contextmanager
def no_beats(half: ActiveHalf) -> Iterator[None]:
    """The active half does not renew its lease by itself meanwhile; no beat is on its way either."""
    held, go_on = threading.Event(), threading.Event()
    real = half._beat

    def beat(peer: Peer) -> None:
        held.set()
        go_on.wait()
        real(peer)

    half._beat = beat  # type: ignore[method-assign]
    try:
        assert held.wait(60)
        yield
    finally:
        half._beat = real  # type: ignore[method-assign]
        go_on.set()


@pytest.fixture
def pair(tmp_path: Path, munged: str) -> Iterator[Pair]:
    made = Pair(tmp_path, munged)
    yield made
    made.end_standby()
    made.end_active()


def test_what_is_acknowledged_is_on_both_disks_and_a_takeover_has_it(pair: Pair) -> None:
    pair.stand_by()
    pair.begin()
    assert pair.half.__dict__["_step"] is CopyState.PAIRED
    for idle in range(5):
        pair.journal.append([note(idle), note(100 + idle)])
        mine, theirs = pair.both()
        assert mine == theirs
        assert len(mine) == 2 * (idle + 1)
    assert pair.standby is not None
    assert pair.standby.claim() is None, "not while the active one is heard"
    pair.half.close()  # it dies
    assert pair.turn() == Term(3, 2, pair.urls[1], 0, pytest.approx(time.time(), abs=60))  # type: ignore[arg-type]
    # What it wrote from now on, had it only been suspended, is refused before and after its own commit.
    with pytest.raises(Fenced):
        pair.journal.append([note(9)])


def test_a_daemon_that_was_suspended_neither_orders_nor_acknowledges(pair: Pair) -> None:
    pair.stand_by()
    pair.begin()
    assert pair.half.why_not() == ""
    with no_beats(pair.half):
        pair.time.added += LEASE_S  # it slept; nobody has said so yet
        assert "last word" in pair.half.why_not()
        with pytest.raises(Fenced):
            pair.journal.append([note(1)])
        assert rows_of(pair.folder / "a") == []
    until(lambda: pair.half.holds)
    pair.journal.append([note(1)])
    with no_beats(pair.half):
        pair.part()
        assert pair.turn() is not None
        pair.half._lease.renew(pair.half._lease.now())  # between its last check and its next write
        with pytest.raises(Fenced, match="taken over"):
            pair.journal.append([note(2)])
    until(lambda: bool(pair.lost))
    mine, theirs = pair.both()
    assert (len(mine), len(theirs)) == (2, 1), "its last event was never acknowledged, and is nobody's"


def test_alone_it_goes_on_and_is_not_taken_over_until_the_other_has_all(pair: Pair) -> None:
    pair.begin()
    pair.journal.append([note(1)])
    pair.stand_by()
    until(lambda: pair.half.__dict__["_step"] is CopyState.PAIRED)
    pair.journal.append([note(2)])
    pair.part()
    pair.journal.append([note(3)])
    assert pair.half.__dict__["_step"] is CopyState.ALONE
    assert pair.turn() is None, "it lacks the third event"
    pair.end_standby()
    pair.stand_by()
    until(lambda: pair.half.__dict__["_step"] is CopyState.PAIRED)
    mine, theirs = pair.both()
    assert mine == theirs
    assert len(mine) == 3
    pair.half.close()
    assert pair.turn() is not None


def test_a_copy_with_events_of_its_own_is_replaced_whole_and_kept_aside(pair: Pair) -> None:
    with SqliteJournal(pair.folder / "b") as other:
        other.append([note(7), note(8)])
    pair.begin()
    pair.journal.append([note(1)])
    pair.stand_by()
    until(lambda: pair.half.__dict__["_step"] is CopyState.PAIRED)
    mine, theirs = pair.both()
    assert mine == theirs
    assert len(rows_of(pair.folder / "b.replaced")) == 2
    pair.journal.append([note(2)])
    assert pair.both()[0] == pair.both()[1]


def test_a_copy_that_lost_its_disk_does_not_take_over(pair: Pair) -> None:
    pair.stand_by()
    pair.begin()
    pair.journal.append([note(1)])
    pair.half.close()
    pair.end_standby()
    for left in pair.folder.glob("b*"):
        left.unlink()
    pair.stand_by()
    assert pair.turn() is None


def test_a_restart_keeps_the_pairing_and_its_tail(pair: Pair) -> None:
    pair.stand_by()
    pair.begin()
    pair.journal.append([note(1)])
    pair.end_active()
    pair.lost.clear()
    with SqliteJournal(pair.folder / "a", epoch=1) as crashed:
        crashed.append([note(2)])  # committed, and killed before it was shipped
    pair.begin()
    assert pair.half.epoch == 2
    mine, theirs = pair.both()
    assert mine == theirs
    assert len(mine) == 2
    assert not pair.lost


def test_without_the_other_and_the_register_nothing_is_acknowledged(pair: Pair) -> None:
    pair.stand_by()
    pair.begin()
    with no_beats(pair.half):  # with the register it would go on alone
        pair.part()
        shutil.move(pair.shared, pair.folder / "gone")
        with pytest.raises(Fenced, match="neither"):
            pair.journal.append([note(1)])
    assert pair.half.why_not()
    shutil.move(pair.folder / "gone", pair.shared)


def test_an_orderly_end_hands_over_at_once(pair: Pair) -> None:
    pair.stand_by()
    pair.begin()
    pair.half.release()
    assert pair.standby is not None
    assert pair.standby.claim() is not None
