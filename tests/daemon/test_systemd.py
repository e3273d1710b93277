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
from scripts.play.site import BIN, Site
from tests.messages import says
from tests.slurm_fixtures import LabFactory

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "site-configs" / "systemd" / "malletraind.service"
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
    settings = {"loop": ["tick_s = 1.0"]}
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
    lab.wait_for(lambda: "configuration reloaded" in said() and of_unit("ActiveState") == "active", 90, "its reload")

    for number, why in (("SIGKILL", "killed"), ("SIGSTOP", "hung: the watchdog ends it")):
        wanted = int(of_unit("NRestarts")) + 1
        systemctl("kill", f"--signal={number}", "--kill-who=main", NAME)
        lab.wait_for(partial(has_restarted, wanted), 90, f"a new start after it was {why}")
        lab.wait_for(site.is_up, 90, "the daemon again")
    assert pilots(lab) == before, "pilots train on"

    systemctl("stop", NAME)
    assert (of_unit("Result"), of_unit("MainPID")) == ("success", "0")
    assert '"event"' in said()
    of_kind = ["journalctl", "-q", "-u", NAME, "-o", "cat", "-g", "configuration reloaded"]
    assert subprocess.run(of_kind, capture_output=True, text=True).stdout.count("configuration reloaded") == 1


def test_it_is_started_again_until_slurm_and_its_port_are_there(site: Site) -> None:
    """As after a power cut: slurmctld comes up later, on another machine; and another program may hold the port."""
    lab = site.lab
    lab.kill("slurmctld")
    lab.wait_for(lambda: not lab.is_running("slurmctld"), 90, "the end of slurmctld")
    assert systemctl("start", NAME, check=False).returncode != 0
    lab.wait_for(partial(has_restarted, 2), 120, "a new start while slurmctld is away")
    assert of_unit("ExecMainStatus") in ("0", "1")
    with socket.create_server(("127.0.0.1", site.port)):
        lab.start("slurmctld")
        lab.wait_for(lambda: "cannot be listened on" in said(), 120, "a start while the port is taken")
    lab.wait_for(lambda: site.is_up() and of_unit("ActiveState") == "active", 120, "the daemon")


@pytest.fixture
def held_port(site: Site) -> Iterator[None]:
    """The shipped socket unit, on the port of this site."""
    here = [UNIT.with_name("malletraind.socket"), UNIT.with_name("malletraind-port.service")]
    for unit in here:
        text = unit.read_text().replace("ListenStream=8470", f"ListenStream={site.port}")
        (UNITS / unit.name).write_text(text)
    systemctl("daemon-reload")
    yield
    systemctl("stop", NAME, *(unit.name for unit in here), check=False)
    for unit in here:
        (UNITS / unit.name).unlink()


def holders(port: int) -> set[int]:
    """Who listens on a port: user ids."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {int(line[7]) for line in lines if line[3] == "0A" and line[1].endswith(f":{port:04X}")}


@pytest.mark.usefixtures("held_port")
def test_root_holds_the_port_and_a_stopped_daemon_stays_stopped(site: Site) -> None:
    systemctl("start", NAME)
    assert site.is_up()
    assert holders(site.port) == {0}
    for verb in ("reload", "restart"):
        systemctl(verb, NAME)
        site.lab.wait_for(site.is_up, 90, f"the daemon after its {verb}")
        assert holders(site.port) == {0}
    systemctl("stop", NAME)
    for host, family in (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)):
        with pytest.raises(OSError, match="in use"):
            socket.create_server((host, site.port), family=family).close()
    for _ in range(3):
        socket.create_connection(("127.0.0.1", site.port), timeout=10).close()
    assert of_unit("ActiveState") == "inactive", "a caller does not start it"
    systemctl("start", NAME)
    assert site.is_up()


def test_a_wrong_configuration_is_not_tried_again(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("tick_s", "tock_s"))
    assert systemctl("start", NAME, check=False).returncode != 0
    assert (of_unit("ActiveState"), of_unit("NRestarts"), of_unit("ExecMainStatus")) == ("failed", "0", "2")
    assert says(said(), "tick_s?")


def before_the_newest_schema(folder: Path) -> Path:
    """malletrain as it was before the journal's schema last changed, out of git."""
    newest = max(path for path in (ROOT / "sql").glob("*.sql"))
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    words = [*git, "log", "--diff-filter=A", "--format=%H", "-1", "--", str(newest)]
    added = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    packed = subprocess.run([*git, "archive", f"{added}^", "malletrain", "sql"], capture_output=True)
    if packed.returncode:
        pytest.skip(f"needs the history of {newest.name}: {packed.stderr.decode()[-200:]}")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


def run_release(site: Site, folder: Path | None) -> None:
    """The unit's program is that of the folder (None: this checkout's), as after an installation in its place."""
    version = UNITS / f"{NAME}.d" / "version.conf"
    if folder is None:
        version.unlink(missing_ok=True)
    else:
        version.write_text(f'[Service]\nEnvironment="PYTHONPATH={folder}"\n')
    systemctl("daemon-reload")


def harvest_by(site: Site, folder: Path) -> int:
    """A job on four nodes, announced by the release in the folder, which its workers run, too; its id."""
    script = Path(site.lab.env_for("alice")["HOME"]) / "older.sh"
    script.write_text("#!/bin/bash\n#MALLETRAIN --nodes=1-4 --elastic=restart --tasks=32\nexec sleep 600\n")
    words: list[str | Path] = ["env", f"PYTHONPATH={folder}", BIN / "mtbatch", "--parsable", script]
    return int(site.lab.run(words, user="alice").stdout.split()[0].split(";")[0])


def test_an_upgrade_and_the_way_back_leave_pilots_alone(site: Site) -> None:
    """docs/how-to/admin-lifecycle.md, with a release whose journal has an older schema, while a job trains."""
    lab = site.lab
    older = before_the_newest_schema(site.directory)
    run_release(site, older)
    try:
        systemctl("start", NAME)
        number = harvest_by(site, older)
        lab.wait_for(lambda: len(pilots(lab)) == 4, 90, "pilots of the older release")
        before = pilots(lab)

        run_release(site, None)
        systemctl("restart", NAME)
        assert site.is_up()
        kept = list(site.directory.glob("malletrain.db.schema*"))
        assert len(kept) == 1, "the journal as it was, for the way back"
        lab.wait_for(lambda: site.malletrain("alice", "status", str(number)).returncode == 0, 90, "the job, known")
        assert (pilots(lab), of_unit("NRestarts")) == (before, "0")

        run_release(site, older)
        systemctl("restart", NAME, check=False)
        assert of_unit("ExecMainStatus") == "2", "an older release does not open a newer journal"
        assert "schema" in said()
        journal = site.directory / "malletrain.db"
        for part in ("-wal", "-shm"):
            journal.with_name(journal.name + part).unlink(missing_ok=True)
        kept[0].replace(journal)
        systemctl("start", NAME)
        assert site.is_up()
        lab.wait_for(lambda: site.malletrain("alice", "status", str(number)).returncode == 0, 90, "the job, known")
        assert pilots(lab) == before
    finally:
        run_release(site, None)
