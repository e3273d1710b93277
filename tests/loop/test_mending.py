"""Membership as a pure state machine: what is lost, and how the rest is mended."""

from __future__ import annotations

import pytest

from malletrain.domain.errors import Refused
from malletrain.wire.messages import CheckedIn, Exited, Failed, Fault, Finished, Leaving, Left, Switched, Warm
from tests.loop.stage import A, B, C, D, Stage
from tests.messages import naming, says
from tests.world import data_of


def test_after_a_fault_the_silent_one_is_out(three: Stage) -> None:
    three.members.report(A, Fault(three.at[A], 7, "closed", "peer"))
    assert three.members.directive_for(B).check_in is not None
    for name in (A, B):
        three.members.report(name, CheckedIn(three.members.directive_for(name).check_in or 0, 0, 7, True))
    assert three.plan(A) == three.members.world(1), "the third may still answer"
    three.pass_time(2.1)
    plan = three.plan(A)
    assert plan is not None
    assert plan.urgent
    assert plan.workers == (A, B)
    assert [event.pilot for event in three.seen("worker_lost")] == ["9_2"]
    assert says(three.members.directive_for(C).end, "given up", "2 s")
    with pytest.raises(Refused, match="given up"):
        three.hello(2)


def test_a_dropped_connection_decides_at_once(three: Stage) -> None:
    three.members.disconnected(C)
    three.members.report(A, Fault(three.at[A], 7, "closed", "peer"))
    for name in (A, B):
        three.members.report(name, CheckedIn(three.members.directive_for(name).check_in or 0, 0, 7, True))
    assert (three.plan(A) or three.plan(B)).workers == (A, B)  # type: ignore[union-attr]


def test_a_dropped_connection_alone_is_forgiven(three: Stage) -> None:
    three.members.disconnected(C)
    three.clock.at += 3
    three.members.polled(C)
    three.pass_time(10)
    assert three.world() == [A, B, C]
    assert not three.seen("worker_lost")


def test_a_report_that_was_on_its_way_forgives_no_dropped_connection(three: Stage) -> None:
    three.members.disconnected(C)
    three.members.alive(C)
    three.members.report(A, Fault(three.at[A], 7, "closed", "connection reset by peer"))
    three.obey(A, B)
    assert three.world() == [A, B], "at once: it need not be waited for"


def test_the_end_of_a_connection_counts_between_two_polls_alone(three: Stage) -> None:
    three.members.polled(C)
    three.members.hung_up(C)
    worker = three.members.worker(C)
    assert worker is not None and not worker.dropped, "it polls on another"
    three.members.answered(C)
    three.members.hung_up(C)
    assert worker.dropped


def test_a_slow_peer_is_not_evicted(three: Stage) -> None:
    three.members.report(A, Fault(three.at[A], 7, "stalled", "no answer for 3 s"))
    three.obey(A, B, C)
    three.pass_time(2.1)
    assert three.world() == [A, B, C]
    assert not three.seen("worker_lost")
    assert len(three.seen("generation")) == 1


def test_a_frozen_peer_is_evicted(three: Stage) -> None:
    three.members.report(A, Fault(three.at[A], 7, "stalled", "no answer for 3 s"))
    three.obey(A, B)
    three.pass_time(2.1)
    three.obey(A, B)
    assert three.world() == [A, B]
    assert data_of(three.seen("generation")[-1])["switched_by"] == "fault"


def test_two_faults_at_once(three: Stage) -> None:
    three.members.report(A, Fault(three.at[A], 7, "closed", "one"))
    three.members.report(B, Fault(three.at[B], 7, "closed", "two"))
    three.obey(A)
    three.pass_time(2.1)
    three.obey(A)
    assert three.world() == [A]
    assert len(three.seen("worker_lost")) == 2


