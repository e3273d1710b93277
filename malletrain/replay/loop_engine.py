"""The daemon's own loop over a trace: the same tick, ledger and decisions, with a cluster and workers in memory.

This is `engine = "loop"` of `malletrain replay`. It looks at every node at every event, so it is slower than
`malletrain.replay.engine` by two orders of magnitude; tests hold the two to the same figures. The clock jumps from
event to event; a round that changed something is followed by another (at once, or at the next tick), until none does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from malletrain.decide.rules import Rules
from malletrain.domain import event as kinds
from malletrain.domain.decision import LeavePilot
from malletrain.domain.errors import InvalidInput
from malletrain.domain.event import Event, Payload
from malletrain.domain.job import PilotEnd, pilot_name, task_of
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryJournal, MemoryWorkers
from malletrain.loop.tick import Loop
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import UNLIMITED, Options
from malletrain.replay.scoring.figures import Score
from malletrain.replay.scoring.journal_score import score_journal
from malletrain.replay.sizer import ONE_NODE, PolicyChoice
from malletrain.replay.traces.trace import BUSY, DOWN, IDLE
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.policy import Need, Policy
from malletrain.sizing.problem import Value
from malletrain.sizing.registry import policy as registered

#: Seconds between two rounds at one event.
ROUND_INTERVAL_S = 1e-3
MAX_ROUNDS = 12
#: Time limit of a pilot that something else ends.
NO_LIMIT_S = 1e7
#: The first task of each array: three digits each, so that names sort as numbers do.
FIRST_TASK = 100
#: The daemon's rules without limits on pilots and on waits, as the fast engine has none.
REPLAY_RULES = replace(UNLIMITED, max_pilot_s=NO_LIMIT_S)


def score_by_loop(trace: ClusterTrace, jobs: Sequence[TrainingJob], choice: PolicyChoice, options: Options) -> Score:
    """The figures of the daemon's loop over the trace, scored from its journal as a live daemon's would be.
    Raises InvalidInput: the loop does not do what `choice` or `options` ask for; the fast engine does."""
    if choice.value is not Value.ELASTIC or choice.policy == ONE_NODE:
        raise InvalidInput("--policy", f'{choice.name} exists in replay alone: use replay.engine = "fast" for it')
    if options.budgets or Need.BATCHES in registered(choice.policy).needs:
        raise InvalidInput("replay.engine", 'budgets and free batches need replay.engine = "fast"')
    rules = replace(rules_of(options), horizon_s=choice.horizon_s, objective=choice.objective, alpha=choice.alpha)
    return score_journal(
        replay_through_loop(trace, jobs, registered(choice.policy), rules, options.tick_s), trace.end
    )


def rules_of(options: Options) -> Rules:
    """The daemon's rules as `options` have them: those of the daemon that is replayed, with what they set besides,
    and without what no replay has: users and accounts, promises that are learnt, faults of live jobs."""
    return replace(
        options.rules,
        max_pilot_s=min(options.rules.max_pilot_s, NO_LIMIT_S),
        include_nodes=frozenset(),
        exclude_nodes=frozenset(),
        keep_leaves=0,
        max_failures=10**9,
        join_s=0.0,
        idle_s=0.0,
        promise=None,
        user_share=1.0,
        limits=(),
        budgets=(),
        account_weights={},
        account_shares={},
    )


@dataclass
class _Training:
    """One job's world, and what it has trained."""

    each: TrainingJob
    array: int
    world: list[str] = field(default_factory=list)
    activating: dict[str, float] = field(default_factory=dict)
    stalled: float = -math.inf
    window_s: float = 0.0
    window_samples: float = 0.0
    done: float = 0.0
    generation: int = 0
    over: bool = False

    @property
    def rate(self) -> float:
        return self.each.curve.throughput(len(self.world)) if self.each.job.permits(len(self.world)) else 0.0

    def ends_at(self, now: float) -> float:
        total = self.each.job.total_samples
        if total is None or self.rate <= 0 or self.over:
            return math.inf
        return max(now, self.stalled) + max(0.0, total - self.done) / self.rate


