"""A pilot's whole life under each authority that a daemon may have: coordinator, operator, and the owner alone."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.domain.decision import CancelTasks, CutLimit, RecyclePilot, StartPilot, Stray
from malletrain.domain.job import MalleableJob
from malletrain.domain.snapshot import SlurmState
from malletrain.slurm.cluster import SlurmCluster
from malletrain.slurm.command import Commands
from malletrain.slurm.site import doctor, site_facts
from malletrain.slurm.site.site_facts import Harvest, Level
from malletrain.slurm.submission.user_accounts import UserAccounts
from scripts.lab import Lab, LabConfig
from tests.slurm_fixtures import LabFactory

pytestmark = pytest.mark.slurm

HARVEST = Harvest("harvest", "harvest", "harvest")
PROGRAMS = ("scontrol", "squeue", "scancel", "sdiag", "sinfo", "sacctmgr")


@pytest.fixture
def accounted(release: str | None, lab_factory: LabFactory) -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("needs plain users: run as root")
    lab = lab_factory(LabConfig(nodes=4, users=True, accounting=True, release=release))
    yield lab
    lab.clear()


def commands_as(lab: Lab, user: str, folder: Path) -> Commands:
    """Slurm's commands run as `user`: programs of their names that change the user first."""
    environment = lab.env
    gid = pwd.getpwnam(user).pw_gid
    for name in PROGRAMS:
        real = shutil.which(name, path=environment["PATH"])
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec setpriv --reuid {user} --regid {gid} --init-groups {real} "$@"\n')
        script.chmod(0o755)
    return Commands({**environment, "PATH": f"{folder}:{environment['PATH']}"}, timeout_s=30.0)


def submit(lab: Lab, user: str, tasks: int = 3) -> int:
    return lab.submit(
        "exec srun --ntasks=1 sleep 300", "-p", "harvest", "-A", "harvest", "-q", "harvest", "--hold", "--no-requeue",
        f"--array=0-{tasks - 1}", "--time=1", "--nodes=1", "--exclusive", "--mem=0", user=user,
    )  # fmt: skip


@pytest.mark.parametrize("who", ["malletrain", "root", "alice"], ids=["coordinator", "operator", "owner"])
def test_a_pilots_whole_life(accounted: Lab, who: str, tmp_path: Path) -> None:
    uid = pwd.getpwnam("alice").pw_uid
    cluster = SlurmCluster(commands_as(accounted, who, tmp_path), HARVEST, {3: uid}.get, bf_interval_s=1.0)
    array, node = submit(accounted, "alice"), accounted.nodes[1]
    pilot = f"{array}_1"
    report = cluster.inspect(array, MalleableJob(3, "t", "alice", uid, "harvest", 1, 4, 0.0))
    assert report.tasks == (0, 1, 2), report.faults

    def start() -> None:
        outcome = cluster.start([StartPilot(3, pilot, node, 600.0, "")])[0]
        assert outcome.done, outcome.detail
        accounted.wait_for(lambda: cluster.end_of(pilot).state is SlurmState.RUNNING, 90)

    start()
    assert cluster.snapshot().holders[node][0].id == pilot
    cut = cluster.cut(CutLimit(3, pilot, node, time.time() + 200, ""))
    assert cut.done, cut.detail
    recycled = cluster.recycle([RecyclePilot(3, pilot, node, "")])[0]
    assert recycled.done, recycled.detail
    assert "failed" not in recycled.detail
    accounted.wait_for(lambda: cluster.end_of(pilot).held and cluster.snapshot().is_free(node), 60)
    assert accounted.job(pilot)["Requeue"] == "0"
    accounted.wait_for(lambda: cluster.start([StartPilot(3, pilot, node, 600.0, "")])[0].done, 60)
    accounted.wait_for(lambda: cluster.end_of(pilot).state is SlurmState.RUNNING, 90)
    cancelled = cluster.cancel(CancelTasks(3, (f"{array}_0", f"{array}_2"), ""))
    assert cancelled.done, cancelled.detail
    accounted.wait_for(lambda: f"{array}_0" not in {job.id for job in cluster.snapshot().jobs}, 60)


