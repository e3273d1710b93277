"""Membership: every directive and event of short scenes, and of seeded plays of workers that follow the protocol."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.corpus import doors
from tests.corpus.cases import Case, canonical, lines

Json = dict[str, Any]

TICK_S = 0.1
STALL_S = 2.5
SEATS = 8


def cases() -> Iterator[Case]:
    """Scenes, then plays."""
    sent: dict[str, list[str]] = {}
    for scene in SCENES:
        told = Told()
        scene(told)
        yield Case(f"scene-{scene.__name__}", lines(told.rows), told.words, len(told.rows) < 16)
        sent[scene.__name__] = [told.members.directive_sent(name) for name in told.names]
    yield Case("directives-at-the-ends-of-scenes", canonical(sent))
    for report in REPORTS:
        told = Told()
        names = told.trains(2)
        told.members.deliver(names[0], report)
        told.look(*names)
        yield Case(f"report-{report['type']}", lines(told.rows), told.words)
    for seed in range(10):
        play = Play(seed)
        play.run(40)
        yield Case(f"play-{seed:02}", lines(play.told.rows), play.told.words)


class Told:
    """Members of one job, and all that they are told: each directive when it is new, each event."""

    def __init__(self, **terms: Any) -> None:
        self.rows: list[Json] = []
        self._seen: dict[str, int] = {}
        self.begin(**terms)

    def begin(self, **terms: Any) -> None:
        """Anew, under other terms."""
        self.members = doors.Members(**terms)
        self._seen.clear()
        self.plans: dict[int, Json] = {}

    @property
    def names(self) -> list[str]:
        """The workers that were let in since the beginning."""
        return sorted(self._seen)

    @property
    def words(self) -> str:
        generations = [row for row in self.rows if row.get("kind") == "generation"]
        lost = sum(row.get("kind") == "worker_lost" for row in self.rows)
        return f"{len(self.rows)} rows, {len(generations)} generations, {lost} lost"

    def hello(self, task: int, restart: int = 0, job: int = 1) -> str:
        name = self.members.hello(job, f"9_{task}", restart, f"n{task}")
        self.rows.append({"at": self.members.at, "hello": name})
        return name

    def warm(self, *tasks: int) -> list[str]:
        """Workers that say hello and are warm at once."""
        names = [self.hello(task) for task in tasks]
        for task, name in zip(tasks, names, strict=True):
            self.members.warm(name, f"h{task}:1", build=0.5)
        return names

    def look(self, *workers: str) -> None:
        """Note what is new for these workers, and what has happened."""
        self.rows += self.members.events()
        for name in workers:
            wanted = self.directive(name)
            if wanted["seq"] != self._seen.get(name, 0):
                self._seen[name] = wanted["seq"]
                self.rows.append({"at": self.members.at, "worker": name, "told": wanted})

    def directive(self, worker: str) -> Json:
        wanted = self.members.directive(worker)
        if wanted["plan"] is not None:
            self.plans[wanted["plan"]["generation"]] = wanted["plan"]
        return wanted

    def note(self, what: str, value: object) -> None:
        self.rows.append({"at": self.members.at, what: value})

    def obey(self, *workers: str) -> None:
        """These workers do at once what they are told: check in, enter, leave."""
        for name in workers:
            check = self.directive(name)["check_in"]
            if check is not None:
                self.members.checked_in(name, check, 5, self.members.phase(name) == "serving")
        for name in workers:
            plan = self.directive(name)["plan"]
            if plan is None:
                continue
            if any(seat["worker"] == name for seat in plan["members"]):
                self.members.switched(name, plan["generation"], 5, len(plan["members"]), 0.1, True)
            elif self.members.phase(name) == "serving":
                self.members.left(name, plan["generation"], 5, None)
        self.look(*workers)

    def trains(self, size: int) -> list[str]:
        """A world of so many that trains."""
        names = self.warm(*range(size))
        self.look(*names)
        self.obey(*names)
        return names


# --- Scenes ---------------------------------------------------------------------------------------------------


def begins_and_grows(told: Told) -> None:
    names = told.trains(2)
    names += told.warm(2)
    told.look(*names)
    told.obey(*names)
    told.note("world", told.members.world(1))


def newcomers_gather(told: Told) -> None:
    names = told.trains(1)
    late = told.hello(2)
    names += told.warm(1)
    told.look(*names)
    told.members.pass_time(0.1)
    told.members.warm(late, "h2:1")
    told.members.pass_time(0.2)
    told.look(*names, late)


def one_is_asked_to_leave(told: Told) -> None:
    names = told.trains(3)
    told.members.leave(1, "9_1", "its hole closes")
    told.look(*names)
    told.members.pass_time(0.1)
    told.look(*names)
    told.obey(*names)


def the_first_leaves(told: Told) -> None:
    names = told.trains(2)
    told.members.leave(1, "9_0", "yields")
    told.members.pass_time(0.1)
    told.obey(*names)


def all_leave(told: Told) -> None:
    names = told.trains(2)
    for task in range(2):
        told.members.leave(1, f"9_{task}", "held by its owner")
    told.members.pass_time(0.1)
    told.look(*names)
    told.obey(*names)


def a_process_dies(told: Told) -> None:
    names = told.trains(3)
    told.members.exited(names[2], -9)
    told.look(*names)
    told.obey(*names)


def a_peer_is_silent(told: Told) -> None:
    names = told.trains(3)
    told.members.fault(names[0], 1, 7, "closed", "peer 2")
    told.look(*names)
    for name in names[:2]:
        told.members.checked_in(name, told.directive(name)["check_in"], 7, True)
    told.look(*names)
    told.members.pass_time(2.1)
    told.look(*names)
    told.obey(*names[:2])


def a_peer_is_late(told: Told) -> None:
    names = told.trains(2)
    told.members.fault(names[0], 1, 7, "stalled", "peer 1")
    told.look(*names)
    told.obey(*names)
    told.members.pass_time(3.0)
    told.look(*names)


def a_group_cannot_be_built(told: Told) -> None:
    names = told.trains(1) + told.warm(1)
    told.look(*names)
    told.members.fault(names[0], 2, 9, "build", "port in use")
    told.look(*names)
    told.obey(*names)


def a_connection_drops(told: Told) -> None:
    names = told.trains(2)
    told.members.disconnected(names[1])
    told.members.pass_time(4.0)
    told.look(*names)
    told.members.pass_time(1.1)
    told.look(*names)
    told.obey(names[0])
    told.note("again", told.members.hello(1, "9_1", 0, "n1"))


def a_poll_is_not_renewed(told: Told) -> None:
    names = told.trains(2)
    told.members.polled(names[1])
    told.members.answered(names[1])
    told.members.pass_time(5.5)
    told.look(*names)


def all_fall_silent_and_return(told: Told) -> None:
    names = told.trains(2)
    told.members.pass_time(121.0)
    told.look(*names)
    told.note("phases", [told.members.phase(name) for name in names])
    told.note("again", told.members.hello(1, "9_0", 0, "n0"))
    told.look(names[0])


def a_newcomer_never_warms(told: Told) -> None:
    name = told.hello(0)
    for _ in range(8):
        told.members.pass_time(100.0)
        if told.members.phase(name) == "joining":
            told.members.heard(name)
    told.look(name)


def a_plan_is_not_taken(told: Told) -> None:
    names = told.trains(1) + told.warm(1)
    told.look(*names)
    told.members.pass_time(5.1)
    told.look(*names)
    told.members.checked_in(names[0], told.directive(names[0])["check_in"], 9, True)
    told.members.pass_time(2.1)
    told.look(*names)


def a_pilot_starts_again(told: Told) -> None:
    names = told.trains(2)
    names.append(told.hello(1, restart=1))
    told.look(*names)
    told.obey(names[0])
    told.members.warm(names[2], "h1:2")
    told.look(*names)


def the_script_fails_once(told: Told) -> None:
    names = told.trains(2)
    told.members.failed(names[1], 6, "ValueError: bad batch")
    told.look(*names)
    told.obey(names[0])


def the_script_fails_everywhere(told: Told) -> None:
    names = told.trains(1)
    told.members.failed(names[0], 6, "ValueError: bad batch")
    told.look(*names)
    told.hello(3)


def the_script_ends_with_a_status(told: Told) -> None:
    names = told.trains(2)
    told.members.exited(names[0], 3)
    told.look(*names)
    told.members.exited(names[1], 143)
    told.look(*names)


def training_finishes(told: Told) -> None:
    names = told.trains(2)
    told.members.finished(names[0], loss=0.25)
    told.look(*names)
    told.members.exited(names[0], 0)
    told.members.exited(names[1], 0)
    told.look(*names)
    told.hello(2)


def the_job_is_cancelled(told: Told) -> None:
    names = told.trains(2)
    told.members.end_job(1, "cancelled by ann")
    told.look(*names)


def a_term_signal(told: Told) -> None:
    names = told.trains(2)
    told.members.leaving(names[1], "SIGTERM")
    told.members.pass_time(0.1)
    told.look(*names)
    told.obey(*names)


def one_leaves_by_itself(told: Told) -> None:
    names = told.trains(3)
    told.members.left(names[1], 0, 8, "/scratch/ckpt")
    told.look(*names)
    told.obey(names[0], names[2])


def top_ups_and_batches(told: Told) -> None:
    told.begin(batches=((1, 32), (2, 64)))
    names = told.trains(2)
    told.note("topped up", [told.members.top_up(1, 8), told.members.top_up(2, 8)])
    told.look(*names)
    told.members.topped_up(names[0])
    told.members.choose_batches(1, ((1, 32), (3, 96)))
    names += told.warm(2)
    told.look(*names)


def few_sizes(told: Told) -> None:
    told.begin(least=2, most=4, sizes=(2, 4))
    names = told.warm(0)
    told.look(*names)
    names += told.warm(1)
    told.look(*names)
    told.obey(*names)
    names += told.warm(2)
    told.look(*names)
    names += told.warm(3)
    told.look(*names)
    told.obey(*names)


def a_daemon_is_restarted(told: Told) -> None:
    told.begin(generations={1: 41})
    name = told.hello(0)
    seats = [(f"9_{task}.0", f"9_{task}", f"h{task}:1") for task in range(3)]
    told.members.adopt(name, 41, seats, 70, "h0:1", 41)
    told.look(name)
    second = told.hello(1)
    told.members.adopt(second, 41, seats, 71, "h1:1", 42)
    told.look(name, second)
    for _ in range(3):
        told.members.pass_time(20.0)
        told.members.heard(name)
        told.members.heard(second)
    told.look(name, second)
    told.obey(name, second)
    told.note("world", told.members.world(1))


def measured_on_the_way_up(told: Told) -> None:
    told.members.climb(1)
    names = told.warm(*range(6))
    for _ in range(8):
        told.look(*names)
        told.obey(*names)
        world = told.members.world(1)
        n = 0 if world is None else len(world["members"])
        if n:
            told.members.samples(names[0], 5, nodes=n, samples=100.0 * n, seconds=1.0, steps=5, total=500)
        told.members.pass_time(0.3)
    told.note("world", told.members.world(1))


def a_climb_is_given_up(told: Told) -> None:
    told.members.climb(1)
    names = told.warm(*range(4))
    told.look(*names)
    told.obey(*names)
    for _ in range(4):
        told.members.pass_time(5.1)
        for name in names:
            told.members.heard(name)
        told.look(*names)


def the_daemon_slept(told: Told) -> None:
    names = told.trains(2)
    told.members.disconnected(names[1])
    told.members.slept(300.0)
    told.members.pass_time(300.0)
    told.look(*names)
    told.note("phases", [told.members.phase(name) for name in names])


def relaunched_at_each_size(told: Told) -> None:
    told.begin(restarts=True)
    names = told.trains(2)
    names += told.warm(2)
    told.look(*names)
    told.members.leave(1, "9_0", "shrinks")
    told.members.pass_time(0.3)
    told.look(*names)


SCENES: tuple[Callable[[Told], None], ...] = (
    begins_and_grows, newcomers_gather, one_is_asked_to_leave, the_first_leaves, all_leave, a_process_dies,
    a_peer_is_silent, a_peer_is_late, a_group_cannot_be_built, a_connection_drops, a_poll_is_not_renewed,
    all_fall_silent_and_return, a_newcomer_never_warms, a_plan_is_not_taken, a_pilot_starts_again,
    the_script_fails_once, the_script_fails_everywhere, the_script_ends_with_a_status, training_finishes,
    the_job_is_cancelled, a_term_signal, one_leaves_by_itself, top_ups_and_batches, few_sizes, a_daemon_is_restarted,
    measured_on_the_way_up, a_climb_is_given_up, the_daemon_slept, relaunched_at_each_size,
)  # fmt: skip


#: One message of each kind that a worker reports.
REPORTS: tuple[Json, ...] = (
    {"type": "warm", "address": "h0:2", "stages": {"import": 2.5}},
    {"type": "checkedin", "answers": 1, "generation": 1, "step": 7, "whole": True, "stuck_s": 0.5},
    {"type": "fault", "generation": 1, "step": 7, "how": "closed", "detail": "peer 1"},
    {"type": "switched", "generation": 1, "step": 8, "nodes": 2, "pause_s": 0.2, "grew": True, "state_bytes": 99},
    {"type": "leaving", "why": "SIGTERM"},
    {"type": "left", "generation": 0, "step": 9, "saved": "/scratch/1"},
    {
        "type": "samples", "step": 9, "nodes": 2, "samples": 64, "seconds": 1.5, "steps": 2, "total": 640,
        "parts": {"data": 0.1}, "noise_scale": 12.5, "rates": {"9_0.0": 40.0}, "memory_bytes": 10,
    },
    {"type": "metric", "name": "loss", "value": None, "samples": 640},
    {"type": "finished", "result": {"loss": 0.5}},
    {"type": "failed", "step": 9, "message": "ValueError: bad batch"},
    {"type": "exited", "status": -9},
    {"type": "toppedup", "array_id": 8, "tasks": 4},
)  # fmt: skip


# --- Plays ----------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """One worker's process: when it is warm, the world that it trains in, the one that it waits in."""

    name: str
    task: int
    warm_at: float
    alive: bool = True
    frozen: bool = False
    warm: bool = False
    at: int = 0
    entering: int = 0
    tried: int = 0
    ready: int = 0
    waits: float = 0.0

    @property
    def runs(self) -> bool:
        return self.alive and not self.frozen


