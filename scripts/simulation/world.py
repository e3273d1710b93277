"""One history: a machine, its main queue, jobs, a daemon and the next, and what goes wrong; then calm, and laws."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace

from malletrain.decide.rules import Rules
from malletrain.domain.errors import JournalUnavailable
from malletrain.domain.event import ArrayAttached, Event, JobAnnounced, JobCancelled, JobCompleted
from malletrain.domain.job import Elastic, JobPhase, MalleableJob, PilotEnd, PilotPhase, pilot_name, task_of
from malletrain.domain.snapshot import Node, NodeState, SlurmJob, SlurmState
from malletrain.loop.ledger import Ledger
from malletrain.loop.memory import ManualClock, MemoryCluster, MemoryJournal
from malletrain.wire.messages import Exited, Leaving
from scripts.simulation.daemon import SimulatedDaemon
from scripts.simulation.faults import CrashPoints, DaemonKilled, FaultRates, drawn
from scripts.simulation.ports import DaemonsJournal, DaemonsSlurm, SimulatedClock
from scripts.simulation.process import JobProgress, Process
from scripts.simulation.workers import Workers

START = 1_000_000.0
STEP_S = 0.25
#: What slurmctld was told within so many seconds before it is killed it may not have saved.
UNSAVED_S = 5.0
USER, UID = "ada", 1001
#: Slurm preempts pilots for a main job that has waited so long (seconds): its backfill interval.
PREEMPTS_AFTER_S = 30.0
#: Slurm's default: seconds from SIGTERM to SIGKILL.
KILL_WAIT_S = 30.0
#: All must be over so long (simulated seconds) after the last fault.
CALM_S = 2400.0

RULES = Rules(margin_s=10.0, min_hole_s=70.0, max_pilot_s=300.0, max_failures=10**9, max_faults=10**9, join_s=120.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is played: `seconds` with faults on `nodes` nodes with `jobs` jobs of `steps` steps, then calm."""

    nodes: int = 4
    jobs: int = 2
    steps: int = 240
    seconds: float = 90.0
    tasks: int = 10
    least: int = 1  #: nodes of a job
    widest: int = 4  #: most nodes of a task
    apart_s: float = 2.0  #: between two submissions
    elastic: tuple[Elastic, ...] = (Elastic.LIVE,)  #: how the jobs change size, by turns
    max_pilots: int = RULES.max_pilots  #: where there are fewer than nodes, each holds several


#: Tasks that hold two to four nodes each.
WIDE = Setting(nodes=7, steps=160, max_pilots=3)
#: One job, on three nodes or more.
ALONE = Setting(nodes=6, jobs=1, steps=600, seconds=200.0, tasks=20, least=3, widest=1)
#: A history that is soon over, for a crash at each of its boundaries.
SHORT = Setting(nodes=3, steps=60, seconds=45.0, tasks=6)
#: Short jobs of few tasks, one after the other: the later ones can get the numbers of earlier arrays.
ONE_BY_ONE = Setting(nodes=3, jobs=5, steps=40, seconds=120.0, tasks=3, apart_s=20.0)


@dataclass(slots=True)
class History:
    """What came of one seed: broken laws, and counts of what happened."""

    seed: int
    violations: list[str]
    crash_points: int
    kills: list[str]
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)


#: Fields of a job's view that hold more than its own events: costs are of all jobs together, and a curve is fitted
#: anew only after so many samples more.
_NOT_OF_THE_JOURNAL_ALONE = {"costs", "costs_from", "curve", "batches"}
#: Seconds after the end of all jobs until the daemon must have seen it.
SEEN_AFTER_S = 60.0


