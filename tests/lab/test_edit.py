"""Changing a slurm.conf that is in use: the text, and a lab under it."""

import os
import signal

import pytest

from scripts.lab import Change, Lab, LabError, UsageError
from scripts.lab.conf import changed

TEXT = """\
ClusterName=lab
SchedulerParameters=bf_interval=1,bf_continue
GresTypes=
NodeName=n0 CPUs=4 Weight=1
PartitionName=harvest Nodes=ALL GraceTime=10
"""


def test_keys_are_replaced_appended_to_added_and_removed() -> None:
    wanted = Change(
        settings={"clustername": "x", "SchedulerParameters+": "bf_max_job_test=9", "GresTypes": None, "KillWait": "5"}
    )
    assert changed(TEXT, wanted).splitlines() == [
        "ClusterName=x",
        "SchedulerParameters=bf_interval=1,bf_continue,bf_max_job_test=9",
        "NodeName=n0 CPUs=4 Weight=1",
        "PartitionName=harvest Nodes=ALL GraceTime=10",
        "KillWait=5",
    ]


def test_attributes_of_nodes_and_partitions_and_further_lines() -> None:
    wanted = Change(
        partitions={"harvest": {"gracetime": "300", "MaxTime": "5"}},
        nodes={"n0": {"Weight": "7"}},
        lines=("PartitionName=debug Nodes=n0",),
    )
    assert changed(TEXT, wanted).splitlines()[3:] == [
        "NodeName=n0 CPUs=4 Weight=7",
        "PartitionName=harvest Nodes=ALL gracetime=300 MaxTime=5",
        "PartitionName=debug Nodes=n0",
    ]


def test_a_name_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="PartitionName=debug"):
        changed(TEXT, Change(partitions={"debug": {"State": "DOWN"}}))


@pytest.mark.slurm
def test_a_lab_is_changed_and_changed_back(lab: Lab) -> None:
    def grace() -> str:
        shown = lab.run(["scontrol", "-o", "show", "partition", "harvest"]).stdout
        return shown.partition("GraceTime=")[2].split()[0]

    before = (lab.path / "slurm.conf").read_text()
    change = Change(partitions={"harvest": {"GraceTime": "300"}}, files={"topology.conf": "SwitchName=s Nodes=ALL\n"})
    with lab.changed(change):
        assert grace() == "300"
        assert (lab.path / "topology.conf").exists()
    assert grace() == "10"
    assert (lab.path / "slurm.conf").read_text() == before
    assert not (lab.path / "topology.conf").exists()


@pytest.mark.slurm
def test_a_faulty_change_is_taken_back(lab: Lab) -> None:
    with pytest.raises(LabError), lab.changed(Change(settings={"NoSuchKey": "1"})):
        pass
    assert set(lab.node_states().values()) == {"idle"}


@pytest.mark.slurm
def test_every_node_is_under_the_change_at_once(lab: Lab) -> None:
    """`scontrol reconfigure` returns before any slurmd has read the files; `changed` does not."""
    script = lab.path / "scripts" / "marking"
    script.write_text('#!/bin/sh\ntouch "$(dirname "$0")/$SLURMD_NODENAME"\n')
    script.chmod(0o755)
    n = len(lab.nodes)
    for _ in range(3):
        with lab.changed(Change(settings={"Prolog": str(script), "PrologFlags": "Alloc"})):
            lab.wait_for_state(lab.submit("true", f"--nodes={n}"), "COMPLETED")
            marks = [script.with_name(node) for node in lab.nodes]
            assert [mark.name for mark in marks if not mark.exists()] == []
            for mark in marks:
                mark.unlink()


@pytest.mark.slurm
def test_a_reconfiguration_is_read_whole_while_slurmds_read(lab: Lab) -> None:
    """Reconfigurations in a row: each slurmd may still read the files of the one before."""
    for seconds in range(6, 12):
        lab.run(["scontrol", "reconfigure"])
        with lab.changed(Change(settings={"KillWait": str(seconds)})):
            pass
    assert all(map(lab.is_running, lab.daemons))


@pytest.mark.slurm
def test_a_slurmd_that_ended_is_named_and_started_again(lab: Lab) -> None:
    name = f"slurmd.{lab.nodes[0]}"
    ended = lab.run(["scontrol", "show", "slurmd", lab.nodes[0]]).stdout.partition("Slurmd PID")[2].split()[1]
    os.kill(int(ended), signal.SIGKILL)
    lab.wait_for(lambda: not lab.is_running(name), 90)
    with pytest.warns(UserWarning, match=f"{name} had ended"):
        lab.clear()
    assert lab.is_running(name)
    assert set(lab.node_states().values()) == {"idle"}
