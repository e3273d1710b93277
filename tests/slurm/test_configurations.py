"""Configurations that sites have, on a real Slurm: what is seen under each, and what is done (own release; with
--nightly also 24.11 and 26.05). Several share one lab, which is configured anew for each."""

from __future__ import annotations

import pytest

from malletrain.domain.decision import CutLimit, TopUp
from malletrain.domain.snapshot import NodeState
from malletrain.slurm.site import partition_checks
from malletrain.slurm.submission.submit import node_kinds, whole_gres
from scripts.lab import Change, Lab, LabConfig
from tests.slurm.harvesting import Harvesting
from tests.slurm_fixtures import LabFactory
from tests.world import data_of

pytestmark = pytest.mark.slurm


def occupy(lab: Lab, node: str, *more: str) -> int:
    """A main job of bob's on `node`; its number, once it runs."""
    job = lab.submit("sleep 600", "-p", "batch", "-w", node, "--time=30", *more, user="bob")
    lab.wait_for_state(job, "RUNNING")
    return job


def test_a_partly_busy_node_is_not_idle(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    occupy(lab, n[0], "--ntasks=1", "--mem=100")
    harvest = Harvesting(lab)
    harvest.submit()
    assert harvest.snapshot().node[n[0]].state is NodeState.MIXED
    harvest.fill(n[1:])
    # And a main job that needs a part of a harvested node is given the whole of it.
    main = lab.submit("sleep 600", "-p", "batch", "-w", n[1], "--ntasks=1", "--mem=100", "--time=5", user="bob")
    lab.wait_for_state(main, "RUNNING")
    harvest.left([n[1]])


def test_select_linear(any_lab: Lab) -> None:
    """Whole nodes only: a main job of one task holds its node; a pilot lives as it does elsewhere."""
    lab, n = any_lab, any_lab.nodes
    linear = Change(settings={"SelectType": "select/linear", "SelectTypeParameters": "CR_Memory"})
    with lab.changed(linear, restart=True):
        occupy(lab, n[0], "--ntasks=1", "--mem=100")
        harvest = Harvesting(lab)
        harvest.submit()
        harvest.fill(n[1:])
        assert harvest.snapshot().node[n[0]].state is NodeState.ALLOCATED
        lab.run(["scontrol", "update", f"NodeName={n[1]}", "State=DRAIN", "Reason=x"])
        harvest.tick()
        harvest.left([n[1]])
        lab.wait_for(lambda: harvest.tick() and len(harvest.view().held) == 4, 90, "its task waits again")


def test_main_jobs_that_cannot_start_now_take_no_node(any_lab: Lab) -> None:
    """Held, later, or behind another one: pilots stay. Once it may start, they leave."""
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab)
    harvest.submit()
    harvest.fill(n)
    every = ["-p", "batch", f"--nodes={len(n)}", "--exclusive", "--time=5"]
    held = lab.submit("sleep 600", *every, "--hold", user="bob")
    lab.submit("sleep 600", *every, "--begin=now+3600", user="bob")
    lab.submit("sleep 600", *every, f"--dependency=afterok:{held}", user="bob")
    lab.submit("sleep 600", *every, "--array=0-9%1", f"--dependency=afterok:{held}", user="bob")
    decision = harvest.tick()
    assert not [action for action in decision.actions if not isinstance(action, CutLimit | TopUp)]
    assert set(harvest.held()) == set(n)
    lab.run(["scontrol", "release", str(held)])
    lab.wait_for(lambda: harvest.tick() and lab.job_state(held) == "RUNNING", 90, f"{harvest.said()[-6:]}")


def test_cloud_nodes_that_are_off_are_no_holes(release: str | None, lab_factory: LabFactory) -> None:
    """Nodes that sleep are not woken for pilots."""
    lab = lab_factory(LabConfig(nodes=4, controller_only=True, users=True, release=release))
    harvest = Harvesting(lab)
    harvest.submit()
    decision = harvest.tick()
    assert {node.state for node in harvest.snapshot().nodes} == {NodeState.POWERED_DOWN}
    assert (len(decision.holes), decision.actions) == (0, ())
    lab.run(["scancel", "-p", "harvest"])


def test_nodes_that_slurm_powers_down_when_idle_are_no_holes(any_lab: Lab) -> None:
    """A pilot would keep them from being suspended."""
    lab, n = any_lab, any_lab.nodes
    saving = {"SuspendProgram": "/bin/true", "ResumeProgram": "/bin/true", "SuspendTime": "7200"}
    with lab.changed(Change(settings={**saving, "SuspendExcNodes": f"{n[0]},{n[3]}"})):
        harvest = Harvesting(lab)
        harvest.submit()
        harvest.fill([n[0], n[3]])
        harvest.tick()
        assert set(harvest.held()) == {n[0], n[3]}


