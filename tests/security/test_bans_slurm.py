"""A ban on a real Slurm: the user's pilots end, other users' train on, and what he submits himself is not started."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.lab import Lab, LabConfig
from scripts.play.site import BIN, Site
from tests.quick_site import quick_site

pytestmark = pytest.mark.slurm


def of(lab: Lab, user: str, states: str = "PENDING,RUNNING,COMPLETING") -> list[str]:
    return lab.run(["squeue", "-a", "-h", "-r", "-u", user, "-t", states, "-o", "%i"]).stdout.split()


def operate(site: Site, *arguments: str) -> None:
    """As the daemon's own user, who is an operator."""
    site.lab.run(["env", f"MALLETRAIN_URL={site.url}", BIN / "malletrain", *arguments])


def test_a_banned_user_holds_no_node_and_no_task(lab_factory: Callable[[LabConfig], Lab]) -> None:
    with quick_site(lab_factory, Site.last_log) as site:
        lab = site.lab
        bobs, alices = site.harvest("bob", 2), site.harvest("alice", 2)
        lab.wait_for(lambda: len(of(lab, "bob", "RUNNING")) == len(of(lab, "alice", "RUNNING")) == 2, 120, "pilots")
        hers = of(lab, "alice", "RUNNING")
        refused = lab.run([BIN / "malletrain", "ban", "bob", "--reason", "x"], user="alice", check=False)
        assert refused.returncode == 1
        assert "operators" in refused.stderr
        assert len(of(lab, "bob", "RUNNING")) == 2

        operate(site, "ban", "bob", "--reason", "mines, ticket 4711")
        lab.wait_for(lambda: not of(lab, "bob"), 120, "no task of a banned user")
        assert set(hers) <= set(of(lab, "alice", "RUNNING")), "nobody else's pilot has ended"
        told = lab.run([BIN / "malletrain", "status"], user="bob", check=False)
        assert told.returncode == 1
        assert "ticket 4711" in told.stderr
        # sbatch is Slurm's, and takes his tasks; without the daemon they stay held.
        own = lab.submit(
            "sleep 600", "-p", "harvest", "--hold", "--array=0-3", f"--comment=malletrain job {bobs}", user="bob"
        )
        lab.wait_for(lambda: len(of(lab, "alice", "RUNNING")) == 2, 120, "alice trains on")
        assert not of(lab, "bob", "RUNNING")

        site.stop()
        site.start()
        told = lab.run([BIN / "malletrain", "status"], user="bob", check=False)
        assert "ticket 4711" in told.stderr, "the ban outlives the daemon"
        operate(site, "unban", "bob")
        lab.run(["scancel", str(own)])
        site.harvest("bob", 2)
        lab.wait_for(lambda: len(of(lab, "bob", "RUNNING")) == 2, 120, "pilots of the admitted user")
        assert site.status("alice")["jobs"][0]["id"] in (bobs, alices)
