"""Up and down on a real machine: quick, several at once, as a plain user, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig, LabError, UsageError, cluster, namespace, processes, record
from scripts.lab.layout import Layout
from scripts.lab.users import Identity, ensure
from tests import slurm_fixtures
from tests.slurm_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

SLURM_LAB = Path(__file__).resolve().parents[2] / "scripts" / "slurm-lab"
SMALL = LabConfig(nodes=2)


@pytest.fixture(autouse=True)
def _slurm_is_here(lab_factory: LabFactory) -> None:
    lab_factory()


def left_of(directory: Path) -> list[processes.Process]:
    """What still runs of a lab that is down."""
    return processes.belonging(processes.sight_all(), Layout.of(directory), frozenset())


def naming(directory: Path) -> list[str]:
    """Command lines that name the directory, whatever their environment says."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in processes.ancestry():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(directory) in line:
                found.append(line)
    return found


def test_up_is_idle_and_down_leaves_nothing(lab_directory: Path) -> None:
    beside = sorted(lab_directory.parent.iterdir())
    begun = time.monotonic()
    with Lab.up(lab_directory, LabConfig(nodes=8)) as lab:
        up_s = time.monotonic() - begun
        assert lab.node_states() == dict.fromkeys(lab.nodes, "idle")
        assert len(lab.nodes) == 8
        stray = f"(trap '' TERM; env -i sh -c ': {lab.path}; while :; do sleep 1; done' &) &"
        lab.submit(f"{stray} touch {lab.output}/strayed; srun sleep 600", "--nodes=4")
        lab.wait_for(lambda: (lab.output / "strayed").exists() and naming(lab_directory), 90)
        ended = time.monotonic()
    down_s = time.monotonic() - ended
    assert left_of(lab_directory) == []
    assert naming(lab_directory) == []
    assert sorted(lab_directory.parent.iterdir()) == beside
    # The targets are 3 s and 4 s on an idle machine; these bounds only catch what hangs.
    assert up_s < 60
    assert down_s < 45


def test_two_labs_do_not_know_of_each_other(lab_directory: Path) -> None:
    first, second = lab_directory.with_name("one"), lab_directory.with_name("two")
    with Lab.up(first, SMALL) as one, Lab.up(second, SMALL) as two:
        ports = set(record_of(one).ports) | set(record_of(two).ports)
        assert len(ports) == 2 * SMALL.port_count
        job = one.submit("sleep 600")
        one.wait_for_state(job, "RUNNING")
        assert two.run(["squeue", "-h"]).stdout == ""
        one.down()
        assert left_of(first) == []
        assert set(two.node_states().values()) == {"idle"}