def test_a_fault_while_mending(three: Stage) -> None:
    three.members.report(A, Fault(three.at[A], 7, "closed", ""))
    for name in (A, B, C):
        three.members.report(name, CheckedIn(three.members.directive_for(name).check_in or 0, 0, 7, True))
    urgent = three.plan(A)
    assert urgent is not None
    assert urgent.workers == (A, B, C), "a network's hiccup loses nobody"
    three.members.report(A, Fault(urgent.generation, 7, "closed", ""))
    three.obey(A, B)
    three.pass_time(2.1)
    three.obey(A, B)
    assert three.world() == [A, B]


@pytest.mark.parametrize(("leavers_step", "members"), [(7, (A,)), (9, (A, B))])
def test_a_leaving_member_that_holds_more_steps_takes_part_once_more(
    leavers_step: int, members: tuple[str, ...]
) -> None:
    stage = Stage()
    stage.begin(2)
    stage.leave(1)
    for name, step in ((A, 7), (B, leavers_step)):
        stage.members.report(name, Fault(stage.at[A], step, "closed", ""))
    for name, step in ((A, 7), (B, leavers_step)):
        asked = stage.members.directive_for(name).check_in
        assert asked is not None
        stage.members.report(name, CheckedIn(asked, 0, step, True))
    plan = stage.plan(A)
    assert plan is not None
    assert plan.urgent
    assert plan.workers == members


def test_newcomers_are_never_in_an_urgent_plan(three: Stage) -> None:
    three.warm(3)
    three.members.report(A, Fault(three.at[A], 7, "closed", ""))
    three.obey(A, B, D)
    three.pass_time(2.1)
    plan = three.plan(A)
    assert plan is not None
    assert plan.urgent
    assert plan.workers == (A, B)
    three.obey(A, B)
    assert (three.plan(A) or plan).workers == (A, B, D), "but in the next one"
    three.obey(A, B, D)
    assert three.world() == [A, B, D]


def test_one_that_was_still_being_given_the_state_joins_again_after_a_fault(three: Stage) -> None:
    newcomer = three.warm(3)
    three.pass_time(0.2)
    three.obey(A, B, C, newcomer)
    assert newcomer in three.world()
    three.members.report(B, Fault(three.at[B], 6, "closed", A))
    three.members.disconnected(A)
    for name in (B, C, newcomer):
        asked = three.members.directive_for(name).check_in
        assert asked is not None
        three.members.report(name, CheckedIn(asked, 0, 6, name != newcomer))
    three.obey(B, C)
    assert three.world() == [B, C], "mending does not wait for a member without state"
    three.pass_time(0.2)
    three.obey(B, C, newcomer)
    assert three.world() == [B, C, newcomer]


def test_one_that_was_still_being_given_the_state_may_go_at_once_after_a_fault(three: Stage) -> None:
    newcomer = three.warm(3)
    three.pass_time(0.2)
    three.obey(A, B, C, newcomer)
    del three.at[newcomer]  # it does not hold the state
    three.members.report(B, Fault(three.at[B], 6, "closed", A))
    three.leave(3)
    three.obey(A, B, C, newcomer)
    assert three.members.directive_for(newcomer).end == "wanted"


def test_an_urgent_plan_is_shown_until_all_have_taken_it(three: Stage) -> None:
    """Found by random schedules: whoever left hid it from one that had not read it, by making the next plan due."""
    three.warm(3)
    three.obey(A, B, C, D)
    three.leave(2)
    three.members.report(A, Fault(three.at[A], 7, "closed", ""))
    three.obey(C)
    for name in (A, D):
        three.members.report(name, CheckedIn(three.members.directive_for(name).check_in or 0, 0, 7, True))
    three.pass_time(2.1)
    urgent = three.plan(A)
    assert urgent is not None
    assert urgent.workers == (A, D)
    three.obey(C)
    three.warm(1, restart=1)
    assert three.plan(A) == urgent
    three.members.report(A, Switched(urgent.generation, 7, 2, 0.1, False))
    assert three.plan(D) == urgent
    three.members.report(D, Switched(urgent.generation, 7, 2, 0.1, False))
    assert (three.plan(D) or urgent).workers == (A, D, "9_1.1")


