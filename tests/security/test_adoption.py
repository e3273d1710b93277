"""What a daemon that was restarted takes from the members of a world, held against its journal: without any I/O."""

from __future__ import annotations

import pytest

from malletrain.domain.errors import ContradictsRecord, Refused
from malletrain.elastic.resize import quorum
from malletrain.loop.membership import standing
from malletrain.loop.membership.admission import Claim, NotItsPilot, admit
from malletrain.loop.membership.state import Phase, Worker
from malletrain.wire.messages import CheckedIn, Seat, Standing, Switched
from tests.loop.stage import HandClock
from tests.messages import naming, says
from tests.security.two_users import ALICE, ARRAYS, HERS, HIS, MALLORY, Journalled, make_membership, name_of, node_of

PUBLISHED = 5


class Daemon:
    """Just restarted: its journal has generations up to `PUBLISHED` of Alice's job."""

    def __init__(self) -> None:
        self.journal = Journalled()
        self.clock = HandClock()
        self.refusals: list[tuple[int, str]] = []
        self.members = make_membership(self.journal, self.clock, {HERS: PUBLISHED}, self.refusals)

    def hello(self, task: int, *tasks: int, generation: int = PUBLISHED, restart: int = 0, seen: int = 0) -> Worker:
        """A worker of Alice's; with `tasks`, it tells that it trains with these."""
        claim = Claim(HERS, f"{ARRAYS[HERS]}_{task}", restart, node_of(HERS, task), ALICE)
        seats = tuple(Seat(name_of(HERS, each), f"h{each}:1") for each in tasks)
        standing = Standing(generation, seats, 40, f"h{task}:1", seen or generation) if tasks else None
        return self.members.hello(claim, standing)

    def world(self) -> tuple[int, tuple[str, ...]]:
        world = self.members.world(HERS)
        assert world is not None
        return world.generation, world.workers

    def pass_time(self, seconds: float) -> None:
        self.clock.at += seconds
        self.members.tick()


def names(*tasks: int) -> tuple[str, ...]:
    return tuple(name_of(HERS, task) for task in tasks)


def test_own_numbers_are_the_members_own() -> None:
    assert standing.QUORUM_GENERATION_GAP == quorum.QUORUM_GENERATION_GAP


def test_a_world_that_a_majority_has_mended_is_taken() -> None:
    daemon = Daemon()
    mended = PUBLISHED + quorum.QUORUM_GENERATION_GAP
    for task in (0, 2):
        daemon.hello(task, 0, 2, generation=mended)
    assert daemon.world() == (mended, names(0, 2))


def test_a_mended_world_is_taken_after_one_that_was_left_behind_has_told_of_the_old_one() -> None:
    daemon = Daemon()
    daemon.hello(1, 0, 1, 2)
    mended = PUBLISHED + quorum.QUORUM_GENERATION_GAP
    for task in (0, 2):
        daemon.hello(task, 0, 2, generation=mended)
    assert daemon.world() == (mended, names(0, 2))
    with pytest.raises(Refused, match=naming(f"generation {mended}")):
        daemon.hello(1, 0, 1, 2)
    assert daemon.world() == (mended, names(0, 2)), "the old one is not taken back"


def test_a_plan_that_the_daemon_before_had_published_is_taken_from_those_who_took_it() -> None:
    daemon = Daemon()
    daemon.hello(1, 0, 1, 2, generation=PUBLISHED - 1)
    daemon.hello(0, 0, 2)
    assert daemon.world() == (PUBLISHED, names(0, 2))


def test_a_number_between_is_nobodys() -> None:
    daemon = Daemon()
    daemon.hello(1, 0, 1, 2)
    for generation in (PUBLISHED + 1, PUBLISHED + quorum.QUORUM_GENERATION_GAP - 1):
        with pytest.raises(ContradictsRecord, match="never published"):
            daemon.hello(0, 0, generation=generation)
    assert daemon.world() == (PUBLISHED, names(0, 1, 2))


