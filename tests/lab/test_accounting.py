"""A lab with accounting: who may do what, and what harvested time costs."""

import os
import pwd
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig, LabError, accounting
from scripts.lab.layout import Layout
from scripts.lab.packages import host_toolchain
from tests.slurm_fixtures import LabFactory

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need root"),
]


@pytest.fixture(scope="module")
def accounted(lab_factory: LabFactory) -> Lab:
    return lab_factory(LabConfig(nodes=2, accounting=True, users=True))


def test_a_new_database_deletes_no_other_servers_temporary_files(lab_directory: Path) -> None:
    others = Path("/tmp/#sql-temptable-of-another-server.MAI")
    layout = Layout.of(lab_directory)
    layout.scratch.mkdir(parents=True)
    others.touch()
    try:
        toolchain = host_toolchain(accounting=True)
        accounting.write_files(layout, toolchain, 1, pwd.getpwuid(os.geteuid()).pw_name)
        assert others.exists()
        assert f"--tmpdir={layout.scratch}" in accounting.database_command(layout, toolchain)
    finally:
        others.unlink(missing_ok=True)


def test_users_have_both_accounts_and_harvest_has_its_qos(accounted: Lab) -> None:
    shown = accounted.run(["sacctmgr", "-nP", "show", "assoc", "format=account,user,qos,defaultqos"]).stdout.split()
    for user in ("alice", "bob", "malletrain"):
        assert f"main|{user}|normal|" in shown
        assert f"harvest|{user}|harvest|harvest" in shown
    qos = accounted.run(["sacctmgr", "-nP", "show", "qos", "harvest", "format=usagefactor"]).stdout
    assert float(qos) == 0


def test_limits_are_enforced(accounted: Lab) -> None:
    with pytest.raises(LabError, match="Invalid account"):
        accounted.submit("true", "--account=nobody", user="alice")


def test_the_coordinator_steers_others_harvest_tasks_and_nothing_else(accounted: Lab) -> None:
    options = ("--hold", "--partition=harvest", "--account=harvest", "--no-requeue", "--time=1")
    task = accounted.submit("sleep 60", *options, "--array=0-1", user="alice")
    accounted.run(["scontrol", "update", f"jobid={task}_0", "NodeList=n001", "TimeLimit=2"], user="malletrain")
    accounted.run(["scontrol", "release", f"{task}_0"], user="malletrain")
    accounted.wait_for_state(f"{task}_0", "RUNNING")
    assert accounted.job(f"{task}_0")["NodeList"] == "n001"
    main = accounted.submit("sleep 60", "--hold", "--account=main", user="alice")
    with pytest.raises(LabError):
        accounted.run(["scontrol", "release", str(main)], user="malletrain")
    with pytest.raises(LabError):
        accounted.run(["scontrol", "update", "NodeName=n000", "State=DRAIN", "Reason=x"], user="malletrain")
    accounted.clear()


def test_finished_jobs_are_in_the_accounts(accounted: Lab) -> None:
    job = accounted.submit("true", "--account=harvest", user="bob")
    accounted.wait_for_state(job, "COMPLETED")
    show = ["sacct", "-nPX", "-j", str(job), "-o", "user,account,qos,state"]
    line = accounted.wait_for(
        lambda: text if "|harvest|COMPLETED" in (text := accounted.run(show).stdout) else "", 90, "the job in sacct"
    )
    assert line.strip() == "bob|harvest|harvest|COMPLETED"


def test_the_password_is_for_the_daemon_alone(accounted: Lab) -> None:
    assert (accounted.path / "slurmdbd.conf").stat().st_mode & 0o077 == 0
    assert (accounted.path / "munge/munge.key").stat().st_mode & 0o777 == 0o400
    password = next(
        line.partition("=")[2]
        for line in (accounted.path / "slurmdbd.conf").read_text().splitlines()
        if line.startswith("StoragePass=")
    )
    said = "".join(p.read_text(errors="replace") for p in accounted.log.iterdir() if p.is_file())
    assert password not in said
