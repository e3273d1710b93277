"""Nodes that the staff wants are left within one tick, and no pilot is started on them (real Slurm)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest

from malletrain.domain.decision import LeavePilot
from scripts.lab import Change, Lab, LabConfig, LabError
from tests.messages import says
from tests.slurm.harvesting import Harvesting
from tests.slurm_fixtures import LabFactory
from tests.world import data_of

pytestmark = pytest.mark.slurm

#: What lets a lab reboot and power nodes; SuspendTime so long that Slurm never does it by itself.
POWER = (
    ("SuspendProgram", "/bin/true"), ("ResumeProgram", "/bin/true"), ("RebootProgram", "/bin/true"),
    ("SuspendTime", "86400"), ("SuspendTimeout", "60"), ("ResumeTimeout", "60"),
)  # fmt: skip


def reserve(lab: Lab, name: str, nodes: str, start: str, *more: str) -> None:
    lab.run(
        ["scontrol", "create", "reservation", f"ReservationName={name}", f"StartTime={start}", "Duration=60",
         f"Nodes={nodes}", *more]
    )  # fmt: skip


def test_nodes_that_are_drained_failing_rebooting_or_reserved(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    with lab.changed(Change(settings=dict(POWER))):
        harvest = Harvesting(lab, included=n)
        harvest.submit()
        harvest.fill(n)
        lab.run(["scontrol", "update", f"NodeName={n[0]}", "State=DRAIN", "Reason=new disk = bad"])
        lab.run(["scontrol", "update", f"NodeName={n[1]}", "State=FAIL", "Reason=memory"])
        lab.run(["scontrol", "reboot", n[2]])
        lab.run(["scontrol", "reboot", "ASAP", n[3]])
        reserve(lab, "maintenance", n[4], "now", "Users=root", "Flags=MAINT,IGNORE_JOBS")
        reserve(lab, "users", n[5], "now+20", "Users=bob", "Flags=IGNORE_JOBS")
        decision = harvest.tick()
        wanted = set(n[:6])
        assert {action.node for action in decision.actions if isinstance(action, LeavePilot)} == wanted
        harvest.left(wanted)
        assert set(harvest.held()) == set(n[6:]), "the others train on"
        reasons = {e.node: e.reason for e in harvest.events("intent") if data_of(e)["type"] == "leave"}
        assert says(reasons[n[0]], "drained", "new disk = bad")
        assert any(words in reasons[n[4]] for words in ("reservation maintenance", "is maint")), reasons[n[4]]
        assert "reservation users" in reasons[n[5]]
        # A node whose reboot is not done, or that is repaired, is not taken; its pilot's task waits for another hole.
        lab.wait_for(
            lambda: harvest.tick() and len(harvest.view().held) == 8, 60, f"tasks that wait; {harvest.said()}"
        )
        assert not set(harvest.held()) - set(n[6:])


def test_nodes_that_are_powered_down(release: str | None, lab_factory: LabFactory) -> None:
    lab = lab_factory(LabConfig(nodes=4, users=True, release=release, settings=POWER))
    n = lab.nodes
    harvest = Harvesting(lab, included=n)
    harvest.submit()
    harvest.fill(n)
    lab.run(["scontrol", "update", f"NodeName={n[0]}", "State=POWER_DOWN"])
    lab.run(["scontrol", "update", f"NodeName={n[1]}", "State=POWER_DOWN_ASAP", "Reason=saves power"])
    lab.run(["scontrol", "update", f"NodeName={n[2]}", "State=POWER_DOWN_FORCE"])
    harvest.tick()
    harvest.left(n[:3])

    def powering_down() -> bool:
        return all("POWERING_DOWN" in node.flags for node in harvest.snapshot().nodes[:3])

    lab.wait_for(powering_down, 90)
    decision = harvest.tick()
    assert set(harvest.held()) == {n[3]}
    assert not {hole.node for hole in decision.holes} & set(n[:3])
    lab.run(["scancel", "-p", "harvest"])


def test_a_reservation_ahead_is_the_end_of_a_hole(any_lab: Lab) -> None:
    """Overlapping, recurring and user reservations: the first to begin counts."""
    lab, n = any_lab, any_lab.nodes
    reserve(lab, "late", f"{n[0]},{n[1]}", "now+1800", "Users=bob")
    reserve(lab, "early", n[0], "now+600", "Users=alice", "Flags=OVERLAP")
    reserve(lab, "daily", n[2], "now+900", "Users=bob", "Flags=DAILY")
    reserve(lab, "soon", n[3], "now+60", "Users=root", "Flags=MAINT")
    harvest = Harvesting(lab, overrides={"max_pilots": 3})
    harvest.submit()
    decision = harvest.tick()
    reasons = {hole.node: (round((hole.until - decision.at) / 60), hole.reason) for hole in decision.holes}
    assert reasons[n[0]] == (10, "reservation early")
    assert reasons[n[1]] == (30, "reservation late")
    assert reasons[n[2]] == (15, "reservation daily")
    assert "too short (reservation soon)" in harvest.refusals(decision)[n[3]]
    assert set(harvest.running()) <= set(n[4:]), "the longest holes are taken first"


def test_a_pilot_is_cut_to_a_reservation_that_is_made_while_it_runs(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab, overrides={"include_nodes": frozenset(n[:1])})
    harvest.submit()
    harvest.fill(n[:1])
    harvest.tick()  # sees when its limit ends
    with pytest.raises(LabError, match="Requested nodes are busy"):
        reserve(lab, "made", n[0], "now+600", "Users=bob")
    reserve(lab, "made", n[0], "now+600", "Users=bob", "Flags=IGNORE_JOBS")
    (pilot,) = harvest.held().values()
    before = lab.job(pilot)["TimeLimit"]
    lab.wait_for(lambda: harvest.tick() and lab.job(pilot)["TimeLimit"] != before, 60, "a limit that is cut")
    ends = datetime.fromisoformat(lab.job(pilot)["EndTime"])
    start = re.search(r"StartTime=(\S+)", lab.run(["scontrol", "show", "res", "made"]).stdout)
    assert start is not None
    begins = datetime.fromisoformat(start[1])
    assert begins - timedelta(minutes=3) < ends < begins, "less the margin, in whole minutes"


def test_nodes_taken_out_of_the_harvest_partition_are_left(any_lab: Lab) -> None:
    lab, n = any_lab, any_lab.nodes
    harvest = Harvesting(lab)
    harvest.submit()
    harvest.fill(n)
    with lab.changed(Change(partitions={"harvest": {"Nodes": ",".join(n[2:])}})):
        harvest.tick()
        harvest.left(n[:2])
        assert set(harvest.held()) == set(n[2:])
