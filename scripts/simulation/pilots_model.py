"""All states of a small model of pilots: `python -m scripts.simulation.pilots_model`.

Tasks of one malleable job, nodes, and one main job, searched exhaustively. What a look at Slurm shows and how events
change a pilot is the product's own code (`loop.pilot_changes`, `domain.pilot_life`); the model adds Slurm, the steps
of an order (read the task again, pin, release; allow a requeue, requeue and hold, forbid it), and what may come
between two of them: the daemon dies, Slurm obeys and its answer is lost, a main job comes or preempts, a limit
passes, the owner releases or cancels a task, staff hold one.

- Safety: no two pilots of the ledger run on one node; no pilot starts where a main job waits for the node; a hold of
  staff is lifted by nobody but staff; no task is killed that the ledger has as one that waits.
- Liveness: whatever happened, once nothing more goes wrong, and no limit, preemption or person helps, a main job that
  waits can run while the malleable job goes on, and after that one's end every task ends, in Slurm and in the ledger.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from malletrain.domain.decision import Action, CancelTasks, LeaveCause, LeavePilot, RecyclePilot, StartPilot
from malletrain.domain.event import ActionIntent, ActionOutcome, Event, Payload, PilotSetAside, WorkerLeft
from malletrain.domain.job import JobPhase, JobView, MalleableJob, Pilot, PilotEnd, PilotPhase
from malletrain.domain.pilot_life import after
from malletrain.domain.snapshot import SlurmJob, SlurmState, Snapshot
from malletrain.loop.pilot_changes import observe
from scripts.simulation.shortest_history import shortest_history

#: The job's number, its array's, and the time of every look: long after whatever the ledger has.
JOB, ARRAY, NOW = 1, 100, 1e6

#: What a task is in Slurm. `HELD`: by the submitter's own hold; `STAFF`: by staff's; `WAITS`: released.
CANCELLED = "the job is cancelled"
HELD, STAFF, WAITS, RUNS, GONE = "held", "held by staff", "waits", "runs", "gone"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules under test; the model must find out each that is missing.

    Attributes:
        reads_again: an order to start reads task and node again before it touches them.
        looks: a decision follows a look at the whole queue, and what differs from the ledger is taken from there.
        recycles_again: an order to recycle that has not come true is given again.
        tasks, nodes: how many.
        crashes, lost_answers, meddlings, main_jobs: how often each may happen.
    """

    reads_again: bool = True
    looks: bool = True
    recycles_again: bool = True
    tasks: int = 2
    nodes: int = 1
    crashes: int = 1
    lost_answers: int = 1
    meddlings: int = 1
    main_jobs: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the array: in Slurm, its worker, and in the ledger.

    Attributes:
        node: that it is pinned to, and holds while it runs.
        may_requeue: Slurm requeues it when it is preempted, where it would end otherwise.
        worker: whether its process trains; one that has left waits for its node to be taken back.
        phase, ledger_node: what the ledger has.
    """

    slurm: str = HELD
    node: int | None = None
    may_requeue: bool = False
    worker: bool = False
    phase: PilotPhase = PilotPhase.HELD
    ledger_node: int | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What the daemon is about: `step` of starting, recycling or cancelling a task."""

    kind: str
    task: int
    node: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Everything that counts. `main`: "" before it comes, then waits, runs, over; it wants node 0."""

    tasks: tuple[Task, ...]
    up: bool = True
    order: Order | None = None
    over: bool = False
    main: str = ""
    crashes: int = 0
    lost: int = 0
    meddled: int = 0
    broken: str = ""

    def change(self, which: int, **changes: object) -> State:
        """With one task changed."""
        tasks = list(self.tasks)
        tasks[which] = replace(tasks[which], **changes)  # type: ignore[arg-type]
        return replace(self, tasks=tuple(tasks))

    def holder(self, node: int) -> int | None:
        """The task that runs on the node."""
        return next((n for n, task in enumerate(self.tasks) if task.slurm == RUNS and task.node == node), None)

    def is_free(self, node: int) -> bool:
        return self.holder(node) is None and not (node == 0 and self.main in ("waits", "runs"))


def steps(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """What may happen next."""
    yield from fair(now, rules)
    if now.up and now.crashes < rules.crashes:
        yield "the daemon dies", replace(now, up=False, order=None, crashes=now.crashes + 1)
    if not now.main and rules.main_jobs:
        yield "a main job comes", replace(now, main="waits")
    for which, task in enumerate(now.tasks):
        if task.slurm == RUNS:
            yield f"the limit of {which} passes", now.change(which, slurm=GONE, worker=False)
            if task.node == 0 and now.main == "waits":
                left = {"slurm": WAITS} if task.may_requeue else {"slurm": GONE}
                yield f"{which} is preempted", now.change(which, worker=False, **left)
        if now.meddled < rules.meddlings:
            more = replace(now, meddled=now.meddled + 1)
            if task.slurm in (HELD, WAITS):
                yield f"staff hold {which}", more.change(which, slurm=STAFF)
            if task.slurm == HELD:
                yield f"its owner releases {which}", more.change(which, slurm=WAITS)
            if task.slurm != GONE:
                yield f"its owner cancels {which}", more.change(which, slurm=GONE, worker=False)
    if now.order is not None and now.lost < rules.lost_answers:
        obeyed = _obey(now, now.order, rules)
        lost = replace(obeyed, order=None, lost=now.lost + 1)
        yield f"{now.order.kind} {now.order.task}: an answer is lost", _outcome(lost, now.order, done=False)


def fair(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """What must happen sooner or later, whatever goes wrong: Slurm, workers and the daemon do their part."""
    if now.main == "waits" and now.holder(0) is None:
        yield "the main job runs", replace(now, main="runs")
    if now.main == "runs":
        yield "the main job ends", replace(now, main="over")
    for which, task in enumerate(now.tasks):
        if task.slurm == WAITS:
            for node in range(rules.nodes) if task.node is None else (task.node,):
                if now.is_free(node):
                    yield f"Slurm starts {which} on {node}", now.change(which, slurm=RUNS, node=node, worker=True)
        if task.worker and now.up and (now.over or task.phase is PilotPhase.LEAVING):
            yield f"the worker of {which} leaves", _fold(now.change(which, worker=False), which, WorkerLeft())
    if not now.over and now.up:
        yield CANCELLED, replace(now, over=True)
    if not now.up:
        yield "the daemon starts", replace(now, up=True)
    elif now.order is not None:
        yield from _go_on(now, now.order, rules)
    else:
        yield from _daemon(now, rules)


def _daemon(now: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """A look, or the next order. What was asked for in vain may be asked for again: its patience is over."""
    seen = _look(now) if rules.looks else now
    if seen != now:
        yield "a look", seen
        return  # a decision follows a look
    for which, task in enumerate(now.tasks):
        phase, node = task.phase, task.ledger_node or 0
        yielding = node == 0 and now.main == "waits"
        if phase is PilotPhase.HELD and not now.over:
            taken = {each.ledger_node for each in now.tasks if each.phase in _ACTIVE}
            for free in range(rules.nodes):
                if free not in taken and now.is_free(free):
                    yield _begun(now, Order("start", which, free))
        elif phase is PilotPhase.RUNNING and (yielding or now.over):
            leave = LeavePilot(JOB, str(which), str(node), LeaveCause.YIELD, NOW, "")
            yield f"{which} is asked to leave", _fold(now, which, ActionIntent(leave))
        elif (
            phase is PilotPhase.LEAVING
            or (phase is PilotPhase.RELEASED and task.slurm != RUNS)
            or (phase is PilotPhase.RECYCLING and rules.recycles_again)
        ):
            yield _begun(now, Order("recycle", which, node))
        if now.over and phase in (*_ACTIVE, PilotPhase.HELD, PilotPhase.ASIDE):
            yield _begun(now, Order("cancel", which, node))


_ACTIVE = (PilotPhase.RELEASED, PilotPhase.RUNNING, PilotPhase.LEAVING, PilotPhase.RECYCLING)


def _begun(now: State, order: Order) -> tuple[str, State]:
    intended = _fold(now, order.task, ActionIntent(_action(order)))
    return f"{order.kind} {order.task} on {order.node}", replace(intended, order=order)


def _go_on(now: State, order: Order, rules: Rules) -> Iterator[tuple[str, State]]:
    """One step of an order, or its outcome."""
    task = now.tasks[order.task]
    if order.kind == "start" and order.step == 0 and rules.reads_again:
        if task.slurm == STAFF:
            aside = _outcome(replace(now, order=None), order, done=False)
            yield f"{order.task} is unfit", _fold(aside, order.task, PilotSetAside())
            return
        if task.slurm != HELD or not now.is_free(order.node):
            yield f"start {order.task} is refused", _outcome(replace(now, order=None), order, done=False)
            return
    if order.step == (1 if order.kind == "cancel" else 3 if order.kind == "recycle" else 2):
        yield f"{order.kind} {order.task} is done", _outcome(replace(now, order=None), order, done=True)
        return
    yield (
        f"{order.kind} {order.task}: step {order.step}",
        replace(_obey(now, order, rules), order=replace(order, step=order.step + 1)),
    )


def _obey(now: State, order: Order, rules: Rules) -> State:
    """Slurm does one step of an order."""
    which, task = order.task, now.tasks[order.task]
    match order.kind, order.step:
        case "start", 0 if task.slurm in (HELD, STAFF):
            return now.change(which, node=order.node, may_requeue=False)
        case "start", 1 if task.slurm == HELD:
            return now.change(which, slurm=WAITS)
        case "start", 1 if task.slurm == STAFF and not rules.reads_again:
            return replace(now.change(which, slurm=WAITS), broken="a hold of staff is lifted")
        case "recycle", 0 if task.slurm != GONE:
            return now.change(which, may_requeue=True)
        case "recycle", 1 if task.slurm in (RUNS, WAITS):
            return now.change(which, slurm=HELD, worker=False)
        case "recycle", 2 if task.slurm != GONE:
            return now.change(which, may_requeue=False)
        case "cancel", 0:
            killed = task.slurm == RUNS and task.phase is PilotPhase.HELD and not now.over
            return replace(now.change(which, slurm=GONE, worker=False), broken="killed" if killed else now.broken)
    return now


# --- What the product has of it ---------------------------------------------------------------------------------


def _action(order: Order) -> Action:
    pilot, node = f"{ARRAY}_{order.task}", f"n{order.node}"
    match order.kind:
        case "start":
            return StartPilot(JOB, pilot, node, 600.0, "")
        case "recycle":
            return RecyclePilot(JOB, pilot, node, "")
    return CancelTasks(JOB, (pilot,), "")


def _pilot(which: int, task: Task) -> Pilot:
    node = "" if task.ledger_node is None else f"n{task.ledger_node}"
    return Pilot(f"{ARRAY}_{which}", JOB, task.phase, 0.0, node, ready=task.worker)


def _fold(now: State, which: int, payload: Payload, node: str | None = None) -> State:
    """The ledger takes an event in."""
    task = now.tasks[which]
    pilot = _pilot(which, task)
    if isinstance(payload, ActionIntent) and isinstance(payload.action, StartPilot):
        node = payload.action.node
    found = after(pilot, Event(0.0, payload, JOB, pilot.id, node))
    return now.change(which, phase=found.phase, ledger_node=int(found.node[1:]) if found.node else None)


def _outcome(now: State, order: Order, *, done: bool) -> State:
    return _fold(now, order.task, ActionOutcome(_action(order), done))


def _look(now: State) -> State:
    """The ledger after a look at the whole queue."""
    rows = tuple(_row(which, task) for which, task in enumerate(now.tasks) if task.slurm != GONE)
    pilots = {f"{ARRAY}_{which}": _pilot(which, task) for which, task in enumerate(now.tasks)}
    view = JobView(_THE_JOB, JobPhase.QUEUED, pilots)
    found = observe(
        Snapshot(NOW, (), rows, ()), {JOB: view}, lambda _: PilotEnd(SlurmState.CANCELLED), NOW, "harvest", ()
    )
    for event in found:
        now = _fold(now, int((event.pilot or "").split("_")[1]), event.payload, event.node)
    return now


_THE_JOB = MalleableJob(JOB, "job", "ada", 1001, "harvest", 1, 8, 0.0)
_REASONS = {HELD: "JobHeldUser", STAFF: "JobHeldAdmin", WAITS: "Resources", RUNS: "None"}


def _row(which: int, task: Task) -> SlurmJob:
    runs = task.slurm == RUNS
    return SlurmJob(
        f"{ARRAY}_{which}", ARRAY * 10 + which, "ada", "harvest", "harvest", "harvest",
        SlurmState.RUNNING if runs else SlurmState.PENDING, reason=_REASONS[task.slurm], array_id=ARRAY,
        start_time=0.0 if runs else None, nodes=(f"n{task.node}",) if runs else (), node_count=1,
        priority=0 if task.slurm in (HELD, STAFF) else 1,
    )  # fmt: skip


# --- The search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """What the search came to: the number of states; the shortest history that breaks safety, with what it breaks at
    its end; and one to a state from which a waiting main job never runs, or not everything ends, with that state at
    its end. Both are empty for none."""

    states: int
    broken: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()


def is_broken(state: State) -> str:
    """Which law of safety does not hold, or ""."""
    running = [
        task.ledger_node for task in state.tasks if task.slurm == RUNS and task.phase in _ACTIVE and not state.order
    ]
    if state.main == "runs" and state.holder(0) is not None:
        return "a node serves a pilot and a main job"
    if len(set(running)) < len(running):
        return "a node serves two pilots"
    return state.broken


def is_calm(state: State) -> bool:
    """Whether all is over, in Slurm and in the ledger."""
    ended = all(task.slurm == GONE and task.phase is PilotPhase.ENDED for task in state.tasks)
    return ended and state.over and state.up and state.main in ("", "over")


def search(rules: Rules) -> Found:
    """Every state that can be reached, in the order of the steps to it."""
    first = State((Task(),) * rules.tasks)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for what, then in steps(state, rules):
            if then not in came_from:
                came_from[then] = state, what
                if why := is_broken(then):
                    return Found(len(came_from), (*shortest_history(then, came_from), why))
                waiting.append(then)
    steps_back = {True: dict[State, list[State]](), False: dict[State, list[State]]()}
    for state in came_from:
        for what, then in fair(state, rules):
            for ends in (True, False):
                if ends or what != CANCELLED:
                    steps_back[ends].setdefault(then, []).append(state)
    for goal, ends in (is_calm, True), (is_served, False):
        stuck = _cannot_reach([state for state in came_from if goal(state)], came_from, steps_back[ends])
        if stuck is not None:
            return Found(len(came_from), (), (*shortest_history(stuck, came_from), str(stuck)))
    return Found(len(came_from))


def is_served(state: State) -> bool:
    """Whether no main job waits."""
    return state.main != "waits"


def _cannot_reach(
    goals: list[State], states: Iterable[State], steps_back: Mapping[State, list[State]]
) -> State | None:
    """The first state, if any, from which none of the goals can be reached."""
    can, waiting = set(goals), deque(goals)
    while waiting:
        for earlier in steps_back.get(waiting.popleft(), ()):
            if earlier not in can:
                can.add(earlier)
                waiting.append(earlier)
    return next((state for state in states if state not in can), None)


def main() -> int:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("tasks", "nodes", "crashes", "lost_answers", "meddlings"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Rules(), name))
    found = search(Rules(**vars(parser.parse_args())))
    print(f"states: {found.states}")
    print("safety:", "holds" if not found.broken else "broken by " + "; ".join(found.broken))
    print("liveness:", "holds" if not found.stuck else "nothing ends after " + "; ".join(found.stuck))
    return 1 if found.broken or found.stuck else 0


if __name__ == "__main__":
    sys.exit(main())