class Play:
    """Workers come, leave, die and freeze at random; the others do as the protocol says."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        terms: Json = self.random.choice([{}, {}, {"least": 2}, {"sizes": (1, 2, 4, 8)}, {"restarts": True}])
        self.told = Told(**terms)
        self.members = self.told.members
        if seed % 4 == 1:
            self.members.climb(1)
        self.processes: dict[str, Process] = {}
        self.restarts = dict.fromkeys(range(SEATS), 0)
        self.steps = 0

    def run(self, changes: int) -> None:
        self.spawn(0)
        for _ in range(changes):
            self.change()
            for _ in range(self.random.choice([0, 1, 3, 10, 40])):
                self.tick()
        for _ in range(100):
            self.tick()

    def living(self) -> list[Process]:
        return [each for each in self.processes.values() if each.alive]

    def spawn(self, task: int) -> None:
        self.restarts[task] += 1
        name = self.told.hello(task, self.restarts[task])
        self.processes[name] = Process(name, task, self.members.at + self.random.random())

    def end(self, process: Process, status: int) -> None:
        process.alive = False
        chance = self.random.random()
        if chance < 0.6:
            self.members.exited(process.name, status)
        elif chance < 0.85:
            self.members.disconnected(process.name)

    def change(self) -> None:
        living = [each for each in self.living() if not each.frozen]
        free = [task for task in range(SEATS) if all(each.task != task for each in self.living())]
        kinds = ["spawn"] * 4 * bool(free) + ["leave", "term", "kill", "freeze"] * (len(living) > 1)
        kind = self.random.choice(kinds or ["nothing"])
        if kind == "nothing":
            return
        if kind == "spawn":
            self.spawn(self.random.choice(free))
            return
        victim = self.random.choice(living)
        if kind == "leave":
            self.members.leave(1, f"9_{victim.task}", "wanted")
        elif kind == "term":
            self.members.leaving(victim.name, "SIGTERM")
        elif kind == "kill":
            self.end(victim, self.random.choice([-9, -9, 143]))
        else:
            victim.frozen = True

    def tick(self) -> None:
        self.members.pass_time(TICK_S)
        for process in self.living():
            if process.runs:
                self.act(process)
        self.told.look(*self.processes)
        for process in self.living():
            if process.frozen and self.members.phase(process.name) == "lost":
                self.end(process, -9)

    def act(self, me: Process) -> None:
        self.members.heard(me.name)
        if not me.warm and self.members.at >= me.warm_at:
            me.warm = True
            self.members.warm(me.name, f"h{me.task}:1")
        wanted = self.told.directive(me.name)
        if wanted["end"] is not None:
            me.alive = False
            self.members.exited(me.name, 143)
            return
        if wanted["check_in"] is not None:
            self.members.checked_in(me.name, wanted["check_in"], self.steps, me.at != 0)
        plan = wanted["plan"]
        if me.entering:
            self.enter(me, plan)
        elif plan is not None and me.warm and plan["generation"] > me.tried:
            self.consider(me, plan)
        if me.alive and not me.entering and me.at:
            self.train(me)

    def seats(self, generation: int) -> list[Process]:
        return [self.processes[seat["worker"]] for seat in self.told.plans[generation]["members"]]

    def consider(self, me: Process, plan: Json) -> None:
        number = plan["generation"]
        mine = any(seat["worker"] == me.name for seat in plan["members"])
        if not me.at or plan["urgent"]:
            me.tried = number
            if mine:
                me.entering, me.waits = number, 0.0
            elif me.at:
                self.depart(me, number)
        elif not mine or all(each.runs and each.warm for each in self.seats(number)):
            me.ready = number

    def depart(self, me: Process, generation: int) -> None:
        me.alive = False
        self.members.left(me.name, generation, self.steps, None)

    def enter(self, me: Process, plan: Json | None) -> None:
        if plan is not None and plan["generation"] > me.entering and (plan["urgent"] or not me.at):
            me.tried, me.entering = me.entering, 0
            self.consider(me, plan)
            return
        generation = me.entering
        seats = self.seats(generation)
        if all(each.runs and each.entering == generation for each in seats):
            for each in seats:
                each.at, each.entering, each.tried, each.ready, each.waits = generation, 0, generation, 0, 0.0
            for each in seats:
                self.members.switched(each.name, generation, self.steps, len(seats), 0.1, True)
            return
        self.wait(me, generation, "closed" if any(not each.alive for each in seats) else "stalled")

    def train(self, me: Process) -> None:
        peers = self.seats(me.at)
        if not all(each.runs and each.at == me.at and not each.entering for each in peers):
            self.wait(me, me.at, "closed" if any(not each.alive for each in peers) else "stalled")
            return
        me.waits = 0.0
        self.steps += 1
        if me is peers[0] and self.steps % 7 == 0:
            n = len(peers)
            self.members.samples(
                me.name, self.steps, nodes=n, samples=50 * n, seconds=1.0, steps=7, total=50 * self.steps
            )
        number = me.ready
        if number > me.at and all(each.ready == number for each in peers):
            mine = {seat["worker"] for seat in self.told.plans[number]["members"]}
            for each in peers:
                each.tried = number
                if each.name in mine:
                    each.entering, each.waits = number, 0.0
                else:
                    self.depart(each, number)

    def wait(self, me: Process, generation: int, how: str) -> None:
        me.waits += TICK_S
        if me.waits >= (0.3 if how == "closed" else STALL_S):
            me.waits = 0.0
            self.members.fault(me.name, generation, self.steps, how, "a peer")
