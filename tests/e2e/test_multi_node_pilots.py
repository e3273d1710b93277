"""Pilots of several nodes, end to end: real Slurm, real daemon, real training."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.play.site import Site
from tests.e2e.test_main_job import harvest_rows, job, outputs, paced, wait_members, write_script
from tests.quick_site import QUICK, quick_site

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(lab_factory) -> Iterator[Site]:  # type: ignore[no-untyped-def]
    # Four nodes and one pilot: it holds them all.
    settings = {**QUICK, "pool": ["keep_idle = 0", "max_pilots = 1"], "pilot": [*QUICK["pilot"], "max_nodes = 4"]}
    with quick_site(lab_factory, outputs, settings=settings) as running:
        yield running


def tasks(site: Site) -> list[str]:
    """The nodes of each task that runs, as Slurm writes them."""
    return sorted(row[3] for row in harvest_rows(site.lab) if row[1] == "RUNNING")


def events(site: Site) -> list[dict[str, Any]]:
    return [json.loads(line) for line in site.malletrain("alice", "events", "--json").stdout.splitlines()]


@pytest.mark.nightly
def test_one_pilot_holds_four_nodes_trains_on_all_and_gives_them_back_whole(site: Site) -> None:
    lab = site.lab
    # Slurm lays the script on the first node alone: the others are told it, and read it from where it was kept.
    number = site.mtbatch("alice", write_script(site, f'echo "script at $0"\n{paced()}'))
    wait_members(site, number, 4)
    assert tasks(site) == ["n[000-003]"]

    def said() -> list[str]:
        return [line for line in outputs(site).splitlines() if line.startswith("script at ")]

    lab.wait_for(lambda: len(said()) >= 4, 60, "each script's first line")
    assert len(said()) == 4
    assert all(line.startswith("script at /proc/") for line in said()), said()
    lab.wait_for(lambda: job(site, number)["samples"] > 0, 90, "training on four nodes")

    def switched() -> list[int]:
        """The step at which each world began, once its members were in it."""
        return [e["data"]["step"] for e in events(site) if e["kind"] == "switched"]

    generations = len(switched())
    # In order: the staff wants one node, all four are left, and three are taken again.
    lab.run(["scontrol", "update", "NodeName=n002", "State=DRAIN", "Reason=disk"])
    lab.wait_for(lambda: tasks(site) == ["n[000-001,003]"], 90, "a task of three nodes")
    wait_members(site, number, 3)
    lab.wait_for(lambda: len(switched()) > generations, 60, "the new world's first step")
    seen = events(site)
    assert {e["data"]["cause"] for e in seen if e["data"].get("type") == "leave"} == {"node_wanted"}
    assert not [e for e in seen if e["data"].get("preempted")]
    steps = switched()
    assert steps == sorted(steps)
    assert steps[-1] > 0, "the last that left saved the training, and it goes on from there"
    lab.run(["scontrol", "update", "NodeName=n002", "State=RESUME"])

    # With no daemon alive Slurm preempts the whole task, and training goes on from what was saved.
    site.stop(signal.SIGKILL)
    before = len(steps)
    second = lab.submit("sleep 2", "--nodes=4", "--exclusive", user="bob")
    lab.wait_for_state(second, "RUNNING", "COMPLETED", deadline_s=120)
    site.start()
    wait_members(site, number, 4)
    lab.wait_for(lambda: len(switched()) > before, 180, "a world after the daemon's")
    assert switched()[-1] >= steps[-1]
    site.malletrain("alice", "cancel", str(number))
    lab.wait_for(lambda: not harvest_rows(lab), 90, "an empty harvest partition")
