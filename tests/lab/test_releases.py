"""The same lab on every release of Slurm."""

from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig
from scripts.lab.conf import RELEASES
from scripts.lab.releases import apt_configuration
from tests.slurm_fixtures import LabFactory

VERSIONS = {"bookworm": "22.05", "trixie": "24.11"}  # forky moves


def test_apt_is_told_of_nothing_but_its_own_folder(tmp_path: Path) -> None:
    lines = apt_configuration(tmp_path, accept_expired=False).splitlines()
    directories = [line.split('"')[1] for line in lines if line.startswith("Dir::")]
    assert all(d == "/dev/null" or d.startswith(str(tmp_path)) for d in directories)
    assert 'Acquire::Check-Valid-Until "true";' in lines
    assert 'Acquire::Check-Valid-Until "false";' in apt_configuration(tmp_path, accept_expired=True).splitlines()


@pytest.mark.slurm
@pytest.mark.nightly
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_runs_and_preempts(release: str, lab_factory: LabFactory) -> None:
    lab: Lab = lab_factory(LabConfig(nodes=4, release=release))
    version = lab.run(["sinfo", "--version"]).stdout.split()[1]
    assert version.startswith(VERSIONS.get(release, "2"))
    harvested = lab.submit("srun sleep 600", "--nodes=4", "--partition=harvest", "--time=10", "--no-requeue")
    # Only a running step hears of preemption at once; a batch shell hears nothing until GraceTime is over.
    lab.wait_for(lambda: f"{harvested}.0" in lab.run(["squeue", "-h", "-s", "-o", "%i"]).stdout.split(), 90)
    main = lab.submit("which scontrol; srun hostname", "--nodes=4")
    assert lab.wait_for_state(main, "COMPLETED", "FAILED") == "COMPLETED"
    said = (lab.output / f"{main}.txt").read_text().split()
    assert len(said) == 5
    assert lab.job(harvested)["PreemptTime"] not in ("", "None")
    lab.clear()