def test_a_newcomer_that_dies_withdraws_the_plan(three: Stage) -> None:
    three.warm(3)
    three.members.report(D, Exited(-9))
    plan = three.plan(A)
    assert plan is not None
    assert not plan.urgent
    assert plan.workers == (A, B, C)
    three.obey(A, B, C)
    assert three.world() == [A, B, C]


def test_a_group_that_cannot_be_built_is_tried_again(three: Stage) -> None:
    three.warm(3)
    first = three.plan(A)
    assert first is not None
    three.members.report(D, Fault(first.generation, 0, "build", "no route"))
    second = three.plan(A)
    assert second is not None
    assert second.generation > first.generation
    assert second.workers == first.workers
    three.members.report(A, Fault(first.generation, 0, "build", "no route"))
    assert three.plan(A) == second, "an old plan's trouble is no news"


def test_tries_to_build_a_group_become_rare_and_find_who_is_gone(three: Stage) -> None:
    """(A member whose process had ended, unnoticed, made hundreds of generations a second.)"""
    three.warm(3)
    three.pass_time(0.3)
    before = three.plan(A)
    assert before is not None and before.has(D)
    three.members.report(A, Fault(before.generation, 0, "build", "connection refused"))
    first = three.plan(A)
    assert first is not None and first.generation == before.generation + 1, "at once"
    three.members.report(A, Fault(first.generation, 0, "build", "connection refused"))
    three.members.report(B, Fault(first.generation, 0, "build", "connection refused"))
    assert three.plan(A) == first
    for _ in range(30):
        three.obey_checks(A, B, C)
        three.pass_time(0.1)
    after = three.plan(A)
    assert after is not None and not after.has(D), "it did not check in"
    assert says(three.members.directive_for(D).end, "given up", "2 s")
    assert after.generation <= first.generation + 2


def test_a_group_that_can_never_be_built_costs_a_try_every_few_seconds(three: Stage) -> None:
    three.warm(3)
    three.pass_time(0.3)
    for _ in range(600):
        plan = three.plan(A)
        assert plan is not None
        if plan.has(D):
            three.members.report(A, Fault(plan.generation, 0, "build", "no route"))
        three.obey_checks(A, B, C, D)
        three.pass_time(0.1)
    tried = [event for event in three.seen("generation") if "another try" in event.reason]
    assert 10 <= len(tried) <= 25, "in a minute"


def test_a_worker_that_leaves_by_itself_is_not_waited_for(three: Stage) -> None:
    three.members.report(C, Left(0, 7, None))
    three.obey(A, B)
    assert three.world() == [A, B]
    assert not three.seen("worker_lost")


def test_all_lost_and_begun_again(three: Stage) -> None:
    for name in (A, B, C):
        three.members.report(name, Exited(-9))
    assert three.world() == []
    again = three.warm(0, restart=1)
    three.obey(again)
    assert three.world() == [again]


def test_an_exception_on_one_of_many_is_a_loss(three: Stage) -> None:
    three.members.report(C, Failed(7, "CUDA error"))
    three.obey(A, B)
    assert three.world() == [A, B]
    assert not three.seen("job_failed")


def test_an_exception_that_comes_again_fails_the_job(three: Stage) -> None:
    three.members.report(C, Failed(7, "ValueError: x"))
    three.obey(A, B)
    three.members.report(B, Failed(7, "ValueError: x"))
    failed = three.seen("job_failed")
    assert [event.reason for event in failed] == ["ValueError: x"]
    assert says(three.members.directive_for(A).end, "failed: ValueError: x")


def test_newcomers_that_fail_before_they_train_leave_the_others_alone(three: Stage) -> None:
    for task in (3, 4):
        worker = three.hello(task)
        three.members.report(worker, Failed(0, f"{worker}: not like the others"))
    assert not three.seen("job_failed")
    assert three.world() == [A, B, C]


