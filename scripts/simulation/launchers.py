"""Launchers of jobs that are relaunched at each size, and of independent items: there the launcher is the member.

This follows `malletrain.elastic.launch.restart` and `item_worker`. The scripts of a job share a folder: of one that
is relaunched the checkpoint, of independent items those that are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from malletrain.domain.job import Elastic
from malletrain.wire.messages import Failed, Fault, Finished, Left, Plan, Samples, Switched, Warm
from scripts.simulation.process import Process

if TYPE_CHECKING:
    from scripts.simulation.workers import Workers

#: A script saves so often, in steps.
STEPS_A_SAVE = 40
#: It takes so long to save and end when it is asked to, in seconds, at most.
LONGEST_SAVE_S = 8.0
#: Seconds until a script has noticed that a peer's is gone.
BROKEN_S = 0.5
#: As in `malletrain.elastic.launch.restart`.
MAX_FAILURES, EARLY_FAILURE_S, WAITS_FOR_A_PLAN_S = 3, 60.0, 180.0
#: Seconds that one item takes, and between two reports of what is committed.
ITEM_S, ITEMS_REPORT_S = 1.0, 10.0


class Launchers:
    """What each does in a step. `end`: called with a process that ends by itself, and its exit status."""

    def __init__(self, crew: Workers, end: Callable[[Process, int], None]) -> None:
        self._crew, self._end = crew, end

    def act(self, me: Process) -> None:
        """One step of one launcher and its script."""
        items = me.elastic is Elastic.TASKS
        if not me.warm and me.has_greeted and (not items or self._crew.now >= me.warm_at):
            me.warm = True
            me.outbox.append(Warm(me.address))
        told = me.told
        if told is not None:
            self._crew.answer(me, whole=me.has_script or (items and me.warm))
        if me.stopping_until is not None:
            if self._crew.now >= me.stopping_until:
                self._stopped(me)
            return
        if me.terminated or (told is not None and told.end is not None):
            self.leave(me, 0, saves=told is None or not told.given_up)
            return
        if told is None:
            return
        plan = told.plan
        if plan is not None and plan.generation > me.tried:
            if plan.has(me.name):
                self._take(me, plan)
            elif me.at is not None and (items or me.has_script):
                self.leave(me, plan.generation)
                return
        if me.must_start and not told.hold:
            me.must_start, me.script_at = False, self._crew.now + self._crew.rng.uniform(0.5, 3.0)
        if items:
            self._work(me)
        elif me.script_at is not None and me.at is not None:
            self._train(me, me.at)
        elif me.failed_at is not None and self._crew.now > me.failed_at + WAITS_FOR_A_PLAN_S:
            self._end(me, 1)

    def leave(self, me: Process, generation: int, *, saves: bool = True) -> None:
        """Its script saves and ends, and it waits for its node to be taken back. `saves` False: it is killed."""
        if not saves:
            me.holds_state, me.stopping_until = False, None
        if me.stopping_until is None:
            self._stop(me)
        me.leaving_by, me.next_plan = generation, None

    def _take(self, me: Process, plan: Plan) -> None:
        me.tried = plan.generation
        if me.elastic is Elastic.TASKS:
            self._enter(me, plan)
            return
        ran_on = me.script_at is not None and self._crew.now - me.script_at >= EARLY_FAILURE_S
        losses = me.told.losses if me.told is not None else 0
        if ran_on or losses != me.losses:
            me.failures, me.losses = 0, losses
        self._stop(me)
        me.next_plan = plan

    def _stop(self, me: Process) -> None:
        """The script is asked to save and to end. Its first process takes some seconds for that."""
        saves = me.holds_state and me.at is not None and me.at.workers[0] == me.name
        me.stopping_until = self._crew.now + (self._crew.rng.uniform(0.0, LONGEST_SAVE_S) if saves else 0.0)

    def _stopped(self, me: Process) -> None:
        if me.holds_state and me.at is not None and me.at.workers[0] == me.name:
            self._crew.progress[me.job].save(me.at, me.step)
        me.stopping_until, me.script_at, me.holds_state, me.must_start = None, None, False, False
        if me.next_plan is not None:
            self._enter(me, me.next_plan)
            me.must_start, me.next_plan = True, None
            return
        me.outbox.append(Left(me.leaving_by, 0))
        me.at, me.left_at = None, self._crew.now

    def _enter(self, me: Process, plan: Plan) -> None:
        before = len(me.at.members) if me.at is not None else 0
        me.at, me.failed_at = plan, None
        me.outbox.append(Switched(plan.generation, 0, len(plan.members), 0.1, len(plan.members) > before))

    def _train(self, me: Process, world: Plan) -> None:
        crew = self._crew
        peers = crew.seats(world)
        gone = peers is None or any(
            each.at is None
            or each.at.generation != world.generation
            or each.script_at is None
            or each.stopping_until is not None
            for each in peers
        )
        if gone and me.holds_state:
            me.waits_s += crew.step_s
            if me.waits_s >= BROKEN_S:
                self._fail(me, world)
            return
        me.waits_s = 0.0
        if gone or peers is None or me is not peers[0] or not crew.all_reach(peers):
            return  # it waits for others, as long as it takes; its first process does the step for all
        if not all(crew.runs(each) and (each.script_at or 0.0) <= crew.now for each in peers):
            return
        job = crew.progress[me.job]
        if not me.holds_state:
            job.committed = job.saved
            for each in peers:
                each.step, each.holds_state = job.saved, True
        if me.step >= job.total:
            me.outbox.append(Finished({}))
            for each in peers:
                each.at, each.script_at, each.holds_state = None, None, False
                each.left_at, each.ends = crew.now, True
            return
        job.commit(world, me.step)
        for each in peers:
            each.step += 1
        if me.step % STEPS_A_SAVE == 0:
            job.save(world, me.step)

    def _fail(self, me: Process, world: Plan) -> None:
        """The script ends with an error, since a peer's has gone."""
        now = self._crew.now
        early = me.script_at is not None and now - me.script_at < EARLY_FAILURE_S
        me.failures = me.failures + 1 if early else 1
        me.script_at, me.holds_state, me.waits_s, me.failed_at = None, False, 0.0, now
        if me.failures >= MAX_FAILURES:
            me.outbox.append(Failed(0, f"the script ended with status 1, {me.failures} times in a row"))
            me.at, me.left_at, me.ends = None, now, True
            return
        me.outbox.append(Fault(world.generation, 0, "closed", "the script ended with status 1"))

    def _work(self, me: Process) -> None:
        """The script works on items from its start to its end, whatever the world is."""
        crew, job = self._crew, self._crew.progress[me.job]
        if crew.now < me.warm_at:
            return
        if job.committed >= job.total:
            me.outbox.append(Finished({"items": job.total}))
            me.at, me.left_at, me.ends = None, crew.now, True
            return
        me.waits_s += crew.step_s
        if me.waits_s >= ITEM_S:
            me.waits_s = 0.0
            job.committed += 1
        first = me.at is not None and me.at.workers[0] == me.name
        if first and me.at is not None and crew.now - me.reported_at >= ITEMS_REPORT_S and job.committed > me.step:
            done, seconds = job.committed - me.step, crew.now - me.reported_at
            if me.reported_at:
                me.outbox.append(Samples(job.committed, len(me.at.members), done, seconds, 1, job.committed))
            me.reported_at, me.step = crew.now, job.committed
