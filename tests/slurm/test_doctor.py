"""`malletrain doctor` on real labs, each misconfigured in one way: the finding, its level and its remedy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from malletrain.daemon.site_watch import SiteWatch
from malletrain.domain.errors import MalletrainError
from malletrain.slurm.command import Commands
from malletrain.slurm.site import doctor, partition_checks, site_facts
from malletrain.slurm.site.site_facts import Finding, Harvest, Level
from scripts.lab import Change, Lab, LabConfig
from tests.messages import says
from tests.slurm.harvesting import Harvesting
from tests.slurm.test_authority import HARVEST, accounted, commands_as
from tests.slurm_fixtures import LabFactory
from tests.world import data_of

__all__ = ["accounted"]

pytestmark = pytest.mark.slurm


def examine(lab: Lab, ahead_s: float = 0.0, harvest: Harvest | None = None) -> tuple[Finding, ...]:
    return doctor.examine(Commands(lab.env), harvest or Harvest("harvest"), lambda: time.time() + ahead_s)


def only(found: tuple[Finding, ...], said: str) -> Finding:
    """The one finding that says so; it has a remedy unless its level is OK."""
    (finding,) = [f for f in found if said in f.what]
    assert finding.level is Level.OK or finding.remedy, finding
    return finding


def test_clocks_that_differ(any_lab: Lab) -> None:
    assert only(examine(any_lab, 60.0), "ahead of slurmctld's").level is Level.ERROR
    assert only(examine(any_lab, -60.0), "behind slurmctld's").level is Level.ERROR
    assert only(examine(any_lab), "agrees with slurmctld's").level is Level.OK


class Slow(Commands):
    """Answers that are true when they come, each of them ten seconds late: `late_s` counts them."""

    late_s = 0.0

    def ask(self, argv: Sequence[str], timeout_s: float | None = None) -> str:
        answer = super().ask(argv, timeout_s)
        self.late_s += 10.0
        return answer


def test_answers_that_take_their_time_are_no_clock_that_differs(any_lab: Lab) -> None:
    commands = Slow(any_lab.env)

    def examined(ahead_s: float) -> tuple[Finding, ...]:
        return doctor.examine(commands, Harvest("harvest"), lambda: time.time() + commands.late_s + ahead_s)

    assert only(examined(0.0), "agrees with slurmctld's").level is Level.OK
    commands.late_s = 0.0
    assert only(examined(60.0), "ahead of slurmctld's").level is Level.ERROR
    commands.late_s = 0.0
    assert only(examined(-60.0), "behind slurmctld's").level is Level.ERROR


def test_a_process_tracking_that_leaves_processes_behind(any_lab: Lab) -> None:
    """A lab has no cgroups."""
    finding = only(examine(any_lab), "proctrack/linuxproc")
    assert (finding.level, finding.remedy) == (Level.WARNING, "set ProctrackType=proctrack/cgroup")


def test_backfill_that_does_not_reach_the_pilots(any_lab: Lab) -> None:
    change = Change(settings={"SchedulerParameters": "bf_interval=1,bf_max_job_test=5,bf_continue,sched_interval=2"})
    with any_lab.changed(change):
        blocker = any_lab.submit(
            "sleep 600", "-p", "batch", f"--nodes={len(any_lab.nodes)}", "--exclusive", "--time=5"
        )
        any_lab.wait_for_state(blocker, "RUNNING")
        for _ in range(12):
            any_lab.submit("true", "-p", "batch", "--nodes=2", "--exclusive", "--time=5")

        def found() -> list[Finding]:
            return [f for f in examine(any_lab) if "backfill does not reach" in f.what]

        (finding,) = any_lab.wait_for(found, 90, "a backfill cycle")
        assert re.search(r"depth \d+ of \d+ \(bf_max_job_test=5\)", finding.what)
        assert "bf_max_job_test=100" in finding.remedy


def test_a_queue_that_is_nearly_full(release: str | None, lab_factory: LabFactory) -> None:
    small = (("MaxJobCount", "100"), ("MaxArraySize", "16"))
    lab = lab_factory(LabConfig(nodes=3, users=True, release=release, settings=small))  # test_queues has one of two
    for _ in range(6):
        lab.submit("true", "-p", "batch", "--hold", "--array=0-14")
    finding = only(examine(lab), "of at most 100 jobs (MaxJobCount)")
    assert (finding.level, "raise MaxJobCount" in finding.remedy) == (Level.WARNING, True)
    lab.clear()


# With accounting


def test_fair_share_that_is_charged(accounted: Lab) -> None:
    try:
        accounted.run(["sacctmgr", "-i", "modify", "qos", "harvest", "set", "UsageFactor=1"])
        finding = only(examine(accounted, harvest=HARVEST), "fair share is charged")
        assert "set UsageFactor=0" in finding.remedy
    finally:
        accounted.run(["sacctmgr", "-i", "modify", "qos", "harvest", "set", "UsageFactor=0"])
    assert only(examine(accounted, harvest=HARVEST), "costs its users no fair share").level is Level.OK
    assert "qos" in only(examine(accounted, harvest=Harvest("harvest", "harvest")), "no QOS").remedy


def test_a_qos_of_the_harvest_partition_in_which_pilots_do_not_start_or_are_not_preempted(accounted: Lab) -> None:
    """Its limits and its PreemptExemptTime go before those of the pilots' own QOS."""
    sacctmgr = ["sacctmgr", "-i"]
    accounted.run([*sacctmgr, "add", "qos", "narrow", "MaxTRES=cpu=4", "PreemptExemptTime=00:05:00"])
    try:
        with accounted.changed(Change(partitions={"harvest": {"QoS": "narrow"}}), restart=True):
            found = examine(accounted, harvest=HARVEST)
        finding = only(found, "QOS narrow has MaxTRES=cpu=4")
        assert (finding.level, finding.remedy) == (Level.ERROR, "sacctmgr modify qos narrow set MaxTRES=cpu=-1")
        assert only(found, "PreemptExemptTime of QOS narrow").level is Level.ERROR
    finally:
        accounted.run([*sacctmgr, "delete", "qos", "narrow"])