def test_a_script_that_fails_before_it_began_fails_the_job() -> None:
    stage = Stage()
    worker = stage.hello(0)
    stage.members.report(worker, Exited(1))
    assert stage.seen("job_failed")[0].reason == "exit status 1"
    with pytest.raises(Refused, match="job 1 is over"):
        stage.hello(1)


def test_a_script_that_ends_well_without_training_has_not_completed() -> None:
    stage = Stage()
    stage.holding = {"9_0": False}
    worker = stage.hello(0)
    stage.members.report(worker, Exited(0))
    assert says(stage.seen("job_failed")[0].reason, "status 0", "without")
    assert not stage.seen("job_completed")


def test_one_that_has_trained_for_an_earlier_daemon_and_left_fails_no_job() -> None:
    stage = Stage()
    stage.holding = {"9_0": True}
    worker = stage.hello(0)
    stage.members.report(worker, Exited(0))
    assert not stage.seen("job_failed")
    assert stage.seen("worker_lost")


def test_one_that_never_gets_warm_is_given_up() -> None:
    stage = Stage()
    worker = stage.hello(0)
    for _ in range(12):
        stage.members.alive(worker)
        stage.pass_time(60)
    assert says(stage.seen("worker_lost")[0].reason, "warm", "600 s")


def test_a_newcomer_that_froze_while_it_joined_is_found(three: Stage) -> None:
    """Found by random schedules: no member that trains misses it, and growth waited for it without end."""
    three.warm(3)
    for _ in range(8):
        three.pass_time(1.0)
        for name in (A, B, C):
            there = three.members.directive_for(name)
            if there.check_in is not None:
                three.members.report(name, CheckedIn(there.check_in, 0, 7, True))
    assert [event.pilot for event in three.seen("worker_lost")] == ["9_3"]
    assert (three.plan(A) or three.plan(B)).workers == (A, B, C)  # type: ignore[union-attr]
    assert all(data_of(event)["switched_by"] == "plan" for event in three.seen("generation")), "no fault"


def test_a_lone_worker_that_stops_polling_is_lost() -> None:
    """Found by random schedules: killed between two polls, with no peer to miss it."""
    stage = Stage()
    worker = stage.warm(0)
    stage.obey(worker)
    stage.members.polled(worker)
    stage.pass_time(60)
    stage.members.answered(worker)
    assert stage.members.due() == stage.clock.at + 5.0
    stage.pass_time(4.9)
    assert stage.world() == [worker]
    stage.pass_time(0.2)
    assert stage.world() == []
    assert says(stage.seen("worker_lost")[0].reason, "poll")


def test_one_that_was_given_up_does_not_finish_the_job(three: Stage) -> None:
    three.members.report(A, Exited(-9))
    three.members.report(A, Finished({}))
    assert not three.seen("job_completed")


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after it was given up"])
def test_members_that_wait_for_a_frozen_newcomer_are_freed(three: Stage, later: bool) -> None:
    """They have agreed on the plan, and wait in its state recovery: no ordinary plan frees them."""
    three.warm(3)
    plan = three.plan(A)
    assert plan is not None

    def answer() -> None:
        for name in (A, B, C):
            there = three.members.directive_for(name)
            if there.check_in is not None:
                three.members.report(name, CheckedIn(there.check_in, 0, 7, True))

    if later:
        three.pass_time(5.1)
        answer()
        three.pass_time(2.1)
        assert three.seen("worker_lost")
    three.members.report(A, Fault(plan.generation, 7, "stalled", "in state recovery"))
    answer()
    three.pass_time(2.1)
    answer()
    urgent = three.plan(A)
    assert urgent is not None
    assert urgent.urgent
    assert urgent.workers == (A, B, C)


