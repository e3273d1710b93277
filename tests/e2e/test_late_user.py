"""A daemon whose user was made after sacctmgr named it: Slurm refuses its every order, and it says so everywhere."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.slurm.site import doctor
from malletrain.slurm.site.site_facts import Finding, Level
from scripts.lab import Lab, users
from scripts.play.site import FAST_LOOP, Site
from tests.messages import says
from tests.slurm.test_authority import HARVEST, accounted, commands_as

__all__ = ["accounted"]

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs plain users: run as root")]


@pytest.fixture
def late(accounted: Lab) -> Iterator[str]:
    """A coordinator of the harvest account that exists nowhere yet."""
    name = f"mtlate{secrets.token_hex(3)}"
    accounted.run(["sacctmgr", "-i", "add", "user", f"name={name}", "account=harvest"])
    accounted.run(["sacctmgr", "-i", "add", "coordinator", "account=harvest", f"names={name}"])
    yield name
    accounted.run(["scancel", "--partition=harvest"])
    accounted.run(["sacctmgr", "-i", "delete", "user", f"name={name}"])
    users.remove(name)


def about_ids(lab: Lab, folder: Path, as_user: str = "malletrain") -> list[Finding]:
    found = doctor.examine(commands_as(lab, as_user, folder), HARVEST, time.time)
    return [f for f in found if "user id" in f.what or "do not exist" in f.what]


def test_it_says_so_and_goes_on_once_slurm_has_looked_again(accounted: Lab, late: str, tmp_path: Path) -> None:
    lab = accounted
    (finding,) = about_ids(lab, tmp_path)
    assert (finding.level, finding.what.endswith(late)) == (Level.WARNING, True), finding
    users.ensure((late,))
    (finding,) = about_ids(lab, tmp_path)
    assert (finding.level, says(finding.what, "user id", late)) == (Level.ERROR, True), finding
    assert "scontrol reconfigure" in finding.remedy

    settings = {"loop": FAST_LOOP, "slurm": ['qos = "harvest"']}
    with Site(lab, daemon_user=late, account="harvest", settings=settings) as site:
        site.start()
        job = site.harvest("alice", 2)

        def row() -> dict[str, object]:
            return next(each for each in site.status("alice")["jobs"] if each["id"] == job)

        refused = re.compile("Slurm refuses its pilots: scontrol update: .*Invalid user id")
        lab.wait_for(lambda: refused.match(str(row()["reason"])), 90, "the refusal in `malletrain status`")

        def told() -> list[str]:
            return [line for line in site.log.read_text().splitlines() if "Slurm refuses pilots" in line]

        lab.wait_for(told, 90, "the refusal in the log")  # after the journal's
        assert "Invalid user id" in told()[0]
        events = site.malletrain("alice", "events").stdout
        assert len([line for line in events.splitlines() if "starts_refused" in line]) <= len(told()) + 1
        lab.wait_for(
            lambda: "to be tried again in" in site.malletrain("alice", "explain", str(job)).stdout,
            90,
            "the back-off in `malletrain explain`",
        )

        lab.run(["scontrol", "reconfigure"])
        lab.wait_for(lambda: site.pilot_nodes("alice") == 2, 120, f"pilots\n{site.last_log()}")
        lab.wait_for(lambda: row()["reason"] == "", 90, "a job with nothing to be said of it")
        lab.wait_for(lambda: "Slurm refuses pilots no more" in site.log.read_text(), 90, "its end in the log")
    (finding,) = about_ids(lab, tmp_path)
    assert finding.level is Level.OK
