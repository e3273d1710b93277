"""The product's main job, end to end: real Slurm, real daemon, real training."""

from __future__ import annotations

import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.sizing.registry import policy
from malletrain.store.journal import read_events
from scripts.lab import Lab
from scripts.play.site import Site
from tests.daemon.test_sizing_rules import rules
from tests.quick_site import quick_site
from tests.recomputed import recomputed
from tests.waiting import Gate

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(lab_factory) -> Iterator[Site]:  # type: ignore[no-untyped-def]
    with quick_site(lab_factory, outputs) as running:
        yield running
        recomputes(running)


def recomputes(site: Site) -> None:
    """The daemon's decisions follow from its journal: computed anew from there, they are the same."""
    events = list(read_events(site.directory / "malletrain.db"))
    found = list(recomputed(events, policy("auto"), rules(site.config.read_text())))
    assert found
    assert [(each.decided, each.recomputed) for each in found if not each.same] == []


def outputs(site: Site) -> str:
    """What researchers' jobs and the daemon have said."""
    said = [f"{path}:\n{path.read_text()}" for path in Path(site.lab.env_for("alice")["HOME"]).glob("slurm-*.out")]
    return "\n".join([*said, site.malletrain("alice", "events").stdout, site.last_log()])


def write_script(site: Site, command: str, nodes: str = "1-4", name: str = "train") -> Path:
    path = Path(site.lab.env_for("alice")["HOME"]) / f"{name}.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH --job-name={name}\n#MALLETRAIN --nodes={nodes}\n{command}\n")
    return path


def paced(epochs: int = 100_000) -> str:
    return shlex.join([sys.executable, f"{ROOT}/tests/e2e/paced_training.py", f"--epochs={epochs}"])


def job(site: Site, number: int) -> dict:  # type: ignore[type-arg]
    return json.loads(site.malletrain("alice", "status", str(number), "--json").stdout)  # type: ignore[no-any-return]


def wait_members(site: Site, number: int, members: int, deadline_s: float = 180.0) -> None:
    site.lab.wait_for(
        lambda: job(site, number)["members"] == members, deadline_s, f"{members} members of job {number}"
    )


def harvest_rows(lab: Lab) -> list[list[str]]:
    rows = lab.run(["squeue", "-a", "-h", "-r", "-p", "harvest", "-o", "%i|%T|%r|%N|%L"]).stdout.splitlines()
    return [row.split("|") for row in rows]


def running(lab: Lab) -> list[str]:
    return [row[3] for row in harvest_rows(lab) if row[1] == "RUNNING"]


@pytest.mark.alone  # the main job's start is timed
def test_training_fills_idle_nodes_and_gives_them_back_at_once(site: Site) -> None:
    lab = site.lab
    gate = Gate(lab.output)

    def main_job(then: str) -> tuple[int, float]:
        """A job of bob's on two nodes, and the seconds until its first command."""
        noted = lab.output / f"main-{time.monotonic_ns()}"
        submitted = time.time()
        main = lab.submit(f"date +%s.%N > {noted}; {then}", "--nodes=2", "--exclusive", user="bob")
        lab.wait_for(lambda: noted.exists() and noted.read_text().endswith("\n"), 120, "the main job's first command")
        return main, float(noted.read_text()) - submitted

    idle_s = main_job("true")[1]
    number = site.mtbatch("alice", write_script(site, paced()))
    wait_members(site, number, 4)
    generation = job(site, number)["generation"]
    main, took_s = main_job(gate.closed)
    # On an idle lab this takes about half a second; the promise of profile `fast` is two more.
    assert took_s < max(5.0, 2.0 + 6 * idle_s), idle_s
    wait_members(site, number, 2)
    before = job(site, number)["samples"]
    lab.wait_for(lambda: job(site, number)["samples"] > before, 90, "training goes on")
    assert job(site, number)["generation"] > generation
    assert job(site, number)["phase"] == "running"

    gate.open()
    lab.wait_for_state(main, "COMPLETED")
    wait_members(site, number, 4)
    site.malletrain("alice", "cancel", str(number))
    lab.wait_for(lambda: not harvest_rows(lab), 90, "an empty harvest partition")


