"""What a resize costs here and elsewhere, one after the other in the same run: grow 2 -> 4, shrink 4 -> 2, kill one.

    python -m scripts.bench.elastic.peers [--systems ours,relaunch,torchft,torchrun] [--repeats 4] [--json FILE]
        [--torchft-python PATH]

With --json, another call goes on from what is in the file. All have the environment that a pilot's launcher gives.

ours: this runtime. relaunch: a checkpoint on SIGTERM (or the last of every 20 steps), new processes. torchrun:
`torchrun --nnodes=2:4`, one agent a node. torchft: 0.2.0 or later, in an environment of its own that has torch too.

Same model, same batches, real processes over loopback. Pause: the greatest time of a new step beyond the median of
its own size, from the event to the second step of the new size. Until: from the event to the first new step at the
new size, less the median there; of a growing world it includes that newcomers start.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from malletrain.elastic.launch.launcher import HUGE_PAGE_ENVIRONMENT
from scripts.bench.elastic.resize import Field, waited
from scripts.lab.ports import free_port
from tests.elastic.coordinator import ROOT
from tests.waiting import wait_until

HERE = Path(__file__).parent


class System(Protocol):
    """Something that trains on so many workers and can be told to change."""

    def commits(self) -> list[tuple[float, int, int]]:
        """(time, step, size) of each step that a worker made."""
        ...

    def grow(self, size: int) -> None: ...

    def shrink(self, size: int) -> None: ...

    def kill(self) -> None:
        """One worker, by SIGKILL; the others are to go on."""
        ...

    def close(self) -> None: ...


class Ours:
    def __init__(self, directory: Path, width: int) -> None:
        self.field = Field(directory, width, seats=4, real=True)
        self.alive: list[int] = []

    def commits(self) -> list[tuple[float, int, int]]:
        return self.field.commits(0)

    def grow(self, size: int) -> None:
        more = [task for task in range(4) if task not in self.alive][: size - len(self.alive)]
        self.field.add(*more)
        self.alive += more

    def shrink(self, size: int) -> None:
        self.field.leave(*self.alive[size:])
        self.alive = self.alive[:size]

    def kill(self) -> None:
        self.field.pod.kill(self.alive.pop())

    def close(self) -> None:
        self.field.close()


class Processes:
    """Workers as plain processes that write `commits-*` files."""

    def __init__(self, directory: Path, width: int) -> None:
        self.directory, self.width = directory, width
        self.running: list[subprocess.Popen[bytes]] = []

    def commits(self) -> list[tuple[float, int, int]]:
        rows = [line.split() for path in self.directory.glob("commits-*") for line in path.read_text().splitlines()]
        return sorted((float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3)

    def start(self, command: Sequence[str], more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(more or {})}
        log = (self.directory / f"log-{time.time():.3f}").open("wb")
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.running.append(process)
        return process

    def end(self, processes: Sequence[subprocess.Popen[bytes]], number: int = signal.SIGKILL) -> None:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def close(self) -> None:
        self.end(self.running)
        for process in self.running:
            process.wait(30)


class Relaunch(Processes):
    """What `--elastic=restart`, or a job array with checkpoints, comes to."""

    def _launch(self, size: int) -> None:
        contract = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        script = [str(HERE / "peer_ddp.py"), "--width", str(self.width), "--directory", str(self.directory)]
        self.running = []
        for rank in range(size):
            self.start([sys.executable, *script], {**contract, "RANK": str(rank)})

    def grow(self, size: int) -> None:
        self.end(self.running, signal.SIGTERM)
        for process in self.running:
            process.wait(60)
        self._launch(size)

    shrink = grow

    def kill(self) -> None:
        size = len(self.running) - 1
        self.running[-1].kill()
        self.running[-1].wait(30)
        self.close()  # as srun --kill-on-bad-exit does
        self._launch(size)


class Torchrun(Processes):
    """torch's own elastic agent. With its defaults agents share the rendezvous store and die with its owner."""

    def __init__(self, directory: Path, width: int) -> None:
        super().__init__(directory, width)
        self.port = free_port()

    def grow(self, size: int) -> None:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2:4", "--nproc-per-node=1", "--max-restarts=100",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=bench",
            "--monitor-interval=0.1", "--rdzv-conf=last_call_timeout=5,join_timeout=120", "--local-addr=127.0.0.1",
            str(HERE / "peer_ddp.py"), "--width", str(self.width), "--directory", str(self.directory),
        ]  # fmt: skip
        while len(self.running) < size:
            self.start(command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
            time.sleep(0.2)  # the first one owns the store

    def shrink(self, size: int) -> None:
        self.end(self.running[size:], signal.SIGTERM)
        self.running = self.running[:size]

    def kill(self) -> None:
        """Agent and worker, as when a node is lost."""
        self.end([self.running.pop()])


class Torchft(Processes):
    """One replica a process and a lighthouse that looks every 100 ms and waits for a replica for a second at most."""

    def __init__(self, directory: Path, width: int, python: str) -> None:
        super().__init__(directory, width)
        self.python, self.port, self.number = python, free_port(), 0
        limits = ["--min_replicas=1", "--join_timeout_ms=1000", "--heartbeat_timeout_ms=1000", "--quorum_tick_ms=100"]
        lighthouse = str(Path(python).with_name("torchft_lighthouse"))
        self.lighthouse = self.start([lighthouse, f"--bind=127.0.0.1:{self.port}", *limits])
        self.running = []

    def grow(self, size: int) -> None:
        script = [str(HERE / "peer_torchft.py"), "--width", str(self.width), "--directory", str(self.directory)]
        while len(self.running) < size:
            self.number += 1
            where = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}"}
            self.start([self.python, *script, "--replica", f"replica{self.number}"], where)

    def shrink(self, size: int) -> None:
        self.end(self.running[size:], signal.SIGTERM)
        self.running = self.running[:size]

    def kill(self) -> None:
        self.end([self.running.pop()])

    def close(self) -> None:
        self.running.append(self.lighthouse)
        super().close()