def test_limits_of_the_pilots_account_count_where_slurm_enforces_them(accounted: Lab) -> None:
    modify = ["sacctmgr", "-i", "modify", "account", "harvest", "set"]
    options = ("-p", "harvest", "-A", "harvest", "-q", "harvest", "--exclusive", "--nodes=1", "--time=5")
    loosely = Change(settings={"AccountingStorageEnforce": "associations,qos"})
    accounted.run([*modify, "MaxJobs=0", "GrpTRES=cpu=0"])
    try:
        found = examine(accounted, harvest=HARVEST)
        for limit in ("MaxJobs=0", "GrpTRES=cpu=0"):
            assert only(found, f"account harvest has {limit}").level is Level.ERROR
        job = accounted.submit("sleep 300", *options, user="alice")
        accounted.wait_for(lambda: accounted.job(job)["Reason"].startswith("Assoc"), 90, "the job is held back")
        with accounted.changed(loosely, restart=True):
            assert not [f for f in examine(accounted, harvest=HARVEST) if says(f.what, "account harvest", "=0")]
            accounted.wait_for_state(job, "RUNNING")
    finally:
        accounted.run([*modify, "MaxJobs=-1", "GrpTRES=cpu=-1"])
    assert not [f for f in examine(accounted, harvest=HARVEST) if says(f.what, "account harvest", "=0")]


@pytest.mark.nightly
def test_private_data_hides_the_main_queue_from_a_coordinator(
    accounted: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with accounted.changed(Change(settings={"PrivateData": "jobs"})):
        for who, level in (("malletrain", Level.ERROR), ("root", Level.OK)):
            for module in (doctor, site_facts):
                monkeypatch.setattr(module, "user_name", lambda _uid, who=who: who)
            found = doctor.examine(commands_as(accounted, who, tmp_path), HARVEST, time.time)
            assert only(found, "PrivateData=jobs hides").level is level


@pytest.mark.parametrize("word", ["reservations", "nodes", "partitions"])
def test_what_is_hidden_from_a_coordinator_is_said_by_name(
    accounted: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    for module in (doctor, site_facts):
        monkeypatch.setattr(module, "user_name", lambda _uid: "malletrain")
    with accounted.changed(Change(settings={"PrivateData": word})):
        commands = commands_as(accounted, "malletrain", tmp_path)
        finding = only(doctor.examine(commands, HARVEST, time.time), f"PrivateData={word} hides")
        assert (finding.level, "malletrain" in finding.remedy) == (Level.ERROR, True)
        # What the daemon refuses to start on.
        with pytest.raises(MalletrainError, match=f"PrivateData={word} hides"):
            SiteWatch(commands, HARVEST, site_facts.read(commands), time.monotonic).refuse_unfit()


@pytest.fixture
def by_qos(accounted: Lab) -> Iterator[Lab]:
    change = Change(settings={"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"},
                    partitions={"harvest": {"PreemptMode": "REQUEUE"}})  # fmt: skip
    with accounted.changed(change, restart=True):
        yield accounted
        accounted.run(["sacctmgr", "-i", "modify", "qos", "normal", "set", "preempt="])


@pytest.mark.nightly
def test_preemption_by_qos(by_qos: Lab) -> None:
    finding = only(examine(by_qos, harvest=HARVEST), "preemption is by QOS, and normal does not preempt harvest")
    assert (finding.level, finding.remedy) == (Level.ERROR, "sacctmgr modify qos normal set preempt+=harvest")
    by_qos.run(["sacctmgr", "-i", "modify", "qos", "normal", "set", "preempt=harvest"])
    assert only(examine(by_qos, harvest=HARVEST), "every other QOS preempts harvest").level is Level.OK
    # And it does: a pilot gives way, and is known for preempted.
    harvest = Harvesting(by_qos, HARVEST)
    harvest.submit()
    harvest.fill(by_qos.nodes)
    node = by_qos.nodes[0]
    main = by_qos.submit("sleep 600", "-p", "batch", "-A", "main", "-w", node, "--exclusive", "--time=5", user="bob")
    by_qos.wait_for_state(main, "RUNNING", deadline_s=60)
    by_qos.wait_for(lambda: harvest.tick() and harvest.events("pilot_ended"), 90, "its end is seen")
    (end,) = harvest.events("pilot_ended")
    assert (end.node, data_of(end)["preempted"]) == (node, True)


@pytest.mark.nightly
def test_a_federation_is_refused_by_name(accounted: Lab) -> None:
    name = accounted.run(["scontrol", "show", "config"]).stdout.partition("ClusterName")[2].split()[1]
    accounted.run(["sacctmgr", "-i", "add", "federation", "union", f"clusters={name}"])
    try:
        commands = Commands(accounted.env)
        accounted.wait_for(
            lambda: site_facts.read(commands).federation == "union", 90, "the cluster knows its federation"
        )
        finding = only(examine(accounted, harvest=HARVEST), "the cluster is in federation union")
        assert finding.level is Level.ERROR
        # What the daemon refuses to start on.
        assert finding in partition_checks.check_harvest_partition(site_facts.read(commands), HARVEST)
    finally:
        accounted.run(["sacctmgr", "-i", "delete", "federation", "union"])
