"""How long a pair of daemons needs to take over, and to be a pair again: `python -m scripts.bench.failover`.

Two daemons on a real Slurm of this machine, harvesting, while a client submits as fast as it is answered. Each fault
is provoked several times; afterwards each acknowledged submission is looked for in the journal of the active daemon.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.wire.daemon import connect
from malletrain.wire.errors import WireError
from scripts.lab import Lab, LabConfig, cluster
from scripts.play.pair import Pair
from scripts.play.site import BIN

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = {"loop": ["tick_s = 2.0", "watch_interval_s = 0.5"], "breaker": ["faults_of_job = 1000"]}


@dataclass
class Submitter:
    """Announces jobs one after the other, by the API that mtbatch uses, and holds them: they take no nodes."""

    lab: Lab
    acknowledged: list[int] = field(default_factory=list)
    longest_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        command: list[str | Path] = [BIN / "python", "-m", "scripts.bench.failover", "--submit", secrets.token_hex(4)]
        process = self.lab.popen(command, user="alice", cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if process.stdout is None:
            return
        for line in process.stdout:
            job, seconds = line.split()
            self.acknowledged.append(int(job))
            self.longest_s = max(self.longest_s, float(seconds))
            if self._ended.is_set():
                break
        process.kill()
        process.wait()

    def end(self) -> None:
        """Submit no more."""
        self._ended.set()
        self._thread.join(30)


def submit(key: str) -> None:
    """Announce and cancel jobs for ever; a line for each: its number, and the seconds that it took."""
    daemon = connect()
    for number in itertools.count():
        wanted = {"name": "bench", "min_nodes": 1, "max_nodes": 1, "key": f"failover-{key}-{number}"}
        begun = time.monotonic()
        while True:
            try:
                job = daemon.submit(wanted).id
                daemon.ask(job, "cancel")
                break
            except WireError:
                time.sleep(0.1)
        print(job, time.monotonic() - begun, flush=True)
        time.sleep(0.2)


def main() -> None:
    """Print the table, and with --json write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each fault is provoked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--submit", metavar="KEY", help="be the client that submits")
    asked = parser.parse_args()
    if asked.submit:
        submit(asked.submit)
    lab = Lab.up(f"/tmp/mtlab-{secrets.token_hex(4)}", LabConfig(nodes=4, users=True))
    try:
        with Pair(lab, settings=SETTINGS) as pair:
            pair.start()
            pair.sites[0].harvest("alice", 2)
            submitter = Submitter(lab)
            rows = measure(pair, asked.rounds)
            submitter.end()
            active = next(which for which in range(2) if pair.is_active(which))
            answer = pair.sites[active].malletrain("alice", "status", "--all", "--json").stdout
            known = {each["id"] for each in json.loads(answer)["jobs"]}
            lost = sorted(set(submitter.acknowledged) - known)
    finally:
        cluster.down(lab.path)
    for name, seconds in rows.items():
        print(
            f"{name:60} median {statistics.median(seconds):5.1f} s  most {max(seconds):5.1f} s  of {len(seconds)}",
            flush=True,
        )
    print(f"submissions acknowledged {len(submitter.acknowledged)}, lost {len(lost)} {lost}")
    print(f"longest wait for an acknowledgement {submitter.longest_s:.1f} s; load {os.getloadavg()[0]:.0f}")
    if asked.json is not None:
        asked.json.write_text(json.dumps({"seconds": rows, "lost": lost, "load": os.getloadavg()}, indent=1))


def measure(pair: Pair, rounds: int) -> dict[str, list[float]]:
    """Seconds of each takeover and recovery, by how it was provoked."""
    rows: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        rows.setdefault(name, []).append(seconds)
        print(f"# {name}: {rows[name][-1]:.1f} s", flush=True)

    active = 0
    for _ in range(rounds):
        other = 1 - active
        pair.signal(active, signal.SIGKILL)
        note("kill -9 of the active one: the other answers", pair.await_active(other))
        pair.begin(active)
        note("started again as the passive one: a pair again", pair.await_paired())
        active = other
        other = 1 - active
        pair.signal(active, signal.SIGSTOP)
        note("SIGSTOP of the active one: the other answers", pair.await_active(other))
        pair.signal(active, signal.SIGCONT)
        note("SIGCONT of the one that was active: a pair again", pair.await_paired())
        active = other
        other = 1 - active
        pair.signal(active, signal.SIGTERM)
        note("SIGTERM of the active one: the other answers", pair.await_active(other))
        pair.begin(active)
        pair.await_paired()
        active = other
        other = 1 - active
        for cable in pair.cables:
            cable.cut = True
        note("cut off from each other: the active one is alone", await_alone(pair))
        for cable in pair.cables:
            cable.cut = False
        note("together again: a pair again", pair.await_paired())
        pair.signal(other, signal.SIGKILL)
        note("kill -9 of the passive one: the active one is alone", await_alone(pair))
        pair.begin(other)
        pair.await_paired()
        pair.signal(active, signal.SIGKILL)
        pair.begin(active)
        begun = time.monotonic()
        while not any(pair.is_active(which) for which in range(2)):
            time.sleep(0.02)
        note("kill -9 of the active one, started again at once: either answers", time.monotonic() - begun)
        active = next(which for which in range(2) if pair.is_active(which))
        pair.await_paired()
    return rows


def await_alone(pair: Pair) -> float:
    """Seconds until the register says that the passive daemon may lack something."""
    begun = time.monotonic()
    while pair.paired():
        time.sleep(0.02)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