def new_steps(commits: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Those that brought training further than it ever was: work that is done again is none."""
    highest, kept = 0, []
    for row in commits:
        if row[1] > highest:
            highest = row[1]
            kept.append(row)
    return kept


def measure(system: System, change: Callable[[], None], size: int, patience: float) -> tuple[float, float]:
    """(pause, until) of one change to `size` workers."""
    began = len(new_steps(system.commits()))
    wait_until(lambda: len(new_steps(system.commits())) >= began + 8, patience, "8 steps before the change")
    at = time.time()
    change()

    def after() -> list[tuple[float, int, int]]:
        return [row for row in new_steps(system.commits()) if row[0] > at and row[2] == size]

    wait_until(lambda: len(after()) >= 8, patience, f"8 new steps of {size}")
    measured = waited(new_steps(system.commits()), at, size)
    return max(0.0, measured.pause_s), max(0.0, measured.latency_s)


def play(system: System, patience: float) -> dict[str, tuple[float, float]]:
    """Two workers, then four, two, four, three. What does not train on within `patience` took for ever."""
    changes = {
        "grow": (lambda: system.grow(4), 4),
        "shrink": (lambda: system.shrink(2), 2),
        "grow again": (lambda: system.grow(4), 4),
        "kill": (system.kill, 3),
    }
    rows: dict[str, tuple[float, float]] = {}
    try:
        system.grow(2)
        wait_until(lambda: len(system.commits()) >= 8, patience, "the first steps")
        for kind, (change, size) in changes.items():
            try:
                rows[kind] = measure(system, change, size, patience)
            except AssertionError as late:
                print(late, flush=True)
                rows[kind] = (math.inf, math.inf)
                break
    finally:
        system.close()
    return rows


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def kept(path: Path | None) -> tuple[dict[tuple[str, str], list[tuple[float, float]]], Counter[str]]:
    """What earlier calls have measured, by system and kind, and how many plays of each system there were."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    plays: Counter[str] = Counter()
    if path is not None and path.exists():
        for row in map(json.loads, path.read_text().splitlines()):
            found.setdefault((row["system"], row["kind"].partition(" ")[0]), []).append(
                (row["pause_s"], row["until_s"])
            )
            plays[row["system"]] = max(plays[row["system"]], row["play"] + 1)
    return found, plays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="ours,relaunch,torchrun")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--width", type=int, default=4166)
    parser.add_argument("--patience", type=float, default=90.0, help="seconds that one change may take")
    parser.add_argument("--torchft-python", default="python", help="an interpreter that has torch and torchft")
    parser.add_argument("--json", type=Path, help="append each figure as a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`: nothing is left running
    makers: dict[str, Callable[[Path], System]] = {
        "ours": lambda d: Ours(d, options.width),
        "relaunch": lambda d: Relaunch(d, options.width),
        "torchrun": lambda d: Torchrun(d, options.width),
        "torchft": lambda d: Torchft(d, options.width, options.torchft_python),
    }
    os.environ.update({**HUGE_PAGE_ENVIRONMENT, **os.environ})
    found, plays = kept(options.json)
    for number in range(options.repeats):
        for name in options.systems.split(","):
            if plays[name] > number:
                continue
            with tempfile.TemporaryDirectory() as directory:
                rows = play(makers[name](Path(directory)), options.patience)
            for kind, row in rows.items():
                found.setdefault((name, kind.partition(" ")[0]), []).append(row)
                line = {
                    "play": number,
                    "system": name,
                    "kind": kind,
                    "pause_s": row[0],
                    "until_s": row[1],
                    "load": os.getloadavg()[0],
                }
                print(json.dumps(line), flush=True)
                if options.json:
                    with options.json.open("a") as stream:
                        stream.write(json.dumps(line) + "\n")
    for (name, kind), pairs in sorted(found.items(), key=lambda item: item[0][1]):
        pause, until = spread([p for p, _ in pairs]), spread([u for _, u in pairs])
        print(f"{kind:7} {name:9} n={len(pairs):2}  pause {pause} s  until {until} s")


if __name__ == "__main__":
    main()
