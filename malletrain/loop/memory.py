"""The ports in memory: a journal, a clock set by its caller, a cluster that starts and frees at once.

Replay and tests use them; they pass the same contract tests as the live ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from malletrain.domain.decision import CancelTasks, CutLimit, LeavePilot, Outcome, RecyclePilot, StartPilot, Stray
from malletrain.domain.errors import ClusterUnavailable
from malletrain.domain.event import Event, WorkerLeft
from malletrain.domain.job import ArrayReport, MalleableJob, PilotEnd, task_of
from malletrain.domain.snapshot import (
    MainQueue,
    Node,
    NodeState,
    Reservation,
    SlurmJob,
    SlurmState,
    Snapshot,
)
from malletrain.loop.ports import Clock


class ManualClock:
    """A clock that moves when told."""

    def __init__(self, start: float = 0.0) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. ValueError: time does not run backwards."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds} s")
        self.time += seconds


class MemoryJournal:
    """Events in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, events: Iterable[Event]) -> Sequence[Event]:
        written = [replace(event, seq=len(self.events) + n) for n, event in enumerate(events, start=1)]
        self.events += written
        return written

    def read(self, after: int = 0) -> Iterable[Event]:
        return tuple(self.events[after:])


@dataclass
class _Task:
    owner: str
    state: SlurmState = SlurmState.PENDING
    held: bool = True
    node: str = ""
    start: float | None = None
    limit_s: float = 60.0
    end: PilotEnd | None = None
    submitted: float | None = None
    cancelled: float | None = None  #: when it was, in hold, by the daemon
    more: tuple[str, ...] = ()  #: further nodes that it holds

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node, *self.more) if self.node else ()