def test_a_newcomers_trouble_disturbs_nobody_who_trains(three: Stage) -> None:
    three.warm(3)
    plan = three.plan(A)
    assert plan is not None
    three.members.report(D, Fault(plan.generation, 0, "closed", "another newcomer died"))
    three.obey(A, B, C, D)
    assert not any(data_of(event)["switched_by"] == "fault" for event in three.seen("generation"))


def test_a_world_that_nobody_heard_for_a_while_is_taken_back(three: Stage) -> None:
    """The network was away, not the workers: they train on and bring their world back."""
    world = three.members.world(1)
    assert world is not None
    three.pass_time(200.0)
    assert three.world() == []
    assert len(three.seen("worker_lost")) == 3
    assert three.members.worker(A) is None, "its token counts no more: it says hello again"
    for name in (B, A, C):
        three.adopt(int(name[2]), world)
    assert three.world() == [A, B, C]
    assert three.members.directive_for(A).end is None
    three.warm(3)
    assert (three.plan(A) or world).workers == (A, B, C, D)


def test_a_world_that_was_replaced_meanwhile_is_not_taken_back(three: Stage) -> None:
    world = three.members.world(1)
    assert world is not None
    three.pass_time(200.0)
    other = three.warm(4)
    three.obey(other)
    assert three.world() == [other]
    with pytest.raises(Refused, match=naming("generation")):
        three.adopt(0, world)
    assert three.world() == [other]


def test_one_that_is_killed_does_not_return(three: Stage) -> None:
    for name in (A, B, C):
        three.members.report(name, Exited(-9))
    with pytest.raises(Refused, match="given up"):
        three.hello(0)


def test_silence_while_the_daemon_slept_is_forgiven(three: Stage) -> None:
    three.clock.at += 1000.0
    three.members.slept(1000.0)
    three.members.tick()
    assert three.world() == [A, B, C]
    three.pass_time(121.0)
    assert three.world() == []


def test_a_member_that_ends_before_it_was_out_of_its_world_is_mended_at_once(three: Stage) -> None:
    three.members.report(C, Leaving("SIGTERM from outside"))
    three.members.report(C, Exited(143))
    three.obey(A, B)
    assert three.world() == [A, B]
    assert data_of(three.seen("generation")[-1])["switched_by"] == "fault"
    assert not three.seen("worker_lost")


def test_silence_is_noticed_without_anybody_else_saying_something() -> None:
    """Found by simulation: a process that froze before it was warm; nothing made the daemon look."""
    stage = Stage()
    worker = stage.hello(0)
    due = stage.members.due()
    assert due == stage.clock.at + 120.0
    stage.pass_time(120.0)
    assert [data_of(event)["worker"] for event in stage.seen("worker_lost")] == [worker]


def test_who_missed_the_plan_that_mended_the_world_hears_it_from_the_next(three: Stage) -> None:
    """Found on real workers: a newcomer that took the state from a frozen member waited for ever."""
    newcomer = three.warm(3)
    three.pass_time(0.2)
    joins = three.plan(newcomer)
    assert joins is not None
    three.members.report(A, Fault(joins.generation, 6, "closed", newcomer))
    three.obey(A, B, C)  # they check in, and what comes is urgent
    three.members.disconnected(A)
    three.obey(B, C, newcomer)
    three.pass_time(5.0)
    three.obey(B, C)
    after = three.plan(newcomer)
    assert after is not None
    assert not after.urgent
    assert after.void_before > joins.generation


def test_who_takes_the_state_from_the_only_one_that_has_it_hears_that_it_is_lost() -> None:
    stage = Stage()
    only = stage.warm(0)
    stage.pass_time(0.2)
    stage.obey(only)
    newcomer = stage.warm(1)
    stage.pass_time(0.2)
    joins = stage.plan(newcomer)
    assert joins is not None
    stage.members.report(newcomer, Fault(joins.generation, 0, "stalled", "in state recovery"))
    stage.obey(newcomer)
    stage.pass_time(2.1)
    after = stage.plan(newcomer)
    assert after is not None
    assert after.workers == (newcomer,)
    assert after.void_before > joins.generation


