"""A harvest partition of unlike nodes on a real Slurm: pilots start where what their job asks for is."""

from __future__ import annotations

import time

import pytest

from malletrain.domain.requirements import Requirements
from malletrain.slurm.submission.submit import node_kinds, whole_gres
from scripts.lab import Change, Lab
from tests.messages import says
from tests.slurm.harvesting import Harvesting

pytestmark = pytest.mark.slurm


def unlike(lab: Lab) -> Change:
    """Two nodes with FPGAs, two of little memory, four plain ones."""
    n = lab.nodes
    return Change(
        nodes={
            n[0]: {"Features": "big,ib", "Gres": "fpga:2"},
            n[1]: {"Features": "big", "Gres": "fpga:2"},
            n[2]: {"Features": "small", "RealMemory": "2000"},
            n[3]: {"Features": "small", "RealMemory": "2000"},
        },
        files={"gres.conf": f"NodeName={n[0]},{n[1]} Name=fpga Count=2\n"},
        settings={"GresTypes": "gpu,fpga"},
    )


def test_each_job_has_the_nodes_that_it_asks_for_and_nobody_waits_for_another(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    with lab.changed(unlike(lab), restart=True):
        lab.wait_for(lambda: "fpga:2" in lab.run(["sinfo", "-h", "-n", n[0], "-o", "%G"]).stdout, 90)
        kinds = node_kinds(Harvesting(lab).commands, "harvest")
        assert sorted((kind.nodes, kind.gres, kind.features) for kind in kinds) == [
            (1, "fpga:2", ("big",)), (1, "fpga:2", ("big", "ib")), (2, "", ("small",)), (4, "", ()),
        ]  # fmt: skip
        assert (whole_gres(kinds), whole_gres(kinds, "big")) == ("", "fpga:2")
        harvest = Harvesting(lab)
        harvest.submit("--gres=fpga:1", most=2, tasks=3)
        harvest.submit("--constraint=small", most=8, tasks=8, job=2)
        harvest.submit(most=8, tasks=8, job=3)
        wanted = {1: {n[0], n[1]}, 2: {n[2], n[3]}}
        lab.wait_for(
            lambda: harvest.tick() and {job: harvest.running(job) for job in wanted} == wanted and harvest.running(3),
            90,
            f"nodes for each of them; {harvest.said()}",
        )
        assert harvest.running(3) <= {*n[4:]}
        assert not [words for words in harvest.said() if "BadConstraints" in words]


def test_a_task_is_not_tried_where_its_memory_is_not(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    with lab.changed(unlike(lab), restart=True):
        harvest = Harvesting(lab, overrides={"include_nodes": frozenset(n[2:6])})
        harvest.submit("--mem=2500", most=4, tasks=4)
        lab.wait_for(lambda: harvest.tick() and harvest.running() == {*n[4:6]}, 90, str(harvest.said()))
        assert "2 of 4 nodes lack 2500 MiB of memory" in str(harvest.loop.last_decision)
        assert not harvest.loop.ledger.unstarted.resting_on(time.time())


def test_what_only_slurm_can_tell_rests_that_job_on_that_node_alone(any_lab: Lab) -> None:
    """Counts in a constraint."""
    lab, n = any_lab, any_lab.nodes
    with lab.changed(unlike(lab), restart=True):
        harvest = Harvesting(lab, overrides={"include_nodes": frozenset(n[2:6])})
        harvest.submit("--constraint=small*1", most=4, tasks=4)
        harvest.fill(n[2:4])
        lab.wait_for(lambda: harvest.tick() and len(harvest.running()) == 2, 90)
        found = harvest.loop.ledger.unstarted
        lab.wait_for(
            lambda: harvest.tick() and set(found.resting_on(time.time()).get(1, ())) == {*n[4:6]},
            90,
            f"rest on the others; {harvest.said()}",
        )
        assert found.resting(time.time()) == {}
        harvest.submit(most=4, tasks=4, job=2)
        lab.wait_for(lambda: harvest.tick() and harvest.running(2) >= {*n[4:6]}, 90, str(harvest.said()))


def test_an_impossible_request_is_named_before_it_is_submitted(any_lab: Lab) -> None:
    lab = any_lab
    with lab.changed(unlike(lab), restart=True):
        kinds = node_kinds(Harvesting(lab).commands, "harvest")
        for needs, there in ((Requirements("fpga:3"), False), (Requirements("fpga:2", "ib"), True)):
            assert any(needs.satisfied_by_one_with(kind.gres, kind.features) for kind in kinds) is there

        harvest = Harvesting(lab)
        harvest.submit("--gres=fpga:3", most=2, tasks=2)
        harvest.tick()
        refused = harvest.refusals(harvest.tick())
        assert says(refused["job 1"], "8 of 8 nodes", "fpga:3")
        assert harvest.held() == {}
