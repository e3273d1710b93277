"""`malletrain setup` on sites before MalleTrain: no main job is touched, doctor is content, and all goes back."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.cli.admin import site_setup
from malletrain.cli.admin.site_setup import (
    Accounts,
    Wanted,
    shut_out,
    with_harvest,
    without_costly_nodes,
    without_harvest,
)
from malletrain.domain.errors import InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.site import doctor, site_facts
from malletrain.slurm.site.rehearsal import Rehearsal
from malletrain.slurm.site.site_facts import Harvest, Level
from scripts.lab import Lab, LabConfig, UsageError
from tests.e2e.test_admin_install import MainQueue, cycles, wait_for_cycles
from tests.messages import naming, says
from tests.slurm.test_site_checks import site as configured
from tests.slurm_fixtures import LabFactory


@pytest.fixture
def site(request: pytest.FixtureRequest, release: str | None, lab_directory: Path) -> Iterator[Lab]:
    config = LabConfig(
        nodes=2, main_tiers=(20, 10), harvest=False, users=True, accounting=request.param, release=release
    )
    try:
        with Lab.up(lab_directory, config) as lab:
            yield lab
    except UsageError as error:
        pytest.skip(f"no Slurm lab here: {error}")


def setup(lab: Lab, *options: str) -> str:
    program = [sys.executable, "-c", "import malletrain.cli.main as m; m.main()", "setup", *options]
    return lab.run(program, timeout=120).stdout


def accounts(lab: Lab) -> str:
    return lab.run(["sacctmgr", "-n", "-P", "show", "user", "withassoc", "format=user,account,defaultaccount"]).stdout


def assert_no_main_job_is_free(lab: Lab) -> None:
    """The pilots' account and QOS cost nothing, so Slurm must start no main job with them, however it comes there."""
    free = ["-A", "harvest", "-q", "harvest"]
    tried = [lab.submit("sleep 600", "-p", where, *free, user="alice") for where in ("batch", "batch-10")]
    moved = lab.submit("sleep 600", "-p", "harvest", *free, "--hold", user="alice")
    renamed = lab.submit("sleep 600", "-p", "batch", "-A", "main", "--hold", user="alice")
    as_alice = ["setpriv", "--reuid", "alice", "--clear-groups", "scontrol", "update"]
    lab.run([*as_alice, f"JobId={moved}", "Partition=batch"])
    lab.run([*as_alice, f"JobId={renamed}", "Account=harvest", "QOS=harvest"])
    tried += [moved, renamed]
    for job in tried[2:]:
        lab.run(["scontrol", "release", str(job)])

    wait_for_cycles(lab, cycles(lab))  # releases say in different words why such a job waits, or in none
    assert {lab.job_state(job) for job in tried} == {"PENDING"}
    assert {*lab.run(["sinfo", "-h", "-p", "batch", "-o", "%t"]).stdout.split()} <= {"idle", "plnd"}, "there was room"
    lab.run(["scancel", *map(str, tried)])


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="needs plain users: run as root")
@pytest.mark.parametrize("site", [True, False], indirect=True, ids=["slurmdbd", "no slurmdbd"])
def test_it_is_set_up_and_taken_back_and_no_main_job_is_touched(site: Lab) -> None:
    lab, conf = site, site.path / "slurm.conf"
    has_accounts = "AccountingStorageType" in conf.read_text()
    before = conf.read_text()
    real = lab.output / "shared.conf"  # as sites link /etc/slurm to a shared file system
    conf.rename(real)
    conf.symlink_to(real)
    people = accounts(lab) if has_accounts else ""
    queue = MainQueue(lab)

    script = setup(lab, "--users", "alice")
    assert conf.read_text() == before, "printed, not done"
    assert ("sacctmgr -i add coordinator account=harvest names=malletrain" in script) == has_accounts

    setup(lab, "--users", "alice", "--apply")
    queue.wait_for_cycles()
    assert not queue.is_touched()
    assert (lab.path / "slurm.conf.before-malletrain").read_text() == before
    harvest = Harvest("harvest", "harvest" if has_accounts else "", "harvest" if has_accounts else "")
    found = doctor.examine(Commands(lab.env_for("malletrain")), harvest, time.time)
    about = [f for f in found if "partition" in f.what or "main job" in f.what]
    assert not [f for f in about if f.level is Level.ERROR], about
    assert says(setup(lab, "--users", "alice", "--apply"), "nothing")

    mine = ["-A", "harvest"] if has_accounts else []
    lab.run(["scancel", "--user=bob"])
    if has_accounts:
        assert_no_main_job_is_free(lab)
    pilot = lab.submit("srun sleep 600", "-p", "harvest", *mine, "--time=30", user="alice")
    lab.wait_for_state(pilot, "RUNNING")

    setup(lab, "--undo", "--apply")
    assert conf.read_text() == before
    assert conf.readlink() == real
    assert lab.job_state(pilot) in ("CANCELLED", "gone")
    assert "harvest" not in lab.run(["sinfo", "-h", "-a", "-o", "%P"]).stdout
    if has_accounts:
        assert accounts(lab) == people
        assert "harvest" not in lab.run(["sacctmgr", "-n", "-P", "show", "qos", "format=name"]).stdout
    assert says(setup(lab, "--undo", "--apply"), "nothing")


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="needs plain users: run as root")
@pytest.mark.parametrize("site", [True], indirect=True, ids=["slurmdbd"])
def test_the_printed_script_does_the_same(site: Lab) -> None:
    lab, conf = site, site.path / "slurm.conf"
    conf.write_text(conf.read_text() + "PartitionName=listed Nodes=ALL AllowAccounts=main\n")
    lab.run(["scontrol", "reconfigure"])
    before = conf.read_text()
    lab.run(["bash", "-c", setup(lab, "--users", "alice")], timeout=60)
    listed = lab.run(["scontrol", "-o", "show", "partition", "listed"]).stdout
    assert "AllowAccounts=main " in listed
    assert "PreemptMode=OFF" in listed
    done = conf.read_text()
    assert "PartitionName=harvest" in done
    assert without_harvest(done) == before
    lab.run(["bash", "-c", setup(lab, "--undo")], timeout=60)
    assert conf.read_text() == before


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="needs plain users: run as root")
@pytest.mark.parametrize("kind", ["partition_prio", "qos"])
def test_a_site_that_preempts_already_keeps_its_own_preemption(
    kind: str, release: str | None, lab_factory: LabFactory
) -> None:
    own = (("PreemptType", f"preempt/{kind}"), ("PreemptMode", "REQUEUE"))
    lab = lab_factory(LabConfig(nodes=2, harvest=False, users=True, accounting=True, release=release, settings=own))
    conf = lab.path / "slurm.conf"
    before = conf.read_text()
    listed = ["sacctmgr", "-n", "-P", "show", "qos", "format=name,preempt"]
    lists = lab.run(listed).stdout
    setup(lab, "--users", "alice", "--apply")
    harvest, commands = Harvest("harvest", "harvest", "harvest"), Commands(lab.env)
    found = doctor.examine(commands, harvest, time.time, user="malletrain")
    assert [f for f in found if f.level is Level.ERROR] == []
    uid = pwd.getpwnam("malletrain").pw_uid
    played = list(Rehearsal(commands, site_facts.read(commands), harvest, ["-p", "batch"], uid=uid).findings())
    assert len(played) == 3, played
    assert not [f for f in played if f.level is Level.ERROR], played
    assert says(setup(lab, "--users", "alice", "--apply"), "nothing")

    setup(lab, "--undo", "--apply")
    (lab.path / "slurm.conf.before-malletrain").unlink()  # it would stay in a lab that others share
    assert conf.read_text() == before
    assert lab.run(listed).stdout == lists