def test_what_was_taken_is_never_void(three: Stage) -> None:
    """All of the world are lost while another waits: it begins anew, and what follows does not disturb it."""
    newcomer = three.warm(3)
    for worker in (A, B, C):
        three.members.disconnected(worker)
    three.pass_time(10.0)
    three.obey(newcomer)
    begun = three.at[newcomer]
    three.warm(4)
    three.pass_time(0.2)
    follows = three.plan(newcomer)
    assert follows is not None
    assert begun < follows.generation
    assert follows.void_before <= begun


def test_a_world_that_is_taken_back_is_not_void(three: Stage) -> None:
    """None of its members was heard for a while: the network was gone, and they trained on."""
    plan = three.plan(A)
    assert plan is not None
    three.pass_time(200.0)
    assert three.world() == []
    for task in range(3):
        three.adopt(task, plan)
    assert three.world() == [A, B, C]
    three.warm(3)
    three.pass_time(0.2)
    three.obey(A, B, C)
    follows = three.plan(A)
    assert follows is not None
    assert follows.void_before <= plan.generation


def _two_of_three_fall_silent(stage: Stage) -> None:
    stage.holding = dict.fromkeys(("9_0", "9_1", "9_2"), True)
    stage.members.report(A, Fault(stage.at[A], 7, "closed", "B and C"))
    stage.obey(A)
    stage.pass_time(2.1)
    stage.obey(A)


def test_a_silent_majority_gives_up_its_nodes_before_the_others_train_on(three: Stage) -> None:
    """Where it is not heard it may have made a world of its own."""
    _two_of_three_fall_silent(three)
    fenced = [event for event in three.seen("worker_lost") if data_of(event)["fenced"]]
    assert [event.pilot for event in fenced] == ["9_1", "9_2"]
    three.pass_time(5.0)
    three.obey(A)
    assert three.world() == [A, B, C], "their processes may not have ended"
    del three.holding["9_1"]
    three.pass_time(1.1)
    three.obey(A)
    assert three.world() == [A], "one of three is no majority"


def test_a_majority_whose_processes_have_ended_is_not_waited_for(three: Stage) -> None:
    _two_of_three_fall_silent(three)
    three.members.report(B, Exited(-9))
    three.obey(A)
    assert three.world() == [A]


def test_nodes_of_a_majority_that_are_not_given_back_hold_nobody_up_for_ever(three: Stage) -> None:
    _two_of_three_fall_silent(three)
    for _ in range(23):
        three.members.alive(A)
        three.pass_time(5.0)
        three.obey(A)
        assert three.world() == [A, B, C]
    three.members.alive(A)
    three.pass_time(10.0)
    three.obey(A)
    assert three.world() == [A]


def _one_of_three_leaves_as_another_falls_silent(stage: Stage) -> None:
    stage.holding = dict.fromkeys(("9_0", "9_1", "9_2"), True)
    stage.leave(1)
    stage.members.report(A, Fault(stage.at[A], 7, "closed", "C"))
    stage.obey_checks(A, B)
    stage.pass_time(2.1)


def test_a_plan_that_may_not_arrive_leaves_no_majority_out(three: Stage) -> None:
    """One leaves and one is silent: without the daemon these two would go on, beside the one of the plan."""
    _one_of_three_leaves_as_another_falls_silent(three)
    plan = three.plan(A)
    assert plan is not None
    assert (plan.urgent, plan.workers) == (True, (A, B))
    three.obey(A, B)
    three.pass_time(1.0)
    follows = three.plan(B)
    assert follows is not None
    assert (follows.urgent, follows.workers) == (False, (A,)), "which both take after the same step"


