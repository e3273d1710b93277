"""A controller that is handed over, limits who asks, or takes no more of somebody's jobs: nothing is lost by it."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from malletrain.domain.errors import ClusterUnavailable
from malletrain.slurm.submission import submit
from malletrain.slurm.submission.sbatch import Submission
from scripts.lab import Change, Lab
from tests.slurm.harvesting import Harvesting, until_saved
from tests.slurm.test_authority import HARVEST, accounted, commands_as

__all__ = ["accounted"]

pytestmark = pytest.mark.slurm


@contextmanager
def backup_controller(lab: Lab) -> Iterator[None]:
    """A second slurmctld beside the lab's, as on a host of another name: Slurm knows controllers by host names."""
    (lab.path / "backup").mkdir()
    hosts = lab.path / "backup" / "hosts"
    hosts.write_text(Path("/etc/hosts").read_text() + "127.0.0.2 labbackup\n")
    (lab.path / "backup" / "run").mkdir()
    # A slurmctld ends the one whose number it finds in the pid file: it gets a folder of its own for that.
    binds = f"mount --bind {hosts} /etc/hosts && mount --bind {lab.path}/backup/run {lab.path}/run"
    start = f"hostname labbackup && {binds} && exec slurmctld -D -L {lab.log}/backup.log"
    change = Change(
        settings={"SlurmctldTimeout": "10", "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny"},
        lines=("SlurmctldHost=labbackup(127.0.0.2)",),
    )
    with lab.changed(change, restart=True):
        process = lab.popen(["unshare", "--uts", "--mount", "bash", "-c", start], stderr=subprocess.DEVNULL)
        try:
            lab.wait_for(lambda: pinged(lab).count("UP") == 2, 90, "both controllers")
            yield
        finally:
            process.terminate()
            process.wait(60)


def pinged(lab: Lab) -> str:
    return lab.run(["scontrol", "ping"], check=False).stdout


@pytest.mark.nightly
def test_a_backup_controller_that_takes_over(any_lab: Lab) -> None:
    """Nothing is decided while no controller answers; then the backup is asked like the first, which comes back."""
    lab, n = any_lab, any_lab.nodes
    if subprocess.run(["unshare", "--uts", "--mount", "true"], check=False).returncode:
        pytest.skip("a host name of its own needs namespaces")
    if (
        subprocess.run(["getent", "hosts", os.uname().nodename], capture_output=True, check=False).stdout[:4]
        != b"127."
    ):
        pytest.skip("this machine's name is no loopback address: two controllers would share a port")
    with backup_controller(lab):
        harvest = Harvesting(lab, patience_s=10.0)
        harvest.submit()
        harvest.fill(n)
        until_saved(lab)
        lab.kill("slurmctld")
        acted = len(harvest.events("intent"))
        silent = 0
        while harvest.loop.tick() is None:
            silent += 1
            assert silent < 30, pinged(lab)
        assert silent, "commands wait for the backup to take over, and are given up"
        assert len(harvest.events("intent")) == acted, "no answer, no deed"
        assert "(primary)" in pinged(lab).split("DOWN")[0]
        # The backup hears of a node only when that registers or is asked; then all is as before.
        lab.wait_for(lambda: set(harvest.held()) == set(n), 90, "the pilots are known to the backup")
        lab.run(["scontrol", "update", f"NodeName={n[0]}", "State=DRAIN", "Reason=x"])
        harvest.tick()
        harvest.left([n[0]])
        lab.start("slurmctld")
        lab.wait_for(lambda: pinged(lab).count("UP") == 2, 90, "the first controller is back")
        # A drain that the backup had not saved yet is forgotten, and then there is nothing to resume.
        lab.run(["scontrol", "update", f"NodeName={n[0]}", "State=RESUME"], check=False)
        lab.wait_for(lambda: answered(harvest) and set(harvest.held()) == set(n), 60, f"{harvest.said()[-8:]}")
        assert not harvest.events("pilot_ended")


def answered(harvest: Harvesting) -> bool:
    """One round, which Slurm may leave without an answer while one controller gives way to the other."""
    try:
        return harvest.loop.tick() is not None
    except ClusterUnavailable:
        return False


def test_a_controller_that_limits_how_often_it_is_asked(any_lab: Lab, tmp_path: Path) -> None:
    """rl_enable, from 23.02 on, as a plain user (Slurm's own is never limited): commands wait their turn."""
    lab, n = any_lab, any_lab.nodes
    if Harvesting(lab).facts.release < (23, 2):
        pytest.skip("this Slurm has no rl_enable")
    limited = Change(settings={"SlurmctldParameters": "rl_enable,rl_bucket_size=6,rl_refill_rate=4,rl_log_freq=0"})
    with lab.changed(limited, restart=True):
        environment = commands_as(lab, "alice", tmp_path).environment
        harvest = Harvesting(lab, environment=environment)
        harvest.submit()
        harvest.fill(n)
        for _ in range(4):
            harvest.tick()
        assert set(harvest.held()) == set(n)
        assert not harvest.events("pilot_ended", "cluster_unavailable")
        log = (lab.log / "slurmctld.log").read_text() + (lab.log / "slurmctld.out").read_text()
        assert "RPC rate limit exceeded" in log or "rate limit" in log.lower(), "it was not limited at all"


def test_a_user_who_may_submit_no_more(accounted: Lab) -> None:
    """MaxSubmitJobs: told in Slurm's own word; what is there goes on, and the main queue has its own limit."""
    lab = accounted
    lab.run(["sacctmgr", "-i", "modify", "qos", HARVEST.qos, "set", "MaxSubmitJobsPerUser=4"])
    try:
        harvest = Harvesting(lab, harvest=HARVEST)
        harvest.submit(tasks=4, most=4)
        harvest.fill(lab.nodes)
        who = pwd.getpwnam("alice")
        asked = ["sbatch", "--parsable", "--hold", "--array=0-1", "-p", "harvest", "-A", "harvest", "-q", "harvest"]
        as_alice = [
            "setpriv",
            f"--reuid={who.pw_uid}",
            f"--regid={who.pw_gid}",
            "--init-groups",
            *asked,
            "--wrap=true",
        ]
        with pytest.raises(submit.SubmissionRefused, match="QOSMaxSubmitJobPerUserLimit"):
            submit.run_sbatch(Submission(tuple(as_alice), b"", lab.env), "/", print)
        harvest.tick()
        assert set(harvest.held()) == set(lab.nodes)
        main = lab.submit("true", "-p", "batch", "-A", "main", "--hold", user="alice")
        assert lab.job_state(main) == "PENDING"
    finally:
        lab.run(["sacctmgr", "-i", "modify", "qos", HARVEST.qos, "set", "MaxSubmitJobsPerUser=-1"])