CONF = """ClusterName=c
PreemptMode=off
PreemptType=preempt/none
PartitionName=batch Nodes=ALL Default=YES   # the usual one
partitionname=debug Nodes=n1 \\
  MaxTime=30
PartitionName=long Nodes=ALL PreemptMode=OFF
# PartitionName=old Nodes=ALL
"""


BY_AN_EARLIER_RELEASE = """ClusterName=c
#malletrain# PreemptMode=off
#malletrain# PreemptType=preempt/none
PartitionName=batch Nodes=ALL Default=YES DenyAccounts=harvest PreemptMode=OFF # the usual one # malletrain
partitionname=debug Nodes=n1 \\
  MaxTime=30 DenyAccounts=harvest PreemptMode=OFF # malletrain
PartitionName=long Nodes=ALL PreemptMode=OFF DenyAccounts=harvest # malletrain
# PartitionName=old Nodes=ALL
# malletrain begin
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=harvest Nodes=ALL PreemptMode=REQUEUE AllowAccounts=harvest
# malletrain end
"""


def test_the_edit_of_slurm_conf_and_its_reverse() -> None:
    main = {"batch", "debug", "long"}
    done = with_harvest(CONF, Wanted(), main, accounting=True)
    lines = done.splitlines()
    assert lines[:3] == ["ClusterName=c", "#malletrain# PreemptMode=off", "#malletrain# PreemptType=preempt/none"]
    assert lines[3:6] == ["# malletrain begin", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
    assert lines[6].startswith("PartitionName=harvest Nodes=ALL ")
    assert lines[6].endswith(" AllowAccounts=harvest")
    assert lines[7:9] == ["PartitionName=DEFAULT PreemptMode=OFF DenyAccounts=harvest", "# malletrain end"]
    assert lines[9:] == CONF.splitlines()[3:], "partitions stay as they are"
    assert "Accounts=" not in with_harvest(CONF, Wanted(), main, accounting=False)
    assert with_harvest(done, Wanted(), {*main, "harvest"}, accounting=True) == done
    assert without_harvest(done) == CONF


def test_preemption_of_a_sites_own_stays() -> None:
    text = "PreemptType=preempt/qos\nPreemptMode=CANCEL\nPartitionName=a PreemptMode=CANCEL\n"
    done = with_harvest(text, Wanted(preempted=True), {"a"}, accounting=True)
    assert [line.partition(" ")[0] for line in done.splitlines()] == [
        "PreemptType=preempt/qos", "PreemptMode=CANCEL", "#", "PartitionName=harvest", "PartitionName=DEFAULT", "#",
        "PartitionName=a",
    ]  # fmt: skip
    assert "PartitionName=DEFAULT DenyAccounts=harvest\n" in done
    assert with_harvest(done, Wanted(preempted=True), {"a", "harvest"}, accounting=True) == done
    assert without_harvest(done) == text
    assert "DEFAULT" not in with_harvest(text, Wanted(preempted=True), {"a"}, accounting=False)


def test_what_an_earlier_release_has_set_up_is_taken_back_and_set_up_anew() -> None:
    before, there = CONF.replace("Default=YES   #", "Default=YES #"), {"batch", "debug", "long", "harvest"}
    assert without_harvest(BY_AN_EARLIER_RELEASE) == before
    again = with_harvest(BY_AN_EARLIER_RELEASE, Wanted(), there, accounting=True)
    assert again == with_harvest(before, Wanted(), there - {"harvest"}, accounting=True)


def test_partitions_whose_accounts_are_listed_are_left_alone() -> None:
    text = "PartitionName=DEFAULT\nPartitionName=a AllowAccounts=physics\nPartitionName=b DenyAccounts=x,harvest\n"
    assert with_harvest(text, Wanted(), {"a", "b"}, accounting=True).endswith(f"end\n{text}")
    with pytest.raises(InvalidInput, match=naming("DenyAccounts=x:", "harvest")):
        with_harvest("PartitionName=b DenyAccounts=x\n", Wanted(), {"b"}, accounting=True)


def test_nobody_is_shut_out_of_the_main_queue() -> None:
    users = "ann|harvest|harvest\nann|physics|harvest\nmalletrain|harvest|harvest\nmalletrain|x|harvest\n"
    known = site_setup.accounts_from("harvest\n", "harvest|\n", users, "harvest")
    assert "modify user ann set DefaultAccount=physics" in shut_out(Wanted(), known, enforced=True)
    assert shut_out(Wanted(users=("bob",)), Accounts(), enforced=True) == ""
    assert "add user bob account=ACCOUNT" in shut_out(Wanted(users=("bob",)), Accounts(), enforced=False)


def test_nodes_that_cost_something_when_idle_are_left_out() -> None:
    saving = "SuspendProgram=/bin/true ResumeProgram=/bin/true SuspendTime=60"
    assert without_costly_nodes(configured()) == "ALL"
    assert without_costly_nodes(configured(f"{saving} SuspendExcNodes=n[000-003]")) == "n[000-003]"
    with pytest.raises(InvalidInput, match=r"pool\.include"):
        without_costly_nodes(configured(saving))


@pytest.mark.parametrize(
    ("text", "partitions", "said"),
    [
        ("PreemptType=preempt/qos\nPreemptMode=SUSPEND\nPartitionName=batch\n", {"batch"}, "Slurm preempts already"),
        ("PartitionName=batch PreemptMode=CANCEL\n", {"batch"}, "batch has PreemptMode=CANCEL"),
        ("PartitionName=batch \\\n  PreemptMode=OFF,GANG\n", {"batch"}, "batch has PreemptMode=OFF,GANG"),
        ("PartitionName=batch\n", {"batch", "gpu"}, "partition gpu"),
        ("PartitionName=harvest\n", {"harvest"}, "harvest"),
    ],
)
def test_what_it_does_not_edit(text: str, partitions: set[str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        with_harvest(text, Wanted(), partitions, accounting=False)


def test_users_whose_default_account_it_is_go_first() -> None:
    known = site_setup.accounts_from(
        "normal\nharvest\n", "main|\nharvest|malletrain\n",
        "ann|main|main\nann|harvest|main\neve|harvest|harvest\nmal|harvest|harvest\nmal|main|harvest\n", "harvest",
    )  # fmt: skip
    assert known.coordinators == {"malletrain"}
    assert [" ".join(command[2:]) for command in site_setup.takings(Wanted(), known)] == [
        "delete user name=eve", "modify user mal set DefaultAccount=main", "delete account harvest",
        "delete qos harvest",
    ]  # fmt: skip