def test_one_that_leaves_is_left_out_where_the_silent_one_is_known_to_have_ended(three: Stage) -> None:
    three.members.report(C, Exited(-9))
    _one_of_three_leaves_as_another_falls_silent(three)
    assert three.world() == [A, B, C]
    three.obey(A)
    assert three.world() == [A]


def test_half_of_a_world_is_not_waited_for() -> None:
    stage = Stage()
    stage.begin(2)
    stage.holding = {"9_0": True, "9_1": True}
    stage.members.report(A, Fault(stage.at[A], 7, "closed", "B"))
    stage.obey(A)
    stage.pass_time(2.1)
    stage.obey(A)
    assert stage.world() == [A]


def test_a_member_that_is_bound_to_a_quorums_plan_is_given_a_later_one(three: Stage) -> None:
    """It voted while it was cut off, nobody else took the plan, and it takes none of an earlier number."""
    world = three.plan(A)
    assert world is not None
    three.members.report(A, Fault(three.at[A], 7, "closed", "C"))
    three.obey_checks(A, B)
    three.pass_time(2.1)
    pending = three.plan(B)
    assert pending is not None and pending.workers == (A, B)
    three.adopt(1, world, seen=world.generation + 500)
    three.obey_checks(A, B)
    later = three.plan(B)
    assert later is not None and later.urgent
    assert later.generation > world.generation + 500
    assert later.workers == (A, B)


def test_an_urgent_plan_that_is_on_its_way_to_silent_members_may_have_been_taken() -> None:
    """Found by simulation: both were silent for a while, and the first to be heard again brought the world before."""
    stage = Stage()
    stage.begin(2)
    world = stage.members.world(1)
    assert world is not None
    stage.holding = {"9_0": True, "9_1": True}
    stage.members.report(B, Fault(stage.at[B], 7, "stalled", "no answer for 3 s"))
    stage.obey_checks(B)
    stage.pass_time(2.1)
    assert (stage.plan(B) or world).workers == (B,)
    stage.members.answered(B)
    stage.pass_time(stage.members.settings.reconnect_s + 0.1)
    stage.adopt(0, world)
    stage.members.report(A, Fault(world.generation, 7, "stalled", "no answer for 3 s"))
    stage.obey_checks(A)
    stage.pass_time(stage.members.settings.adopt_s)
    stage.obey_checks(A)
    assert stage.members.world(1).workers == (A, B), "B may train alone"  # type: ignore[union-attr]
    assert (stage.plan(A) or world).workers != (A,)
    assert data_of(stage.seen("worker_lost")[-1])["fenced"]
    stage.holding = {"9_0": True}
    stage.pass_time(1.1)
    assert (stage.plan(A) or world).workers == (A,)


def test_no_world_begins_beside_a_plan_that_was_replaced_and_whose_members_are_all_silent() -> None:
    """Found by simulation: they reached each other later, and began in it; two worlds trained."""
    stage = Stage()
    stage.holding = {"9_0": True, "9_1": True}
    for task in (0, 1):
        stage.hello(task)
    for name in (A, B):
        stage.members.report(name, Warm(f"{name}:1", {}))
    assert (first := stage.plan(A)) is not None
    assert first.workers == (A, B)
    for task in (2, 3):
        stage.warm(task)
    stage.members.answered(B)
    stage.pass_time(stage.members.settings.reconnect_s + 0.1)
    stage.obey_checks(A)
    assert (stage.plan(C) or first).workers == (A, C, D)
    stage.pass_time(stage.members.settings.prepare_s + 0.1)
    stage.obey_checks(C, D)
    stage.pass_time(stage.members.settings.check_in_s + 0.1)
    assert (stage.plan(C) or first).workers == (A, C, D)
    fenced = [event.pilot for event in stage.seen("worker_lost") if data_of(event)["fenced"]]
    assert fenced == ["9_0", "9_1"]
    stage.holding = {}
    stage.pass_time(1.1)
    assert (stage.plan(C) or first).workers == (C, D)
