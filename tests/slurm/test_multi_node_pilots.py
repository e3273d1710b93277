"""Tasks of several nodes on a real Slurm: widened when they are pinned, emptied whole, narrower the next time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from malletrain.domain.decision import RecyclePilot, StartPilot
from malletrain.domain.job import PilotPhase, pilot_name
from malletrain.slurm.site.site_facts import Harvest
from scripts.lab import LabConfig
from tests.messages import says
from tests.slurm.harvesting import Harvesting
from tests.slurm_fixtures import LabFactory
from tests.world import data_of

pytestmark = pytest.mark.slurm


@pytest.fixture
def wide(release: str | None, lab_factory: LabFactory) -> Iterator[Harvesting]:
    lab = lab_factory(LabConfig(nodes=8, profile="fast", users=os.geteuid() == 0, release=release))
    if "alice" not in lab.users:
        pytest.skip("needs plain users: run as root")
    yield Harvesting(lab, Harvest("harvest", max_nodes=4), overrides={"max_nodes": 4, "max_pilots": 2})
    lab.clear()


def widths(site: Harvesting) -> list[int]:
    """Of the tasks that Slurm runs, how many nodes each holds."""
    rows = site.lab.run(["squeue", "-a", "-h", "-r", "-p", "harvest", "-t", "R", "-o", "%D"]).stdout.split()
    return sorted(map(int, rows))


def test_few_tasks_hold_many_nodes_and_give_way_whole(wide: Harvesting) -> None:
    lab = wide.lab
    wide.submit(most=8, tasks=10)
    wide.fill(lab.nodes)
    assert widths(wide) == [4, 4]
    lab.wait_for(lambda: bool(wide.tick()) and len(wide.running()) == 8, 90, "the loop has seen them run")
    pilots = {p.node: p for p in wide.view().active}
    assert {p.phase for p in pilots.values()} == {PilotPhase.RUNNING}
    assert len(pilots) == 8
    shown = {job.id: job.nodes for job in wide.snapshot().jobs if job.holds_nodes}
    for node, pilot in pilots.items():
        assert node in shown[pilot.task]

    # A node that the staff wants is left with all that its task holds, in order.
    node = lab.nodes[2]
    lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=disk"])
    wide.tick()
    task = pilots[node].task
    mine = {each for each, pilot in pilots.items() if pilot.task == task}
    wide.left(mine)
    left = [e for e in wide.events("intent") if data_of(e)["type"] == "leave"]
    assert {e.node for e in left} == mine
    assert {data_of(e)["cause"] for e in left} == {"node_wanted"}
    # The other three are taken again, by a task of three: the one that was recycled, or another.
    wide.fill([each for each in lab.nodes if each != node])
    assert widths(wide) == [3, 4]
    assert not [e for e in wide.events("pilot_ended") if data_of(e).get("preempted")]


@pytest.mark.nightly
def test_what_slurm_preempts_is_a_whole_task_and_counts_once(wide: Harvesting) -> None:
    lab = wide.lab
    wide.submit(most=4, tasks=4)
    wide.lab.wait_for(lambda: bool(wide.tick()) and len(wide.held()) == 4, 90)
    node = sorted(wide.held())[1]
    main = lab.submit("sleep 5", "-p", "batch", "-w", node, "--exclusive", "--time=1", user="bob")
    lab.wait_for_state(main, "RUNNING", deadline_s=90)
    wide.lab.wait_for(lambda: bool(wide.tick()) and len(wide.events("pilot_ended")) == 4, 90)
    assert sum(bool(data_of(e).get("preempted")) for e in wide.events("pilot_ended")) == 1
    assert wide.view().failures <= 1


@pytest.mark.nightly
def test_a_recycled_wide_task_holds_one_node_where_no_more_are_allowed(wide: Harvesting) -> None:
    lab, nodes = wide.lab, wide.lab.nodes
    pilot = f"{wide.submit(tasks=1)}_0"
    parts = [pilot_name(pilot, part) for part in range(3)]
    where = zip(parts, nodes, strict=False)
    started = wide.cluster.start([StartPilot(1, part, node, 600.0, "") for part, node in where])
    assert [outcome.done for outcome in started] == [True] * 3, started
    lab.wait_for(lambda: set(wide.held()) == set(nodes[:3]), 90)
    recycled = wide.cluster.recycle([RecyclePilot(1, part, "", "") for part in parts])
    assert [says(outcome.detail, "requeued") for outcome in recycled] == [True] * 3
    lab.wait_for(lambda: not wide.held(), 90)
    narrow = Harvesting(lab, Harvest("harvest"))

    def starts() -> bool:
        return narrow.cluster.start([StartPilot(1, pilot, nodes[5], 600.0, "")])[0].done

    lab.wait_for(starts, 90, "the start of a task that was wide")
    lab.wait_for(lambda: set(narrow.held()) == {nodes[5]}, 90)


def test_no_task_is_started_on_more_nodes_than_the_site_allows_or_on_some_of_them(wide: Harvesting) -> None:
    lab, nodes = wide.lab, wide.lab.nodes
    pilot = f"{wide.submit(tasks=1)}_0"

    def refused(*names: str) -> str:
        actions = [StartPilot(1, pilot_name(pilot, part), name, 600.0, "") for part, name in enumerate(names)]
        outcomes = wide.cluster.start(actions)
        assert not any(outcome.done for outcome in outcomes)
        return outcomes[0].detail

    assert "pilot.max_nodes is 4" in refused(*nodes[:5])
    assert "different ones" in refused(nodes[0], nodes[0])
    lab.run(["scontrol", "update", f"NodeName={nodes[1]}", "State=DRAIN", "Reason=disk"])
    assert "drained now" in refused(*nodes[:3])
    assert not wide.held()
    lab.run(["scontrol", "update", f"NodeName={nodes[1]}", "State=RESUME"])
