"""Membership as a pure state machine: who begins, joins, leaves and comes back, and in which order."""

from __future__ import annotations

import pytest

from malletrain.domain.errors import Refused
from malletrain.loop.membership.admission import Claim
from malletrain.loop.membership.next_world import GENERATION_GAP
from malletrain.wire.messages import Exited, Finished, Left, Switched, ToppedUp, Warm
from tests.loop.stage import A, B, C, D, Stage
from tests.messages import says
from tests.world import data_of


def test_those_who_warm_up_together_begin_together(three: Stage) -> None:
    generation = three.seen("generation")
    assert [data_of(event)["members"] for event in generation] == [["9_0", "9_1", "9_2"]]
    assert len(three.seen("switched")) == 1, "one report of a switch, that of the oldest"


def test_a_world_grows_when_a_newcomer_is_warm(three: Stage) -> None:
    three.warm(3)
    assert three.world() == [A, B, C], "a plan is not yet a world"
    plan = three.plan(A)
    assert plan is not None
    assert plan.workers == (A, B, C, D)
    assert plan.store == "h0:1", "the oldest's"
    three.obey(A, B, C, D)
    assert three.world() == [A, B, C, D]


def test_leavers_leave_together(three: Stage) -> None:
    three.leave(0)
    three.leave(1)
    three.pass_time(0.05)
    three.obey(A, B, C)
    assert three.world() == [C]
    assert {event.pilot for event in three.seen("worker_left")} == {"9_0", "9_1"}
    assert len(three.seen("generation")) == 2
    assert three.members.directive_for(A).end == "wanted"


def test_leaving_twice_is_leaving_once(three: Stage) -> None:
    three.leave(0)
    three.leave(0)
    three.pass_time(0.05)
    three.obey(A, B, C)
    three.leave(0)
    three.pass_time(0.05)
    assert len(three.seen("worker_left")) == 1


def test_a_worker_without_a_part_leaves_at_once(three: Stage) -> None:
    three.hello(3)
    three.leave(3)
    assert [event.pilot for event in three.seen("worker_left")] == ["9_3"]


def test_when_all_leave_the_world_ends(three: Stage) -> None:
    for task in range(3):
        three.leave(task)
    three.pass_time(0.05)
    plan = three.plan(A)
    assert plan is not None
    assert plan.members == ()
    three.obey(A, B, C)
    assert three.world() == []
    assert len(three.seen("worker_left")) == 3
    again = three.warm(0, restart=1)
    assert (three.plan(again) or plan).workers == (again,)


def test_the_next_change_waits_until_all_have_arrived(three: Stage) -> None:
    """A newcomer that is being given the state must not be told of another plan meanwhile."""
    three.warm(3)
    plan = three.plan(A)
    assert plan is not None
    three.members.report(B, Switched(plan.generation, 7, 4, 0.1, True))
    three.warm(4)
    assert three.plan(D) == plan
    for name in (A, C, D):
        three.members.report(name, Switched(plan.generation, 7, 4, 0.1, True))
    assert len((three.plan(D) or plan).workers) == 5


def test_one_that_never_says_that_it_has_arrived_holds_nobody_up_for_long(three: Stage) -> None:
    three.warm(3)
    three.obey(A, B, C)
    three.warm(4)
    three.pass_time(5.1)
    assert len((three.plan(A) or three.plan(B)).workers) == 5  # type: ignore[union-attr]


def test_members_whose_nodes_failed_are_not_waited_for(three: Stage) -> None:
    """No connection breaks there: they would be silent for two minutes."""
    three.warm(3)
    for worker in (A, B, C):
        del three.at[worker]
    three.members.pilots_ended(1, ["9_0", "9_1", "9_2"])
    three.obey(D)
    three.pass_time(three.members.settings.check_in_s)
    three.obey(D)
    assert three.world() == [D]


def test_the_end_of_a_pilot_concerns_no_other(three: Stage) -> None:
    three.members.pilots_ended(1, ["9_1"])
    three.members.pilots_ended(2, ["9_0"])
    for worker in (A, C):
        three.obey_checks(worker)
    three.obey(A, C)
    assert three.world() == [A, C]
    assert [event.pilot for event in three.seen("worker_lost")] == ["9_1"]


def test_a_finished_job_ends_for_all(three: Stage) -> None:
    three.members.report(A, Finished({"accuracy": 0.9}))
    three.members.report(B, Finished({"accuracy": 0.9}))
    assert [dict(data_of(event)) for event in three.seen("job_completed")] == [{"result": {"accuracy": 0.9}}]
    assert three.members.directive_for(C).end == "training finished"
    three.members.report(C, Exited(0))
    assert not three.seen("worker_lost")


def test_a_pilot_that_was_started_again_replaces_its_past_self(three: Stage) -> None:
    three.warm(2, restart=1)
    three.obey(A, B)
    (lost,) = three.seen("worker_lost")
    assert says(lost.reason, "pilot", "again")
    assert data_of(three.seen("generation")[1]) == {
        "generation": 2, "members": ["9_0", "9_1"], "switched_by": "fault"
    }  # fmt: skip


def test_strangers_are_refused() -> None:
    stage = Stage()
    with pytest.raises(Refused, match="your job"):
        stage.members.hello(Claim(1, "9_0", 0, "n0", 1001))


def test_a_restarted_daemon_adopts_a_world(three: Stage) -> None:
    old = three.members.world(1)
    assert old is not None
    again = Stage(generations={1: old.generation})
    again.at = dict(three.at)
    for name in (B, A):
        again.adopt(int(name[2]), old)
    assert again.world() == [A, B, C]
    assert not again.seen("generation"), "nobody is disturbed"
    again.warm(3)
    plan = again.plan(A)
    assert plan is not None
    assert plan.workers == (A, B, C, D), "the third keeps its seat for a while"
    assert plan.generation > old.generation + GENERATION_GAP
    again.pass_time(61)
    assert says(again.seen("worker_lost")[0].reason, "daemon restarted")


