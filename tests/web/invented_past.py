"""An invented past of a machine, written into a journal as a daemon would have: for pictures, tests and benches.

Nodes go back and forth between the main queue and holes; jobs train in the holes. The same seed gives the same past.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from malletrain.domain.event import (
    BreakerSwitched,
    DaemonStarted,
    Event,
    GenerationPublished,
    GenerationSwitched,
    HolesEnded,
    HolesOpened,
    JobAnnounced,
    MainJobMet,
    MetricReported,
    PilotEnded,
    PilotHeld,
    PilotStarted,
    PoolCounted,
    SamplesReported,
    TasksAdded,
)
from malletrain.domain.job import MalleableJob
from malletrain.domain.snapshot import NodeState, SlurmState
from malletrain.store.journal import SqliteJournal

USERS = (("ada", 1001, "physics"), ("bao", 1002, "climate"), ("chidi", 1003, "biology"), ("dana", 1004, "physics"))

NAMES = (
    "protein-lm",
    "weather-unet",
    "gpt-small",
    "vit-galaxies",
    "turbulence-fno",
    "rl-tokamak",
    "diffusion",
    "gnn-qm9",
)

#: Seconds between two looks at the cluster.
LOOK_S = 10.0

#: Events written in one transaction.
BATCH = 2000


@dataclass(slots=True)
class _Job:
    number: int
    name: str
    owner: tuple[str, int, str]
    least: int
    most: int
    rate: float  # samples/s of one node
    total: float
    held: dict[str, str] = field(default_factory=dict)  # node -> pilot
    free: list[int] = field(default_factory=list)
    generation: int = 0
    samples: float = 0.0
    switched_at: float = 0.0

    def rate_on(self, nodes: int) -> float:
        return self.rate * math.pow(nodes, 0.86)


@dataclass(frozen=True, slots=True)
class InventedMachine:
    """`nodes` nodes and `jobs` jobs over `hours` until `now`; a window of training is `window_s` long."""

    nodes: int
    jobs: int
    hours: float
    now: float
    seed: int = 7
    mean_main_s: float = 3600.0
    mean_hole_s: float = 1500.0
    window_s: float = 60.0
    #: Names of the first jobs; the others are of studies and of `NAMES`.
    first_names: tuple[str, ...] = ()

    def write(self, journal: SqliteJournal) -> dict[str, NodeState]:
        """Append the past to an empty journal; returns each node's state now."""
        states: dict[str, NodeState] = {}
        batch: list[Event] = []
        for event in self._events(states):
            batch.append(event)
            if len(batch) >= BATCH:
                journal.append(batch)
                batch = []
        journal.append(batch)
        return states

    def _events(self, states: dict[str, NodeState]) -> Iterator[Event]:
        dice, begin = random.Random(self.seed), self.now - 3600.0 * self.hours
        width = len(str(self.nodes))
        names = [f"n{number:0{max(3, width)}}" for number in range(1, self.nodes + 1)]
        away = set(names[-1:] if self.nodes < 100 else names[:: max(1, self.nodes // 40)])
        jobs = [self._job(number, dice) for number in range(1, self.jobs + 1)]
        yield Event(begin, DaemonStarted("demo", stage="whole"))
        for job in jobs:
            user, uid, account = job.owner
            wanted = MalleableJob(
                job.number, job.name, user, uid, account, job.least, job.most, begin + job.number,
                total_samples=job.total,
            )  # fmt: skip
            yield Event(begin + job.number, JobAnnounced(wanted), job.number)
            array = 4000 + 10 * job.number
            tasks = tuple(range(2 * job.most))
            yield Event(begin + job.number, TasksAdded(array, tasks), job.number)
            job.free = list(tasks)
        queue: list[tuple[float, int, str, str]] = []  # time, serial, what, node
        serial = 0
        idle: set[str] = set()
        main = {name for name in names if name not in away}
        owner: dict[str, _Job] = {}
        seen: dict[bool, list[str]] = {True: [], False: []}

        def later(at: float, what: str, node: str = "") -> None:
            nonlocal serial
            serial += 1
            heapq.heappush(queue, (at, serial, what, node))

        start = begin + self.jobs + 1
        for name in main:
            # The machine is in full swing when the picture begins.
            later(start + dice.random() * self.mean_main_s * 1.4, "opens", name)
        later(start + 30, "share")
        later(start + LOOK_S, "look")
        later(start + 60, "count")
        later(start + self.window_s, "windows")
        main_number = 90_000
        while queue:
            at, _, what, node = heapq.heappop(queue)
            if at > self.now:
                break
            if what == "opens":
                main.discard(node)
                idle.add(node)
                seen[True].append(node)
                later(at + max(120.0, dice.expovariate(1 / self.mean_hole_s)), "closes", node)
                later(at + 4, "share")
            elif what == "closes":
                taken = owner.pop(node, None)
                if taken is not None:
                    job = taken
                    main_number += 1
                    preempted = dice.random() < 0.01
                    pilot = job.held.pop(node)
                    job.free.append(int(pilot.rpartition("_")[2]))
                    why = f"main job {main_number} could start on {node}"
                    yield Event(at, MainJobMet(str(main_number), "main", at - 300))
                    gone = at + 0.4 + 1.2 * dice.random()
                    if preempted:
                        ended = PilotEnded(SlurmState.PREEMPTED, preempted=True)
                        yield Event(gone, ended, job.number, pilot, node, "preempted by Slurm")
                    else:
                        yield Event(gone, PilotHeld(), job.number, pilot, node, why)
                    begun = gone + 0.3 + dice.random() * (8.0 if dice.random() < 0.1 else 0.8)
                    met = MainJobMet(str(main_number), "main", at - 300, begun, gone, preempted)
                    yield Event(begun, met, job.number, pilot, node)
                    yield from self._switch(job, begun, dice, f"{node} leaves: {why}")
                idle.discard(node)
                main.add(node)
                seen[False].append(node)
                later(at + max(300.0, dice.expovariate(1 / self.mean_main_s)), "opens", node)
            elif what == "share":
                changed: dict[int, _Job] = {}
                for name in sorted(idle - set(owner))[: max(1, len(idle) - self.nodes // 60)]:
                    wanting = [job for job in jobs if len(job.held) < job.most and job.free]
                    if not wanting:
                        break
                    job = min(wanting, key=lambda job: (len(job.held) / job.most, job.number))
                    task = job.free.pop(0)
                    pilot = f"{4000 + 10 * job.number}_{task}"
                    job.held[name], owner[name] = pilot, job
                    yield Event(at, PilotStarted(at, at + 3600.0), job.number, pilot, name)
                    changed[job.number] = job
                for job in changed.values():
                    yield from self._switch(job, at + 8, dice, f"{len(job.held)} nodes are worth more than before")
            elif what == "look":
                for opened, nodes in seen.items():
                    if nodes:
                        change = HolesOpened(tuple(nodes)) if opened else HolesEnded(tuple(nodes), taken=True)
                        yield Event(at, change, reason=f"{len(nodes)} nodes")
                        nodes.clear()
                later(at + LOOK_S, "look")
            elif what == "count":
                yield Event(at, PoolCounted(len(idle - set(owner)), 0, len(owner), len(main), len(away)))
                later(at + 60, "count")
            else:
                yield from self._windows(jobs, at)
                later(at + self.window_s, "windows")
        if self.hours >= 3:
            yield Event(self.now - 5000, BreakerSwitched(True), reason="21 preempted pilots in an hour")
            yield Event(self.now - 3200, BreakerSwitched(False), reason="closed again")
        for name in names:
            state = NodeState.IDLE if name in idle - set(owner) else NodeState.ALLOCATED
            states[name] = NodeState.DRAINED if name in away else state

    def _job(self, number: int, dice: random.Random) -> _Job:
        if number <= len(self.first_names):
            name = self.first_names[number - 1]
        elif number % 3 == 0:
            name = f"lr-search-0badcafe-{number // 3:06}"
        else:
            name = NAMES[number % len(NAMES)]
        most = min(self.nodes, dice.choice((4, 8, 16)))
        return _Job(
            number, name, USERS[number % len(USERS)], 1, most, dice.uniform(200, 900), dice.uniform(1.5e7, 9e7)
        )

    def _switch(self, job: _Job, at: float, dice: random.Random, reason: str) -> Iterator[Event]:
        job.generation += 1
        members = tuple(sorted(job.held.values()))
        job.switched_at = at
        yield Event(at, GenerationPublished(job.generation, members, "plan"), job.number, reason=reason)
        if members:
            pause = math.exp(dice.gauss(-1.2, 0.4))
            switched = GenerationSwitched(job.generation, len(members), pause)
            yield Event(at + pause, switched, job.number, reason=reason)

    def _windows(self, jobs: list[_Job], at: float) -> Iterator[Event]:
        for job in jobs:
            seconds = min(self.window_s, at - job.switched_at)
            if not job.held or seconds < 5:
                continue
            done = job.rate_on(len(job.held)) * seconds * (1 + 0.02 * math.sin(at / 37 + job.number))
            job.samples += done
            window = SamplesReported(nodes=len(job.held), samples=done, seconds=seconds, total=job.samples)
            yield Event(at, window, job.number)
            loss = 0.4 + 2.6 * math.exp(-job.samples / job.total * 3)
            yield Event(at, MetricReported("loss", round(loss, 4), int(job.samples)), job.number)
