"""The loop over a journal whose disk is full: nodes are given back, nothing is started, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing

from malletrain.cli.admin.site import room_for_journal
from malletrain.config.sections import Config, StoreSection
from malletrain.daemon.journal_keeper import JournalKeeper
from malletrain.daemon.metrics import Metrics, RunHealth
from malletrain.domain.decision import LeavePilot, StartPilot
from malletrain.domain.errors import JournalUnavailable
from malletrain.domain.event import ActionIntent, Event, JobAnnounced, JobCancelled, MetricReported
from malletrain.loop.ledger import Ledger
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy as policy_named
from malletrain.slurm.site.site_facts import Level
from malletrain.store.journal import SqliteJournal
from tests.messages import says
from tests.small_disk import fill, small_disk
from tests.world import RULES, START, World, job, main_job

__all__ = ["small_disk"]


class Disk:
    """A loop over a journal on the small disk."""

    def __init__(self, folder: Path, min_free_bytes: float = 0.0) -> None:
        self.folder, self.path = folder, folder / "journal.db"
        self.journal = SqliteJournal(self.path)
        self.world = World()
        self.metrics = Metrics(self.world.clock)
        self.keeper = JournalKeeper(self.journal, self.metrics, min_free_bytes, self.world.clock.elapsed)
        world = self.world
        world.loop = Loop(
            world.cluster, world.workers, self.keeper, world.clock, policy_named("exact"), RULES
        )  # fmt: skip

    def fill(self) -> None:
        fill(self.path)

    def make_room(self) -> None:
        (self.folder / "ballast").unlink()

    def sample(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)


@pytest.fixture
def disk(small_disk: Path) -> Iterator[Disk]:
    made = Disk(small_disk)
    made.world.submit(job(1, most=4))
    for _ in range(3):
        made.world.tick()
    assert made.world.nodes_of(1) == 4
    yield made
    made.journal.close()


def test_pilots_give_way_while_the_disk_is_full(disk: Disk) -> None:
    world = disk.world
    disk.fill()
    world.cluster.set_main([main_job(99, count=8)])
    with structlog.testing.capture_logs() as log:
        for _ in range(6):
            world.tick()
    assert world.running() == {}, "every node is given back"
    (error,) = [line["event"] for line in log if line["log_level"] == "error"]
    assert says(error, "journal")
    assert "full" in disk.keeper.why_unsafe()
    assert disk.sample("malletrain_journal_writable") == 0
    assert disk.sample("malletrain_journal_refusals_total")


def test_nothing_starts_and_nobody_is_promised_anything_while_the_disk_is_full(disk: Disk) -> None:
    world = disk.world
    world.submit(job(2, most=4))
    disk.fill()
    for _ in range(3):
        world.tick()
    assert set(world.running().values()) == {p.id for p in world.loop.views[1].active}
    with pytest.raises(JournalUnavailable):
        world.submit(job(3))
    with pytest.raises(JournalUnavailable):
        world.loop.record([Event(START, JobCancelled("alice"), 1)])
    assert 3 not in world.loop.views
    assert not world.loop.views[1].phase.is_over


def test_what_was_kept_is_written_once_there_is_room(disk: Disk) -> None:
    world = disk.world
    before = disk.journal.last
    disk.fill()
    world.cluster.set_main([main_job(99, count=8)])
    for _ in range(6):
        world.tick()
    disk.keeper.flush()
    assert disk.journal.last == before, "still full"
    kept = disk.sample("malletrain_journal_kept_events")
    assert kept
    disk.make_room()
    disk.keeper.flush()
    assert disk.keeper.why_unsafe() == ""
    assert disk.journal.last == before + kept
    assert disk.sample("malletrain_journal_writable") == 1
    events = list(disk.journal.read())
    assert [e.seq for e in events] == sorted({e.seq for e in events})
    assert any(isinstance(e.payload, ActionIntent) and isinstance(e.payload.action, LeavePilot) for e in events)
    again = Ledger()
    again.apply(events)
    assert again.views() == world.loop.views, "a new daemon knows the same"
    world.cluster.set_main([])
    for _ in range(3):
        world.tick()
    assert world.nodes_of(1) == 4, "and starts go on"


def test_before_the_disk_is_full_starts_stop(small_disk: Path) -> None:
    disk = Disk(small_disk, min_free_bytes=1e6)
    assert disk.keeper.why_unsafe() == ""
    disk.fill()
    assert "store.min_free_mb" in disk.keeper.why_unsafe()
    disk.journal.close()


def test_figures_beyond_the_bound_are_left_out(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.daemon.journal_keeper.MAX_KEPT_EVENTS", 10)
    disk.fill()
    figure = Event(START, MetricReported("loss", 0.5, 1), 1)
    written = [disk.keeper.append([figure]) for _ in range(5000)]
    tail = [len(each) for each in written][-5:]
    assert tail == [0] * 5
    cancelled = Event(START, JobCancelled(), 1)
    assert len(disk.keeper.append([cancelled])) == 1, "a fact is kept"
    start = StartPilot(1, "1001_9", "n7", 60.0, "")
    with pytest.raises(JournalUnavailable):
        disk.keeper.append([Event(START, ActionIntent(start), 1)])


def test_an_announcement_is_durable_or_refused(disk: Disk) -> None:
    wanted = Event(START, JobAnnounced(job(7)), 7)
    disk.fill()
    with pytest.raises(JournalUnavailable):
        for _ in range(2000):  # until the journal's own room is used up
            disk.keeper.append([wanted])


def test_health_knows_what_fails_and_forgets_it_once_it_does_not() -> None:
    failed: list[str] = []
    answers: list[bool] = []
    runs = RunHealth(failed.append, answers.append)
    for _ in range(2):
        with pytest.raises(RuntimeError), runs.run("tick"):
            raise RuntimeError("a secret")
    (found,) = runs.ailments()
    assert says(found, "tick", "2 times", "RuntimeError")
    assert failed == ["tick", "tick"]
    with runs.run("tick"):
        pass
    assert runs.ailments() == []
    runs.looked(answered=False)
    (found,) = runs.ailments()
    assert says(found, "Slurm", "`scontrol ping`")
    runs.looked(answered=False)
    assert "the last 2 looks" in runs.ailments()[0]
    runs.looked(answered=True)
    assert runs.ailments() == []
    assert answers == [False, False, True]


def test_the_doctor_says_how_much_room_the_journal_has(disk: Disk) -> None:
    for least, level in ((0, Level.OK), (64, Level.ERROR)):
        store = StoreSection(path=str(disk.path), min_free_mb=least)
        (found,) = room_for_journal(Config(store=store))
        assert found.level is level
