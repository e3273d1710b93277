"""Every process group satisfies the contract; worlds of processes that were started together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.static_rendezvous import environment_world, meeting_file, rank_and_size
from malletrain.elastic.errors import ElasticError, PeerLost
from scripts.lab.ports import free_port
from tests.elastic import group_contract
from tests.elastic.coordinator import Forked, outside_slurm
from tests.elastic.digits import SCRIPT, Static, assert_equal, assert_every_sample_once, diary
from tests.elastic.test_transfer import run


def mpi() -> list[str]:
    """The command `mpiexec -n 3 python`; skips the test without MPI. MALLETRAIN_TEST_MPI names a python with
    mpi4py."""
    python = os.environ.get("MALLETRAIN_TEST_MPI", sys.executable)
    beside = Path(python).parent / "mpiexec"
    command = str(beside) if beside.exists() else shutil.which("mpiexec")
    if command is None:
        pytest.skip("no mpiexec: apt-get install mpich, or pip install mpich")
    if subprocess.run([python, "-c", "import mpi4py.MPI"], capture_output=True, timeout=60).returncode:
        pytest.skip("no mpi4py: pip install mpi4py, or MALLETRAIN_TEST_MPI=/path/to/python that has it")
    return [command, "-n", "3", python]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gloo_group_satisfies_the_contract(size: int) -> None:
    def act(group: Group) -> str:
        try:
            group_contract.check(group)
        except (AssertionError, PeerLost) as error:
            return f"{type(error).__name__}: {error}"
        return "kept"

    assert run(size, act) == ["kept"] * size


def test_mpi_group_satisfies_the_contract() -> None:
    command = [*mpi(), group_contract.__file__]
    done = subprocess.run(command, env=outside_slurm(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"kept by rank {rank} of 3" for rank in range(3)]


def test_processes_of_one_mpiexec_train_as_one(tmp_path: Path, static: Static) -> None:
    options = ["--epochs", "2", "--clip"]
    command = [*mpi(), SCRIPT, *options, "--world", "mpi"]
    subprocess.run(command, env=outside_slurm(MALLETRAIN_TEST_DIR=str(tmp_path)), check=True, timeout=300)
    assert_every_sample_once(diary(tmp_path), 2)
    assert {line["size"] for line in diary(tmp_path) if "step" in line} == {3}
    assert_equal(torch.load(tmp_path / "final.pt"), static(*options), 1e-12)


def test_processes_of_one_step_train_as_one(tmp_path: Path, static: Static) -> None:
    """One rank from Slurm's variables, one from torchrun's."""
    options = ["--epochs", "2", "--clip"]
    ways = [
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "2",
            "SLURM_JOB_ID": str(os.getpid()),
        },
        {"RANK": "1", "WORLD_SIZE": "2"},
    ]
    place = {"MASTER_PORT": str(free_port()), "MASTER_ADDR": "127.0.0.1", "MALLETRAIN_TEST_DIR": str(tmp_path)}
    place["MALLETRAIN_MEETING_DIR"] = str(tmp_path / "meeting")
    (tmp_path / "meeting").mkdir(mode=0o700)
    stale = tmp_path / "meeting" / f"meeting-127.0.0.1_{place['MASTER_PORT']}-"
    stale.write_text(json.dumps([f"127.0.0.1:{free_port()}", "of an earlier run"]))
    script = [SCRIPT, *options, "--world", "environment"]
    processes = [
        Forked(outside_slurm(**place, **way), tmp_path / f"log-{rank}", script) for rank, way in enumerate(ways)
    ]
    try:
        assert [process.wait(240) for process in processes] == [0, 0], (tmp_path / "log-0").read_text()
    finally:
        for process in processes:
            process.kill()
    assert not list((tmp_path / "meeting").iterdir()), "the secret is removed when all have come"
    assert_every_sample_once(diary(tmp_path), 2)
    assert_equal(torch.load(tmp_path / "final.pt"), static(*options), 1e-12)


def test_rank_and_meeting_come_from_the_environment() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}
    assert rank_and_size(slurm) == (3, 4)
    assert meeting_file(slurm | {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1"}) == "meeting-5_1-"
    assert meeting_file({"MASTER_ADDR": "::1", "MASTER_PORT": "29500"}) == "meeting-__1_29500-"
    assert isinstance(environment_world({"RANK": "0", "WORLD_SIZE": "1"}), SoloGroup)
    with pytest.raises(ElasticError, match="start the script with srun or torchrun"):
        rank_and_size({"RANK": "4", "WORLD_SIZE": "4"})
    with pytest.raises(ElasticError, match="set MASTER_ADDR"):
        meeting_file({"SLURM_JOB_ID": "5"})
    with pytest.raises(ElasticError, match="and MASTER_ADDR"):
        environment_world({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1"})