class _World:
    def __init__(self, seed: int, rates: FaultRates, setting: Setting, crash_at: frozenset[int]) -> None:
        self.rng, self.rates, self.setting = random.Random(seed), rates, setting
        self.rules = replace(RULES, max_pilots=setting.max_pilots, max_nodes=setting.widest)
        self.clock = SimulatedClock(START)
        slurms_clock = ManualClock(START)
        self.slurms_clock = slurms_clock
        names = [f"n{number}" for number in range(setting.nodes)]
        self.slurm = MemoryCluster([Node(n, NodeState.IDLE, ("batch", "harvest")) for n in names], slurms_clock)
        self.disk = MemoryJournal()
        self.points = CrashPoints(crash_at, lambda: self.faulty and self.rng.random() < self.rates.daemon_kill)
        self.faulty = True
        self.daemons = 0
        self.daemon: SimulatedDaemon | None = None
        self.daemons_slurm: DaemonsSlurm | None = None
        self.daemon_due = 0.0
        self.workers = Workers(self.rng, rates, STEP_S, self._ended, self._top_up)
        self.acknowledged: set[int] = set()
        self.array_of: dict[int, int] = {}
        self.attached: set[int] = set()
        self.submit_at = {number: setting.apart_s * number for number in range(1, setting.jobs + 1)}
        self.asked_to_cancel: set[int] = set()
        self.cancelled: set[int] = set()  #: of these, what was acknowledged
        self.job_of_array: dict[int, int] = {}
        self.runs: Counter[str] = Counter()  #: of tasks
        self.processes_of: dict[str, dict[str, Process]] = {}  #: by task and pilot
        self.began: dict[str, float | None] = {}  #: by task: when Slurm started the run that they are of
        self.main_since: dict[str, float] = {}
        self.main_ends: dict[str, float] = {}
        self.down_until: dict[str, float] = {}
        self.silent_until = self.busy_until = self.stalled_until = 0.0
        self.forgotten: dict[int, list[SlurmState]] = {}  #: by job: ends of tasks that Slurm has forgotten
        self.happened: Counter[str] = Counter()
        self.violations: list[str] = []

    # -- one step ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.clock.passed += STEP_S
        # Slurm's machine keeps its own time.
        self.slurms_clock.advance(STEP_S)
        self.slurm.down = "simulated: slurmctld is silent" if self.clock.passed < self.silent_until else ""
        try:
            if self.faulty:
                self._let_things_go_wrong()
            self._main_queue()
            self._nodes_come_back()
            self._pilots()
            self._signals()
            stalled = self.daemon is not None and self.clock.passed < self.stalled_until
            if not stalled:
                self._run_daemon()
            self.workers.step(self.clock.passed, None if stalled else self.daemon)
        except DaemonKilled:
            self.daemon = None
            self.happened["daemon killed"] += 1
            self.daemon_due = self.clock.passed + self.rng.uniform(0.0, self.rates.daemon_away_s)
        for job in self.workers.progress.values():
            self.violations += job.violations

    def _run_daemon(self) -> None:
        if self.daemon is None:
            if self.clock.passed < self.daemon_due:
                return
            self.daemons += 1
            lost_answer = self.rates.lost_answer if self.faulty else 0.0
            slurm = self.daemons_slurm = DaemonsSlurm(self.slurm, self.clock, self.points, self.rng, lost_answer)
            journal = DaemonsJournal(self.disk, self.points, lambda: self.clock.passed < self.busy_until)
            self.daemon = SimulatedDaemon(self.daemons, slurm, journal, self.clock, self.rules)
            self._nothing_is_lost(self.daemon)
        with suppress(JournalUnavailable):  # owners are told so, and ask again
            self._owners(self.daemon)
        self.daemon.run()

    def _nothing_is_lost(self, daemon: SimulatedDaemon) -> None:
        lost = [job for job in self.acknowledged if job not in daemon.loop.views]
        if lost:
            self.violations.append(f"acknowledged jobs {lost} are not known any more")

    # -- owners ------------------------------------------------------------------------------------------------

    def _owners(self, daemon: SimulatedDaemon) -> None:
        now = self.clock.now()
        for number, at in self.submit_at.items():
            if self.clock.passed < at:
                continue
            if number not in self.acknowledged:
                least = self.setting.least
                most = self.rng.randint(least, self.setting.nodes)
                elastic = self._elastic(number)
                job = MalleableJob(number, f"job{number}", USER, UID, "harvest", least, most, now, elastic=elastic)
                self.workers.progress.setdefault(number, JobProgress(self.setting.steps))
                if number not in daemon.loop.views:  # sent again after a lost answer: the job is there
                    daemon.loop.record([Event(now, JobAnnounced(job), number)])
                self.acknowledged.add(number)
            if number not in self.attached:  # a client repeats this until it is answered
                if number not in self.array_of:
                    self.array_of[number] = self._submit(number, self.setting.tasks)
                array = self.array_of[number]
                if self._is_anothers(daemon, number, array):
                    self._cancel_array(array)
                    del self.array_of[number]
                    continue
                daemon.loop.record([Event(now, ArrayAttached(array, self.setting.tasks), number)])
                self.attached.add(number)
        if self.faulty and drawn(self.rng, self.rates.cancel, STEP_S):
            job_id = self.rng.choice(sorted(self.submit_at))
            view = daemon.loop.views.get(job_id)
            if view is not None and not view.phase.is_over:
                self.asked_to_cancel.add(job_id)  # where the daemon dies of it, it may be written
                self.happened["cancelled"] += 1
                with suppress(JournalUnavailable):
                    daemon.loop.record([Event(now, JobCancelled(by=USER), job_id, reason="its owner")])
                    self.cancelled.add(job_id)

    def _elastic(self, job: int) -> Elastic:
        return self.setting.elastic[job % len(self.setting.elastic)]

    def _is_anothers(self, daemon: SimulatedDaemon, job: int, array: int) -> bool:
        """Whether the daemon refuses the array, as `daemon.requests` does."""
        others = (view for number, view in daemon.loop.views.items() if number != job and not view.phase.is_over)
        return any(pilot.startswith(f"{array}_") for view in others for pilot in view.pilots)

    def _cancel_array(self, array: int) -> None:
        """The submitter takes back an array that the daemon does not take: it is no job's, so its end is none's."""
        self.job_of_array[array] = 0
        for pilot in [name for name in self.slurm.tasks if name.startswith(f"{array}_")]:
            self.slurm.end_pilot(pilot, PilotEnd(SlurmState.CANCELLED))

    def _submit(self, job: int, tasks: int) -> int:
        again = self._free_number() if self.rates.reused_id and self.rng.random() < self.rates.reused_id else None
        array = self.slurm.submit_array(USER, tasks, again)
        self.job_of_array[array] = job
        return array

    def _free_number(self) -> int | None:
        """An array's number that Slurm may use again: all its tasks have ended, and it forgets them now."""
        tasks_of: dict[int, list[str]] = {}
        for pilot in self.slurm.tasks:
            tasks_of.setdefault(int(pilot.split("_")[0]), []).append(pilot)
        ended = [n for n, names in tasks_of.items() if all(self.slurm.tasks[name].end is not None for name in names)]
        if not self.faulty or not ended:
            return None
        number = self.rng.choice(ended)
        for pilot in tasks_of[number]:
            end = self.slurm.tasks.pop(pilot).end
            self.forgotten.setdefault(self.job_of_array[number], []).extend([end.state] if end is not None else [])
            self.runs.pop(pilot, None)
        self.happened["array id used again"] += 1
        return number

    def _top_up(self, job: int, tasks: int) -> int:
        """What `elastic.launch.array_resubmit` does: the array is cancelled where the daemon does not take it."""
        array = self._submit(job, tasks)
        daemon, taken = self.daemon, False
        try:
            over = daemon is None or daemon.loop.views[job].phase.is_over
            if daemon is not None and not over and not self._is_anothers(daemon, job, array):
                with suppress(JournalUnavailable):
                    daemon.loop.record([Event(self.clock.now(), ArrayAttached(array, tasks), job)])
                    taken = True
        finally:
            if not taken:
                self._cancel_array(array)
        return array if taken else 0

    # -- Slurm's side ------------------------------------------------------------------------------------------

    def _main_queue(self) -> None:
        now = self.clock.passed
        jobs = [job for job in self.slurm.main if self.main_ends.get(job.id, math.inf) > now]
        if self.faulty and drawn(self.rng, self.rates.main_job, STEP_S):
            number = 50_000 + len(self.main_since)
            jobs.append(_main(number, self.rng.randint(1, max(1, self.setting.nodes - 1))))
            self.main_since[str(number)] = now
        if len(jobs) == len(self.slurm.main) and not any(job.state is SlurmState.PENDING for job in jobs):
            return
        up = [name for name in sorted(self.slurm.nodes) if name not in self.down_until]
        held = {name for job in jobs for name in job.nodes}
        pilots = {name for task in self.slurm.tasks.values() for name in task.nodes}
        placed = []
        for job in jobs:
            if job.state is SlurmState.PENDING:
                free = [n for n in up if n not in held and n not in pilots]
                rest = [n for n in up if n not in held and n in pilots]
                if len(free) < job.node_count and now >= self.main_since[job.id] + PREEMPTS_AFTER_S:
                    free += rest
                if len(free) >= job.node_count:
                    nodes = tuple(free[: job.node_count])
                    job = replace(job, state=SlurmState.RUNNING, nodes=nodes, reason="None")
                    held |= set(nodes)
                    self.main_ends[job.id] = now + self.rng.uniform(20.0, 120.0)
            placed.append(job)
        for pilot in self.slurm.set_main(placed):
            self.happened["preempted"] += 1
            self._kill_of(pilot)

    def _pilots(self) -> None:
        """Scripts start and end with their pilots: on each node of a task there is one."""
        tasks = self.slurm.tasks
        begun = [name for name, task in tasks.items() if task.start is not None or name in self.processes_of]
        for name in sorted(begun):
            task, running = tasks[name], self.processes_of.get(name, {})
            if task.start is not None and self.slurms_clock.now() >= task.start + task.limit_s and task.end is None:
                self.slurm.end_pilot(name, PilotEnd(SlurmState.TIMEOUT))
            # A task can have been requeued and started again since the last step.
            if running and (task.state is not SlurmState.RUNNING or task.start != self.began[name]):
                for process in list(running.values()):
                    self._kill(process, told=True)
            elif task.state is SlurmState.RUNNING and not running:
                self._start(name, task.nodes)

    def _start(self, task: str, nodes: Sequence[str]) -> None:
        now = self.clock.passed
        job = self.job_of_array[int(task.split("_")[0])]
        for part, node in enumerate(nodes):
            hello_at = now + self.rng.uniform(0.2, 3.0)
            process = Process(
                job,
                UID,
                pilot_name(task, part),
                self.runs[task],
                node,
                hello_at,
                hello_at + self.rng.uniform(0.5, 5.0),
                elastic=self._elastic(job),
            )
            self.processes_of.setdefault(task, {})[process.pilot] = process
            self.workers.spawn(process)
        self.runs[task] += 1
        self.began[task] = self.slurm.tasks[task].start
        self.happened["tasks of several nodes"] += len(nodes) > 1

    def _signals(self) -> None:
        """SIGTERM to those whose nodes are taken, and SIGKILL once the grace is over."""
        now = self.clock.passed
        for process in self.workers.living():
            if process.term_at is not None and process.ending_at is None and now >= process.term_at:
                process.ending_at = now
                process.outbox.append(Leaving("SIGTERM"))
            if process.kill_at is not None and now >= process.kill_at and process.alive:
                if process.frozen_until < (process.term_at or now):
                    self.workers.goes(process)
                self.slurm.end_pilot(task_of(process.pilot), PilotEnd(SlurmState.PREEMPTED))
                self._kill_of(task_of(process.pilot))

    def _kill_of(self, task: str) -> None:
        for process in list(self.processes_of.get(task, {}).values()):
            self._kill(process, told=False)

    def _gone(self, process: Process) -> bool:
        """Records the end of a process; whether it was the last one of its task."""
        self.workers.dead(process)
        task = task_of(process.pilot)
        others = self.processes_of.get(task, {})
        others.pop(process.pilot, None)
        if not others:
            self.processes_of.pop(task, None)
        return not others

    def _kill(self, process: Process, *, told: bool) -> None:
        """The process is gone; its connection breaks where its node is there to break it."""
        self._gone(process)
        reaches = self.clock.passed >= process.cut_until
        if told and self.daemon is not None and reaches and process.daemon == self.daemon.number:
            self.daemon.hung_up(process.name)

    def _ended(self, process: Process, status: int) -> None:
        """A process ends by itself, and its script with it."""
        was_last = self._gone(process)
        name = task_of(process.pilot)
        if was_last and self.slurm.tasks[name].state is SlurmState.RUNNING:
            state = SlurmState.COMPLETED if status == 0 else SlurmState.FAILED
            self.slurm.end_pilot(name, PilotEnd(state, exit_code=status))
        daemon = self.daemon
        reaches = self.clock.passed >= process.cut_until
        if daemon is not None and reaches and process.daemon == daemon.number and daemon.knows(process.name):
            if process.elastic is Elastic.LIVE:
                daemon.report(process.name, [Exited(status)])
            else:  # no launcher is there to say so
                daemon.hung_up(process.name)

    def _nodes_come_back(self) -> None:
        for name, until in list(self.down_until.items()):
            if self.clock.passed >= until:
                del self.down_until[name]
                self.slurm.nodes[name] = replace(self.slurm.nodes[name], state=NodeState.IDLE)

    # -- faults ------------------------------------------------------------------------------------------------

    def _let_things_go_wrong(self) -> None:
        rng, rates, now = self.rng, self.rates, self.clock.passed
        if drawn(rng, rates.slurm_silent, STEP_S):
            self.silent_until = now + rng.uniform(1.0, 20.0)
            self.happened["slurmctld silent"] += 1
        if drawn(rng, rates.clock_step, STEP_S):
            self.clock.offset = rng.uniform(-90.0, 90.0)
            self.happened["clock set"] += 1
        if drawn(rng, rates.node_down, STEP_S):
            self._fail_node(rng.choice(sorted(self.slurm.nodes)))
        if drawn(rng, rates.partition, STEP_S):
            self._part_nodes()
        if drawn(rng, rates.exile, STEP_S):
            self._part_nodes(exile=True)
        if drawn(rng, rates.journal_busy, STEP_S):
            self.busy_until = now + rng.uniform(1.0, 40.0)
            self.happened["journal busy"] += 1
        if drawn(rng, rates.daemon_stall, STEP_S):
            self.stalled_until = now + rng.uniform(1.0, 45.0)
            self.happened["daemon stalled"] += 1
        if drawn(rng, rates.lost_state, STEP_S):
            self._lose_state()
        processes = self.workers.living()
        if not processes:
            return
        if drawn(rng, rates.taken, STEP_S):
            self._take_nodes(processes)
        if drawn(rng, rates.worker_kill, STEP_S):
            self.happened["worker killed"] += 1
            self._kill_one(rng.choice(processes))
        elif drawn(rng, rates.worker_term, STEP_S):
            self.happened["worker terminated"] += 1
            victim = rng.choice(processes)
            if victim.elastic is Elastic.LIVE:
                victim.outbox.append(Leaving("SIGTERM"))
            victim.terminated = True
        elif drawn(rng, rates.worker_freeze, STEP_S):
            self.happened["worker frozen"] += 1
            rng.choice(processes).frozen_until = now + rng.choice([1.0, 4.0, 20.0, 200.0])
        elif drawn(rng, rates.cut, STEP_S):
            self.happened["worker cut off"] += 1
            victim = rng.choice(processes)
            victim.cut_until = now + rng.choice([1.0, 4.0, 20.0, 150.0])
            if self.daemon is not None and victim.daemon == self.daemon.number and rng.random() < 0.5:
                self.daemon.hung_up(victim.name)

    def _take_nodes(self, processes: Sequence[Process]) -> None:
        """All that one job has, at once or one after the other, most often soon after one of its workers is lost;
        now and then of one worker only."""
        rng, now = self.rng, self.clock.passed
        job = rng.choice(processes).job
        taken = [each for each in processes if each.job == job]
        trouble, begins = rng.choice(["none", "frozen", "frozen", "killed"]), now
        if trouble != "none" and len(taken) > 1:
            begins += rng.uniform(0.0, 3.0)
            lost = taken.pop(rng.randrange(len(taken)))
            if trouble == "frozen":
                lost.frozen_until = now + rng.choice([4.0, 8.0, 200.0])
            else:
                self._kill_one(lost)
        elif rng.random() < 0.3:
            taken = [rng.choice(taken)]
        asks, signals = rng.choice([(True, False), (False, True), (False, True), (True, True)])
        apart_s = rng.choice([0.0, 0.5, 3.0])
        for each in taken:
            if asks and self.daemon is not None:
                self.daemon.ask_to_leave(each.job, each.pilot, each.node)
            if signals and each.term_at is None:
                each.term_at = begins + rng.uniform(0.0, apart_s)
                each.kill_at = each.term_at + KILL_WAIT_S
        self.happened["all nodes taken"] += 1

    def _kill_one(self, victim: Process) -> None:
        if len(self.processes_of[task_of(victim.pilot)]) == 1:
            self.slurm.end_pilot(task_of(victim.pilot), PilotEnd(SlurmState.FAILED, exit_code=137))
        self._kill(victim, told=True)

    def _lose_state(self) -> None:
        """slurmctld comes back from an older state: arrays are gone, slurmd kills what runs of them; tasks that were
        cancelled lately wait again."""
        self.happened["slurmctld's state lost"] += 1
        self.silent_until = self.clock.passed + self.rng.uniform(5.0, 20.0)
        arrays = sorted({int(pilot.split("_")[0]) for pilot in self.slurm.tasks})
        for array in [each for each in arrays if self.rng.random() < 0.5]:
            for pilot in [name for name in self.slurm.tasks if name.startswith(f"{array}_")]:
                self._kill_of(pilot)
                end = self.slurm.tasks.pop(pilot).end
                self.forgotten.setdefault(self.job_of_array[array], []).append(
                    end.state if end else SlurmState.UNKNOWN
                )
        for task in self.slurm.tasks.values():
            if task.cancelled is not None and self.slurm.clock.now() - task.cancelled <= UNSAVED_S:
                task.state, task.end, task.cancelled = SlurmState.PENDING, None, None

    def _part_nodes(self, *, exile: bool = False) -> None:
        """Some nodes cannot reach others: one pair, or one node or two and all others. `exile`: nor the daemon."""
        rng, names = self.rng, sorted(self.slurm.nodes)
        rng.shuffle(names)
        two_sides = [(names[:size], names[size:]) for size in ((2, 3) if exile else (1, 2))]
        here, there = rng.choice(two_sides if exile else [(names[:1], names[1:2]), *two_sides])
        until = self.clock.passed + rng.choice([1.0, 4.0, 20.0, 150.0])
        self.workers.part(here, there, until, refused=rng.random() < 0.5)
        self.happened["nodes cut off" if exile else "nodes parted"] += 1
        if exile:
            for process in self.workers.living():
                if process.node in here:
                    process.cut_until = until

    def _fail_node(self, name: str) -> None:
        if name in self.down_until or any(name in job.nodes for job in self.slurm.main):
            return
        self.happened["node failed"] += 1
        self.down_until[name] = self.clock.passed + self.rng.uniform(5.0, 60.0)
        self.slurm.nodes[name] = replace(self.slurm.nodes[name], state=NodeState.DOWN)
        for pilot, task in sorted(self.slurm.tasks.items()):
            if name in task.nodes:
                self.slurm.end_pilot(pilot, PilotEnd(SlurmState.NODE_FAIL))
                self._kill_of(pilot)

    # -- the end -----------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """No fault comes any more, and what was frozen, cut off or silent is well again."""
        self.faulty = False
        self.workers.rates = FaultRates()
        self.silent_until = self.busy_until = self.stalled_until = 0.0
        self.workers.parted.clear()
        self.daemon_due = min(self.daemon_due, self.clock.passed + STEP_S)
        if self.daemons_slurm is not None:
            self.daemons_slurm.lost_answer = 0.0

    @property
    def is_over(self) -> bool:
        """Whether every job has ended, and nothing of any is left in Slurm."""
        if self.daemon is None or len(self.attached) < len(self.submit_at):
            return False
        views = self.daemon.loop.views
        left = any(task.end is None for task in self.slurm.tasks.values())
        return not left and all(views[job].phase.is_over for job in self.acknowledged)

    def _left_in_slurm(self) -> list[str]:
        """Tasks that wait or run. A daemon whose clock is behind Slurm's by more than a task existed leaves it alone
        if slurmctld brings it back: it takes it for a later job's with the same number."""
        left = {pilot: task.submitted for pilot, task in sorted(self.slurm.tasks.items()) if task.end is None}
        if left and self.daemon is not None:
            for view in self.daemon.loop.views.values():
                for pilot in view.pilots.values():
                    if pilot.phase is PilotPhase.ENDED and (left.get(pilot.id) or 0.0) > pilot.since:
                        del left[pilot.id]
        return list(left)

    def _used_up(self, job: int) -> bool:
        """Whether so many tasks of the job have ended of something else than the job's own end that fewer than its
        fewest nodes are left: faults used it up."""
        ends = [
            task.end.state
            for pilot, task in self.slurm.tasks.items()
            if self.job_of_array.get(int(pilot.split("_")[0])) == job and task.end is not None
        ]
        ends += self.forgotten.get(job, [])
        if self.setting.least > 1:  # those that are left end with the job
            ends = [each for each in ends if each is not SlurmState.CANCELLED]
        return len(ends) > self.setting.tasks - self.setting.least and SlurmState.CANCELLED not in ends

    def laws(self) -> list[str]:
        """Each law that does not hold at the end."""
        broken = []
        daemon = self.daemon
        if daemon is None:
            return ["no daemon runs"]
        self._nothing_is_lost(daemon)
        views = daemon.loop.views
        for job, view in sorted(views.items()):
            progress = self.workers.progress[job]
            if not view.phase.is_over:
                broken.append(f"job {job} is {view.phase.value}: step {progress.committed} of {progress.total}")
            elif job in self.cancelled:
                if view.phase not in (JobPhase.CANCELLED, JobPhase.COMPLETED):
                    broken.append(f"job {job} was cancelled, and is {view.phase.value}: {view.reason}")
            elif not (
                view.phase is JobPhase.COMPLETED
                or (view.phase is JobPhase.CANCELLED and job in self.asked_to_cancel)
                or self._used_up(job)
            ):
                broken.append(f"job {job} is {view.phase.value}: {view.reason}")
            elif view.phase is JobPhase.COMPLETED and progress.committed != progress.total:
                broken.append(f"job {job} is completed at step {progress.committed} of {progress.total}")
            active = [pilot.id for pilot in view.pilots.values() if pilot.phase is not PilotPhase.ENDED]
            if view.phase.is_over and active:
                broken.append(f"the ledger has pilots of job {job}, which is over: {active}")
        ended = Counter(e.job for e in self.disk.events if isinstance(e.payload, JobCompleted))
        broken += [f"job {job} completed {times} times" for job, times in ended.items() if times > 1]
        if left := self._left_in_slurm():
            broken.append(f"left in Slurm: {left}")
        if living := [process.name for process in self.workers.living()]:
            broken.append(f"processes live: {living}")
        again = Ledger()
        again.apply(self.disk.events)
        for job, view in again.views().items():
            other = [f.name for f in fields(view) if getattr(view, f.name) != getattr(views[job], f.name)]
            if set(other) - _NOT_OF_THE_JOURNAL_ALONE:
                broken.append(f"the journal folded anew differs for job {job}: {other}")
        return broken


