"""Jobs that are relaunched for each world: launchers take plans one by one; the daemon keeps their scripts apart."""

from __future__ import annotations

from malletrain.domain.event import WorkerLost
from malletrain.loop.membership.next_world import JobTerms
from malletrain.wire.messages import Fault, Left, Standing, Switched, Warm
from tests.loop.stage import A, B, C, Stage

PILOTS = {A: "9_0", B: "9_1", C: "9_2"}


def _take(stage: Stage, *workers: str) -> None:
    """Their scripts have ended, and they are in the world of the plan that they are shown."""
    for name in workers:
        plan = stage.plan(name)
        assert plan is not None and plan.has(name)
        stage.members.report(name, Switched(plan.generation, 0, len(plan.members), 0.1, False))


def _poll(stage: Stage, seconds: float, *workers: str) -> None:
    """These poll on and answer checks, and the others are silent."""
    for _ in range(round(4 * seconds)):
        for name in workers:
            stage.members.polled(name)
        stage.at.update(dict.fromkeys(workers, 1))
        stage.obey_checks(*workers)
        stage.pass_time(0.25)


def _holds(stage: Stage, worker: str) -> bool:
    return stage.members.directive_for(worker).hold


def _numbered(stage: Stage, worker: str) -> int:
    plan = stage.plan(worker)
    return plan.generation if plan is not None else 0


def _fenced(stage: Stage) -> list[str | None]:
    """The pilots whose nodes are taken back."""
    lost = stage.seen("worker_lost")
    return [event.pilot for event in lost if isinstance(event.payload, WorkerLost) and event.payload.fenced]


def _one_and_a_newcomer(*, items: bool = False) -> Stage:
    """The first trains alone in world 1; the second is in world 2, with both, which the first has not taken."""
    stage = Stage(JobTerms(restarts=True, items=items))
    stage.warm(0)
    _take(stage, A)
    stage.warm(1)
    _poll(stage, 1.0, A, B)
    stage.holding = {PILOTS[A]: True, PILOTS[B]: True}
    _take(stage, B)
    assert stage.world() == [A, B]
    return stage


def _fall_silent(stage: Stage, silent: str = A, heard: str = B) -> None:
    stage.members.disconnected(silent)
    _poll(stage, 10.0, heard)


def test_no_script_starts_before_those_of_the_world_before_have_ended() -> None:
    stage = _one_and_a_newcomer()
    assert _holds(stage, B), "the first still saves what this one is to load"
    _take(stage, A)
    assert not _holds(stage, A) and not _holds(stage, B)


def test_one_that_leaves_has_saved_before_the_others_start() -> None:
    stage = _one_and_a_newcomer()
    _take(stage, A)
    stage.leave(0)
    _poll(stage, 1.0, A, B)
    _take(stage, B)
    assert stage.world() == [B]
    assert _holds(stage, B)
    stage.members.report(A, Left(_numbered(stage, A), 0))
    assert not _holds(stage, B)


def test_the_next_world_waits_for_a_script_that_takes_long_to_save() -> None:
    stage = _one_and_a_newcomer()
    stage.warm(2)
    _poll(stage, 30.0, A, B, C)
    assert stage.world() == [A, B], "the first has not ended its script"
    assert not (plan := stage.plan(C)) or not plan.has(C)
    _take(stage, A)
    _poll(stage, 1.0, A, B, C)
    assert (plan := stage.plan(C)) and plan.workers == (A, B, C)


def test_a_script_that_may_train_on_unheard_in_the_world_before_loses_its_node_first() -> None:
    stage = _one_and_a_newcomer()
    before = _numbered(stage, B)
    _fall_silent(stage)
    assert _numbered(stage, B) == before, "two worlds of one job would train"
    assert _fenced(stage) == [PILOTS[A]]
    del stage.holding[PILOTS[A]]
    _poll(stage, 2.0, B)
    plan = stage.plan(B)
    assert plan is not None and plan.workers == (B,) and plan.generation > before


def test_it_is_not_waited_for_longer_than_slurm_may_take_to_kill_it() -> None:
    stage = _one_and_a_newcomer()
    before = _numbered(stage, B)
    _fall_silent(stage)
    _poll(stage, stage.members.settings.fence_s, B)
    assert _numbered(stage, B) > before


