"""Histories of a site through the loop, and what other daemons would decide at moments of them.

A history's cluster is in memory: main jobs come and go, nodes fail, malleable jobs train at rates of their own and
report them. At some ticks a daemon with other rules and another policy reads the same journal, and sees the cluster
with changes: plans, reservations, hetjobs, stale plans, leaf switches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus import doors
from tests.corpus.cases import Case, canonical, lines

Json = dict[str, Any]

NODES = 12
TICKS = 18
HISTORIES = 10
POLICIES = (
    "auto", "exact", "milp", "greedy", "equal", "efficiency", "utility", "deadline", "greedy", "budget", "lp",
    "goodput", "elastic_batch", "matching",
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Journals and decisions of each history, then single decisions."""
    for seed in range(HISTORIES):
        history = History(seed)
        single: list[Case] = []
        for tick in range(TICKS):
            history.tick(tick)
            if tick % 6 == 5:
                single.append(history.elsewise(tick))
        yield from history.cases()
        yield from single
    for seed in range(3):
        yield from observed(seed)


class History:
    """One site, its main queue and its malleable jobs."""

    def __init__(self, seed: int) -> None:
        at = self.at = random.Random(seed)
        self.name = f"{seed:02}"
        self.policy = POLICIES[seed % len(POLICIES)]
        gpus = seed % 5 == 4
        self.site = doors.Site(
            [
                doors.node(f"n{i:02}", gres="gpu:a100:4" if gpus and i % 2 else "", cpus=32, weight=1 + i % 3)
                for i in range(NODES)
            ],
            some_rules(at, wide=seed % 6 == 5),
            self.policy,
        )
        self.decisions: list[Json | None] = []
        self.jobs: dict[int, Trained] = {}
        self.arrays: dict[str, int] = {}
        self.busy: dict[str, Any] = {}
        self.next_main = 5000

    # --- what happens -------------------------------------------------------------------------------------------

    def tick(self, tick: int) -> None:
        at, site = self.at, self.site
        if tick < 10 and at.random() < 0.45:
            self.submit(len(self.jobs) + 1)
        self.move_main()
        self.trouble(tick)
        self.train()
        if at.random() < 0.3:
            site.watch(2.0)
        self.decisions.append(site.tick(at.choice([10.0, 10.0, 30.0, 60.0])))

    def submit(self, number: int) -> None:
        at = self.at
        most = at.choice([2, 4, 8, 12])
        kind = at.choice(["measured", "measured", "given", "batches", "restart", "deadline", "budget"])
        rate, bend = at.choice([5.0, 40.0]), at.choice([0.0, 0.05, 0.3])
        curve = [(n, round(rate * n / (1 + bend * n), 4)) for n in (1, 2, 4, 8, 12) if n <= most]
        wanted = doors.job(
            number,
            name=at.choice(["resnet.1", "resnet.2", "bert"]),
            user=at.choice(["ann", "bob"]),
            account=at.choice(["a", "b"]),
            least=at.choice([1, 1, 1, 2]),
            most=most,
            at=self.site.now,
            sizes=at.choice([(), (), (1, 2, 4, 8)]),
            weight=at.choice([1.0, 1.0, 2.0]),
            elastic="restart" if kind == "restart" else "live",
            curve=curve if kind in ("given", "deadline") else None,
            total=at.choice([2e4, 1e6]) if kind in ("given", "deadline") else None,
            profile=at.choice([None, None, "active", "passive", "none"]) if kind == "measured" else None,
            batch=(32, 256) if kind == "batches" else None,
            budget_node_s=3000.0 if kind == "budget" else None,
            deadline=self.site.now + 2400.0 if kind == "deadline" else None,
        )
        tasks = at.choice([6, 14])
        array = self.site.submit(wanted, tasks)
        self.arrays[str(array)] = number
        self.jobs[number] = Trained(wanted.user, rate, bend, kind == "batches")

    def move_main(self) -> None:
        """Main jobs end, start, and wait with a plan or without."""
        at, now = self.at, self.site.now
        names = [f"n{i:02}" for i in range(NODES)]
        for number, nodes in [(n, j) for n, j in self.busy.items() if at.random() < 0.15]:
            del self.busy[number]
            del nodes
        taken = {name for nodes in self.busy.values() for name in nodes}
        if at.random() < 0.35:
            free = [name for name in names if name not in taken]
            self.next_main += 1
            self.busy[str(self.next_main)] = at.sample(free, min(len(free), at.choice([1, 1, 2, 4])))
        rows = [
            doors.main_job(int(n), nodes=nodes, start=now - 60, end=now + 600)
            for n, nodes in sorted(self.busy.items())
            if nodes
        ]
        if at.random() < 0.5:
            wanted = at.sample(names, at.choice([1, 2, 3]))
            rows.append(
                doors.main_job(9000, count=len(wanted), start=now + at.choice([40.0, 240.0, 900.0]), planned=wanted)
            )
        if at.random() < 0.3:
            rows.append(
                doors.main_job(
                    9100 + self.next_main,
                    count=at.choice([1, 2, 6]),
                    reason=at.choice(["Resources", "Priority", "Dependency"]),
                    priority=at.choice([1, 500]),
                )
            )
        self.site.set_main(rows)

    def trouble(self, tick: int) -> None:
        """Nodes fail and come back, pilots die, people act, Slurm is away."""
        at, site = self.at, self.site
        if at.random() < 0.15:
            name = f"n{at.randrange(NODES):02}"
            site.set_node(doors.node(name, at.choice(["idle", "idle", "drained", "down", "maint"]), cpus=32))
        if at.random() < 0.1:
            nodes = [f"n{at.randrange(NODES):02}"]
            site.set_reservations([doors.reservation("resv", site.now + 300, site.now + 900, nodes, "MAINT")])
        running = list(site.running())
        if running and at.random() < 0.12:
            pilot = at.choice(running)
            kind = at.choice(["failed", "node_fail", "cancelled"])
            site.report(
                doors.event(site.now, "worker_lost", self.job_of(pilot), pilot, worker=f"{pilot}.0", how=kind)
            )
            site.end_pilot(pilot, kind)
        if self.jobs and at.random() < 0.08:
            number = at.choice(list(self.jobs))
            kind = at.choice(["job_held", "job_released", "job_released", "job_cancelled", "job_completed"])
            site.record(doors.event(site.now, kind, number, reason="asked", by="ann"))
        if at.random() < 0.04:
            nodes = [f"n{at.randrange(NODES):02}"]
            site.record(
                doors.event(site.now, "operator", verb="drain", by="root", nodes=nodes, until=site.now + 120.0)
            )
        if self.jobs and at.random() < 0.08:
            number = at.choice(list(self.jobs))
            self.arrays[str(site.attach(number, at.choice([self.jobs[number].user, "eve"]), 3))] = number
        site.fails("slurmctld is away" if tick in (13, 14) and self.name.endswith("3") else "")
        site.crowds("the queue is full" if 20 <= tick < 24 else "")

    # --- what workers do ----------------------------------------------------------------------------------------

    def job_of(self, pilot: str) -> int:
        return self.arrays[pilot.partition("_")[0]]

    def train(self) -> None:
        """Whoever runs is warm, in one world a job, and reports a window of training."""
        site, now = self.site, self.site.now
        by_job: dict[int, list[str]] = {number: [] for number in self.jobs}
        for pilot in site.running():
            by_job[self.job_of(pilot)].append(pilot)
        for number, pilots in by_job.items():
            self.jobs[number].train(site, number, now, pilots, self.at)

    # --- what comes of it ---------------------------------------------------------------------------------------

    def cases(self) -> Iterator[Case]:
        events = self.site.events()
        kinds = [row["kind"] for row in events]
        words = f"{self.policy}: {len(events)} events, {kinds.count('switched')} resizes"
        yield Case(f"history-{self.name}/journal", lines(events), words)
        if self.name == "03":
            yield Case(f"history-{self.name}/journal-begins", lines(events[:90]), whole=True)
        yield Case(f"history-{self.name}/asked", canonical(self.site.asked()))
        pilots = list(self.site.running())
        subjects = [*map(str, self.jobs), "n00", "n05", "n11", *pilots[:2], "main-job 9000", "main-job 5001", "zork"]
        told = "".join(self.site.explain(subject) for subject in subjects)
        yield Case(f"history-{self.name}/explained", told, f"{len(told.splitlines())} lines", self.name == "08")
        for tick, made in enumerate(self.decisions):
            yield Case(f"history-{self.name}/tick-{tick:02}", canonical(made), _words(made))

    def elsewise(self, tick: int) -> Case:
        """What another daemon would decide."""
        at, site, now = self.at, self.site, self.site.now
        names = [f"n{i:02}" for i in range(NODES)]
        policy = POLICIES[(int(self.name) + tick) % len(POLICIES)]
        jobs = [
            doors.main_job(7000, count=3, start=now + 120, planned=at.sample(names, 3)),
            doors.main_job(7001, count=2, het=7001, priority=900, reason=at.choice(["Priority", "Resources"])),
            doors.main_job(7002, count=4, switches=1, priority=300),
            doors.main_job(7003, count=1, start=now - 40, planned=at.sample(names, 1)),
        ]
        made = site.decide_elsewise(
            some_rules(at, wide=at.random() < 0.3),
            policy,
            later_s=at.choice([0.0, 5.0, 100.0]),
            jobs=at.sample(jobs, at.randint(0, len(jobs))),
            nodes=[doors.node(name, at.choice(["planned", "reserved", "drained"])) for name in at.sample(names, 2)],
            reservations=[doors.reservation("weekly", now + at.choice([-10, 200]), now + 4000, at.sample(names, 2))],
            cycle_s=at.choice([None, 10.0, 500.0]),
            leaves={name: f"leaf{i // 4}" for i, name in enumerate(names)} if at.random() < 0.5 else None,
            paused="too many preemptions" if at.random() < 0.1 else "",
            crowded="the queue is full" if at.random() < 0.1 else "",
        )
        return Case(
            f"elsewise-{self.name}-{tick:02}",
            canonical(made),
            f"{policy}: {_words(made)}",
            tick == 11 and self.name in ("01", "05", "08"),
        )