def test_a_member_whose_pilot_has_ended_meanwhile_has_no_seat_and_the_rest_mend_at_once() -> None:
    daemon = Daemon()
    daemon.journal.end(HERS, 1)
    for task in (0, 2):
        daemon.hello(task, 0, 1, 2)
    assert daemon.world() == (PUBLISHED, names(0, 2))
    assert daemon.members.worker(name_of(HERS, 1)) is None
    for name in names(0, 2):
        check = daemon.members.directive_for(name).check_in
        assert check is not None, "whoever is left is asked where it stands"
        daemon.members.report(name, CheckedIn(check, 0, 40, True))
    plan = daemon.members.directive_for(name_of(HERS, 0)).plan
    assert plan is not None
    assert (plan.urgent, plan.workers) == (True, names(0, 2))


def test_a_member_that_is_in_another_run_by_now_has_no_seat() -> None:
    daemon = Daemon()
    daemon.journal.start(HERS, 1, restarts=1)
    daemon.hello(0, 0, 1, 2)
    assert daemon.world() == (PUBLISHED, names(0, 2))
    assert daemon.hello(1, restart=1).phase is Phase.JOINING


def test_one_that_is_being_given_the_state_tells_where_it_stands_itself() -> None:
    """It has no standing to tell of, and the others have a seat for it: it is a member, and is not taken for one that
    never warms up."""
    daemon = Daemon()
    half = daemon.hello(1).id
    daemon.hello(0, 0, 1)

    def stands() -> tuple[Phase, str]:
        worker = daemon.members.worker(half)
        assert worker is not None
        return worker.phase, worker.address

    for _ in range(7):
        daemon.pass_time(100.0)
        for name in names(0, 1):
            daemon.members.alive(name)
    assert stands() == (Phase.JOINING, "h1:1"), "the address as the others found it"
    daemon.members.report(half, Switched(PUBLISHED, 41, 2, 0.0, True))
    assert stands() == (Phase.SERVING, "h1:1")


def test_a_world_that_falls_silent_and_comes_back_keeps_what_is_known_of_it() -> None:
    daemon = Daemon()
    for task in (0, 1):
        daemon.hello(task, 0, 1)
    daemon.pass_time(200.0)
    assert daemon.members.world(HERS) is None
    daemon.hello(0, 0, 1)
    assert daemon.world() == (PUBLISHED, names(0, 1))
    other = daemon.hello(1, 0, 1)
    assert (other.phase, other.address) == (Phase.SERVING, "h1:1")


def test_a_refused_standing_changes_nothing() -> None:
    daemon = Daemon()
    world = daemon.hello(0, 0, 1), daemon.world()
    daemon.members.reports()
    for seat in (Seat(name_of(HIS, 1), "h:1"), Seat(name_of(HERS, 1), "evil:1")):
        claim = Claim(HERS, f"{ARRAYS[HERS]}_2", 0, node_of(HERS, 2), ALICE)
        with pytest.raises(Refused):
            daemon.members.hello(claim, Standing(PUBLISHED, (seat,), 40, "h2:1"))
    assert not daemon.members.reports()
    assert (daemon.members.worker(world[0].id), daemon.world()) == world
    assert daemon.members.worker(name_of(HERS, 2)) is None
    assert [job for job, _ in daemon.refusals] == [HERS, HERS]


@pytest.mark.parametrize(("changes", "kind", "words"), [
    ({"uid": MALLORY}, Refused, "not yours"),
    ({"job": 77}, Refused, "known here"),
    ({"job": HIS, "uid": MALLORY}, NotItsPilot, "job 2's"),
    ({"pilot": "7_3"}, Refused, "is held"),
    ({"pilot": "70_0"}, Refused, "is unknown"),
    ({"node": "n99"}, Refused, "n10, .*n99"),
    ({"restart": 1}, Refused, "restart count 0 in Slurm, not 1"),
])  # fmt: skip
def test_who_is_let_in(changes: dict[str, object], kind: type[Refused], words: str) -> None:
    honest = {"job": HERS, "pilot": "7_0", "restart": 0, "node": "n10", "uid": ALICE}
    views = Journalled().views
    assert admit(views, Claim(**honest)).leave == ""  # type: ignore[arg-type]
    with pytest.raises(kind, match=words):
        admit(views, Claim(**(honest | changes)))  # type: ignore[arg-type]


def test_one_whose_pilot_was_asked_to_leave_is_let_in_to_leave() -> None:
    journal = Journalled()
    journal.leave(HERS, 0)
    assert says(admit(journal.views, Claim(HERS, "7_0", 0, "n10", ALICE)).leave, "main job 99")
