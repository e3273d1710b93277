"""Two releases of the package on a real Slurm: pilots of each under daemons of each, one restart between."""

from __future__ import annotations

import json
import os
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig, LabError
from scripts.play.site import Site
from tests.package.earlier_release import EARLIER, install
from tests.slurm_fixtures import LabFactory

pytestmark = [pytest.mark.slurm, pytest.mark.alone, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 40
TRAINING = (sys.executable, f"{ROOT}/tests/e2e/paced_training.py", "--samples=1024", f"--epochs={EPOCHS}")


def submit(site: Site, name: str, release: Path, workers_of: Path | None) -> int:
    """Submit a training job by `release`'s mtbatch; with `workers_of`, its launcher and workers are of that one."""
    home = Path(site.lab.env_for("alice")["HOME"])
    training = shlex.join([*TRAINING, "--sample-s=0.004"])
    script = home / f"{name}.sh"
    script.write_text(f"#!/bin/bash\n#MALLETRAIN --nodes=1-2 --tasks=20\n{training}\n")
    program = f"import sys; sys.path.insert(0, {str(release)!r}); from malletrain.cli.mtbatch import main; main()"
    environment = [f"PYTHONPATH={workers_of}"] if workers_of else []
    command: list[str | Path] = ["env", *environment, sys.executable, "-c", program, "--parsable", script]
    answer = site.lab.run(command, user="alice")
    return int(answer.stdout.split()[0].split(";")[0])


def samples(site: Site, job: int) -> float:
    return float(str(row(site, job)["samples"]))


def trains_on(site: Site, job: int, before: float) -> bool:
    return samples(site, job) > before or is_over(site, job)


def is_over(site: Site, job: int) -> bool:
    return row(site, job)["phase"] in ("completed", "failed")


def row(site: Site, job: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(site.malletrain("alice", "status", str(job), "--json").stdout)
    return found


def releases_of_workers(lab: Lab) -> set[str]:
    """PYTHONPATH of the training processes that run on the lab's nodes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            is_training = b"paced_training.py" in (process / "cmdline").read_bytes()
        except OSError:
            continue
        if is_training and f"SLURM_CONF={lab.path}/slurm.conf".encode() in environment:
            found |= {each.partition(b"=")[2].decode() for each in environment if each.startswith(b"PYTHONPATH=")}
    return found


def test_pilots_of_two_releases_under_daemons_of_two(lab_factory: LabFactory) -> None:
    lab = lab_factory(LabConfig(nodes=4, users=True))
    if os.geteuid() != 0:
        pytest.skip("needs plain users: run as root")
    folder = Path(lab.env_for("alice")["HOME"]) / "earlier"
    try:
        earlier = install(EARLIER, folder)
    except LabError as error:
        pytest.skip(str(error))
    lab.clear()
    settings = {"loop": ["tick_s = 1.0"], "pilot": ["margin_s = 10"]}
    with Site(lab, settings=settings) as site:
        # The earlier daemon, with workers of both releases.
        this_release = site.program
        site.program = ("env", f"PYTHONPATH={earlier}", *site.program)
        site.start()
        old, new = submit(site, "old", earlier, earlier), submit(site, "new", earlier, None)
        for job in (old, new):
            lab.wait_for(partial(trains_on, site, job, 0.0), 500, f"job {job} trains")
        assert str(earlier) in releases_of_workers(lab)
        site.stop()
        # This release's daemon takes over its journal, and the workers train on.
        site.program = this_release
        site.start()
        assert (site.directory / "malletrain.db.schema3").exists(), "the copy to go back to"
        before = {job: samples(site, job) for job in (old, new)}
        for job in (old, new):
            lab.wait_for(partial(trains_on, site, job, before[job]), 300, f"job {job} trains on")
        late = submit(site, "late", earlier, earlier)
        for job in (old, new, late):
            lab.wait_for(partial(is_over, site, job), 400, f"job {job} ends")
            assert row(site, job)["phase"] == "completed", row(site, job)
        out = Path(lab.env_for("alice")["HOME"]) / "static.json"
        lab.run([*TRAINING, "--sample-s=0", f"--out={out}"], user="alice", timeout=300)
        static = json.loads(out.read_text())
        for job in (old, new, late):
            result = row(site, job)["result"]
            assert isinstance(result, dict)
            for name, value in static.items():
                assert result[name] == pytest.approx(value, rel=1e-3, abs=1e-4), (job, name)
    lab.clear()
