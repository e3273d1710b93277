"""What runs while things fail: a Slurm, a supervised daemon, training jobs, and a main queue that is watched."""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from malletrain.slurm.formats.hostlist import expand
from malletrain.store.database import copy
from scripts.lab import Lab, LabError, processes
from scripts.lab.node_network import NodeNetwork
from scripts.lab.ports import free_port
from scripts.play.site import BIN, Site

ROOT = Path(__file__).resolve().parents[2]
#: A training whose result tells whether each step was done once and right.
TRAINING = (sys.executable, f"{ROOT}/tests/e2e/paced_training.py", "--samples=1024")
#: What counts as the same result: sums of floats in another order.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
#: Room for the journal, and in the researcher's folder.
DISK_BYTES, WORK_BYTES = 64 << 20, 32 << 20
OVER = ("completed", "failed", "cancelled")
RESEARCHER, MAIN_USER = "alice", "bob"

SETTINGS = {
    "loop": ["tick_s = 1.0"],
    # (Frozen workers and nodes that are cut off make pilots slow to leave, which no site has so often.)
    "breaker": [
        "preemptions_per_hour = 100000",
    ],
    "pilot": ["margin_s = 10", "leave_patience_s = 5.0"],
}


@dataclass
class Supervisor:
    """Starts the daemon again a second after it has died, as systemd does (Restart=always), unless it is to wait.

    `crashes`: boundaries (`scripts.chaos.crashing_daemon`) at which the next daemons die, in turn.
    """

    site: Site
    crashes: list[int] = field(default_factory=list)
    restart_s: float = 1.0
    starts: int = 0
    recovered_s: list[float] = field(default_factory=list)  #: from a start to an API that answers
    spared: int = 0  #: of `crashes`, those before which something else ended the daemon
    _crash_at: int = 0
    _crashed_before: int = 0
    _down_until: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.crash_log = self.site.directory / "crashes"
        self._thread = threading.Thread(target=self._watch, name="supervisor")
        self._thread.start()

    def kill(self, stays_down_s: float) -> None:
        """SIGKILL; the next daemon starts so much later."""
        self._down_until = time.monotonic() + stays_down_s
        self.site.kill()

    @property
    def crashed(self) -> list[str]:
        """The boundaries at which daemons have died."""
        return self.crash_log.read_text().splitlines() if self.crash_log.exists() else []

    def end(self) -> None:
        """Supervise no more; the daemon is left as it is."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            if self.site.is_running() or time.monotonic() < self._down_until:
                self._ended.wait(0.05)
                continue
            self.spared += self._crash_at > 0 and len(self.crashed) == self._crashed_before
            at = self._crash_at = self.crashes.pop() if self.crashes else 0
            self._crashed_before = len(self.crashed)
            crashing = (sys.executable, "-m", "scripts.chaos.crashing_daemon", str(at), self.crash_log)
            self.site.program = crashing if at else (BIN / "malletraind",)
            begun = time.monotonic()
            try:
                self.site.start(deadline_s=60.0)
                self.recovered_s.append(time.monotonic() - begun)
            except LabError:
                pass  # it ended before it served, as it does while slurmctld is down: the next try follows
            self.starts += 1
            self._ended.wait(self.restart_s)


class Network:
    """The network between workers and the daemon: passes connections at `host` on to the daemon's port.

    While it is cut nothing arrives, and nothing is refused: what was sent meanwhile arrives afterwards, as from a
    network that retransmits, unless its sender has given up.
    """

    def __init__(self, to: int, host: str = "127.0.0.1") -> None:
        self._to = to
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="network", daemon=True).start()

    def cut(self) -> None:
        """Deliver nothing from now on."""
        self._whole.clear()

    def mend(self) -> None:
        """Deliver again, and what was sent meanwhile."""
        self._whole.set()

    def close(self) -> None:
        """Pass on no more connections."""
        self._whole.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._whole.wait()
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                sink.sendall(data)
        self._whole.wait()
        for each in (source, sink):  # the end of either is the end of both
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class MainJob:
    """A job of the main queue. Times are Unix seconds; infinite for what has not happened.

    One that Slurm requeued, since its node failed, has the begin of its first run and the end of its last.
    """

    number: int
    nodes: int
    submitted: float
    begun: float
    ended: float

    def overlaps(self, other: MainJob) -> bool:
        """Whether it was in the queue, or ran, while the other waited."""
        return self.submitted <= other.begun and self.ended >= other.submitted


@dataclass
class MainQueue:
    """A main queue: jobs of bob's, drawn."""

    lab: Lab
    rng: random.Random
    gap_s: float = 8.0
    submitted: dict[int, tuple[float, int]] = field(default_factory=dict)  #: id -> (when, nodes)
    _next: float = 0.0

    def step(self) -> None:
        """Submits the next job when it is due."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.rng.expovariate(1.0 / self.gap_s)
        nodes = self.rng.randint(1, max(1, len(self.lab.nodes) // 2))
        note = f"date +%s.%N >> {self.lab.output}/main-$SLURM_JOB_ID"
        command = f"{note}; sleep {self.rng.uniform(3, 15):.0f}; {note}"
        try:
            now = time.time()
            number = self.lab.submit(command, f"--nodes={nodes}", "--exclusive", "--time=2", user=MAIN_USER)
        except (LabError, ValueError):
            return  # slurmctld is away
        self.submitted[number] = (now, nodes)

    def times(self) -> list[MainJob]:
        """All jobs that were submitted, and when they ran."""
        found = []
        for number, (at, nodes) in self.submitted.items():
            path = self.lab.output / f"main-{number}"
            noted = [float(line) for line in path.read_text().split()] if path.exists() else []
            begun, ended = (noted[0], noted[-1]) if len(noted) > 1 else (*noted, math.inf, math.inf)[:2]
            found.append(MainJob(number, nodes, at, begun, ended))
        return found


@dataclass
class Training:
    """A malleable job; `acknowledged`: when (Unix seconds)."""

    number: int
    epochs: int
    seed: int
    acknowledged: float


class Scene:
    """All of it. The caller ends it (`close`). `nodes`: the network that the lab's nodes are in, if they have one."""

    def __init__(
        self, lab: Lab, rng: random.Random, crashes: list[int] | None = None, nodes: NodeNetwork | None = None
    ) -> None:
        self.lab, self.rng, self.nodes = lab, rng, nodes
        self.disk = lab.path.with_name(f"{lab.path.name}-disk")
        self.disk.mkdir()
        self.work_folder = Path(lab.env_for(RESEARCHER)["HOME"])
        owner = self.work_folder.stat()
        _mount(self.disk, f"size={DISK_BYTES}")
        _mount(self.work_folder, f"size={WORK_BYTES},mode=0755,uid={owner.st_uid},gid={owner.st_gid}")
        port = free_port()
        self.network = Network(port, nodes.daemon_host if nodes else "127.0.0.1")
        settings = {
            **SETTINGS,
            "api": [f'url = "{self.network.url}"'],
            "store": [f'path = "{self.disk}/malletrain.db"', "min_free_mb = 8"],
        }
        account = "harvest" if "slurmdbd" in lab.daemons else ""
        self.site = Site(lab, account=account, settings=settings, port=port, client_url=self.network.url)
        self.database = self.disk / "malletrain.db"
        self.supervisor = Supervisor(self.site, crashes or [])
        self.main = MainQueue(lab, rng)
        self.jobs: list[Training] = []
        self.double: set[str] = set()
        self._over: list[int] = []
        self._statics: dict[tuple[int, int], dict[str, float]] = {}

    # --- Researchers --------------------------------------------------------------------------------------------

    def train(
        self, epochs: int, seed: int, most: int, meanwhile: Callable[[], None], deadline_s: float = 120.0
    ) -> Training:
        """Submits a job, again and again until it is acknowledged; `meanwhile` is called between two tries.

        Raises:
            LabError: not acknowledged in time.
        """
        command = shlex.join([*TRAINING, "--sample-s=0.002", f"--epochs={epochs}", f"--seed={seed}"])
        path = self.work_folder / f"training-{seed}.sh"
        script = f"#!/bin/bash\n#MALLETRAIN --nodes=1-{most} --tasks=40\n{command}\n"
        end = time.monotonic() + deadline_s
        while True:
            try:
                path.write_text(script)
                job = Training(self.site.mtbatch(RESEARCHER, path), epochs, seed, time.time())
                break
            except (OSError, LabError, ValueError, IndexError):  # OSError: the folder is full
                if time.monotonic() > end:
                    raise
                meanwhile()
                time.sleep(0.5)
        self.jobs.append(job)
        return job

    def job(self, number: int) -> dict[str, Any]:
        """`malletrain status NUMBER --json`; empty while the daemon does not answer."""
        try:
            answer = self.site.malletrain(RESEARCHER, "status", str(number), "--json")
            found: dict[str, Any] = json.loads(answer.stdout)
        except (LabError, ValueError):
            return {}
        return found

    def static_result(self, job: Training) -> dict[str, float]:
        """The result of the same training on one process, without Slurm."""
        key = job.epochs, job.seed
        if key not in self._statics:
            out = self.site.directory / f"static-{job.epochs}-{job.seed}.json"
            options = [f"--epochs={job.epochs}", f"--seed={job.seed}", "--sample-s=0", f"--out={out}"]
            clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "MALLETRAIN"))}
            subprocess.run([*TRAINING, *options], check=True, env=clean, timeout=600)
            self._statics[key] = json.loads(out.read_text())
        return self._statics[key]

    def ended(self) -> list[int]:
        """The numbers of jobs that are over, as far as the daemon has answered."""
        for each in self.jobs:
            if each.number not in self._over and self.job(each.number).get("phase") in OVER:
                self._over.append(each.number)
        return self._over

    # --- What is watched ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Notes nodes that serve two jobs at this moment, as slurmctld has it."""
        try:
            rows = self.lab.run(["squeue", "-h", "-a", "-r", "-t", "R", "-o", "%i %N"], timeout=5.0).stdout
        except LabError:
            return
        on_node: dict[str, list[str]] = defaultdict(list)
        for row in rows.splitlines():
            job, _, names = row.partition(" ")
            for node in expand(names):
                on_node[node].append(job)
        self.double |= {f"{node}: {', '.join(jobs)}" for node, jobs in on_node.items() if len(jobs) > 1}

    def workers(self) -> list[processes.Process]:
        """The training processes that run now."""
        mark = f"SLURM_CONF={self.lab.path}/slurm.conf"
        found = []
        for seen in processes.sight_all():
            if mark in seen.environment and any(each.startswith("SLURM_JOB_ID=") for each in seen.environment):
                line = Path(f"/proc/{seen.pid}/cmdline")
                try:
                    command = line.read_bytes()
                except OSError:
                    continue
                if b"paced_training.py" in command and command.startswith(sys.executable.encode()):
                    found.append(processes.Process(seen.pid, seen.start_ticks, "training"))
        return found

    def close(self) -> None:
        """Ends the daemon; the lab is the caller's."""
        try:
            self.supervisor.end()
            self.site.close()
        finally:  # (a daemon that is frozen does not end)
            self.network.close()
            for folder in (self.disk, self.work_folder):
                subprocess.run(["umount", "-l", folder], check=True, timeout=60)


def _mount(folder: Path, options: str) -> None:
    """A file system of its own for a folder, which a fault can fill."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True, timeout=60)


def keep(scene: Scene, folder: Path) -> None:
    """Copy what a broken law is looked into with to `folder`, which is made, and may have what was kept before.

    There are then `malletrain.db`, the daemon's log, Slurm's logs in `slurm/`, and in `work/` the job scripts and
    what their tasks printed. The daemon may run meanwhile.

    Raises:
        OSError, StoreError: something cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy(scene.database, folder / scene.database.name)
    if scene.site.log.exists():
        shutil.copy(scene.site.log, folder)
    shutil.copytree(scene.lab.log, folder / "slurm", dirs_exist_ok=True)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for pattern in ("*.out", "*.sh"):
        for path in scene.work_folder.glob(pattern):
            shutil.copy(path, work)
