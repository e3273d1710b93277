"""The rule of the next generation: who is in it, and when to wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.loop.membership.next_world import JobTerms, WorkerCandidate, next_world
from malletrain.wire.messages import Seat
from tests.messages import says

ANY = JobTerms()


def seat(name: str) -> Seat:
    return Seat(name, f"{name}:1")


def one(name: str, warm_at: float | None = 0.0, leaving: float | None = None) -> WorkerCandidate:
    return WorkerCandidate(seat(name), warm_at, leaving)


def names(seats: tuple[Seat, ...] | None) -> list[str] | None:
    return None if seats is None else [each.worker for each in seats]


def test_a_first_worker_begins_at_once() -> None:
    verdict = next_world((), None, [one("a")], ANY, now=0.0, gather_s=0.2)
    assert names(verdict.seats) == ["a"]
    assert verdict.reason == "joining: a"


def test_a_newcomer_waits_a_moment_for_one_that_is_warming_up() -> None:
    candidates = [one("a"), one("b", warm_at=5.0), one("c", warm_at=None)]
    early = next_world(("a",), None, candidates, ANY, now=5.1, gather_s=0.2)
    assert early.seats is None
    assert early.look_again_at == 5.2
    late = next_world(("a",), None, candidates, ANY, now=5.2, gather_s=0.2)
    assert names(late.seats) == ["a", "b"]


def test_members_keep_their_order_and_newcomers_follow() -> None:
    candidates = [one("a"), one("b"), one("c"), one("d")]
    assert names(next_world(("c", "a"), None, candidates, ANY, 1.0, 0.2).seats) == ["c", "a", "b", "d"]


def test_one_ordinary_plan_is_outstanding() -> None:
    candidates = [one("a"), one("b"), one("c")]
    verdict = next_world(("a",), ("a", "b"), candidates, ANY, 1.0, 0.2)
    assert verdict.seats is None
    assert says(verdict.reason, "plan")


def test_a_plan_whose_member_is_gone_is_withdrawn() -> None:
    assert names(next_world(("a",), ("a", "b"), [one("a"), one("c")], ANY, 1.0, 0.2).seats) == ["a", "c"]
    leaving = [one("a"), one("b", leaving=1.0)]
    assert names(next_world(("a",), ("a", "b"), leaving, ANY, 1.0, 0.2).seats) == ["a"]


def test_when_all_leave_nobody_is_left_to_plan_for() -> None:
    verdict = next_world(("a", "b"), None, [one("a", leaving=1.0), one("b", leaving=1.0)], ANY, 2.0, 0.2)
    assert names(verdict.seats) == []


def test_the_last_to_leave_hands_the_state_over_to_newcomers() -> None:
    candidates = [one("a", leaving=1.0), one("b", leaving=1.0), one("c"), one("d")]
    first = next_world(("a", "b"), None, candidates, ANY, 2.0, 0.2)
    assert names(first.seats) == ["a", "c", "d"]
    assert says(first.reason, "a hands")
    assert next_world(("a", "b"), ("a", "c", "d"), candidates, ANY, 2.0, 0.2).seats is None
    assert names(next_world(("a", "c", "d"), None, candidates, ANY, 2.0, 0.2).seats) == ["c", "d"]


def test_a_world_begins_with_no_fewer_than_the_job_wants() -> None:
    terms = JobTerms(min_nodes=3, max_nodes=4)
    verdict = next_world((), None, [one("a"), one("b")], terms, 1.0, 0.2)
    assert verdict.seats is None
    assert says(verdict.reason, 3, "warm", 2)
    five = [one(name) for name in "abcde"]
    assert names(next_world((), None, five, terms, 1.0, 0.2).seats) == ["a", "b", "c", "d"]


def test_only_permitted_sizes_are_grown_to() -> None:
    terms = JobTerms(1, 8, (1, 2, 4))
    three = [one("a"), one("b"), one("c")]
    verdict = next_world(("a", "b"), None, three, terms, 1.0, 0.2)
    assert verdict.seats is None
    assert says(verdict.reason, "permitted")
    assert names(next_world(("a",), None, three, terms, 1.0, 0.2).seats) == ["a", "b"]
    # A loss leaves a size that was not asked for; training goes on all the same.
    assert names(next_world(("a", "b", "c", "x"), None, three, terms, 1.0, 0.2).seats) == ["a", "b", "c"]


moments = st.one_of(st.none(), st.floats(0, 10))


@given(
    st.lists(st.tuples(moments, moments), max_size=8),
    st.integers(0, 8),
    st.one_of(st.none(), st.sets(st.integers(0, 9))),
    st.integers(1, 4),
    st.integers(1, 10),
    st.floats(0, 12),
)
def test_laws(
    people: list[tuple[float | None, float | None]],
    members: int,
    planned: set[int] | None,
    least: int,
    most: int,
    now: float,
) -> None:
    candidates = [one(f"w{i}", warm, leaving) for i, (warm, leaving) in enumerate(people)]
    world = [f"w{i}" for i in range(members)]
    pending = None if planned is None else [f"w{i}" for i in sorted(planned)]
    verdict = next_world(world, pending, candidates, JobTerms(least, max(least, most)), now, 0.2)
    assert verdict.reason
    if verdict.seats is None:
        return
    chosen = [each.worker for each in verdict.seats]
    alive = {each.seat.worker: each for each in candidates}
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= set(alive), "no member that is gone"
    for name in chosen:
        assert name in world or alive[name].warm_at is not None, "no member that is not warm"
    leaving = [name for name in chosen if alive[name].leaving_since is not None]
    assert len(leaving) <= 1, "at most the one that hands over"
    staying = [name for name in world if name in alive and alive[name].leaving_since is None]
    assert chosen[: len(staying)] == staying or leaving, "whoever stays keeps its rank"


def test_a_first_plan_is_not_replaced_because_a_member_is_to_leave() -> None:
    """It may train already; a plan without it would begin a second world beside it."""
    first = WorkerCandidate(Seat("9_0.0", "n0:1"), warm_at=1.0, leaving_since=2.0)
    other = WorkerCandidate(Seat("9_1.0", "n1:1"), warm_at=2.0)
    assert next_world((), ("9_0.0",), (first, other), JobTerms(), 3.0, 0.2).seats is None
    gone = next_world((), ("9_0.0",), (other,), JobTerms(), 3.0, 0.2)
    assert gone.seats == (other.seat,)
