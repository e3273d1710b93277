"""A pilot's life is played on a real lab, and nothing of it is left (tests/gauntlet plays it on other sites)."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.slurm.command import Commands
from malletrain.slurm.site import rehearsal, site_facts
from malletrain.slurm.site.rehearsal import Rehearsal
from malletrain.slurm.site.site_facts import Finding, Harvest, Level
from scripts.lab import Lab
from tests.messages import says
from tests.slurm.test_authority import accounted
from tests.slurm.test_cli_site import ROOT, malletrain
from tests.waiting import wait_until

__all__ = ["accounted"]

pytestmark = pytest.mark.slurm


def play(lab: Lab) -> list[Finding]:
    commands = Commands(lab.env)
    return list(Rehearsal(commands, site_facts.read(commands), Harvest("harvest"), ["-p", "batch"]).findings())


def left(lab: Lab) -> str:
    return lab.run(["squeue", "-h", "-r", "-t", "PD,R,CG,S", "-o", "%i %j %T"]).stdout


def test_a_sound_site_is_seen_to_preempt_and_to_give_back(any_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "QUICK_S", 60.0)  # a busy machine is slow
    found = play(any_lab)
    assert [finding.level for finding in found] == [Level.OK] * 3, found
    assert left(any_lab) == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_stopped_leaves_nothing_behind(any_lab: Lab, number: signal.Signals) -> None:
    program = [
        sys.executable,
        "-c",
        "from malletrain.cli.main import main; main()",
        "doctor",
        "--try",
        "--main=-p batch",
    ]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, env={**any_lab.env, "PYTHONPATH": str(ROOT)})
    wait_until(lambda: "RUNNING" in left(any_lab), 60, "a pilot")
    process.send_signal(number)
    assert process.wait(60) != 0
    assert left(any_lab) == ""


def test_a_main_job_that_is_refused_names_the_option(any_lab: Lab) -> None:
    commands = Commands(any_lab.env)
    *_, refused = Rehearsal(commands, site_facts.read(commands), Harvest("harvest"), ["-p", "nowhere"]).findings()
    assert refused.level is Level.WARNING
    assert "--main=" in refused.remedy
    assert left(any_lab) == ""


def test_root_plays_the_pilot_of_the_daemons_user(accounted: Lab, tmp_path: Path) -> None:
    """Who may have no account for main jobs, and whose rights count."""
    os.chown(tmp_path, pwd.getpwnam("malletrain").pw_uid, -1)
    (tmp_path / "malletrain.toml").write_text(
        f'[slurm]\naccount = "harvest"\nqos = "harvest"\n[store]\npath = "{tmp_path}/malletrain.db"\n'
    )
    run = malletrain("doctor", f"--config={tmp_path}/malletrain.toml", "--try", "--main=-p batch", env=accounted.env)
    assert says(run.stdout, "ok", "malletrain", "account harvest"), run.stdout
    assert len(re.findall(r"^(?:ok|warning) +.* s after", run.stdout, re.MULTILINE)) == 3, run.stdout
    assert left(accounted) == ""
