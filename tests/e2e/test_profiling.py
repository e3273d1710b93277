"""Unknown scalability on real Slurm: two models of opposite kinds end where their true curves say."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.play.site import Site
from tests.quick_site import QUICK, quick_site

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

PACED = Path(__file__).resolve().parents[2] / "tests/e2e/paced_training.py"
SETTINGS = {"loop": ["tick_s = 2.0"], "pilot": QUICK["pilot"]}


@pytest.fixture
def site(lab_factory) -> Iterator[Site]:  # type: ignore[no-untyped-def]
    with quick_site(lab_factory, last_words, nodes=6, settings=SETTINGS) as running:
        yield running


def last_words(site: Site) -> str:
    return f"{site.last_log()} {site.malletrain('alice', 'events').stdout[-8000:]}"


def begin(site: Site, name: str, *options: str) -> int:
    path = Path(site.lab.env_for("alice")["HOME"]) / f"{name}.sh"
    path.write_text(
        f"#!/bin/bash\n#SBATCH --job-name={name}\n#MALLETRAIN --nodes=1-4 --sizes=1,2,4 --profile=active\n"
        f"{shlex.join([sys.executable, str(PACED), *options])}\n"
    )
    return site.mtbatch("alice", path)


def members(site: Site, job: int) -> int:
    return int(json.loads(site.malletrain("alice", "status", str(job), "--json").stdout)["members"])


def test_two_models_of_opposite_scalability_end_at_the_allocation_of_their_true_curves(site: Site) -> None:
    """One halves its time with twice the nodes; the other does so up to two, and is slower than on one beyond.

    By their true curves the best is four nodes and two; of (4, 2) and (2, 4) nothing is known before they are tried.
    """
    grows = begin(site, "grows")
    stalls = begin(site, "stalls", "--stall-beyond", "2")
    rested: list[float] = []

    def at_rest() -> bool:
        if (members(site, grows), members(site, stalls)) != (4, 2):
            rested.clear()
            return False
        rested.append(time.monotonic())
        return rested[-1] - rested[0] > 30

    began = time.monotonic()
    site.lab.wait_for(at_rest, 420, "half a minute with 4 and 2 nodes")
    print(f"at rest after {rested[0] - began:.0f} s")
    known = json.loads(site.malletrain("alice", "profile", str(stalls), "--json").stdout)
    rate = {size["nodes"]: size["rate"] for size in known["sizes"]}
    assert {size["nodes"] for size in known["sizes"] if size["windows"]} >= {2}
    assert rate[2] > rate[1]
    assert "samples/s by nodes" in site.malletrain("alice", "status", str(stalls)).stdout