class SimulatedWorkers(MemoryWorkers):
    """Workers that warm up, train, stall and leave as the costs say."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.jobs: dict[int, _Training] = {}
        self.job_of: dict[str, int] = {}
        self.left: set[str] = set()
        #: Arrays that were submitted when held tasks ran low, by their ids.
        self.more_arrays: dict[int, int] = {}
        self._until = clock.now()

    def started(self, job_id: int, pilot: str) -> None:
        """Slurm runs a pilot."""
        training = self.jobs[job_id]
        self.job_of[pilot] = job_id
        training.activating[pilot] = self.clock.now() + training.each.costs.activate_s
        self._say(kinds.WorkerJoined(pilot), job_id, pilot)

    def lost(self, pilots: Sequence[str]) -> None:
        """Pilots whose nodes were taken, all at once, with all others of their Slurm tasks."""
        tasks = {task_of(pilot) for pilot in pilots}
        pilots = sorted({*pilots, *(pilot for pilot in self.job_of if task_of(pilot) in tasks)})
        gone: dict[int, list[str]] = {}
        for pilot in pilots:
            job_id = self.job_of.pop(pilot, None)
            if job_id is not None:
                self._say(kinds.WorkerLost(pilot, "preempted"), job_id, pilot)
                gone.setdefault(job_id, []).append(pilot)
        for job_id, members in sorted(gone.items()):
            self._without(job_id, members)

    def leave(self, action: LeavePilot) -> None:
        if action.pilot in self.job_of:
            del self.job_of[action.pilot]
            self.left.add(action.pilot)
            self._without(action.job_id, [action.pilot])
        super().leave(action)

    def next_moment(self) -> float:
        """When a worker next becomes warm or a job ends."""
        now = self.clock.now()
        moments = [t for job in self.jobs.values() for t in (*job.activating.values(), job.ends_at(now))]
        return min(moments, default=math.inf)

    def train(self) -> None:
        """Integrate up to now."""
        now = self.clock.now()
        for training in self.jobs.values():
            running = max(0.0, now - max(training.stalled, self._until))
            if training.world and running > 0 and training.rate > 0:
                training.window_s += running
                training.window_samples += running * training.rate
                training.done += running * training.rate
        self._until = now

    def settle(self) -> list[str]:
        """What is due now: warm workers join, finished jobs say so. Returns pilots whose script has ended."""
        ended: list[str] = []
        now = self.clock.now()
        for job_id, training in sorted(self.jobs.items()):
            ready = sorted(p for p, at in training.activating.items() if at <= now + 1e-9)
            if ready and not training.over:
                for pilot in ready:
                    del training.activating[pilot]
                    self._say(kinds.WorkerWarm(pilot), job_id, pilot)
                self._switch(job_id, [*training.world, *ready], grew=True)
            total = training.each.job.total_samples
            if total is not None and not training.over and total - training.done <= training.rate * 1e-6:
                self._report_window(job_id)
                training.over = True
                self._say(kinds.JobCompleted({"samples": training.done}), job_id)
                for pilot in [*training.world, *training.activating]:
                    self.job_of.pop(pilot, None)
                    self._say(kinds.WorkerLeft(pilot), job_id, pilot)
                    ended.append(pilot)
                training.world, training.activating = [], {}
        return ended

    def close(self) -> None:
        """The replay ends: windows of training that are still open are reported."""
        for job_id in sorted(self.jobs):
            self._report_window(job_id)

    def _without(self, job_id: int, pilots: Sequence[str]) -> None:
        training = self.jobs[job_id]
        for pilot in pilots:
            training.activating.pop(pilot, None)
        left = [member for member in training.world if member not in pilots]
        if len(left) < len(training.world):
            self._switch(job_id, left, grew=False)

    def _switch(self, job_id: int, members: list[str], *, grew: bool) -> None:
        training = self.jobs[job_id]
        self._report_window(job_id)
        first = not training.world
        training.world = members
        training.generation += 1
        now, costs = self.clock.now(), training.each.costs
        self._say(kinds.GenerationPublished(training.generation, tuple(members)), job_id)
        if members and not first:
            pause = costs.grow_s if grew else costs.shrink_s
            training.stalled = max(training.stalled, now + pause)
            self._say(kinds.GenerationSwitched(training.generation, len(members), pause, 0, grew), job_id)

    def _report_window(self, job_id: int) -> None:
        training = self.jobs[job_id]
        if training.window_s > 0:
            window = kinds.SamplesReported(
                nodes=len(training.world),
                samples=training.window_samples,
                seconds=training.window_s,
                steps=1,
                total=training.done,
            )
            self._say(window, job_id)
        training.window_s = training.window_samples = 0.0

    def _say(self, payload: Payload, job_id: int, pilot: str | None = None) -> None:
        self.report(Event(self.clock.now(), payload, job_id, pilot))


def replay_through_loop(
    trace: ClusterTrace, jobs: Sequence[TrainingJob], policy: Policy, rules: Rules = REPLAY_RULES, tick_s: float = 0.0
) -> tuple[Event, ...]:
    """The journal of the daemon's loop over the trace.

    `jobs` are on the trace's clock. With `tick_s` (seconds) the loop runs at its multiples only, one round at each,
    as a daemon that polls; else at every event, until a round changes nothing. It runs at every tick, whether
    anything else happens or not, where pilots' time limits bind, and where pilots make room once they have been there
    for a while. DAEMON_STARTED and DAEMON_STOPPED mark the window.
    """
    makes_room = rules.max_nodes > 1 and len(trace.nodes) > rules.max_pilots
    every_tick = bool(tick_s) and (rules.max_pilot_s < NO_LIMIT_S or makes_room)
    clock = ManualClock(trace.start)
    cluster = MemoryCluster(
        [Node(name, NodeState.IDLE, (rules.harvest_partition, "main")) for name in trace.nodes], clock
    )
    workers, journal = SimulatedWorkers(clock), MemoryJournal()
    loop = Loop(cluster, workers, journal, clock, policy, rules)
    loop.record([Event(trace.start, kinds.DaemonStarted("replay", pid=0))])
    arrivals = sorted(jobs, key=lambda each: (each.job.submitted_at, each.job.id))
    state = np.full(len(trace.nodes), BUSY, np.int8)
    step, changed, tick_at = 0, every_tick, trace.start
    while True:
        at = float(trace.time[step]) if step < len(trace.time) else math.inf
        arrives = arrivals[0].job.submitted_at if arrivals else math.inf
        due = math.inf
        if changed and tick_s:
            due = max(tick_at, trace.start + math.ceil((clock.now() - trace.start) / tick_s - 1e-9) * tick_s)
        moment = max(min(at, arrives, workers.next_moment(), due), clock.now())
        if moment >= trace.end:
            break
        clock.advance(moment - clock.now())
        workers.train()
        _settle(workers, cluster)
        if at <= moment:
            part = slice(trace.first[step], trace.first[step + 1])
            state[trace.node[part]] = trace.state[part]
            workers.lost(_show(cluster, trace, state))
            step += 1
        while arrivals and arrivals[0].job.submitted_at <= moment:
            _submit(arrivals.pop(0), cluster, workers, loop, clock)
        if not tick_s:
            _rounds(loop, cluster, workers, journal, clock)
        elif moment < due:
            changed = True
        else:
            tick_at = trace.start + (math.floor((moment - trace.start) / tick_s + 1e-9) + 1) * tick_s
            changed = _round(loop, cluster, workers, journal) or every_tick
            loop.react()  # a worker that has left frees its node before the next look, as live
            workers.left = {p for p in workers.left if cluster.tasks[task_of(p)].start is not None}
            _top_up(cluster, workers, loop, clock)
    clock.advance(max(0.0, trace.end - clock.now()))
    workers.train()
    workers.close()
    loop.record([*workers.reports(), Event(trace.end, kinds.DaemonStopped())])
    return tuple(journal.read())


def _settle(workers: SimulatedWorkers, cluster: MemoryCluster) -> None:
    for pilot in workers.settle():
        cluster.end_pilot(task_of(pilot), PilotEnd(SlurmState.COMPLETED))


def _submit(
    each: TrainingJob, cluster: MemoryCluster, workers: SimulatedWorkers, loop: Loop, clock: ManualClock
) -> None:
    """A researcher's `mtbatch`: far more held tasks than nodes, as preemption consumes them."""
    tasks = 899 if each.job.max_nodes < 200 else 4 * each.job.max_nodes
    if loop.rules.max_top_up:  # the daemon asks for more in time
        tasks = min(tasks, 2 * each.job.max_nodes)
    added = _held_tasks(cluster, each.job.user, tasks)
    workers.jobs[each.job.id] = _Training(each, added.array_id)
    now = clock.now()
    loop.record([Event(now, kinds.JobAnnounced(each.job), each.job.id), Event(now, added, each.job.id)])


