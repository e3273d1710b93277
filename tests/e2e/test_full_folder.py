"""A researcher's folder is full: the job says so, its nodes are given back at once, and nothing else is harmed."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.lab import LabConfig
from scripts.play.site import Site
from tests.messages import says
from tests.slurm_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"loop": ["tick_s = 1.0"], "pilot": ["margin_s = 10", "leave_patience_s = 5.0"]}


def fill(folder: Path) -> None:
    """Leave no byte on the file system of a folder."""
    with (folder / "ballast").open("ab", buffering=0) as stream:
        for size in (1 << 16, 512, 1):
            with suppress(OSError):
                while stream.write(b"x" * size) == size:
                    pass


def test_a_full_folder_is_said_and_harms_nobody(lab_factory: LabFactory) -> None:
    lab = lab_factory(LabConfig(nodes=3, users=os.geteuid() == 0, grace_s=60))
    if not lab.users:
        pytest.skip("mounting takes root")
    work = Path(lab.env_for("alice")["HOME"]) / "work"
    work.mkdir()
    alice = pwd.getpwnam("alice")
    options = f"size=1m,uid={alice.pw_uid},gid={alice.pw_gid},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", work], check=True, timeout=60)
    try:
        with Site(lab, settings=SETTINGS) as site:
            site.start()
            command = shlex.join(
                [
                    sys.executable,
                    f"{ROOT}/tests/e2e/paced_training.py",
                    "--samples=1024",
                    "--epochs=20",
                    "--sample-s=0.004",
                ]
            )
            script = work.parent / "full.sh"
            # Slurm's output lies in the same folder, as it does by default.
            script.write_text(f"#!/bin/bash\n#SBATCH -D {work}\n#MALLETRAIN --nodes=1-3 --tasks=12\n{command}\n")
            number = site.mtbatch("alice", script)

            def job() -> dict[str, object]:
                found: dict[str, object] = json.loads(
                    site.malletrain("alice", "status", str(number), "--json").stdout
                )
                return found

            wait_until(lambda: bool(job()["samples"]))
            fill(work)
            submitted = time.time()
            note = f"date +%s.%N > {lab.output}/main; sleep 3"
            lab.submit(note, "--nodes=3", "--exclusive", "--time=2", user="bob")
            noted = lab.output / "main"
            wait_until(lambda: noted.exists() and bool(noted.read_text()))
            assert float(noted.read_text()) - submitted < 50.0, "less than Slurm's GraceTime"
            wait_until(lambda: "No space left on device" in str(job()["reason"]))
            assert says(job()["reason"], "not saved")
            (work / "ballast").unlink()
            wait_until(lambda: job()["phase"] == "completed", 120.0)
    finally:
        subprocess.run(["umount", "-l", work], check=True, timeout=60)