class MemoryCluster:
    """A cluster without latency: a released pilot runs at once, a recycled one frees its node at once.

    `main` is the main queue as the test or the trace sets it; a main job that takes a pilot's node preempts it.
    """

    def __init__(self, nodes: Iterable[Node], clock: Clock, partition: str = "harvest") -> None:
        self.nodes = {node.name: node for node in nodes}
        self.clock = clock
        self.partition = partition
        self.main: tuple[SlurmJob, ...] = ()
        self.plain: tuple[SlurmJob, ...] = ()  #: jobs of the harvest partition that are no pilots
        self.reservations: tuple[Reservation, ...] = ()
        self.down = ""
        self.tasks: dict[str, _Task] = {}
        self._next_array = 1000
        # Rows of a snapshot are those of the last one where nothing has changed: there are thousands.
        self._rows: dict[str, tuple[tuple[object, ...], SlurmJob]] = {}

    # -- the world's side --------------------------------------------------------------------------------------

    def submit_array(self, user: str, tasks: int, again: int | None = None) -> int:
        """A researcher submits a held array; returns its id: a new one, or `again`, which Slurm has forgotten."""
        if again is None:
            self._next_array += 1
        number = self._next_array if again is None else again
        for task in range(tasks):
            self.tasks[f"{number}_{task}"] = _Task(user, submitted=self.clock.now())
        return number

    def set_main(self, jobs: Iterable[SlurmJob]) -> tuple[str, ...]:
        """Replace the main queue; pilots on nodes that it takes are preempted, and returned."""
        self.main = tuple(jobs)
        taken = {name for job in self.main if job.holds_nodes for name in job.nodes}
        gone = tuple(p for p, t in sorted(self.tasks.items()) if taken.intersection(t.nodes))
        for pilot in gone:
            self.end_pilot(pilot, PilotEnd(SlurmState.PREEMPTED, preempted=True))
        return gone

    def end_pilot(self, pilot: str, end: PilotEnd) -> None:
        """Let a running pilot end; its task is consumed."""
        task = self.tasks[pilot]
        task.state, task.node, task.start, task.end = end.state, "", None, end

    # -- the port ----------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        self._answer()
        self._expire()
        pilots = tuple(self._row(pilot, task) for pilot, task in sorted(self.tasks.items()) if task.end is None)
        jobs = self.main + self.plain + pilots
        busy = {name for job in jobs if job.holds_nodes for name in job.nodes}
        nodes = tuple(
            replace(node, state=NodeState.ALLOCATED) if name in busy and node.state is NodeState.IDLE else node
            for name, node in sorted(self.nodes.items())
        )
        return Snapshot(self.clock.now(), nodes, jobs, self.reservations)

    def look(self, last: Snapshot) -> Snapshot:
        self._answer()
        return last.with_main_queue(MainQueue.of(self.main, last.active_ids(self.partition)), self.partition)

    def inspect(self, array_id: int, job: MalleableJob) -> ArrayReport:
        self._answer()
        own = {p: t for p, t in self.tasks.items() if p.startswith(f"{array_id}_") and t.owner == job.user}
        if not own:
            return ArrayReport(array_id, (), (f"Slurm knows no job array {array_id}",), gone=True)
        return ArrayReport(array_id, tuple(int(p.split("_")[1]) for p, t in own.items() if t.held))

    def end_of(self, pilot: str) -> PilotEnd:
        self._answer()
        task = self.tasks.get(pilot)
        if task is None:
            return PilotEnd(SlurmState.UNKNOWN, detail="vanished")
        return task.end or PilotEnd(task.state, held=task.held)

    def ended_main_jobs(self, nodes: Collection[str]) -> Sequence[SlurmJob]:
        self._answer()
        return ()

    def start(self, actions: Sequence[StartPilot]) -> Sequence[Outcome]:
        self._answer()
        together: dict[str, list[StartPilot]] = {}
        for action in actions:
            together.setdefault(task_of(action.pilot), []).append(action)
        seen, taken = self.snapshot(), set[str]()
        started = {}
        for task, same in together.items():
            nodes = tuple(action.node for action in same)
            busy = [node for node in nodes if node in taken or not seen.is_free(node)]
            started[task] = Outcome(False, f"{busy[0]} is not free") if busy else self._start(task, same, nodes)
            taken.update(nodes if started[task].done else ())
        return [started[task_of(action.pilot)] for action in actions]

    def _start(self, name: str, actions: Sequence[StartPilot], nodes: tuple[str, ...]) -> Outcome:
        task = self.tasks.get(name)
        if task is None or task.end is not None:
            return Outcome(False, f"{name} is not in the queue")
        if not task.held:
            return Outcome(False, f"{name} is not held")
        task.held, task.state, task.node, task.more = False, SlurmState.RUNNING, nodes[0], nodes[1:]
        task.start, task.limit_s = self.clock.now(), min(action.limit_s for action in actions)
        return Outcome(True)

    def cut(self, action: CutLimit) -> Outcome:
        self._answer()
        task = self.tasks.get(task_of(action.pilot))
        if task is None or task.start is None:
            return Outcome(True, "has ended already")
        task.limit_s = min(task.limit_s, max(0.0, action.ends_at - task.start))
        return Outcome(True)

    def recycle(self, actions: Sequence[RecyclePilot]) -> Sequence[Outcome]:
        self._answer()
        return [self._recycle(action) for action in actions]

    def _recycle(self, action: RecyclePilot) -> Outcome:
        task = self.tasks.get(task_of(action.pilot))
        if task is None or task.end is not None:
            return Outcome(True, "has ended already")
        task.held, task.state, task.node, task.start = True, SlurmState.PENDING, "", None
        return Outcome(True)

    def cancel(self, action: CancelTasks) -> Outcome:
        self._answer()
        for pilot in action.pilots:
            task = self.tasks.get(task_of(pilot))
            if task is not None and task.end is None:
                task.cancelled = self.clock.now() if task.held else None
                self.end_pilot(task_of(pilot), PilotEnd(SlurmState.CANCELLED))
        return Outcome(True)

    def take_back(self, strays: Sequence[Stray]) -> Sequence[Outcome]:
        self._answer()
        ended = {stray.job for stray in strays}
        mine = {job.id for job in self.plain if job.partition == self.partition and job.id in ended}
        self.plain = tuple(job for job in self.plain if job.id not in mine)
        return [Outcome(True, "ended" if stray.job in mine else "gone already") for stray in strays]

    def _answer(self) -> None:
        if self.down:
            raise ClusterUnavailable(self.down)

    def _expire(self) -> None:
        for pilot, task in self.tasks.items():
            if task.start is not None and self.clock.now() >= task.start + task.limit_s:
                self.end_pilot(pilot, PilotEnd(SlurmState.TIMEOUT))

    def _row(self, pilot: str, task: _Task) -> SlurmJob:
        made_of = task.owner, task.state, task.held, task.nodes, task.start, task.limit_s, task.submitted
        before = self._rows.get(pilot)
        if before is None or before[0] != made_of:
            before = self._rows[pilot] = made_of, self._new_row(pilot, task)
        return before[1]

    def _new_row(self, pilot: str, task: _Task) -> SlurmJob:
        array, index = (int(part) for part in pilot.split("_"))
        return SlurmJob(
            id=pilot,
            raw_id=array * 1000 + index,
            user=task.owner,
            account="harvest",
            partition=self.partition,
            qos="harvest",
            state=task.state,
            reason="JobHeldUser" if task.held else "None",
            array_id=array,
            time_limit_s=task.limit_s,
            submit_time=task.submitted,
            start_time=task.start,
            end_time=None if task.start is None else task.start + task.limit_s,
            nodes=task.nodes,
            node_count=max(1, len(task.nodes)),
            priority=0 if task.held else 1,
        )


class MemoryWorkers:
    """Workers that warm up and leave at once; a world is whatever pilots run."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ended: dict[int, str] = {}
        self.outlived: dict[str, int] = {}  #: pilots that Slurm has ended, and their jobs
        self.topped_up: dict[int, int] = {}
        self.batches: dict[int, tuple[tuple[int, int], ...]] = {}
        self.climbers: frozenset[int] = frozenset()
        self._reports: list[Event] = []

    def report(self, *events: Event) -> None:
        """What a worker would have said."""
        self._reports += events

    def leave(self, action: LeavePilot) -> None:
        self.report(Event(self.clock.now(), WorkerLeft(), action.job_id, action.pilot, action.node, action.reason))

    def pilots_ended(self, job_id: int, pilots: Collection[str]) -> None:
        self.outlived.update(dict.fromkeys(pilots, job_id))

    def end_job(self, job_id: int, reason: str) -> None:
        self.ended[job_id] = reason

    def top_up(self, job_id: int, tasks: int) -> bool:
        self.topped_up[job_id] = tasks
        return True

    def choose_batches(self, job_id: int, batches: tuple[tuple[int, int], ...]) -> None:
        self.batches[job_id] = batches

    def climb(self, jobs: frozenset[int]) -> None:
        self.climbers = jobs

    def reports(self) -> Sequence[Event]:
        taken, self._reports = self._reports, []
        return taken