def _held_tasks(cluster: MemoryCluster, user: str, tasks: int) -> kinds.TasksAdded:
    """A new array of so many."""
    array = cluster.submit_array(user, tasks + FIRST_TASK)
    for task in range(FIRST_TASK):
        del cluster.tasks[f"{array}_{task}"]
    return kinds.TasksAdded(array, tuple(range(FIRST_TASK, FIRST_TASK + tasks)))


def _top_up(cluster: MemoryCluster, workers: SimulatedWorkers, loop: Loop, clock: ManualClock) -> None:
    """A worker submits more held tasks, as its owner, where the daemon asked for them."""
    for job_id, tasks in sorted(workers.topped_up.items()):
        added = _held_tasks(cluster, workers.jobs[job_id].each.job.user, tasks)
        workers.more_arrays[added.array_id] = job_id
        loop.record([Event(clock.now(), added, job_id)])
    workers.topped_up.clear()


def _show(
    cluster: MemoryCluster, trace: ClusterTrace, state: np.ndarray[tuple[int], np.dtype[np.int8]]
) -> tuple[str, ...]:
    """Sets the cluster's nodes and main job as the trace has them; the pilots that it takes nodes from."""
    for i in np.flatnonzero(state != BUSY).tolist():
        name = trace.nodes[i]
        wanted = NodeState.IDLE if state[i] == IDLE else NodeState.DOWN
        if cluster.nodes[name].state is not wanted:
            cluster.nodes[name] = replace(cluster.nodes[name], state=wanted)
    # A down node is shown as held by the main job too: its pilot is gone at once.
    taken = tuple(trace.nodes[i] for i in np.flatnonzero((state == BUSY) | (state == DOWN)).tolist())
    main = SlurmJob("1", 1, "main", "main", "main", "main", SlurmState.RUNNING, nodes=taken)
    return cluster.set_main([main] if taken else [])