def test_a_coordinator_ends_plain_jobs_of_the_harvest_account_alone(accounted: Lab, tmp_path: Path) -> None:
    cluster = SlurmCluster(commands_as(accounted, "malletrain", tmp_path), HARVEST, lambda job: None)
    options = ("-p", "harvest", "-A", "harvest", "-q", "harvest", "--exclusive", "--time=9")
    plain = accounted.submit("trap '' TERM; srun sleep 300; sleep 300", *options, user="alice")
    main = accounted.submit("sleep 300", "-p", "batch", "--exclusive", "--time=9", user="bob")
    for job in (plain, main):
        accounted.wait_for_state(job, "RUNNING")
    accounted.wait_for(lambda: cluster.take_back([Stray(str(plain), "alice")])[0].detail == "ended", 60)
    assert cluster.take_back([Stray(str(main), "bob")])[0].detail == "gone already"
    accounted.wait_for(lambda: accounted.job(str(plain))["JobState"] in ("CANCELLED", "FAILED"), 60)
    assert accounted.job(str(main))["JobState"] == "RUNNING"


@pytest.mark.parametrize("change", ["Account=main", "QOS=normal"])
def test_a_task_that_was_moved_to_another_account_or_qos_stays_held(
    accounted: Lab, change: str, tmp_path: Path
) -> None:
    uid = pwd.getpwnam("alice").pw_uid
    cluster = SlurmCluster(commands_as(accounted, "malletrain", tmp_path), HARVEST, {3: uid}.get)
    array = submit(accounted, "alice")
    accounted.run(["scontrol", "update", f"JobId={array}_0", change])
    outcome = cluster.start([StartPilot(3, f"{array}_0", accounted.nodes[0], 600.0, "")])[0]
    assert not outcome.done
    assert change.partition("=")[2] in outcome.detail


def test_one_user_cannot_steer_another_ones_pilots(accounted: Lab, tmp_path: Path) -> None:
    uid = pwd.getpwnam("alice").pw_uid
    cluster = SlurmCluster(commands_as(accounted, "bob", tmp_path), HARVEST, {3: uid}.get)
    array = submit(accounted, "alice")
    outcome = cluster.start([StartPilot(3, f"{array}_0", accounted.nodes[0], 600.0, "")])[0]
    assert not outcome.done
    assert any(words in outcome.detail for words in ("Invalid user id", "denied")), outcome.detail


