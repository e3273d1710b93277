"""The daemon's inside under the load of a large site: thousands of live workers, jobs and nodes.

One process has the daemon's loop, membership, journal on disk and API on a socket, with Slurm in memory; another has
light clients that speak the workers' protocol (hello, the long poll, a window of training of each job every few
seconds), and a third a user who asks for the status four times a second, timed to its last byte. Half-way, nearly
half of the nodes change their state at once.

    python -m scripts.bench.load --nodes 10000 --jobs 1000 --workers 2000 --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from malletrain.api.app import create_app
from malletrain.api.auth import Auth
from malletrain.api.connections import ConnectionTable, within_descriptors
from malletrain.api.http_server import serve
from malletrain.api.people_routes import JournalNotifier, PeopleRoutes
from malletrain.api.rate_limits import ApiLimits
from malletrain.api.requests import LoopRequests
from malletrain.api.roles import Roles
from malletrain.api.worker_routes import WorkersGate, WorkersRouter
from malletrain.daemon.main import THREAD_SWITCH_S
from malletrain.daemon.process.short_collections import collect_and_freeze
from malletrain.daemon.process.timers import SystemClock
from malletrain.decide.rules import Rules
from malletrain.domain.event import ArrayAttached, Event, JobAnnounced
from malletrain.domain.job import Curve, MalleableJob, PilotPhase
from malletrain.domain.snapshot import Node, NodeState
from malletrain.loop.membership.admission import admit, holding
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.memory import MemoryCluster
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy
from malletrain.slurm.site.site_facts import Harvest
from malletrain.store.journal import SqliteJournal
from malletrain.store.views import StoreViews
from malletrain.wire import munge
from malletrain.wire.messages import Hello, Samples, Switched, Warm, to_json
from scripts.bench.shared import Connection, options_of, peak_mib, spent

#: Seconds between two windows of training of a job: the shortest of `elastic.link.training_reports`.
WINDOW_S = 3.0
#: How long a worker's poll waits (seconds).
POLL_S = 20.0
#: Clients of one address: a server allows an address so many strangers.
CLIENTS_PER_ADDRESS = 100
TICK_S = 10.0
#: Seconds between two pilots that start: some 3,000 a minute, more than Slurm does.
START_GAP_S = 0.02


# --- The server -------------------------------------------------------------------------------------------------


def serve_load(folder: Path, nodes: int, jobs: int, workers: int) -> None:
    """Serve until standard input ends, and bring the storm when it says so; facts go to standard output in JSON."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    clock = SystemClock()
    journal = SqliteJournal(folder / "journal.db")
    names = [f"n{number:05d}" for number in range(nodes)]
    cluster = MemoryCluster([Node(name, NodeState.IDLE, ("batch", "harvest")) for name in names], clock)
    for name in names[workers:]:
        cluster.nodes[name] = replace(cluster.nodes[name], state=NodeState.ALLOCATED)
    facts = threading.RLock()
    membership = Membership(
        MembershipSettings(),
        clock,
        lambda claim: admit(loop.views, claim),
        holding=lambda job: holding(loop.views, job),
    )

    def persist() -> None:
        loop.take_reports()

    gate = WorkersGate(membership, facts, persist, clock)
    loop = Loop(cluster, gate, journal, clock, policy("auto"), Rules(max_pilots=workers), guard=facts)
    a_job = max(1, workers // jobs)
    for number in range(1, jobs + 1):
        curve = Curve(((1, 100.0), (2, 190.0), (4, 350.0)))
        user = number % 50
        wanted = MalleableJob(
            number, f"job{number}", f"user{user}", 5000 + user, "harvest", 1, a_job, clock.now(), given_curve=curve
        )
        array = cluster.submit_array(wanted.user, a_job + 2)
        loop.record(
            [
                Event(clock.now(), JobAnnounced(wanted), number),
                Event(clock.now(), ArrayAttached(array, a_job + 2), number),
            ]
        )
    for _ in range(4):
        loop.tick()
    pilots = [
        (view.job.id, pilot.id, pilot.node)
        for view in loop.views.values()
        for pilot in view.pilots.values()
        if pilot.phase in (PilotPhase.RELEASED, PilotPhase.RUNNING)
    ]
    views = StoreViews(journal.path, lambda: loop.last_snapshot, lambda: loop.last_decision, "bench")
    roles = Roles(operators=())
    notifier = JournalNotifier()
    journal.on_append(notifier.ring)
    limits = ApiLimits()
    connections = ConnectionTable(limits, within_descriptors(limits.connections))

    def decode(said: str, _socket: str | None) -> munge.Credential:
        return munge.Credential(5001, 5001, said.encode(), time.time())

    auth = Auth(("http://bench",), roles, clock, decode=decode)
    ids = iter(range(10**6, 2 * 10**6))
    requests = LoopRequests(loop, facts, clock, Harvest("harvest"), lambda count: (), lambda: next(ids))
    people = PeopleRoutes(requests, views, auth, roles, notifier, clock, journal=gate.budget.journal)
    app = create_app(people, WorkersRouter(gate, int, connections), connections, holds_token=gate.holds_token)
    server = serve(app, "127.0.0.1", 0, connections)
    token = auth.log_in(munge.statement("malletrain-session-v1", "http://bench").decode())[0]
    _say({"port": server.port, "pid": os.getpid(), "pilots": pilots, "token": token})
    wishes: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            wishes.put(line.strip())
        wishes.put("end")

    threading.Thread(target=listen, daemon=True).start()
    collect_and_freeze()
    tick_at = clock.elapsed()
    while True:
        try:
            wish = wishes.get(timeout=0.1)
        except queue.Empty:
            wish = ""
        if wish == "end":
            break
        if wish == "storm":
            changed = names[workers : workers + int(0.46 * nodes)]
            for name in changed:
                cluster.nodes[name] = replace(cluster.nodes[name], state=NodeState.IDLE)
            tick_at = 0.0
        gate.tick()
        loop.react()
        if clock.elapsed() >= tick_at:
            tick_at = clock.elapsed() + TICK_S
            begun = time.monotonic()
            loop.tick()
            _say(
                {
                    "tick_s": time.monotonic() - begun,
                    "storm": wish == "storm",
                    "events": journal.last,
                    "rss_mb": peak_mib(),
                }
            )
    gate.end_polls()
    notifier.end()
    server.close()


def _say(fact: Mapping[str, Any]) -> None:
    print(json.dumps(fact), flush=True)


# --- The clients ------------------------------------------------------------------------------------------------


class Client:
    """One worker."""

    def __init__(self, port: int, number: int, job: int, pilot: str, node: str) -> None:
        address = f"127.0.1.{1 + number // CLIENTS_PER_ADDRESS}"
        self.polls, self.reports = Connection(port, address), Connection(port, address)
        self.job, self.pilot, self.node = job, pilot, node
        self.token = self.name = ""
        self.trains_in, self.is_main, self.step = 0, False, 0
        self.refused: list[str] = []
        self.nodes = 1

    async def run(self) -> None:
        """Says hello and that it is warm, and polls until it is cancelled; the main worker of a world reports."""
        array, _, task = self.pilot.partition("_")
        hello = Hello(
            str(5000 + self.job % 50), self.job, int(array) + int(task), int(array), int(task), 0, self.node, 1
        )
        status, welcome = await self.reports.ask("POST", "/v1/workers/hello", body=to_json(hello))
        if status != 200:
            self.refused.append(f"hello {status}")
            return
        self.name, self.token = welcome["worker"], welcome["token"]
        await self._report(to_json(Warm(f"{self.node}:1")))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            tasks.create_task(self._train())

    async def _report(self, *messages: object) -> None:
        status, _ = await self.reports.ask(
            "POST", f"/v1/workers/{self.name}/report", self.token, {"events": messages}
        )
        if status != 204:
            self.refused.append(f"report {status}")

    async def _poll(self) -> None:
        after = 0
        while True:
            path = f"/v1/workers/{self.name}/plan?after={after}&wait={POLL_S}"
            status, told = await self.polls.ask("GET", path, self.token)
            if status != 200:
                self.refused.append(f"poll {status}")
                return
            after, plan = told["seq"], told["plan"]
            if plan is not None and plan["generation"] > self.trains_in:
                names = [seat["worker"] for seat in plan["members"]]
                self.trains_in, self.nodes = plan["generation"], len(names)
                self.is_main = bool(names) and names[0] == self.name
                if self.name in names:
                    await self._report(to_json(Switched(self.trains_in, self.step, self.nodes, 0.1, True)))

    async def _train(self) -> None:
        while True:
            await asyncio.sleep(WINDOW_S)
            if self.is_main:
                self.step += 30
                window = Samples(self.step, self.nodes, 300 * self.nodes, WINDOW_S, 30, self.step * 10 * self.nodes)
                await self._report(to_json(window))


async def attack(facts: Mapping[str, Any], seconds: float, storm: asyncio.Event) -> dict[str, Any]:
    """Runs all clients and a user for so many seconds; figures."""
    clients = [Client(facts["port"], number, *pilot) for number, pilot in enumerate(facts["pilots"])]
    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(client.run()))
        await asyncio.sleep(START_GAP_S)
    await asyncio.sleep(10.0)
    begun, took = time.monotonic(), spent(facts["pid"])[0]
    before = sum(client.step for client in clients) // 30
    asking = asyncio.create_task(_asked_by_another(facts, seconds))
    await asyncio.sleep(seconds / 2)
    storm.set()
    waits = await asking
    took, lasted = spent(facts["pid"])[0] - took, time.monotonic() - begun
    windows = sum(client.step for client in clients) // 30 - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    waits.sort()
    return {
        "workers": len(clients),
        "workers that train": sum(client.trains_in > 0 for client in clients),
        "requests refused": dict(Counter(each for client in clients for each in client.refused)),
        "windows reported": before + windows,
        "share of one core": round(took / lasted, 3),
        "processor time a window (ms)": round(1e3 * took / max(1, windows), 2),
        "status, p50 (ms)": round(1e3 * waits[len(waits) // 2], 1),
        "status, p99 (ms)": round(1e3 * waits[int(0.99 * len(waits))], 1),
    }


async def _asked_by_another(facts: Mapping[str, Any], seconds: float) -> list[float]:
    """What `ask_status` measures in a process of its own."""
    told = json.dumps({"port": facts["port"], "token": facts["token"], "seconds": seconds})
    user = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scripts.bench.load", "--ask", told, stdout=subprocess.PIPE
    )
    said, _ = await user.communicate()
    if user.returncode:
        raise RuntimeError("the user could not ask for the status: see above")
    waits: list[float] = json.loads(said)
    return waits


def ask_status(port: int, token: str, seconds: float) -> list[float]:
    """The times (seconds) of a user's requests for the status, four a second."""
    waits: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        connection.request("GET", "/v1/status", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        waits.append(time.monotonic() - asked)
        if answer.status != 200:
            raise RuntimeError(f"/v1/status: {answer.status}")
        time.sleep(0.25)
    return waits


async def _measure(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "scripts.bench.load", "--serve", str(folder)]
    options = [f"--nodes={asked.nodes}", f"--jobs={asked.jobs}", f"--workers={asked.workers}"]
    server = await asyncio.create_subprocess_exec(
        *command, *options, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**24
    )
    if server.stdin is None or server.stdout is None:
        raise RuntimeError("no pipes")
    ticks: list[dict[str, Any]] = []
    try:
        facts = json.loads(await server.stdout.readline())
        storm = asyncio.Event()

        async def listen(lines: asyncio.StreamReader) -> None:
            async for line in lines:
                ticks.append(json.loads(line))  # noqa: PERF401 - they come one by one

        async def send(wishes: asyncio.StreamWriter) -> None:
            await storm.wait()
            wishes.write(b"storm\n")

        beside = [asyncio.create_task(listen(server.stdout)), asyncio.create_task(send(server.stdin))]
        found = await attack(facts, asked.seconds, storm)
        for task in beside:
            task.cancel()
    finally:
        server.stdin.close()
        await server.wait()
    usual = sorted(each["tick_s"] for each in ticks if not each["storm"])
    return found | {
        "tick, longest (s)": round(usual[-1], 2) if usual else None,
        "tick of the storm (s)": next((round(each["tick_s"], 2) for each in ticks if each["storm"]), None),
        "events": ticks[-1]["events"],
        "memory (MiB)": round(ticks[-1]["rss_mb"]),
    }


def main() -> int:
    """As the module's docstring says."""
    parser = options_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ask", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ask is not None:
        print(json.dumps(ask_status(**asked.ask)))
        return 0
    if asked.serve is not None:
        serve_load(asked.serve, asked.nodes, asked.jobs, asked.workers)
        return 0
    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(_measure(asked, Path(name)))
    found["load of the machine"] = round(os.getloadavg()[0], 1)
    print(json.dumps(found) if asked.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