def test_a_world_that_a_heard_member_leaves_is_over_and_nothing_is_waited_for() -> None:
    stage = _one_and_a_newcomer()
    _take(stage, A)
    before = _numbered(stage, A)
    _fall_silent(stage, B, A)
    assert _numbered(stage, A) > before
    assert _fenced(stage) == []


def test_the_first_of_a_world_that_is_over_may_still_save_so_it_loses_its_node_first() -> None:
    """A script that was frozen as it saved would write an older state over that of the next world."""
    stage = _one_and_a_newcomer()
    _take(stage, A)
    before = _numbered(stage, B)
    _fall_silent(stage)
    assert _numbered(stage, B) == before
    assert _fenced(stage) == [PILOTS[A]]
    del stage.holding[PILOTS[A]]
    _poll(stage, 2.0, B)
    assert _numbered(stage, B) > before


def test_a_member_that_a_restarted_daemon_has_not_heard_holds_the_others() -> None:
    stage = Stage(JobTerms(restarts=True), generations={1: 7})
    stage.holding = {PILOTS[A]: True, PILOTS[B]: True}
    old = _one_and_a_newcomer()
    world = old.members.world(1)
    assert world is not None
    stage.hello(1, standing=Standing(7, world.members, 0, "", 7))
    stage.warm(2)
    _poll(stage, 1.0, B, C)
    _poll(stage, stage.members.settings.adopt_s + 5.0, B, C)
    assert _fenced(stage) == [PILOTS[A]], "it may be in a world before that one, alone"


def test_one_that_leaves_by_itself_counts_as_lost_since_the_scripts_of_the_others_fail() -> None:
    """Else a script whose peers Slurm terminates one after the other would fail its job."""
    stage = _one_and_a_newcomer()
    _take(stage, A)
    before = stage.members.directive_for(B).losses
    stage.members.report(A, Left(0, 0))
    assert stage.members.directive_for(B).losses == before + 1


def test_one_that_leaves_by_a_plan_counts_as_no_loss() -> None:
    stage = _one_and_a_newcomer()
    _take(stage, A)
    stage.leave(0)
    _poll(stage, 1.0, A, B)
    _take(stage, B)
    before = stage.members.directive_for(B).losses
    stage.members.report(A, Left(_numbered(stage, A), 0))
    assert stage.members.directive_for(B).losses == before


def test_a_launcher_whose_script_failed_may_name_another_port() -> None:
    """That of before may have been taken by another process while no script listened there."""
    stage = _one_and_a_newcomer()
    _take(stage, A)
    stage.members.report(A, Warm("h0:2", {}))
    stage.members.report(A, Fault(_numbered(stage, A), 0, "closed", "the script ended with status 1"))
    _poll(stage, 1.0, A, B)
    plan = stage.plan(B)
    assert plan is not None and plan.workers == (A, B)
    assert plan.store == "h0:2"


def test_items_are_independent_so_nothing_is_held() -> None:
    stage = _one_and_a_newcomer(items=True)
    assert not _holds(stage, B)
    before = _numbered(stage, B)
    _fall_silent(stage)
    assert _numbered(stage, B) > before


def test_one_that_is_given_up_is_told_to_save_nothing() -> None:
    stage = _one_and_a_newcomer()
    _take(stage, A)
    _fall_silent(stage)
    told = stage.members.directive_for(A)
    assert told.end and told.given_up
    stage.members.end_job(1, "cancelled by its owner")
    told = stage.members.directive_for(B)
    assert told.end and not told.given_up


def test_scripts_of_a_plan_without_the_first_are_held_until_its_node_is_free() -> None:
    """It was asked to leave, and is not heard any more while it saves."""
    stage = _one_and_a_newcomer()
    _take(stage, A)
    stage.leave(0)
    _poll(stage, 1.0, A, B)
    _take(stage, B)
    assert stage.world() == [B] and _holds(stage, B)
    _fall_silent(stage)
    assert _fenced(stage) == [PILOTS[A]]
    assert _holds(stage, B), "the first may still save what this one is to load"
    del stage.holding[PILOTS[A]]
    _poll(stage, 2.0, B)
    assert not _holds(stage, B)