@pytest.mark.nightly
def test_features_gres_weights_and_topology(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    change = Change(
        settings={"GresTypes": "gpu,fpga", "TopologyPlugin": "topology/tree"},
        nodes={
            n[0]: {"Features": "a100,ib", "Weight": "50", "Gres": "fpga:2"},
            n[1]: {"Features": "ib", "Weight": "9"},
        },
        files={
            "gres.conf": f"NodeName={n[0]} Name=fpga Count=2\n",
            "topology.conf": f"SwitchName=leaf0 Nodes={n[0]},{n[1]},{n[2]},{n[3]}\n"
            f"SwitchName=leaf1 Nodes={n[4]},{n[5]},{n[6]},{n[7]}\nSwitchName=top Switches=leaf[0-1]\n",
        },
    )
    with lab.changed(change, restart=True):
        lab.wait_for(lambda: "fpga:2" in lab.run(["sinfo", "-h", "-n", n[0], "-o", "%G"]).stdout, 90)
        harvest = Harvesting(lab, overrides={"max_pilots": 2})
        seen = harvest.snapshot().node
        assert (set(seen[n[0]].features), seen[n[0]].weight, seen[n[0]].gres) == ({"a100", "ib"}, 50, "fpga:2")
        assert (set(seen[n[1]].features), seen[n[1]].weight) == ({"ib"}, 9)
        assert harvest.facts.words["TopologyPlugin"].endswith("/tree")
        # Nodes differ: nothing is asked for by name; an exclusive pilot has all of its node.
        assert whole_gres(node_kinds(harvest.commands, "harvest")) == ""
        harvest.submit()
        # What Slurm gives to main jobs last is harvested first.
        harvest.fill([n[0], n[1]])
        # A main job that needs a feature of a harvested node is given that node.
        lab.submit("sleep 60", "-p", "batch", "-C", "a100", "--time=5", "--hold", user="bob")
        job = lab.submit("sleep 60", "-p", "batch", "-C", "a100", "--time=5", "--exclusive", user="bob")
        lab.wait_for_state(job, "RUNNING")
        harvest.left([n[0]])
        assert n[1] in harvest.held()


def test_several_partitions_over_the_same_nodes(any_lab: Lab) -> None:
    """Every partition but the harvest one is the main queue, whichever tiers they have among themselves."""
    lab, n = any_lab, any_lab.nodes
    change = Change(
        partitions={"harvest": {"Nodes": ",".join(n[:6])}},
        lines=(
            f"PartitionName=debug Nodes={n[0]},{n[1]} MaxTime=30 PriorityTier=200 PreemptMode=OFF",
            f"PartitionName=low Nodes={n[2]},{n[3]},{n[6]} PriorityTier=50 PreemptMode=REQUEUE",
        ),
    )
    with lab.changed(change):
        harvest = Harvesting(lab)
        assert partition_checks.check_harvest_partition(harvest.facts, harvest.harvest) == ()
        harvest.submit()
        harvest.fill(n[:6])  # not the two that are in no harvest partition
        # A job of `low`, and one of several partitions: both could start on harvested nodes, and are given them.
        lab.run(["scontrol", "update", "PartitionName=low", "State=DOWN"])  # so Slurm does not start it yet
        low = lab.submit("sleep 600", "-p", "low", "--nodes=2", "--exclusive", "--time=5", user="bob")
        decision = harvest.tick()
        assert not [a for a in decision.actions if "main job" in getattr(a, "reason", "")], "it waits for more"
        lab.run(["scontrol", "update", "PartitionName=low", "State=UP"])
        lab.wait_for_state(low, "RUNNING")
        both = lab.submit("sleep 600", "-p", "debug,batch", "--nodes=3", "--exclusive", "--time=5", user="bob")
        lab.wait_for_state(both, "RUNNING")
        taken = {x for j in harvest.snapshot().jobs if j.partition != "harvest" for x in j.nodes}
        harvest.left(taken)
        harvest.tick()
        assert not taken & set(harvest.held())


@pytest.mark.parametrize(
    ("mode", "grace"),
    [
        *(
            pytest.param(mode, grace, marks=pytest.mark.nightly)
            for mode in ("REQUEUE", "CANCEL")
            for grace in ("0", "10", "300")
        ),
    ],
)
def test_preempt_modes_and_grace_times(any_lab: Lab, mode: str, grace: str) -> None:
    """Whatever they are, a preempted pilot is known for one, and its node is the main job's at once: the payload is
    a step, which gets SIGTERM when preemption begins."""
    lab, n = any_lab, any_lab.nodes
    with lab.changed(Change(partitions={"harvest": {"PreemptMode": mode, "GraceTime": grace}})):
        harvest = Harvesting(lab, overrides={"include_nodes": frozenset(n[:2])})
        errors = [
            f for f in partition_checks.check_harvest_partition(harvest.facts, harvest.harvest) if f.level == "error"
        ]
        assert errors == []
        harvest.submit()
        harvest.fill(n[:2])
        pilot = harvest.held()[n[0]]
        main = lab.submit("sleep 600", "-p", "batch", "-w", n[0], "--exclusive", "--time=5", user="bob")
        lab.wait_for_state(main, "RUNNING", deadline_s=90)
        harvest.lab.wait_for(lambda: harvest.tick() and harvest.events("pilot_ended"), 90, "its end is seen")
        (end,) = harvest.events("pilot_ended")
        assert (end.pilot, data_of(end)["preempted"]) == (pilot, True)
        lab.run(["scancel", str(main)])
        lab.wait_for(lambda: harvest.snapshot().is_free(n[0]), 90)
        assert pilot not in [job.id for job in harvest.snapshot().jobs], "it does not come back by itself"
