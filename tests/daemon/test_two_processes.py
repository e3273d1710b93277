"""Listener and actuator as two processes of two users, on a real Slurm with accounts: either may be killed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.store.journal import read_events
from scripts.lab import Lab, LabConfig
from scripts.play.site import Site
from tests.daemon.running import Systemd, file, run
from tests.messages import says
from tests.slurm_fixtures import LabFactory
from tests.world import data_of

__all__ = ["file"]

BIN = Path(sys.executable).parent
LISTENER, STEERER = "bob", "malletrain"  # only the second is a coordinator of the harvest account


def test_before_a_socket_is_named_it_serves_its_usual_one(tmp_path: Path, file: Path) -> None:
    """The unit may be enabled first; here it goes no further than its record of acts, which has no folder."""
    done = run(tmp_path, "--actuator", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert says(done.stderr, "/run/malletrain/actuator.sock")
    assert run(tmp_path, "--actuator", "--user").returncode == 2


class Actuator:
    """`malletraind --actuator` as the user with Slurm's rights, and systemd's end of its line."""

    def __init__(self, lab: Lab, config: Path, folder: Path) -> None:
        self.lab, self.config, self.folder = lab, config, folder
        self.systemd = Systemd(folder / "notify")
        (folder / "notify").chmod(0o777)
        self.log = (folder / "log").open("w")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [
            "env", f"NOTIFY_SOCKET={self.systemd.path}", "WATCHDOG_USEC=60000000", f"LOGS_DIRECTORY={self.folder}",
            "setpriv", "--pdeathsig", "TERM",
        ]  # fmt: skip
        command += [str(BIN / "malletraind"), "--actuator", "--config", str(self.config)]
        self.process = process = self.lab.popen(command, user=STEERER, stderr=self.log.fileno())
        self.systemd.wait(lambda said: said.startswith("READY=1"), lambda: process.poll() is None)

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the socket is: it belongs to the listener's group, as a unit's RuntimeDirectory does."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(made, pwd.getpwnam(STEERER).pw_uid, pwd.getpwnam(LISTENER).pw_gid)
    made.chmod(0o2775)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def roots() -> Iterator[Path]:
    """A folder that root alone writes to, and everybody reads."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def pilots(lab: Lab) -> list[str]:
    return lab.run(["squeue", "-h", "-r", "-p", "harvest", "-t", "R", "-o", "%i"]).stdout.split()


@pytest.mark.slurm
@pytest.mark.nightly
def test_each_may_be_killed_and_the_other_goes_on(lab_factory: LabFactory, folder: Path, roots: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs plain users: run as root")
    lab = lab_factory(LabConfig(nodes=4, users=True, accounting=True))
    log = folder / "actuator.jsonl"
    settings = {"actuator": [f'socket = "{folder}/socket"', f'listener = "{LISTENER}"'], "loop": ["tick_s = 1.0"]}
    with Site(lab, daemon_user=LISTENER, account="harvest", settings=settings) as site:
        # Not the listener's own file: it could widen the actuator's bounds.
        actuator = Actuator(lab, Path(shutil.copy(site.config, roots / "malletrain.toml")), folder)
        try:
            actuator.start()
            site.start()
            script = Path(lab.env_for("alice")["HOME"]) / "asleep.sh"
            script.write_text("#!/bin/bash\n#MALLETRAIN --nodes=1-4 --elastic=restart --tasks=30\nexec sleep 86400\n")
            job = site.mtbatch("alice", script)
            lab.wait_for(lambda: len(pilots(lab)) == 4, 60, "pilots on every node")
            steered = lab.run(["scontrol", "update", f"JobId={pilots(lab)[0]}", "TimeLimit=5"], LISTENER, check=False)
            assert steered.returncode != 0, "the listener has no right to steer"

            actuator.end(signal.SIGKILL)
            main = lab.submit("sleep 600", "--nodes=4", "--exclusive", "--time=20", user="bob")
            lab.wait_for_state(main, "RUNNING", deadline_s=90)
            assert site.is_up()
            actuator.start()
            lab.run(["scancel", str(main)])
            lab.wait_for(lambda: len(pilots(lab)) == 4, 120, "pilots on every node again")

            before = pilots(lab)
            site.stop(signal.SIGKILL)
            assert actuator.process is not None
            assert actuator.process.poll() is None
            time.sleep(3.0)  # several ticks, had there been a daemon
            assert pilots(lab) == before, "pilots train on"
            site.start()
            lab.wait_for(lambda: site.status("alice")["jobs"][0]["members"] == 4, 60, "the world as before")
            assert pilots(lab) == before
            starts = [
                event
                for event in read_events(site.directory / "malletrain.db")
                if event.kind == "outcome" and data_of(event).get("type") == "start" and data_of(event)["done"]
            ]
            assert len(starts) >= 8
            acts = [json.loads(line) for line in log.read_text().splitlines()]
            assert len([act for act in acts if act.get("verb") == "start" and act.get("done")]) >= 8
            assert {act["job"] for act in acts if "job" in act} == {job}
            site.malletrain("alice", "cancel", str(job))
            lab.wait_for(lambda: not pilots(lab), 60, "no pilot of a cancelled job")
            for _ in range(12):  # signs of life that were not read fill the socket
                actuator.systemd.wait(lambda said: said == "WATCHDOG=1")
            assert actuator.end(signal.SIGTERM) == 0
            actuator.systemd.wait(lambda said: said == "STOPPING=1")
        finally:
            if actuator.process is not None and actuator.process.poll() is None:
                actuator.process.kill()
                actuator.process.wait()
            actuator.systemd.close()
            actuator.log.close()
    lab.clear()