def _rounds(
    loop: Loop, cluster: MemoryCluster, workers: SimulatedWorkers, journal: MemoryJournal, clock: ManualClock
) -> None:
    """Rounds until one changes nothing."""
    for _ in range(MAX_ROUNDS):
        if not _round(loop, cluster, workers, journal):
            return
        clock.advance(ROUND_INTERVAL_S)
        workers.train()


def _round(loop: Loop, cluster: MemoryCluster, workers: SimulatedWorkers, journal: MemoryJournal) -> bool:
    """One tick, and what Slurm and the workers make of it; whether the journal has grown."""
    array_of = {training.array: job_id for job_id, training in workers.jobs.items()} | workers.more_arrays
    before = len(journal.events)
    loop.tick()
    running = {
        pilot_name(name, part)
        for name, task in cluster.tasks.items()
        if task.node and task.start is not None
        for part in range(len(task.nodes))
    }
    workers.left &= running
    for pilot in sorted(running - workers.job_of.keys() - workers.left):
        job_id = array_of[int(pilot.partition("_")[0])]
        if not workers.jobs[job_id].over:
            workers.started(job_id, pilot)
    workers.lost(sorted(workers.job_of.keys() - running))
    _settle(workers, cluster)  # where activation takes no time
    return len(journal.events) > before