def test_labs_brought_up_at_the_same_time_do_not_collide(lab_directory: Path) -> None:
    directories = [lab_directory.with_name(f"l{i}") for i in range(4)]
    running = [
        subprocess.Popen([SLURM_LAB, "up", d, "--nodes=2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for d in directories
    ]
    try:
        results = [(p.communicate(timeout=60), p.returncode) for p in running]
        assert [(code, err) for (_, err), code in results] == [(0, "")] * 4
        assert all(set(Lab.at(d).node_states().values()) == {"idle"} for d in directories)
    finally:
        for d in directories:
            cluster.down(d)


def test_down_after_everything_was_killed(lab_directory: Path) -> None:
    lab = Lab.up(lab_directory, SMALL)
    job = lab.submit("srun sleep 600", "--nodes=2")
    lab.wait_for_state(job, "RUNNING")
    for daemon in lab.daemons:
        lab.kill(daemon, signal.SIGKILL)
    lab.wait_for(lambda: not any(lab.is_running(d) for d in lab.daemons), 90)
    assert left_of(lab_directory)  # steps outlive their slurmd
    lab.down()
    assert left_of(lab_directory) == []
    assert not lab_directory.exists()


def test_down_is_idempotent_and_spares_the_files_of_others(lab_directory: Path) -> None:
    cluster.down(lab_directory)
    lab_directory.mkdir()
    lab = Lab.up(lab_directory, SMALL)
    (lab_directory / "mine.txt").write_text("kept")
    lab.down()
    lab.down()
    assert [p.name for p in lab_directory.iterdir()] == ["mine.txt"]


def test_down_of_a_half_made_lab(lab_directory: Path) -> None:
    """An `up` that was killed on its way leaves what it had: some directories, some daemons, an old record."""
    lab = Lab.up(lab_directory, SMALL)
    record.write(Layout.of(lab_directory), record.Record(made_root=True))
    Layout.of(lab_directory).slurm_conf.unlink()
    lab.down()
    assert left_of(lab_directory) == []
    assert not lab_directory.exists()


def test_logs_are_kept_on_request(lab_directory: Path) -> None:
    lab = Lab.up(lab_directory, SMALL)
    lab.down(keep_logs=True)
    assert sorted(p.name for p in lab_directory.iterdir()) == ["lab.json", "log"]
    with pytest.raises(LabError, match="no lab"):
        Lab.at(lab_directory)
    assert "started" in (lab_directory / "log/slurmctld.log").read_text()
    Lab.up(lab_directory, SMALL).down(keep_logs=True)
    cluster.down(lab_directory)
    assert not lab_directory.exists()


def test_a_failed_up_says_what_the_log_says_and_leaves_no_process(lab_directory: Path) -> None:
    with pytest.raises(LabError, match="NoSuchKey"):
        Lab.up(lab_directory, LabConfig(nodes=1, settings=(("NoSuchKey", "1"),)))
    assert left_of(lab_directory) == []
    with pytest.raises(LabError, match="deadline"):
        Lab.up(lab_directory, LabConfig(nodes=60), deadline_s=0.01)
    assert left_of(lab_directory) == []


def test_a_second_up_is_refused_and_does_no_harm(lab_directory: Path) -> None:
    with Lab.up(lab_directory, SMALL) as lab:
        with pytest.raises(LabError, match="is up"):
            Lab.up(lab_directory, SMALL)
        assert set(lab.node_states().values()) == {"idle"}


def test_a_directory_with_other_things_in_it_is_refused(lab_directory: Path) -> None:
    lab_directory.mkdir()
    (lab_directory / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        Lab.up(lab_directory, SMALL)
    assert [p.name for p in lab_directory.iterdir()] == ["thesis.tex"]


def test_a_lab_ends_with_the_process_it_is_bound_to(lab_directory: Path) -> None:
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(SLURM_LAB.parents[1])!r});"
        f"from scripts.lab import Lab, LabConfig; Lab.up({str(lab_directory)!r}, LabConfig(nodes=1));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=180).returncode == -signal.SIGKILL
    wait_until(lambda: not lab_directory.exists() and not left_of(lab_directory), 90)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_up_that_is_interrupted_leaves_nothing(number: signal.Signals, lab_directory: Path) -> None:
    with subprocess.Popen(
        [SLURM_LAB, "up", lab_directory, "--nodes=60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: (lab_directory / "log/slurmctld.out").exists(), 90)
        process.send_signal(number)
    if number == signal.SIGKILL:
        cluster.down(lab_directory)
    assert process.returncode != 0
    assert left_of(lab_directory) == []
    assert not lab_directory.exists()


def test_a_lab_of_the_controller_alone(lab_directory: Path) -> None:
    with Lab.up(lab_directory, LabConfig(nodes=2000, controller_only=True)) as lab:
        assert len(lab.nodes) == 2000
        assert lab.daemons == ("munged", "slurmctld")
        job = lab.submit("true", "--nodes=1500")
        assert lab.wait_for_state(job, "CONFIGURING") == "CONFIGURING"


def test_a_lab_that_a_test_broke_is_replaced(lab_factory: LabFactory, request: pytest.FixtureRequest) -> None:
    wanted = LabConfig(nodes=1, memory_mb=1000)
    broken = lab_factory(wanted)
    broken.kill("slurmctld")
    (broken.path / "slurm.conf").write_text("NoSuchKey=1\n")  # (without the file, commands look for one for a minute)
    slurm_fixtures.empty(request.config, broken)
    assert left_of(broken.path) == []
    assert lab_factory(wanted).node_states() == {"n000": "idle"}


def test_a_lab_whose_daemons_were_killed_is_emptied_all_the_same(lab: Lab) -> None:
    for name in ("slurmctld", "munged", f"slurmd.{lab.nodes[0]}"):
        lab.kill(name)
    lab.clear()
    assert all(map(lab.is_running, lab.daemons))


def test_a_lab_is_emptied_of_all_that_a_test_did(lab: Lab) -> None:
    lab.submit("sleep 600", "--array=0-3", "--hold")
    lab.wait_for_state(lab.submit("trap '' TERM; sleep 600"), "RUNNING")
    lab.run(["scontrol", "create", "reservation", "starttime=now+60", "duration=60", "users=root", "nodes=n007"])
    lab.run(["scontrol", "update", "NodeName=n006", "State=DRAIN", "Reason=test"])
    lab.clear()
    assert lab.run(["squeue", "-h"]).stdout == ""
    assert lab.run(["scontrol", "show", "res", "-o"]).stdout.startswith("No reservations")
    assert set(lab.node_states().values()) == {"idle"}


def test_a_lab_may_outlive_its_maker(lab_directory: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SLURM_LAB.parents[1])!r});"
        f"from scripts.lab import Lab, LabConfig; Lab.up({str(lab_directory)!r}, LabConfig(nodes=1), outlive=True)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    lab = Lab.at(lab_directory)
    assert lab.node_states() == {"n000": "idle"}
    lab.down()
    assert left_of(lab_directory) == []


def test_a_daemon_killed_and_started_again_keeps_its_state(lab_directory: Path) -> None:
    with Lab.up(lab_directory, SMALL) as lab:
        job = lab.submit("true", "--hold")
        lab.wait_for(lambda: (lab_directory / "state/job_state").exists(), 90, "saved state")
        lab.kill("slurmctld", signal.SIGTERM)
        lab.wait_for(lambda: not lab.is_running("slurmctld"), 90)
        lab.start("slurmctld")
        lab.wait_for(lambda: lab.run(["squeue", "-h"], check=False).returncode == 0, 90)
        assert lab.job_state(job) == "PENDING"


def test_a_daemon_that_does_not_end_is_killed_by_a_restart(lab_directory: Path) -> None:
    with Lab.up(lab_directory, SMALL) as lab:
        lab.kill("slurmctld", signal.SIGSTOP)
        with pytest.warns(UserWarning, match=r"slurmctld: .*0\.1 s"):
            lab.restart(stop_limit_s=0.1)
        lab.wait_for(lambda: set(lab.node_states().values()) == {"idle"}, 60)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_plain_user_has_a_lab(lab_directory: Path, lab_factory: LabFactory) -> None:
    ensure(("alice",))
    who = Identity.of("alice")
    os.chown(lab_directory.parent, who.uid, who.gid)

    def as_alice(*args: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            namespace.as_user(who, [str(SLURM_LAB), *args]),
            cwd="/tmp",
            env={"PATH": "/usr/bin:/bin", "HOME": str(lab_directory.parent)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    up = as_alice("up", str(lab_directory), "--nodes=8")
    assert (up.returncode, up.stderr) == (0, "")
    assert up.stdout.splitlines()[0] == f"export SLURM_CONF={lab_directory}/slurm.conf"
    command = ("exec", str(lab_directory), "--", "srun", "--nodes=8", "id", "-un")
    assert as_alice(*command).stdout.split() == ["alice"] * 8
    others = lab_factory()
    refused = as_alice("down", str(others.path))
    assert refused.returncode == 2
    assert "as root" in refused.stderr
    assert set(others.node_states().values()) == {"idle"}
    submit = ("exec", str(lab_directory), "--", "sbatch", "-N8", "-o/dev/null", "--wrap", "srun sleep 600")
    assert as_alice(*submit).returncode == 0
    assert as_alice("down", str(lab_directory)).returncode == 0
    assert left_of(lab_directory) == []
    assert not lab_directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make users")
def test_a_directory_closed_to_the_users_is_refused(lab_directory: Path) -> None:
    lab_directory.parent.chmod(0o700)
    with pytest.raises(UsageError, match="other users"):
        Lab.up(lab_directory, LabConfig(nodes=1, users=True))
    assert not lab_directory.exists()


def record_of(lab: Lab) -> record.Record:
    known = record.read(Layout.of(lab.path))
    assert known is not None
    return known