def test_the_doctor_knows_the_coordinators_rights(
    accounted: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who, level in (("malletrain", Level.OK), ("bob", Level.ERROR)):
        for module in (doctor, site_facts):
            monkeypatch.setattr(module, "user_name", lambda _uid, who=who: who)
        found = doctor.examine(commands_as(accounted, who, tmp_path), HARVEST, time.time)
        rights = [finding for finding in found if who in finding.what]
        assert [finding.level for finding in rights] == [level], found
        assert any("fair share" in finding.what for finding in found)


def test_a_job_is_charged_to_its_owners_own_account(accounted: Lab, tmp_path: Path) -> None:
    accounted.run(["sacctmgr", "-i", "add", "account", "physics"])
    accounted.run(["sacctmgr", "-i", "add", "user", "name=bob", "account=physics", "defaultaccount=physics"])
    commands, now = commands_as(accounted, "malletrain", tmp_path), [0.0]

    def of(charge: str, named: dict[str, str] | None = None) -> UserAccounts:
        return UserAccounts(commands, charge, named or {}, "harvest", lambda: now[0])

    found = of("default_account", {"carol": "bio"})
    assert [found.of(user) for user in ("alice", "bob", "carol", "nobody-here")] == [
        "main",
        "physics",
        "bio",
        "harvest",
    ]
    accounted.run(["sacctmgr", "-i", "modify", "user", "bob", "set", "defaultaccount=main"])
    assert found.of("bob") == "physics", "asked once an hour"
    now[0] = 3600.0
    assert found.of("bob") == "main"
    assert of("pilots").of("bob") == "harvest"
    assert of("default_wckey").of("bob") == "harvest", "no wckey"


def test_with_two_processes_the_doctor_looks_at_the_actuators_rights_and_leaves_the_listener_without(
    accounted: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "actuator.sock"

    def rights(listener: str) -> list[tuple[Level, str]]:
        for module in (doctor, site_facts):
            monkeypatch.setattr(module, "user_name", lambda _uid: listener)
        commands = commands_as(accounted, listener, tmp_path)
        found = doctor.examine(commands, HARVEST, time.time, actuator=str(socket))
        about = ("actuator", "coordinate", "who listens")
        return [(f.level, f.remedy) for f in found if any(words in f.what for words in about)]

    ((level, remedy),) = rights("bob")
    assert (level, "enable --now malletrain-actuator" in remedy) == (Level.ERROR, True)
    socket.touch()
    os.chown(socket, pwd.getpwnam("malletrain").pw_uid, -1)
    assert rights("bob") == [(Level.OK, ""), (Level.OK, "")], "it does not ask for rights of the listener's"
    os.chown(socket, pwd.getpwnam("bob").pw_uid, -1)
    assert (Level.ERROR, "sacctmgr add coordinator account=harvest names=bob") in rights("malletrain")
    assert (Level.WARNING, "sacctmgr delete coordinator account=harvest names=malletrain") in rights("malletrain")


@dataclass(frozen=True)
class Rights:
    """One row of the table in docs/reference/slurm.md: what is tried on held tasks `{a}` of which the third runs, a
    main job `{m}`, and nodes; and who may do it."""

    what: str
    command: str
    of_its_tasks: bool  #: coordinator and owner may
    operator: bool


TABLE = (
    Rights("pin, limit and release", "scontrol update JobId={a}_0 NodeList={0} TimeLimit=9", True, True),
    Rights("hold several nodes", "scontrol update JobId={a}_1 NumNodes=2-2 NodeList={1},{2}", True, True),
    Rights("shorten a running pilot", "scontrol update JobId={a}_2 TimeLimit=8", True, True),
    Rights("lengthen a running pilot", "scontrol update JobId={a}_2 TimeLimit=30", False, True),
    Rights("exceed MaxTime", "scontrol update JobId={a}_1 TimeLimit=90", False, True),
    Rights("lift a hold of the staff's", "scontrol release {a}_3", False, True),
    Rights("touch a main job", "scontrol update JobId={m} TimeLimit=2", False, True),
    Rights("cancel a main job", "scancel {m}", False, True),
    Rights("change a node's state", "scontrol update NodeName={3} State=DRAIN Reason=x", False, False),
)


@pytest.mark.parametrize(
    "who",
    [
        "coordinator",
        *(pytest.param(w, marks=pytest.mark.nightly) for w in ("operator", "owner", "owner without accounting")),
    ],
)
def test_the_table_of_rights(
    who: str, release: str | None, lab_factory: LabFactory, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Slurm's own word on what each authority can do; the daemon never does what only an operator can."""
    if "without" in who:
        if os.geteuid() != 0:
            pytest.skip("needs plain users: run as root")
        lab = lab_factory(LabConfig(nodes=8, profile="fast", users=True, release=release))
    else:
        lab = request.getfixturevalue("accounted")
    identity = [] if "without" in who else ["-A", "harvest", "-q", "harvest"]
    user = {"coordinator": "malletrain", "operator": "bob"}.get(who, "alice")
    array = lab.submit(
        "exec srun --ntasks=1 sleep 300", "-p", "harvest", *identity, "--hold", "--no-requeue", "--array=0-3",
        "--time=1", "--nodes=1", "--exclusive", "--mem=0", user="alice",
    )  # fmt: skip
    main = lab.submit("sleep 60", "-p", "batch", "--hold", "--nodes=1", user="malletrain" if user == "bob" else "bob")
    lab.run(["scontrol", "update", f"JobId={array}_2", f"NodeList={lab.nodes[3]}", "TimeLimit=10"])
    lab.run(["scontrol", "release", f"{array}_2"])
    lab.wait_for_state(f"{array}_2", "RUNNING", deadline_s=90)
    lab.run(["scontrol", "hold", f"{array}_3"])
    if who == "operator":
        lab.run(["sacctmgr", "-i", "modify", "user", "name=bob", "set", "adminlevel=operator"])
        commands = commands_as(lab, user, tmp_path)
        lab.wait_for(
            lambda: commands.run(["scontrol", "update", f"JobId={main}", "Comment=x"]).ok, 90, "bob's new rights"
        )
    try:
        commands = commands_as(lab, user, tmp_path)
        tried = {row.what: row.command.format(*lab.nodes, a=array, m=main).split() for row in TABLE}
        found = {what: commands.run(command).ok for what, command in tried.items()}
    finally:
        if who == "operator":
            lab.run(["sacctmgr", "-i", "modify", "user", "name=bob", "set", "adminlevel=none"])
        lab.clear()
    assert found == {row.what: row.operator if who == "operator" else row.of_its_tasks for row in TABLE}


def test_the_table_of_rights_is_the_documents() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "slurm.md").read_text()
    chapter = text.partition("## Authority\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in chapter.splitlines()
        if line.startswith("| ")
    ]
    yes = {True: "yes", False: "no"}
    wanted = [[row.what, yes[row.of_its_tasks], yes[row.of_its_tasks], yes[row.operator]] for row in TABLE]
    assert [row[:4] for row in rows if row[0] in {each.what for each in TABLE}] == wanted
