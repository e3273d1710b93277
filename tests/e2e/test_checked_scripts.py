"""Scripts that are checked beside their jobs, on real Slurm: one that trains otherwise at other sizes stays at its
size and says why, a right one is resized, and so is one whose owner answers for it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.play.site import Site
from tests.e2e.test_main_job import job, outputs, wait_members
from tests.messages import says
from tests.quick_site import quick_site
from tests.waiting import Gate

pytestmark = pytest.mark.slurm

#: At the end of each epoch the learning rate is set anew.
SCRIPT = """
import time
import torch
from torch import nn
from malletrain import elastic

torch.set_num_threads(1)
torch.manual_seed(0)
rows = torch.randn(512, 16)
data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = elastic.Session(model, optimizer, data, batch_size=64)
for _ in session.epochs(100_000):
    for inputs, targets in session.batches():
        with session.step():
            time.sleep(0.02)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e-2 * {factor}
session.finish({})
"""


@pytest.fixture
def site(lab_factory) -> Iterator[Site]:  # type: ignore[no-untyped-def]
    with quick_site(lab_factory, outputs, nodes=2) as running:
        yield running


#: How many train, by a way that no rule of texts reads.
WRONG, RIGHT = 'getattr(session, "".join(["si", "ze"]))', "1.0"


def script(site: Site, name: str, factor: str) -> Path:
    home = Path(site.lab.env_for("alice")["HOME"]) / name
    home.mkdir(exist_ok=True)
    (home / "train.py").write_text(SCRIPT.replace("{factor}", factor))
    batch = home / f"{name}.sh"
    command = shlex.join([sys.executable, str(home / "train.py")])
    batch.write_text(f"#!/bin/bash\n#SBATCH --job-name={name}\n#MALLETRAIN --nodes=1-2\n{command}\n")
    return batch


def wait_verdict(site: Site, number: int, verdict: str) -> None:
    site.lab.wait_for(lambda: job(site, number)["check_verdict"], 500, f"the check of job {number}")
    assert job(site, number)["check_verdict"] == verdict, job(site, number)["check_text"]


def sizes(site: Site, number: int) -> set[int]:
    """How many nodes have trained together."""
    events = site.malletrain("alice", "events", "--job", str(number), "--json").stdout.splitlines()
    worlds = [event for event in map(json.loads, events) if event["kind"] == "generation"]
    return {len(event["data"]["members"]) for event in worlds}


def test_a_wrong_script_stays_at_its_size_and_a_right_one_is_resized(site: Site) -> None:
    lab = site.lab
    gate = Gate(lab.output)
    lab.submit(gate.closed, "--nodes=1", "--exclusive", user="bob")
    lab.wait_for(lambda: lab.run(["squeue", "-h", "-t", "R"]).stdout, 90, "bob's job")
    wrong_script = script(site, "wrong", WRONG)
    wrong = site.mtbatch("alice", wrong_script, trust=False)
    wait_members(site, wrong, 1)
    right = site.mtbatch("alice", script(site, "right", RIGHT), trust=False)
    gate.open()
    wait_members(site, right, 1)  # both are checked at once
    wait_verdict(site, wrong, "different")
    row = job(site, wrong)
    assert row["fixed_nodes"] == 1
    assert says(row["reason"], "1 nodes", "script")
    assert "stays at 1 nodes" in site.malletrain("alice", "explain", str(wrong)).stdout
    assert "different" in site.malletrain("alice", "status", str(wrong)).stdout
    wait_verdict(site, right, "equal")
    assert row["phase"] == "running" and sizes(site, wrong) == {1}
    site.malletrain("alice", "cancel", str(wrong))
    wait_members(site, right, 2)
    site.malletrain("alice", "cancel", str(right))

    again = site.mtbatch("alice", wrong_script, trust=False)
    trusted = site.mtbatch("alice", wrong_script)
    lab.wait_for(lambda: job(site, again)["check_verdict"] == "different", 180, "the verdict of the same script")
    site.malletrain("alice", "cancel", str(again))
    wait_members(site, trusted, 2)
    assert (job(site, trusted)["trusted"], job(site, trusted)["check_verdict"]) == (True, "")
    site.malletrain("alice", "cancel", str(trusted))
