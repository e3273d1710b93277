"""The command line: what it prints, and how it says no."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.lab.cli import parser
from tests.messages import says
from tests.slurm_fixtures import LabFactory

ROOT = Path(__file__).resolve().parents[2]
SLURM_LAB = ROOT / "scripts" / "slurm-lab"


def slurm_lab(*args: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SLURM_LAB, *args], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("up", "/tmp/mtlab-x", "--nodes", "0"), "nodes: 0"),
        (("up", "/tmp/mtlab-x", "--nodes", "many"), "--nodes"),
        (("up", "/tmp/mtlab-x", "--profile", "slow"), "--profile"),
        (("up", "/tmp/mtlab-x", "--release", "woody"), "--release"),
        (("up", "/tmp/mtlab-x", "--set", "KillWait"), "KEY=VALUE"),
        (("up", "/tmp/mtlab-x", "--set", "NodeName=x"), "NodeName"),
        (("up", "/tmp/" + "x" * 90), "too long"),
        (("up", "/nowhere/at/all"), "/nowhere/at:"),
        (("up", "/etc/passwd"), "/etc/passwd"),
        (("up", "/etc"), "no lab's"),
        (("exec", "/tmp/mtlab-x", "--"), "no command"),
        (("frob",), "frob"),
        ((), "COMMAND"),
    ],
)
def test_bad_requests_end_with_status_2_and_one_reason(arguments: tuple[str, ...], named: str) -> None:
    done = slurm_lab(*arguments)
    assert done.returncode == 2
    assert named in done.stderr.splitlines()[-1]
    assert not Path("/tmp/mtlab-x").exists()


def test_what_needs_a_lab_says_so() -> None:
    for command in (("exec", "/tmp/mtlab-x", "--", "true"), ("status", "/tmp/mtlab-x")):
        done = slurm_lab(*command)
        assert done.returncode == 1
        assert says(done.stderr, "no lab")
        assert "slurm-lab up" in done.stderr
    assert slurm_lab("down", "/tmp/mtlab-x").returncode == 0


def test_missing_packages_without_root_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.lab import packages
    from scripts.lab.errors import UsageError

    monkeypatch.setattr(packages, "SYSTEM_PATH", "/nowhere")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/usr/bin/apt-get" if name == "apt-get" else None)
    with pytest.raises(UsageError, match=r"apt-get install .*slurmctld"):
        packages.host_toolchain(accounting=False)


def test_every_option_says_what_it_does() -> None:
    up = next(a for a in parser()._subparsers._group_actions[0].choices.items() if a[0] == "up")[1]  # type: ignore
    options = [action for action in up._actions if action.option_strings]
    assert options
    assert [action.option_strings for action in options if not action.help] == []


@pytest.mark.slurm
def test_up_exec_status_down(lab_directory: Path, lab_factory: LabFactory) -> None:
    lab_factory()
    up = slurm_lab("up", lab_directory, "--nodes", "2", "--set", "KillWait=7")
    assert (up.returncode, up.stderr) == (0, "")
    assert up.stdout.splitlines() == [
        f"export SLURM_CONF={lab_directory}/slurm.conf",
        f"export MUNGE_SOCKET={lab_directory}/munge/munge.sock",
    ]
    assert slurm_lab("exec", lab_directory, "--", "sh", "-c", "exit 7").returncode == 7
    assert slurm_lab("exec", lab_directory, "--", "no-such-command").returncode == 127
    shown = slurm_lab("exec", lab_directory, "--", "scontrol", "show", "config", SLURM_JOB_ID="1", SLURM_CONF="/x")
    assert "KillWait                = 7 sec" in shown.stdout
    assert slurm_lab("exec", lab_directory, "--", "srun", "-N2", "echo", "here").stdout.split() == ["here"] * 2
    status = slurm_lab("status", lab_directory)
    assert status.returncode == 0
    assert "daemons: 4 of 4 run" in status.stdout
    assert slurm_lab("down", lab_directory).returncode == 0
    assert slurm_lab("status", lab_directory).returncode == 1


@pytest.mark.slurm
def test_the_site_profile_pays_prolog_and_epilog(lab_directory: Path, lab_factory: LabFactory) -> None:
    """A node is not idle again before its epilog is over."""
    from scripts.lab import Lab, LabConfig

    lab_factory()
    with Lab.up(lab_directory, LabConfig(nodes=1, profile="site", prolog_s=1, epilog_s=5)) as lab:
        job = lab.submit("true")
        lab.wait_for(lambda: lab.node_states()["n000"] == "completing", 90, "the epilog")
        lab.wait_for_state(job, "COMPLETED")
        assert "bf_interval=30" in lab.run(["scontrol", "show", "config"]).stdout
