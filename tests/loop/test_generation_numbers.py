"""The numbers of worlds: none is given twice, whatever dies while the journal cannot be written."""

from __future__ import annotations

from dataclasses import dataclass, field

from malletrain.domain.event import Event, GenerationPublished, GenerationsReserved, JobAnnounced
from malletrain.loop.membership.machine import RESERVE_POLL_S
from malletrain.loop.membership.next_world import GENERATION_BLOCK, last_worlds
from tests.loop.stage import Stage
from tests.world import job


@dataclass
class Disk:
    """A journal of reservations, which can be written or not."""

    events: list[Event] = field(default_factory=lambda: [Event(0.0, JobAnnounced(job(1)), 1)])
    writable: bool = True
    asked: int = 0

    def reserve(self, job_id: int, until: int) -> bool:
        self.asked += 1
        if self.writable:
            self.events.append(Event(0.0, GenerationsReserved(until), job_id))
        return self.writable

    def daemon(self) -> Stage:
        return Stage(last=last_worlds(self.events), reserve=self.reserve)


def _published(stage: Stage) -> list[int]:
    stage.events += stage.members.reports()
    return [e.payload.generation for e in stage.events if isinstance(e.payload, GenerationPublished)]


def test_the_first_worlds_of_a_job_need_no_write_of_their_own() -> None:
    disk = Disk(events=[], writable=False)
    stage = disk.daemon()
    stage.warm(0)
    assert _published(stage) == [1]
    assert disk.asked == 0


def test_a_daemon_gives_no_number_that_an_earlier_one_may_have_given() -> None:
    disk, given = Disk(), []
    for _ in range(3):  # none of these writes what it has published
        stage = disk.daemon()
        stage.warm(0)
        given += _published(stage)
    assert len(given) == len(set(given)) == 3


def test_without_a_reservation_no_world_is_published_until_the_journal_is_written_again() -> None:
    disk = Disk(writable=False)
    stage = disk.daemon()
    stage.warm(0)
    assert _published(stage) == []
    disk.writable = True
    stage.pass_time(RESERVE_POLL_S)
    assert _published(stage) == [GENERATION_BLOCK + 1]


def test_a_reservation_is_renewed_long_before_it_is_used_up() -> None:
    disk = Disk(events=[])
    stage = disk.daemon()
    stage.begin(1)
    machine = stage.members.job(1)
    assert machine is not None
    machine.generation = GENERATION_BLOCK // 2 + 1
    disk.writable = False
    stage.pass_time(1.0)
    stage.warm(1)
    assert _published(stage)[-1] == GENERATION_BLOCK // 2 + 2, "half a block is left"
    disk.writable = True
    stage.members.tick()
    stage.warm(2)
    assert machine.reserved > GENERATION_BLOCK
