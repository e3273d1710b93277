"""Two daemons on a real Slurm, both alive: killed, suspended and cut off in turns while a job trains."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from scripts.lab import LabConfig
from scripts.play.pair import Pair, journal_of
from tests.slurm_fixtures import LabFactory

pytestmark = [pytest.mark.slurm, pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]

#: From the fault to a second daemon that answers and orders; the aim, on a machine with nothing else to do.
TAKEOVER_S = 10.0


def events(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT seq, at, kind, job, pilot, data FROM event ORDER BY seq").fetchall()


def watched(pair: Pair, which: int) -> Path:
    """Notes each change that this daemon orders of Slurm, by commands of its own before the real ones."""
    site = pair.sites[which]
    log, folder = site.directory / "orders", site.directory / "bin"
    folder.mkdir()
    log.touch()
    log.chmod(0o666)
    for name in ("scontrol", "scancel"):
        real = pair.lab.run(["bash", "-c", f"command -v {name}"]).stdout.strip()
        script = folder / name
        script.write_text(
            f'#!/bin/bash\ncase "$1" in show|ping|version) ;; *) echo "$(date +%s.%N) $*" >> {log} ;; esac\n'
            f'exec {real} "$@"\n'
        )
        script.chmod(0o755)
    site.program = ("env", f"PATH={folder}:{pair.lab.env['PATH']}", *site.program)
    return log


def orders_since(log: Path, moment: float) -> list[str]:
    return [line for line in log.read_text().splitlines() if float(line.split()[0]) > moment]


@pytest.mark.nightly
def test_killed_suspended_and_cut_off(lab_factory: LabFactory) -> None:
    lab = lab_factory(LabConfig(nodes=4, users=True))
    if os.geteuid() != 0:
        pytest.skip("needs plain users: run as root")
    lab.clear()
    settings = {
        "loop": ["tick_s = 1.0", "watch_interval_s = 0.5"],
        "pilot": ["margin_s = 10", "leave_patience_s = 5.0"],
    }
    with Pair(lab, settings=settings) as pair:
        logs = [watched(pair, which) for which in range(2)]
        pair.start()
        home = Path(lab.env_for("alice")["HOME"])
        trainee = [sys.executable, f"{ROOT}/scripts/chaos/trainee.py"]
        script = home / "train.sh"
        command = shlex.join([*trainee, "--epochs=30"])
        script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-2 --tasks=30\n{command}\n")
        job = pair.sites[0].mtbatch("alice", script)
        lab.wait_for(lambda: pair.sites[0].status("alice")["jobs"][0]["samples"] > 0, 120, "training")

        # Killed: what was acknowledged is there, and the job trains on.
        sleeper = pair.sites[0].harvest("alice", 1)
        pair.signal(0, signal.SIGKILL)
        assert pair.await_active(1) < TAKEOVER_S * load_factor()
        assert {each["id"] for each in pair.sites[1].status("alice")["jobs"]} >= {job, sleeper}
        pair.begin(0)
        pair.await_paired()

        # Suspended, and woken after the takeover: it writes nothing and orders nothing.
        pair.signal(1, signal.SIGSTOP)
        pair.await_active(0)
        later = pair.sites[0].harvest("alice", 1)
        before, woken = events(journal_of(pair.sites[1])), time.time()
        pair.signal(1, signal.SIGCONT)
        pair.await_paired()
        assert not pair.is_active(1)
        assert orders_since(logs[1], woken) == []
        mine = events(journal_of(pair.sites[0]))
        assert mine[: len(before)] == before, "nothing of its own is left in its journal"

        # Cut off from each other: the active one goes on alone, and the other does not take over.
        pair.cables[0].cut = pair.cables[1].cut = True
        lab.wait_for(lambda: not pair.paired(), 30, "the register says that the other may lack something")
        alone = pair.sites[0].harvest("alice", 1)
        time.sleep(2.0 * pair.lease_s)  # the passive daemon's promise is long over
        assert pair.is_active(0)
        assert not pair.is_active(1)
        pair.cables[0].cut = pair.cables[1].cut = False
        pair.await_paired()

        # An orderly end: at once.
        pair.signal(0, signal.SIGTERM)
        assert pair.await_active(1) < TAKEOVER_S * load_factor()
        for each in (sleeper, later, alone):
            pair.sites[1].malletrain("alice", "cancel", str(each))
        lab.wait_for(lambda: phase(pair, 1, job) == "completed", 240, "the job has trained to its end")
        row = json.loads(pair.sites[1].malletrain("alice", "status", str(job), "--json").stdout)
        out = home / "static.json"
        lab.run([*trainee, "--epochs=30", "--sample-s=0", f"--out={out}"], user="alice", timeout=240)
        static = json.loads(out.read_text())
        assert row["result"]["steps"] == static["steps"]
        for name, value in static.items():
            assert row["result"][name] == pytest.approx(value, rel=1e-3, abs=1e-4)
        epochs = epochs_of_intents(events(journal_of(pair.sites[1])))
        assert epochs == sorted(epochs)
    lab.clear()


def phase(pair: Pair, which: int, job: int) -> str:
    return str(json.loads(pair.sites[which].malletrain("alice", "status", str(job), "--json").stdout)["phase"])


def epochs_of_intents(rows: list[tuple[object, ...]]) -> list[int]:
    """How many daemons had started before each intent: never fewer than before the one before it."""
    found, started = [], 0
    for row in rows:
        started += row[2] == "daemon_started"
        if row[2] == "intent":
            found.append(started)
    return found


def load_factor() -> float:
    """How much slower this machine may be than an idle one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
