"""What each report of a worker changes.

A worker's life: hello (JOINING), warm (WARM), member of a published generation, switched (SERVING), left or lost.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from malletrain.domain import event as kinds
from malletrain.domain.job import ScriptVerdict
from malletrain.loop.membership.machine import JobMachine
from malletrain.loop.membership.state import Phase, Worker
from malletrain.loop.trackers.costs import NOTICED_S
from malletrain.wire import messages as wire

#: Figures by name that a job may have, and characters of JSON of its result: both are in every row of it.
MAX_FIGURES, MAX_RESULT_CHARS = 64, 16_384

#: So often a job's journal says where it makes no step.
MAX_STUCK = 100

#: By so much (seconds) a worker's measure and the daemon's may differ.
CLOCK_S = 1.0

#: Exit statuses of a process that a signal ended, as a shell gives them (128 + signal).
_SIGNAL_STATUSES = frozenset({129, 130, 131, 134, 135, 136, 137, 139, 143})


def apply(machine: JobMachine, this: Worker, message: wire.Message) -> None:
    """Applies one report of a worker to its job, and makes every decision that follows."""
    match message:
        case wire.Warm():
            _warm(machine, this, message)
        case wire.CheckedIn():
            _checked_in(machine, this, message)
        case wire.Fault():
            _fault(machine, this, message)
        case wire.Switched():
            _switched(machine, this, message)
        case wire.Leaving():
            if this.leaving_since is None and this.phase.lives:
                machine.ask_to_leave(this, message.why)
        case wire.Left():
            _left(machine, this, message)
        case wire.Samples():
            _samples(machine, this, message)
            if not machine.climbs:
                return  # nothing to decide
        case wire.Metric():
            _metric(machine, this, message)
            return
        case wire.Finished():
            if machine.over is None and this.phase.lives:
                machine.emit(kinds.JobCompleted(_bounded(message.result)), this, "training finished")
                machine.end("training finished")
        case wire.Failed():
            _failed(machine, this, message)
        case wire.Exited():
            _exited(machine, this, message)
        case wire.CheckDone():
            _check_done(machine, this, message)
        case wire.Compared():
            if machine.over is None and machine.trains(this.id):
                machine.note_trial(this, message.text)
        case wire.Stuck():
            _stuck(machine, this, message)
            return
        case wire.ToppedUp():
            this.top_up = 0
            return
    machine.settle()


def _warm(machine: JobMachine, this: Worker, said: wire.Warm) -> None:
    """The worker is ready to join: it has imported, built its model and run it once."""
    if this.phase is Phase.JOINING:
        this.phase, this.address, this.warm_at = Phase.WARM, said.address, machine.clock.elapsed()
        machine.emit(kinds.WorkerWarm(this.id, dict(said.stages)), this)
    elif machine.relaunches and this.phase.lives:
        this.address = said.address  # its script failed: it names another port for the next one


def _checked_in(machine: JobMachine, this: Worker, said: wire.CheckedIn) -> None:
    if this.phase is Phase.JOINING and machine.trains(this.id):
        machine.train(this)
    if machine.check is not None and machine.check.number == said.answers and this.id in machine.check.asked:
        machine.check.answered.add(this.id)
        if said.whole:
            machine.check.whole[this.id] = said.step


def _fault(machine: JobMachine, this: Worker, said: wire.Fault) -> None:
    """A world does not work: `closed` and `build` break it; `stalled` starts a check of who is still there."""
    machine.step = max(machine.step, said.step)
    latest = machine.pending or machine.world
    if latest is None or said.generation < (machine.world.generation if machine.world else 0) or machine.over:
        return
    if latest.urgent and said.generation < latest.generation:
        return  # repaired already
    if said.how == "build" and not latest.urgent and machine.pending is not None:
        # No member trains in it yet: replace it by another plan of the same members.
        if said.generation == machine.pending.generation:
            machine.build_again(f"another try, {this.id} could not build: {said.detail}"[:400])
        return
    # A member that speaks of a plan newer than its world waits in it already. What a newcomer meets there is its
    # own trouble, unless no world trains at all.
    trains = machine.world is None or machine.world.has(this.id)
    entered = trains and machine.world is not None and said.generation > machine.world.generation
    plan = machine.published.get(said.generation)
    in_vain = entered and plan is not None and not machine.all_live(plan)
    broken = trains and (said.how != "stalled" or in_vain)
    machine.ask(f"{this.id}: {said.how} {said.detail}".strip()[:400], broken=broken, entered=entered)


def _switched(machine: JobMachine, this: Worker, said: wire.Switched) -> None:
    """The worker trains in a new generation."""
    machine.step = max(machine.step, said.step)
    entered = machine.published.get(said.generation) or machine.world
    if entered is not None and entered.generation == said.generation and entered.has(this.id):
        this.at = entered
    machine.take(said.generation)
    world = machine.world
    if world is None or world.generation != said.generation:
        return
    machine.arrived.add(this.id)
    if this.phase is Phase.JOINING and world.has(this.id):
        machine.train(this)
    if world.members[0].worker == this.id:
        pause_s = min(said.pause_s, _longest_pause_s(machine, world))
        switched = kinds.GenerationSwitched(said.generation, said.nodes, pause_s, said.step, said.grew)
        machine.emit(switched, this, world.reason)


def _longest_pause_s(machine: JobMachine, world: wire.Plan) -> float:
    """For how long the world before can have stood still, by this daemon's own clock: since its plan was published;
    a broken one also before that, until it was noticed."""
    now = machine.clock.elapsed()
    published = machine.published_at.get(world.generation)
    if published is None:  # the members made it themselves, or an earlier daemon did
        return now - machine.up_since + NOTICED_S
    return now - published + (NOTICED_S if world.urgent else CLOCK_S)


def _left(machine: JobMachine, this: Worker, said: wire.Left) -> None:
    """The worker left its world, by the generation that excludes it or by itself (0)."""
    machine.step = max(machine.step, said.step)
    if not this.phase.lives:
        return
    reason = this.leave_reason or "left by itself"
    machine.leave(this, reason, kinds.WorkerLeft(this.id, said.step, said.saved, said.unsaved))
    obeyed = machine.published.get(said.generation)
    expected = obeyed is not None and not obeyed.has(this.id)
    if obeyed is not None and not obeyed.urgent and machine.trains(this.id):
        # (One leaves by an urgent plan, or from a world that is void, without the others' consent.)
        machine.take(said.generation)
    if not expected and machine.trains(this.id):
        machine.losses += 1
        machine.ask(f"{this.id} left by itself", broken=True)


def _failed(machine: JobMachine, this: Worker, said: wire.Failed) -> None:
    """The script raised. The job fails if no other member goes on, or when the same step fails again. Newcomers that
    fail before they train say nothing about the step."""
    machine.step = max(machine.step, said.step)
    again = False
    if this.phase is Phase.SERVING:
        again = machine.failed_at is not None and machine.step <= machine.failed_at + 1
        machine.failed_at = machine.step
    is_new = machine.is_new(this)
    if this.phase.lives:
        machine.lose(this, f"its script failed: {said.message}")
    others = [each for each in machine.living() if each.phase is Phase.SERVING]
    if machine.over is None and (again or not others):
        machine.emit(kinds.JobFailed(said.step), this, said.message)
        machine.end(f"the script failed: {said.message}")
    elif is_new:
        machine.newcomer_failed(this, said.message.removeprefix(f"{this.id}: "))


def _exited(machine: JobMachine, this: Worker, said: wire.Exited) -> None:
    """The script's process ended: its exit status, or minus the signal."""
    status = said.status
    if not this.phase.lives:
        this.silent = this.may_return = False  # it trains nowhere
        return
    if machine.over is not None or this.leaving_since is not None:
        machine.leave(this, this.leave_reason or "its job is over")
        if machine.over is None and machine.trains(this.id):
            machine.losses += 1
            machine.ask(f"{this.id} ended before it was out of its world", broken=True)
    elif status > 0 and status not in _SIGNAL_STATUSES:
        words = ": ".join(filter(None, (f"exit status {status}", said.said)))
        _failed(machine, this, wire.Failed(machine.step, words))
    elif not status and this.phase is Phase.JOINING and machine.holding().get(this.pilot) is False:
        # One that has trained says by itself that it ends, and how: to an earlier daemon, perhaps.
        why = "the script ended with status 0 and without training: a job is complete when it calls s.finish()"
        _failed(machine, this, wire.Failed(machine.step, why))
    else:
        machine.lose(this, f"its process ended with status {status}")