def play(
    seed: int,
    rates: FaultRates,
    setting: Setting | None = None,
    crash_at: frozenset[int] = frozenset(),
) -> History:
    """One history, from its seed: the same arguments give the same history.

    Args:
        seed: of every draw.
        rates: of random faults, for `setting.seconds`; then all is calm.
        setting: the machine and its jobs.
        crash_at: boundaries at which the daemon dies, besides those drawn (`CrashPoints`).
    """
    world = _World(seed, rates, setting or Setting(), crash_at)
    while world.clock.passed < world.setting.seconds and not world.violations:
        world.step()
    world.calm_down()
    end = world.clock.passed + CALM_S
    while not world.is_over and world.clock.passed < end and not world.violations:
        world.step()
    end = world.clock.passed + SEEN_AFTER_S
    while world.clock.passed < end and not world.violations:
        world.step()
        if world.daemon is None:
            end = world.clock.passed + SEEN_AFTER_S
    violations = list(dict.fromkeys(world.violations)) or world.laws()
    return History(seed, violations, world.points.reached, world.points.killed, world.clock.passed, world.happened)


def _main(number: int, nodes: int) -> SlurmJob:
    return SlurmJob(
        str(number),
        number,
        "bob",
        "main",
        "batch",
        "normal",
        SlurmState.PENDING,
        reason="Resources",
        node_count=nodes,
        time_limit_s=600.0,
        priority=100,
    )
