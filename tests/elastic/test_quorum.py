"""While the daemon is away, a majority recovers from a fault and a minority stops."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.elastic.errors import PeerLost
from malletrain.elastic.resize.quorum import Quorum, Vote, decide
from malletrain.wire.messages import Plan, Seat
from tests.elastic.coordinator import JOB, another, running
from tests.elastic.digits import SCRIPT, Static, diary, slow, wait_lines
from tests.elastic.stores import SECRET
from tests.waiting import wait_until


def seats(names: str) -> tuple[Seat, ...]:
    return tuple(Seat(name, f"{name}:1") for name in names)


class Wall:
    """Boards in memory, by address; a name in `dead` does not answer."""

    def __init__(self, dead: str = "") -> None:
        self.boards: dict[str, dict[str, str]] = {}
        self.dead = dead

    def at(self, address: str) -> Wall._Board:
        if address[0] in self.dead:
            raise PeerLost(f"{address} is dead")
        return self._Board(self.boards.setdefault(address, {}))

    class _Board:
        def __init__(self, notes: dict[str, str]) -> None:
            self.notes = notes

        def set(self, key: str, text: str) -> None:
            self.notes[key] = text

        def look(self, key: str) -> str | None:
            return self.notes.get(key)


def meet(
    names: str, dead: str, *, bound: int = 5, entered: int = 5, base: str = "", wall: Wall | None = None
) -> dict[str, Plan | None]:
    """What each of the living gets."""
    wall = wall or Wall(dead)
    got: dict[str, Plan | None] = {}

    def hold(name: str) -> None:
        vote = Vote(name, entered, bound + ord(name))
        quorum = Quorum(bound, seats(names), tuple(base or names), vote, SECRET)
        got[name] = quorum.hold(wall.at(f"{name}:1"), wall.at)

    threads = [threading.Thread(target=hold, args=(name,)) for name in names if name not in dead]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return got


@pytest.mark.parametrize("dead", ["a", "b", "c"])
def test_two_of_three_go_on(dead: str) -> None:
    got = meet("abc", dead)
    rest = [name for name in "abc" if name != dead]
    assert len(got) == 2
    first, second = got.values()
    assert first is not None
    assert first == second
    assert [seat.worker for seat in first.members] == rest
    assert first.store == f"{rest[0]}:1"
    assert first.urgent
    assert first.generation > 5 + ord("c")


def test_the_secret_of_a_quorums_plan_is_never_sent() -> None:
    wall = Wall("a")
    first, second = meet("abc", "a", wall=wall).values()
    assert first is not None
    assert second is not None
    assert first.secret == second.secret
    assert first.secret not in ("", SECRET)
    assert first.secret not in str(list(wall.boards.values()))


@pytest.mark.parametrize(("names", "dead"), [("ab", "a"), ("abcd", "bd"), ("abc", "ab")])
def test_half_or_less_stop(names: str, dead: str) -> None:
    assert set(meet(names, dead).values()) == {None}


def test_a_plan_that_nobody_trained_in_counts_the_world_before_it() -> None:
    """Two of the three that were to go on, of five: what the third does is not known."""
    assert set(meet("abc", "c", bound=505, entered=5, base="abcde").values()) == {None}
    assert meet("abc", "c", bound=505, entered=505, base="abc")["a"] is not None


@given(st.sets(st.sampled_from("abcdefg")), st.sets(st.sampled_from("abcdefg")))
def test_two_plans_of_one_world_share_a_member(left: set[str], right: set[str]) -> None:
    world = seats("abcdefg")
    plans = [
        decide(5, world, "abcdefg", [Vote(name, 5, 5) for name in sorted(names)], "x") if names else None
        for names in (left, right)
    ]
    if plans[0] is not None and plans[1] is not None:
        assert {seat.worker for seat in plans[0].members} & {seat.worker for seat in plans[1].members}


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_a_majority_trains_on(tmp_path: Path, static: Static, number: int) -> None:
    """The oldest is lost, who serves the store of the world; then the daemon is back and takes the world as it is."""
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            pod.spawn(daemon.url, task, [SCRIPT, *slow(tmp_path)])
            daemon.wait_world(list(range(task + 1)))
        # Of a world that is only planned nobody is a member yet: one of two would be left, which is no majority.
        wait_until(lambda: 3 in [each["generation"] for each in daemon.told("switched")], 60, "a world of three")
        daemon.stop()
        pod.kill(0, number)
        wait_until(
            lambda: any(line["size"] == 2 and line["step"] > 20 for line in diary(tmp_path)), 60, "steps of two"
        )
        wait_lines(tmp_path, 20, 60, "more steps")
        with another({JOB: 3}, daemon.port) as again:
            again.wait_world([1, 2], 90)
            pod.grow(again, (3,), [SCRIPT, *slow(tmp_path)])
            pod.finish(1, 2, 3)
            assert again.seen("job_completed")
    static.assert_like(tmp_path)


@pytest.mark.nightly
def test_a_minority_saves_and_stops(tmp_path: Path, static: Static) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(2), [SCRIPT, *slow(tmp_path)], PATIENCE="3")
        wait_until(lambda: len(diary(tmp_path)) > 8, 60, "some steps")
        daemon.stop()
        pod.kill(0)
        assert pod.wait(1) == 143
        made = max(line["step"] for line in diary(tmp_path))
        with another({JOB: 3}, daemon.port) as again:
            pod.spawn(again.url, 1, [SCRIPT, *slow(tmp_path)], restart=1)
            pod.finish(1)
        after = [line["step"] for line in diary(tmp_path) if line["step"] > made]
        assert min(after) == made + 1, "no committed step is lost"
    static.assert_like(tmp_path)


def test_a_daemon_that_was_frozen_gives_nobody_up(tmp_path: Path) -> None:
    """Its clock went on without it: all the silence is its own."""
    with running(tmp_path) as (daemon, pod):
        pod.begin(daemon, range(2), [SCRIPT, *slow(tmp_path)])
        with daemon.lock:
            job = daemon.membership.job(JOB)
            assert job is not None
            for worker in job.workers.values():
                worker.last_seen -= 1000.0
                worker.answered_at = None if worker.answered_at is None else worker.answered_at - 1000.0
            daemon.gate._awake_at -= 1000.0
            daemon.gate.tick()
        wait_lines(tmp_path, 6, 60, "steps go on")
        assert not daemon.seen("worker_lost")
        assert len(daemon.seen("generation")) <= 2
