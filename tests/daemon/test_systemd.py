"""The unit of site-configs under a real systemd, on a real Slurm: where none runs, there is nothing to prove here.

`scripts/test-systemd` boots one in a container of this very machine.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig
from scripts.play.site import Site
from tests.slurm_fixtures import LabFactory

UNIT = Path(__file__).resolve().parents[2] / "site-configs" / "systemd" / "malletraind.service"
NAME = "malletraind-under-test.service"
UNITS = Path("/run/systemd/system")
DAEMON = "malletrain"  # coordinator of the harvest account

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.nightly,
    pytest.mark.skipif(not UNITS.is_dir() or os.geteuid() != 0, reason="no systemd runs here, or not as root"),
]


def systemctl(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0 or not check, f"{words}: {done.stderr}\n{said()}"
    return done


def said() -> str:
    """The unit's journal."""
    return subprocess.run(["journalctl", "-q", "-u", NAME, "-o", "cat"], capture_output=True, text=True).stdout


def of_unit(what: str) -> str:
    return systemctl("show", NAME, "--property", what, "--value").stdout.strip()


def has_restarted(times: int) -> bool:
    return int(of_unit("NRestarts")) >= times


@pytest.fixture
def site(lab_factory: LabFactory) -> Iterator[Site]:
    """The unit as it is shipped, but for where this test's files are and how soon it counts as hung."""
    lab = lab_factory(LabConfig(nodes=4, users=True, accounting=True))
    settings = {"loop": ["tick_s = 1.0", "watch_interval_s = 0.5"]}
    with Site(lab, daemon_user=DAEMON, account="harvest", settings=settings) as site:
        group = pwd.getpwnam(DAEMON).pw_gid
        own = {name: value for name, value in lab.env_for(DAEMON).items() if os.environ.get(name) != value}
        variables = [f'Environment="{name}={value}"' for name, value in own.items()]
        ours = [
            "[Service]",
            "ExecStart=",
            f"ExecStart={Path(sys.executable).parent}/malletraind --config {site.config}",
            f"User={DAEMON}",
            f"Group={group}",
            "WatchdogSec=20",
            f"BindPaths={lab.path} {site.directory}",  # below /tmp, of which the unit has its own
            *variables,
        ]
        changed = UNITS / f"{NAME}.d"
        changed.mkdir()
        (UNITS / NAME).write_text(UNIT.read_text())
        (changed / "test.conf").write_text("\n".join(ours) + "\n")
        systemctl("daemon-reload")
        try:
            yield site
        finally:
            systemctl("stop", NAME, check=False)
            for left in (changed / "test.conf", UNITS / NAME):
                left.unlink()
            changed.rmdir()
            systemctl("daemon-reload")
    lab.clear()


def pilots(lab: Lab) -> list[str]:
    return lab.run(["squeue", "-h", "-r", "-p", "harvest", "-t", "R", "-o", "%i"]).stdout.split()


def test_the_shipped_unit_serves_survives_and_ends(site: Site) -> None:
    lab = site.lab
    systemctl("start", NAME)  # comes back when the daemon says that it is ready
    assert site.is_up()
    site.harvest("alice", 4)
    lab.wait_for(lambda: len(pilots(lab)) == 4, 90, "pilots on every node, from inside the unit's walls")
    before = pilots(lab)

    systemctl("reload", NAME)
    lab.wait_for(lambda: "configuration reloaded" in said() and of_unit("ActiveState") == "active", 30, "its reload")

    for number, why in (("SIGKILL", "killed"), ("SIGSTOP", "hung: the watchdog ends it")):
        wanted = int(of_unit("NRestarts")) + 1
        systemctl("kill", f"--signal={number}", "--kill-who=main", NAME)
        lab.wait_for(partial(has_restarted, wanted), 90, f"a new start after it was {why}")
        lab.wait_for(site.is_up, 90, "the daemon again")
    assert pilots(lab) == before, "pilots train on"

    systemctl("stop", NAME)
    assert (of_unit("Result"), of_unit("MainPID")) == ("success", "0")
    assert '"event"' in said()
    by_field = ["journalctl", "-q", "-u", NAME, "-o", "cat", "MALLETRAIN_EVENT=configuration reloaded"]
    assert subprocess.run(by_field, capture_output=True, text=True).stdout.count("configuration reloaded") == 1


def test_it_is_started_again_until_slurm_and_its_port_are_there(site: Site) -> None:
    """As after a power cut: slurmctld comes up later, on another machine; and another program may hold the port."""
    lab = site.lab
    lab.kill("slurmctld")
    lab.wait_for(lambda: not lab.is_running("slurmctld"), 30, "the end of slurmctld")
    assert systemctl("start", NAME, check=False).returncode != 0
    lab.wait_for(partial(has_restarted, 2), 120, "a new start while slurmctld is away")
    assert of_unit("ExecMainStatus") in ("0", "1")
    with socket.create_server(("127.0.0.1", site.port)):
        lab.start("slurmctld")
        lab.wait_for(lambda: "cannot be listened on" in said(), 120, "a start while the port is taken")
    lab.wait_for(lambda: site.is_up() and of_unit("ActiveState") == "active", 120, "the daemon")


def test_a_wrong_configuration_is_not_tried_again(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("tick_s", "tock_s"))
    assert systemctl("start", NAME, check=False).returncode != 0
    assert (of_unit("ActiveState"), of_unit("NRestarts"), of_unit("ExecMainStatus")) == ("failed", "0", "2")
    assert "did you mean tick_s" in said()