def test_an_older_database_never_gives_a_number_twice(three: Stage) -> None:
    again = Stage(generations={1: 0})
    old = three.members.world(1)
    assert old is not None
    again.adopt(0, old, 7777, seen=7778)
    again.warm(3)
    plan = again.plan(A)
    assert plan is not None
    assert plan.generation > 7778


def test_directives_are_numbered_by_change(three: Stage) -> None:
    first = three.members.directive_for(A)
    assert three.members.directive_for(A).seq == first.seq
    three.warm(3)
    assert three.members.directive_for(A).seq == first.seq + 1


def test_tasks_are_topped_up_by_the_oldest_that_stays(three: Stage) -> None:
    three.leave(0)
    assert three.members.top_up(1, 8)
    assert three.members.directive_for(B).top_up == 8
    three.members.report(B, ToppedUp(1, 1))
    assert three.members.directive_for(B).top_up == 0
    assert not three.members.top_up(2, 8)


def test_three_hundred_members() -> None:
    stage = Stage()
    workers = stage.begin(300)
    assert len(stage.world()) == 300
    for task in range(0, 300, 3):
        stage.leave(task)
    stage.pass_time(0.05)
    stage.obey(*workers)
    assert len(stage.world()) == 200
    assert len(stage.seen("generation")) == 2


def test_a_plan_superseded_in_the_moment_of_agreement_is_still_known(three: Stage) -> None:
    """Found by random schedules: they agreed on g while g + 1 was being published; then who left by g did not err."""
    three.leave(2)
    three.pass_time(0.05)
    first = three.plan(A)
    assert first is not None
    three.leave(1)
    second = three.plan(A)
    assert second is not None
    assert second.generation == first.generation + 1
    three.members.report(C, Left(first.generation, 7, None))
    assert three.world() == [A, B]
    three.members.report(B, Switched(first.generation, 7, 2, 0.0, False))
    assert three.plan(A) == second
    assert all(data_of(event)["switched_by"] == "plan" for event in three.seen("generation"))
    three.members.report(B, Left(second.generation, 8, None))
    three.members.report(A, Switched(second.generation, 8, 1, 0.0, False))
    assert three.world() == [A]
    assert not three.seen("worker_lost")


def test_one_of_another_world_leaves_by_a_plan_without_the_members_consent(three: Stage) -> None:
    """Found by simulation: its own world was void, and the plan counted as taken: a member left without saving."""
    world = three.members.world(1)
    three.warm(3)
    three.leave(3)
    plan = three.plan(A)
    assert plan is not None and plan.workers == (A, B, C)
    three.members.report(D, Left(plan.generation, 5, None))
    assert three.members.world(1) == world
    assert three.plan(A) == plan


def test_a_newcomer_that_is_to_go_while_a_plan_has_it_goes_when_that_is_withdrawn(three: Stage) -> None:
    """Found by simulation: it had no part in any world, and held its node without end."""
    three.warm(3)
    three.leave(3)
    withdrawn = three.plan(A)
    assert withdrawn is not None
    assert not withdrawn.has(D)
    assert three.members.directive_for(D).end is None, "they may have agreed on the first plan in this moment"
    three.obey(A, B, C)
    assert three.world() == [A, B, C]
    assert three.members.directive_for(D).end == "wanted"
    assert [event.pilot for event in three.seen("worker_left")] == ["9_3"]


def test_a_check_that_a_time_limit_began_is_due_at_its_own_limit() -> None:
    stage = Stage()
    workers = stage.begin(3)
    stage.members.answered(workers[2])
    limits = stage.members.settings
    stage.pass_time(limits.reconnect_s)  # the third is lost: it does not poll any more
    assert stage.members.directive_for(workers[0]).check_in is not None
    due = stage.members.due()
    assert due is not None and due <= stage.clock.at + limits.check_in_s


def test_what_happens_to_one_job_concerns_its_workers_alone() -> None:
    stage = Stage()
    for job in (1, 2):
        stage.members.hello(Claim(job, f"{job}0_0", 0, f"n{job}", 1000))
    stage.members.settled()
    stage.members.report("10_0.0", Warm("h1:1", {}))
    assert set(stage.members.settled()) == {1}
    assert not stage.members.settled(), "it is told once"
    stage.members.top_up(2, 3)
    assert set(stage.members.settled()) == {2}


def test_a_time_limit_of_one_job_leaves_the_others_alone() -> None:
    stage = Stage()
    for job in (1, 2):
        stage.members.hello(Claim(job, f"{job}0_0", 0, f"n{job}", 1000))
    stage.members.polled("10_0.0")
    stage.members.answered("20_0.0")
    limits = stage.members.settings
    due = stage.members.due()
    assert due == stage.members.due_of(2) == stage.clock.at + limits.reconnect_s
    stage.clock.at = due
    stage.members.settled()
    stage.members.tick()
    assert set(stage.members.settled()) == {2}
    assert stage.members.worker("20_0.0") is not None
    assert [event.kind for event in stage.members.reports()][-1] == "worker_lost"


def test_jobs_that_ended_long_ago_are_forgotten_without_anything_of_theirs_being_due() -> None:
    stage = Stage()
    (worker,) = stage.begin(1)
    stage.members.report(worker, Finished({}))
    stage.pass_time(20 * stage.members.settings.silence_s)
    stage.pass_time(20 * stage.members.settings.silence_s)
    assert stage.members.job(1) is None
    assert stage.members.worker(worker) is None
