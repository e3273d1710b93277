"""Tasks that somebody changed after they were submitted stay held, and their owner is told why (real Slurm)."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.domain.job import PilotPhase
from malletrain.loop import pilot_changes
from malletrain.slurm.site.site_facts import Harvest
from scripts.lab import Change, Lab
from tests.messages import says
from tests.slurm.harvesting import Harvesting
from tests.slurm.test_authority import accounted, commands_as

__all__ = ["accounted"]

pytestmark = pytest.mark.slurm


def taken_on(harvest: Harvesting, tasks: int, *more: str) -> int:
    """An array whose tasks the loop has found sound, and none of which it has started yet."""
    array = harvest.submit(*more, tasks=tasks)
    harvest.loop.paused = "not yet"
    harvest.tick()
    assert len(harvest.view().held) == tasks, harvest.said()
    harvest.loop.paused = ""
    return array


def told(harvest: Harvesting) -> dict[str, str]:
    """Pilot -> why it was set aside."""
    return {e.pilot or "": e.reason for e in harvest.events("pilot_aside")}


def test_whatever_was_changed_is_named_and_stays_held(accounted: Lab, tmp_path: Path) -> None:
    lab = accounted
    commands = commands_as(lab, "malletrain", tmp_path)
    harvest = Harvesting(lab, Harvest("harvest", "harvest", "harvest", 3600.0), commands.environment)
    array = taken_on(harvest, 6)
    for task, user, change in (
        (0, "root", ["update", "Account=main"]),
        (1, "root", ["update", "QOS=normal"]),
        (2, "root", ["update", "TimeLimit=2-00:00:00"]),  # an operator may, above MaxTime
        (3, "root", ["hold"]),
        (4, "alice", ["update", "Dependency=afterok:1"]),
    ):
        name = f"{array}_{task}"
        verb, *fields = change
        if task == 4:
            fields = [f"Dependency=afterany:{lab.submit('true', '--hold', user='alice')}"]
        lab.run(["scontrol", verb, *([f"JobId={name}", *fields] if fields else [name])], user)
    lab.wait_for(lambda: harvest.tick() and harvest.running(), 90, "the one that was not changed")
    assert set(harvest.held().values()) == {f"{array}_5"}
    why = told(harvest)
    assert "is main" in why[f"{array}_0"]
    assert "its QOS is normal" in why[f"{array}_1"]
    assert says(why[f"{array}_2"], "MaxTime", "harvest", "60 min")
    assert "staff" in why[f"{array}_3"]
    assert "another job" in why[f"{array}_4"]
    for task in range(5):
        assert lab.job(f"{array}_{task}")["Priority"] == "0", "still held"
    assert "stays held" in harvest.view().reason, "what `malletrain status` shows its owner"
    before = len(harvest.journal.events)
    harvest.tick()
    assert not [e for e in harvest.journal.events[before:] if e.kind == "intent"], "not tried again at once"


def test_a_task_that_is_put_right_again_is_used(any_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    harvest = Harvesting(any_lab)
    array = taken_on(harvest, 1)
    any_lab.run(["scontrol", "hold", f"{array}_0"])
    harvest.tick()
    assert harvest.view().pilots[f"{array}_0"].phase is PilotPhase.ASIDE
    any_lab.run(["scontrol", "uhold", f"{array}_0"])
    monkeypatch.setattr(pilot_changes, "ASIDE_S", 0.0)
    any_lab.wait_for(lambda: harvest.tick() and harvest.running(), 90, "it runs")


def test_a_task_that_its_owner_makes_a_main_job_is_no_pilot_any_more(any_lab: Lab) -> None:
    harvest = Harvesting(any_lab)
    array = taken_on(harvest, 2)
    any_lab.run(["scontrol", "update", f"JobId={array}_0", "Partition=batch", "TimeLimit=10"], "alice")
    any_lab.run(["scontrol", "release", f"{array}_0"], "alice")
    any_lab.wait_for_state(f"{array}_0", "RUNNING")
    any_lab.wait_for(lambda: harvest.tick() and harvest.running(), 90, "the other runs")
    assert harvest.view().pilots[f"{array}_0"].phase is PilotPhase.ENDED
    harvest.tick()
    assert any_lab.job_state(f"{array}_0") == "RUNNING", "it is left alone"


def test_a_task_that_asks_for_licences_or_shares_its_node_is_not_taken_on(any_lab: Lab) -> None:
    with any_lab.changed(Change(settings={"Licenses": "fluent:4"})):
        harvest = Harvesting(any_lab)
        harvest.submit("--licenses=fluent:1", tasks=1)
        harvest.submit(share=True, tasks=1, job=2)
        harvest.tick()
        refused = {e.job: e.reason for e in harvest.events("array_refused")}
        assert "licences (fluent:1)" in refused[1]
        assert "whole node" in refused[2]


LUA = """
function slurm_job_submit(job, part, uid)
  if job.partition == "harvest" then %s end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, part, uid)
  if record.partition == "harvest" then %s end
  return slurm.SUCCESS
end
slurm.log_info("site plug-in")
return slurm.SUCCESS
"""


@pytest.mark.parametrize(
    ("submit", "modify", "said"),
    [
        pytest.param("job.time_limit = 600", "", "above 1 minute", marks=pytest.mark.nightly),
        pytest.param('job.partition = "batch"', "", "is batch", marks=pytest.mark.nightly),
        ("", "if job.time_limit ~= slurm.NO_VAL then job.time_limit = 59 end", "59 min"),
    ],
    ids=["limit at submission", "partition at submission", "limit at update"],
)
def test_a_plug_in_of_the_site_that_rewrites_tasks(any_lab: Lab, submit: str, modify: str, said: str) -> None:
    change = Change(settings={"JobSubmitPlugins": "lua"}, files={"job_submit.lua": LUA % (submit, modify)})
    with any_lab.changed(change, restart=True):
        harvest = Harvesting(any_lab, overrides={"max_pilot_s": 600.0})
        array = harvest.submit(tasks=2)
        for _ in range(3):
            harvest.tick()
        assert not harvest.held()
        reasons = [e.reason for e in harvest.events("array_refused", "pilot_aside")]
        assert reasons
        assert all(said in reason for reason in reasons)
        assert said in harvest.view().reason
        assert any_lab.job(f"{array}_0")["JobState"] == "PENDING"