def observed(seed: int) -> Iterator[Case]:
    """What the daemon would have done that only looks, and what it tells of that."""
    at = random.Random(seed)
    names = [f"n{i}" for i in range(6)]
    site = doors.ObservedSite([doors.node(name, cpus=8) for name in names], doors.rules(keep_idle=seed), 5)
    running: dict[int, tuple[int, list[str]]] = {}
    for tick in range(20):
        running = {number: (left - 1, nodes) for number, (left, nodes) in running.items() if left > 1}
        free = [name for name in names if all(name not in nodes for _, nodes in running.values())]
        if free and at.random() < 0.5:
            running[100 + tick] = (at.randint(1, 6), at.sample(free, at.randint(1, len(free))))
        rows = [doors.main_job(number, nodes=nodes) for number, (_, nodes) in running.items()]
        if at.random() < 0.4:
            rows.append(doors.main_job(500 + tick, count=at.randint(1, 3)))
        site.tick(at.choice([10.0, 60.0]), rows)
    events = site.events()
    yield Case(f"observed-{seed}/journal", lines(events), f"{len(events)} events")
    yield Case(f"observed-{seed}/told", canonical(site.told()), whole=seed == 0)


class Trained:
    """How a job's workers do what they are asked for."""

    def __init__(self, user: str, rate: float, bend: float, batches: bool) -> None:
        self.user, self.rate, self.bend, self.batches = user, rate, bend, batches
        self.world: list[str] = []
        self.generation = self.steps = self.total = 0

    def train(self, site: doors.Site, number: int, now: float, pilots: list[str], at: random.Random) -> None:
        new = [pilot for pilot in pilots if pilot not in self.world]
        for pilot in new:
            site.report(
                doors.event(now, "worker_joined", number, pilot, worker=f"{pilot}.0"),
                doors.event(
                    now, "worker_warm", number, pilot, worker=f"{pilot}.0", stages={"import": 2.5, "build": 1.0}
                ),
            )
        if pilots != self.world:
            self.generation += 1
            grew = len(pilots) > len(self.world)
            self.world = pilots
            site.report(
                doors.event(
                    now, "generation", number, reason="grew" if grew else "shrank", generation=self.generation,
                    members=pilots, switched_by="plan",
                )
            )  # fmt: skip
            if pilots:
                site.report(
                    doors.event(
                        now, "switched", number, pilots[0], reason="", generation=self.generation, nodes=len(pilots),
                        pause_s=round(at.uniform(0.05, 0.6), 3), step=self.steps, grew=grew,
                    )
                )  # fmt: skip
        n = len(pilots)
        if not n:
            return
        rate = self.rate * n / (1 + self.bend * n) * at.uniform(0.98, 1.02)
        batch = at.choice([32, 64, 128]) if self.batches else 32
        self.steps += 20
        self.total += 20 * batch
        slow = n >= 4 and number % 3 == 0
        rates = {f"{p}.0": self.rate * (0.5 if slow and i == 1 else 1.0) for i, p in enumerate(pilots)}
        site.report(
            doors.event(
                now, "samples", number, pilots[0], nodes=n, samples=20 * batch,
                seconds=round(20 * batch / rate / (1.5 if batch > 32 else 1.0), 4), steps=20, total=self.total,
                steady=at.random() < 0.9, rates=rates, noise_scale=500.0 if self.batches else None,
            )
        )  # fmt: skip


