"""The processes of a pilot of several nodes know each other: by MPI under `srun --mpi`, and by Slurm alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lab import Lab, LabConfig
from tests.slurm_fixtures import LabFactory

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pilot_ranks.py"

#: A python that has mpi4py and MPI's library, if it is not this one.
PYTHON = os.environ.get("MALLETRAIN_TEST_MPI", sys.executable)

#: The launcher as it is, with a daemon that says welcome to whoever comes.
LAUNCH = """
import os, sys
from malletrain.elastic.launch.launcher import Launcher
from malletrain.wire import messages

class Client:
    def hello(self):
        return messages.Welcome("7_0.0", "token", "7_0", 20.0, "live")
    def report(self, said):
        pass

sys.exit(Launcher(Client(), sys.argv[1:], os.environ).run())
"""


@pytest.fixture
def lab(release: str | None, lab_factory: LabFactory) -> Iterator[Lab]:
    lab = lab_factory(LabConfig(nodes=8, profile="fast", users=os.geteuid() == 0, release=release))
    yield lab
    lab.clear()


def check_mpi(lab: Lab, mpi: str) -> None:
    """Skip where there is no MPI to test with: MPICH for pmi2, Open MPI for pmix."""
    ask = [PYTHON, "-c", "import mpi4py.MPI; print(mpi4py.MPI.Get_library_version())"]
    found = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    if found.returncode:
        pytest.skip("no MPI: pip install mpi4py mpich, or MALLETRAIN_TEST_MPI=/path/to/python that has both")
    if ("Open MPI" in found.stdout) != (mpi == "pmix"):
        pytest.skip(f"{found.stdout.split(',')[0].splitlines()[0].strip()} is not the one for {mpi}")
    plugins = lab.run(["srun", "--mpi=list"], check=False)
    if mpi not in plugins.stdout + plugins.stderr:
        pytest.skip(f"this Slurm has no {mpi} (srun --mpi=list)")
    if "can not load" in lab.run(["srun", "--nodes=1", "--immediate=60", f"--mpi={mpi}", "true"], check=False).stderr:
        pytest.skip(f"Slurm's plug-in finds no library for {mpi} (pmix looks for libpmix.so: Debian's libpmix-dev)")


@pytest.mark.parametrize(("by", "mpi"), [("slurm", "none"), ("mpi", "pmi2"), ("mpi", "pmix")])
def test_the_processes_of_a_pilot_number_themselves(lab: Lab, by: str, mpi: str) -> None:
    if by == "mpi":
        check_mpi(lab, mpi)
    launch = [sys.executable, "-c", LAUNCH, PYTHON, str(EXAMPLE), "--by", by]
    # As the script that mtbatch writes starts them.
    step = f"srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --mpi={mpi} --kill-on-bad-exit=0 --wait=0 --overlap"
    command = f"export PYTHONPATH={shlex.quote(str(ROOT))}; {step} --export=ALL {shlex.join(launch)}"
    job = lab.submit(command, "-p", "batch", "--nodes=3", "--exclusive", "--time=10")
    lab.wait_for_state(job, "COMPLETED", "FAILED", "TIMEOUT", deadline_s=300)
    said = (lab.output / f"{job}.txt").read_text()
    ranks = sorted(line for line in said.splitlines() if line.startswith("rank "))
    assert [line.partition(":")[0] for line in ranks] == [f"rank {rank} of 3 by {by}" for rank in range(3)], said
    files = [name for line in ranks for name in line.partition(": ")[2].split()]
    assert sorted(files) == [f"shard-{number:03}" for number in range(12)], "each file on one node"
