"""A job whose script trains otherwise at other sizes keeps its size: it is given that many nodes or none, and nobody
joins or leaves a world of its that trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.event import Event, ScriptChecked
from malletrain.domain.job import Elastic, ScriptCheck, ScriptVerdict, size_kept, terms_of
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.admission import Claim, admit
from malletrain.loop.membership.next_world import JobTerms, WorkerCandidate, next_world
from malletrain.wire.messages import CheckDone, Compared, Exited, Failed, Seat
from tests.loop.stage import A, B, C, D, Stage
from tests.messages import says
from tests.world import World, data_of, job, main_job

DIGEST = "0123456789abcdef"
TWO = JobTerms(2, 2, fixed=True)
FOUND = ScriptCheck(DIGEST, ScriptVerdict.DIFFERENT, "the average is each worker's own", 3)
NAMES = "abcdef"


def check(stage: Stage, verdict: str = "different", digest: str = DIGEST, by: str = A) -> None:
    assert stage.members.may_check(by, digest)
    stage.members.report(by, CheckDone(digest, verdict, "the average is each worker's own"))
    job_now = stage.members.job(1)
    assert job_now is not None
    stage.terms = job_now.terms  # the journal has it


def is_tried(stage: Stage) -> bool:
    """Whether a step is made in both worlds before the outstanding plan is taken."""
    plan = stage.plan(A)
    assert plan is not None
    return plan.tried


@pytest.mark.parametrize("text", ["", "w differs"])
def test_where_no_check_decided_a_step_is_tried_as_the_world_grows_until_one_is_compared(
    three: Stage, text: str
) -> None:
    check(three, "undecided")
    three.warm(3)
    three.pass_time(1.0)
    assert is_tried(three)
    three.members.report(D, Compared("of a worker that is in no world"))
    three.obey(A, B, C, D)
    three.members.report(A, Compared(text))
    three.members.report(B, Compared("a second word"))
    _, found = three.seen("script_checked")
    assert data_of(found)["verdict"] == ("different" if text else "undecided")
    assert found.reason == text if text else says(found.reason, "gradients", "equal")
    job_now = three.members.job(1)
    assert job_now is not None
    assert job_now.terms.fixed is bool(text)
    three.terms = job_now.terms  # the journal has it
    three.warm(4)
    three.pass_time(1.0)
    assert is_tried(three) is bool(text), "no other plan follows, or one without a trial"


def test_no_step_is_tried_before_a_node_is_given_back(three: Stage) -> None:
    check(three, "undecided")
    three.leave(1)
    three.warm(3)
    three.pass_time(1.0)
    assert three.plan(A).workers == (A, C, D)  # type: ignore[union-attr]
    assert not is_tried(three)


@pytest.mark.parametrize("terms", [JobTerms(trusted=True), JobTerms(restarts=True), JobTerms(checked=DIGEST)])
def test_no_step_is_tried_where_nothing_is_open(terms: JobTerms) -> None:
    stage = Stage(replace(terms, undecided=terms.trusted or terms.restarts))
    stage.begin(3)
    stage.warm(3)
    stage.pass_time(1.0)
    assert not is_tried(stage)


@st.composite
def moments(draw: st.DrawFn) -> tuple[list[str], list[str] | None, list[WorkerCandidate], float]:
    alive = draw(st.lists(st.sampled_from(NAMES), unique=True))
    world = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    pending = draw(st.none() | st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    times = st.none() | st.floats(0.0, 10.0)
    candidates = [WorkerCandidate(Seat(name, f"{name}:1"), draw(times), draw(times)) for name in alive]
    return world, pending, candidates, draw(st.floats(0.0, 20.0))


@given(moments(), st.none() | st.integers(1, 4))
def test_a_world_that_trains_is_never_another_one(
    moment: tuple[list[str], list[str] | None, list[WorkerCandidate], float], most: int | None
) -> None:
    world, pending, candidates, now = moment
    alive = {each.seat.worker for each in candidates}
    seats = next_world(world, pending, candidates, TWO, now, 0.2, most).seats
    if alive.intersection(world):
        assert not seats, "it ends, or stays as it is"
    else:
        assert seats is None or len(seats) in (0, 2)


def test_newcomers_wait_and_a_leaver_ends_the_world_which_begins_anew(three: Stage) -> None:
    check(three)
    three.warm(3)
    assert three.world() == [A, B, C]
    assert (three.plan(D) or three.plan(A)).workers == (A, B, C)  # type: ignore[union-attr]
    three.leave(1)
    three.pass_time(0.05)
    plan = three.plan(A)
    assert plan is not None
    assert plan.members == ()
    assert says(plan.reason, "script", "3 nodes")
    three.obey(A, B, C)
    assert three.world() == []
    three.warm(4)
    assert three.plan(D) is None or not three.plan(D).members, "two are warm, and it trains on three"  # type: ignore[union-attr]
    last = three.warm(5)
    assert len((three.plan(last) or plan).workers) == 3


def test_the_loss_of_a_worker_ends_the_world_and_the_others_keep_the_state(three: Stage) -> None:
    check(three)
    del three.at[B]
    three.members.report(B, Exited(-9))
    three.obey_checks(A, C)
    plan = three.plan(A)
    assert plan is not None
    assert (plan.members, plan.urgent) == ((), True)
    three.obey(A, C)
    assert three.world() == []
    workers = [three.warm(task) for task in (5, 6, 7)]
    three.obey(*workers)
    assert three.world() == workers, "others begin where these have stopped"


def test_its_members_are_told_for_a_time_without_the_daemon(three: Stage) -> None:
    assert not three.members.directive_for(A).fixed
    check(three)
    assert all(three.members.directive_for(name).fixed for name in (A, B, C))


def test_a_daemon_that_finds_such_a_job_at_another_size_ends_its_world(three: Stage) -> None:
    """Its members may have gone on without one of them while no daemon was there."""
    world = three.members.world(1)
    assert world is not None
    later = Stage(JobTerms(2, 2, fixed=True), {1: world.generation})
    for task in range(3):
        later.at[later.adopt(task, world)] = world.generation
    plan = later.plan(A)
    assert plan is not None
    assert plan.members == ()


def test_it_is_checked_once_beside_one_worker_at_a_time(three: Stage) -> None:
    assert three.members.may_check(A, DIGEST)
    assert not three.members.may_check(B, DIGEST), "A does"
    three.members.report(B, CheckDone(DIGEST, "different"))
    assert three.seen("script_checked") == [], "B was not asked"
    three.members.report(A, Exited(-9))
    assert three.members.may_check(B, DIGEST), "A is gone, and has said nothing"
    three.members.report(B, CheckDone(DIGEST, "equal"))
    assert not three.members.may_check(C, DIGEST)
    (event,) = three.seen("script_checked")
    assert data_of(event) == {"digest": DIGEST, "verdict": "equal", "text": "", "nodes": 3}
    three.obey(B, C)
    assert three.world() == [B, C], "it is resized as ever"
    for number in range(3):
        check(three, "undecided", f"{number:016x}", B)
    assert not three.members.may_check(B, "f" * 16), "a script that is another one each time"


def test_a_script_that_its_owner_answers_for_is_not_checked() -> None:
    stage = Stage(JobTerms(trusted=True))
    stage.begin(2)
    assert not stage.members.may_check(A, DIGEST)


def test_it_keeps_its_size_to_its_end_even_if_its_script_is_mended_meanwhile(three: Stage) -> None:
    """The members of its world run what they have loaded."""
    check(three)
    assert not three.members.may_check(A, "f" * 16)


def test_the_terms_follow_from_the_journal() -> None:
    wanted = job(1, 1, 8)
    assert terms_of(wanted, None) == wanted
    assert terms_of(wanted, replace(FOUND, verdict=ScriptVerdict.UNDECIDED)) == wanted
    assert terms_of(replace(wanted, trusted=True), FOUND) == replace(wanted, trusted=True)
    assert terms_of(replace(wanted, elastic=Elastic.RESTART), FOUND).max_nodes == 8
    assert (terms_of(wanted, FOUND).min_nodes, terms_of(wanted, FOUND).max_nodes) == (3, 3)
    assert [size_kept(nodes, 2, 8, (4, 8)) for nodes in (0, 3, 8)] == [4, 4, 8]


def different(world: World, nodes: int) -> None:
    event = ScriptChecked(DIGEST, ScriptVerdict.DIFFERENT, "the average is each worker's own", nodes)
    world.loop.record([Event(world.clock.now(), event, 1)])


@given(
    nodes=st.integers(1, 5),
    busy=st.lists(st.sets(st.sampled_from([f"n{i}" for i in range(6)])), max_size=8),
    other=st.booleans(),
)
def test_it_is_given_its_size_or_nothing(nodes: int, busy: list[set[str]], other: bool) -> None:
    world = World(nodes=6)
    world.submit(job(1))
    if other:
        world.submit(job(2))
    different(world, nodes)
    for taken in busy:
        free = taken - set(world.running())
        world.cluster.set_main([main_job(7, nodes=sorted(free)), main_job(8, count=max(1, len(taken)))])
        world.tick()
        decision = world.loop.last_decision
        assert decision is not None
        assert decision.sizes.get(1, 0) in (0, nodes)


def test_a_worker_is_admitted_on_these_terms_and_its_owner_reads_why() -> None:
    world = World(nodes=4)
    world.submit(job(1))
    world.tick()
    different(world, 4)
    view = world.loop.views[1]
    pilot = view.staying[0]
    terms = admit(world.loop.views, Claim(1, pilot.id, 0, pilot.node, 1001)).terms
    assert (terms.min_nodes, terms.max_nodes, terms.fixed, terms.checked) == (4, 4, True, DIGEST)
    assert "stays at 4 nodes, or none" in view.fixed
    anew = Ledger()
    anew.apply(world.journal.events)
    assert anew.views() == world.loop.views


def fails(stage: Stage, task: int, said: str = "") -> None:
    worker = stage.warm(task)
    stage.members.report(worker, Failed(0, said or f"{worker}: RuntimeError: no device {task} (train.py:12)"))


def go_on(stage: Stage, *workers: str) -> None:
    """Workers that train are heard, and do as they are told."""
    for _ in range(4):
        for name in workers:
            stage.members.alive(name)
        stage.pass_time(1.0)
        stage.obey(*workers)


def test_a_job_whose_newcomers_fail_alike_takes_no_more_nodes(three: Stage) -> None:
    fails(three, 3)
    fails(three, 4)
    assert three.seen("script_checked") == []
    fails(three, 5)
    go_on(three, A, B, C)
    (event,) = three.seen("script_checked")
    found = data_of(event)
    assert (found["verdict"], found["nodes"]) == ("different", 3)
    assert says(found["text"], "3 newcomers", "RuntimeError: no device 5 (train.py:12)")
    assert three.members.job(1).terms.fixed  # type: ignore[union-attr]
    fails(three, 6)
    go_on(three, A, B, C)
    assert len(three.seen("script_checked")) == 1


@pytest.mark.parametrize("joins", [False, True])
def test_the_others_train_on_at_their_size_also_where_the_last_newcomer_had_joined(three: Stage, joins: bool) -> None:
    for task in (3, 4, 5):
        worker = three.warm(task)
        if joins:
            go_on(three, A, B, C, worker)
            assert three.world() == [A, B, C, worker]
        three.members.report(worker, Failed(10 * task, f"RuntimeError: no device {task}"))
        go_on(three, A, B, C)
        assert three.world() == [A, B, C]
    (event,) = three.seen("script_checked")
    assert data_of(event)["nodes"] == 3


def test_failures_that_differ_by_an_address_are_alike(three: Stage) -> None:
    for task, address in ((3, "0x7f10ab"), (4, "0x7f10ac"), (5, "0x7fe0")):
        fails(three, task, f"TypeError: <Device object at {address}> (train.py:12)")
    go_on(three, A, B, C)
    assert three.seen("script_checked")


def test_a_check_under_way_does_not_free_a_job_whose_newcomers_failed(three: Stage) -> None:
    assert three.members.may_check(A, DIGEST)
    for task in (3, 4, 5):
        fails(three, task)
    go_on(three, A, B, C)
    three.members.report(A, CheckDone(DIGEST, "equal", ""))
    assert len(three.seen("script_checked")) == 1


def test_newcomers_that_are_never_warm_fail_alike(three: Stage) -> None:
    limit = three.members.settings.warm_up_s
    for task in (3, 4, 5):
        worker = three.hello(task)
        for _ in range(20):
            for name in (A, B, C, worker):
                three.members.alive(name)
            three.pass_time(limit / 19)
    assert three.seen("script_checked")


def test_failures_of_other_kinds_or_with_a_join_between_are_no_row(three: Stage) -> None:
    fails(three, 3)
    fails(three, 4)
    fails(three, 5, "9_5.0: OSError: no such file")
    fails(three, 6)
    fails(three, 7)
    joined = three.warm(8)
    three.pass_time(1.0)
    three.obey(A, B, C, joined)
    assert joined in three.world()
    for _ in range(2):
        three.pass_time(40.0)
    fails(three, 9)
    assert three.seen("script_checked") == []