def some_rules(at: random.Random, *, wide: bool) -> Any:
    """A site's rules; `wide`: so few pilots that most hold several nodes."""
    return doors.rules(
        objective=at.choice(["throughput", "jct", "fair"]),
        alpha=at.choice([0.0, 0.0, 1.0]),
        horizon_s=at.choice([120.0, 300.0]),
        caps=at.choice([None, None, {"a": 5}]),
        floors=at.choice([None, None, {"b": 2}]),
        watts=at.choice([None, None, 10.0]),
        user_share=at.choice([1.0, 1.0, 0.5]),
        budgets=at.choice([None, None, {"a": 4000.0}]),
        shares=at.choice([None, {"a": 3.0, "b": 1.0}]),
        max_wait_s=_max_wait_s(at),
        keep_idle=at.choice([0, 0, 1, 3]),
        keep_leaves=at.choice([0, 0, 1]),
        max_pilots=at.choice([4, 4, 6] if wide else [200, 200, 6]),
        max_nodes=4 if wide else 1,
        max_pilot_s=at.choice([3600.0, 1800.0]),
        max_starts=at.choice([0, 0, 2]),
        exit_s=at.choice([None, 20.0]),
        exclude=_excluded(at),
    )


def _max_wait_s(at: random.Random) -> float:
    at.choice([None, None, 1, 2])  # for a rule that is gone: later histories stay as they were
    return at.choice([1800.0, 300.0])


def _excluded(at: random.Random) -> tuple[str, ...]:
    at.random(), at.random()  # for two rules that are gone: later histories stay as they were
    return at.choice([(), ("n11",)])


def _words(made: Json | None) -> str:
    if made is None:
        return "nothing"
    sizes = ",".join(f"{job}={size}" for job, size in made["sizes"].items())
    acts: dict[str, int] = {}
    for action in made["actions"]:
        acts[action["do"]] = acts.get(action["do"], 0) + 1
    did = " ".join(f"{do}:{n}" for do, n in acts.items())
    return f"[{sizes}] of {made['nodes']} {did}"