@pytest.mark.nightly
def test_a_hole_before_a_blocked_job_is_used_and_left_in_time(site: Site) -> None:
    """GraceTime is 10 s here; the blocked job waits for all nodes, so backfill plans its start."""
    lab = site.lab
    lab.submit("sleep 235", "--nodes=1", "--exclusive", "--time=4", user="bob")
    top = lab.submit("sleep 1", "--nodes=4", "--exclusive", "--time=5", user="bob")
    lab.wait_for(lambda: lab.job(top).get("StartTime", "Unknown") != "Unknown", 90, "a planned start")
    number = site.mtbatch("alice", write_script(site, paced(), nodes="1-3"))
    wait_members(site, number, 3)
    left = [row[4] for row in harvest_rows(lab) if row[1] == "RUNNING"]
    assert all(math.isfinite(float(part.split(":")[0])) and int(part.split(":")[0]) <= 4 for part in left), left
    lab.wait_for_state(top, "RUNNING", "COMPLETED", deadline_s=480)
    events = site.malletrain("alice", "events", "--json").stdout
    assert '"preempted": true' not in events, "pilots left by themselves"
    assert "hole_closes" in events


def test_killing_the_daemon_changes_nothing(site: Site) -> None:
    lab = site.lab
    number = site.mtbatch("alice", write_script(site, paced()))
    wait_members(site, number, 4)
    before = job(site, number)
    site.stop(signal.SIGKILL)
    nodes = sorted(running(lab))
    # With no daemon alive the main queue is served by preemption, and no task starts by itself.
    gate = Gate(lab.output)
    main = lab.submit(gate.closed, "--nodes=1", "--exclusive", user="bob")
    lab.wait_for_state(main, "RUNNING")
    assert set(running(lab)) < set(nodes)
    gate.open()
    lab.wait_for_state(main, "COMPLETED", deadline_s=90)
    assert set(running(lab)) < set(nodes)
    site.start()
    # The journal says four members still: the fourth task must run, too, and the training go on.
    lab.wait_for(lambda: len(running(lab)) == 4, 180, "four tasks that run")
    wait_members(site, number, 4)
    lab.wait_for(lambda: job(site, number)["samples"] > before["samples"], 180, "training goes on")
    assert job(site, number)["phase"] == "running"
    site.malletrain("alice", "cancel", str(number))
    lab.wait_for(lambda: not harvest_rows(lab), 90, "an empty harvest partition")


def test_a_job_that_runs_out_of_tasks_submits_more_itself(site: Site) -> None:
    """Preemption and scancel consume tasks; a worker runs sbatch as its owner before none is left."""
    lab = site.lab
    number = site.mtbatch("alice", write_script(site, paced()))
    wait_members(site, number, 4)
    first = {row[0].partition("_")[0] for row in harvest_rows(lab)}
    held = [row[0] for row in harvest_rows(lab) if row[1] == "PENDING"]
    lab.run(["scancel", *held, next(row[0] for row in harvest_rows(lab) if row[1] == "RUNNING")], user="alice")

    def a_new_array_trains() -> bool:
        return any(row[1] == "RUNNING" and row[0].partition("_")[0] not in first for row in harvest_rows(lab))

    # Until the cancelled task has ended the job has four members still, so their number is looked at last.
    lab.wait_for(a_new_array_trains, 240, "a task of a new array in the place of the one that was cancelled")
    wait_members(site, number, 4)
    site.malletrain("alice", "cancel", str(number))
    lab.wait_for(lambda: not harvest_rows(lab), 90, "an empty harvest partition")


def test_a_real_model_reaches_its_accuracy_and_leaves_nothing(site: Site) -> None:
    lab = site.lab
    command = shlex.join([sys.executable, f"{ROOT}/examples/digits_mlp.py", "--epochs=20"])
    number = site.mtbatch("alice", write_script(site, command))
    lab.wait_for(lambda: job(site, number)["phase"] in ("completed", "failed"), 400, "the end of training")
    done = job(site, number)
    assert done["phase"] == "completed", done["reason"]
    assert done["result"]["accuracy"] > 0.9
    lab.wait_for(lambda: not harvest_rows(lab), 60, "an empty harvest partition")
    lab.wait_for(lambda: set(lab.node_states().values()) == {"idle"}, 60, "nodes that are idle")


def test_a_script_that_cannot_run_fails_with_the_place_to_look(site: Site) -> None:
    number = site.mtbatch("alice", write_script(site, "no-such-program --at-all"))
    site.lab.wait_for(lambda: job(site, number)["phase"] == "failed", 180, "the job's failure")
    reason = job(site, number)["reason"]
    assert "127" in reason or "slurm-" in reason, reason