def _check_done(machine: JobMachine, this: Worker, said: wire.CheckDone) -> None:
    """The worker beside which the script was to be checked says what was found; nobody else's word counts."""
    asked = machine.checker == (this.id, said.digest) and machine.over is None
    if not asked or said.verdict not in list(ScriptVerdict):
        return
    machine.checker = ("", "")
    machine.note_check(this, said.digest, ScriptVerdict(said.verdict), said.text)


def _stuck(machine: JobMachine, this: Worker, said: wire.Stuck) -> None:
    """Where a worker's script makes no step, the first `MAX_STUCK` times of the job; or that it goes on."""
    if not this.phase.lives or this.stuck_at == said.place:
        return
    if not said.place or machine.stuck_reports < MAX_STUCK:
        this.stuck_at, machine.stuck_reports = said.place, machine.stuck_reports + bool(said.place)
        stuck = kinds.WorkerStuck(this.id, said.place)
        machine.emit(stuck, this, stuck.in_words or "goes on")


def _metric(machine: JobMachine, this: Worker, said: wire.Metric) -> None:
    """A figure of the script's: the first `MAX_FIGURES` names of the job are kept."""
    names = machine.figures
    if said.name in names or len(names) < MAX_FIGURES:
        names.add(said.name)
        machine.emit(kinds.MetricReported(said.name, said.value, said.samples), this)


def _bounded(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a script says of its training, or that it says too much."""
    chars = len(json.dumps(dict(result)))
    if chars <= MAX_RESULT_CHARS:
        return dict(result)
    return {"left_out": f"a result of {chars} characters of JSON: at most {MAX_RESULT_CHARS} are kept"}


def _samples(machine: JobMachine, this: Worker, window: wire.Samples) -> None:
    machine.step = max(machine.step, window.step or 0)
    # Rates of whom this job does not have tell nothing.
    rates = {name: rate for name, rate in window.rates.items() if name in machine.workers}
    machine.emit(kinds.SamplesReported(**dataclasses.asdict(dataclasses.replace(window, rates=rates))), this)
    if machine.climbs and machine.world is not None and window.steady and window.nodes == len(machine.world.members):
        samples, seconds = window.samples, window.seconds
        if samples > 0 and seconds > 0 and math.isfinite(samples / seconds):
            machine.seen[window.nodes] = samples / seconds
