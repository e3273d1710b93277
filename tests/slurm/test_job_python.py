"""Which Python a job's pilots run: the researcher's, tried before anything is submitted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.cli.admin.surroundings import python_findings
from malletrain.domain.errors import InvalidInput
from malletrain.domain.snapshot import SlurmState
from malletrain.slurm.command import Commands
from malletrain.slurm.pilots import end_state
from malletrain.slurm.site.site_facts import Harvest, Level
from malletrain.slurm.submission import batch_request, directives
from malletrain.slurm.submission.job_python import find
from malletrain.slurm.submission.sbatch import NO_PYTHON_STATUS
from malletrain.wire.address import Address
from tests.messages import naming, says
from tests.slurm.test_pilots import HELD

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """`mtbatch` of a package: its Python has malletrain and no torch, and its folder is root's."""
    python = environment(tmp_path / "opt", "echo plain")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("os.getuid", lambda: Path(python).stat().st_uid + 1)
    return python


def environment(folder: Path, answers: str) -> str:
    """An environment whose Python does `answers` when it is tried."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{answers}\n")
    python.chmod(0o755)
    (folder / "bin" / "python3").symlink_to(python)
    return str(python)


def test_the_environment_that_is_active_comes_first(tmp_path: Path, packaged: str) -> None:
    venv, conda = environment(tmp_path / "venv", "echo torch"), environment(tmp_path / "conda", "echo torch")
    on_path = environment(tmp_path / "path", "echo torch")
    known = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": str(Path(on_path).parent),
    }
    assert find(known) == venv
    del known["VIRTUAL_ENV"]
    assert find(known) == conda
    del known["CONDA_PREFIX"]
    assert find(known) == f"{on_path}3"


def test_one_with_torch_is_taken_before_one_without(tmp_path: Path, packaged: str) -> None:
    base = environment(tmp_path / "base", "echo \"No module named 'malletrain'\" >&2; exit 1")
    plain, whole = environment(tmp_path / "plain", "echo plain"), environment(tmp_path / "whole", "echo torch")
    active = {"CONDA_PREFIX": str(Path(base).parents[1]), "PATH": str(Path(whole).parent)}
    assert find(active) == f"{whole}3"
    assert find({"VIRTUAL_ENV": str(Path(plain).parents[1]), "PATH": str(Path(whole).parent)}) == f"{whole}3"
    assert find({"VIRTUAL_ENV": str(Path(plain).parents[1]), "PATH": ""}) == plain


def test_the_packages_own_python_is_never_taken_by_itself(tmp_path: Path, packaged: str) -> None:
    with pytest.raises(InvalidInput, match=naming("--python:", "torch")) as refused:
        find({"PATH": str(Path(packaged).parent)})
    assert f"{packaged}: " in str(refused.value)
    site = environment(tmp_path / "site", "echo plain")
    assert find({"PATH": ""}, site=site) == site
    assert find({"PATH": ""}, packaged, site) == packaged


def test_what_cannot_run_a_pilot_is_refused_with_its_reason(tmp_path: Path) -> None:
    old = environment(tmp_path / "old", "echo 'Unknown option: -P' >&2; echo 'usage: ...' >&2; exit 2")
    broken = environment(tmp_path / "broken", 'echo noise >&2; echo "ModuleNotFoundError: malletrain" >&2; exit 1')
    for python, why in ((old, "older than 3.11"), (broken, "ModuleNotFoundError"), ("/nowhere", "No such file")):
        with pytest.raises(InvalidInput, match=why):
            find({"PATH": ""}, python)


def test_a_real_one(tmp_path: Path) -> None:
    assert find({"PATH": "", "PYTHONPATH": ""}, sys.executable) == sys.executable
    with pytest.raises(InvalidInput, match="No module named 'malletrain'"):
        find({"PATH": ""}, "/usr/bin/python3")
    assert find({"PATH": "", "PYTHONPATH": str(ROOT)}, "/usr/bin/python3") == "/usr/bin/python3"


def test_a_node_without_it_says_so(tmp_path: Path) -> None:
    line = directives.from_command_line(["--nodes=1-2", f"--python={tmp_path}", "train.sh"])
    body = b"#!/bin/bash\necho never\n"
    request = batch_request.request(body, "train.sh", line.options, (), Address("", "harvest"), "/tmp")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    assert request.python == str(python)
    script = request.materialize(7, "http://head:8470", str(python), {}).script
    environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n3"}
    done = subprocess.run([shutil.which("bash") or "", "-s"], input=script, capture_output=True, env=environ)
    assert done.returncode == NO_PYTHON_STATUS
    assert done.stderr.decode() == f"malletrain: n3 has no {python}: see mtbatch --python\n"
    ended = end_state(HELD._replace(state="FAILED", exit_code=f"{NO_PYTHON_STATUS}:0"))
    assert ended.state is SlurmState.FAILED
    assert says(ended.detail, "no Python", "(mtbatch --python)")


@pytest.mark.parametrize(
    ("srun", "level", "said"),
    [
        ("exit 0", Level.OK, "tried"),
        (
            "echo 'slurmstepd: error: execve(): /x/python: No such file or directory' >&2; exit 2",
            Level.ERROR,
            "execve",
        ),
        ("echo \"ModuleNotFoundError: No module named 'malletrain'\" >&2; exit 1", Level.ERROR, "No module named"),
        (
            "echo 'python: error while loading shared libraries: libpython3.12.so.1.0: cannot open it' >&2; exit 127",
            Level.ERROR,
            "libpython3.12",
        ),
        (
            "echo \"/x/python: /lib64/libc.so.6: version 'GLIBC_2.34' not found\" >&2; exit 1",
            Level.ERROR,
            "GLIBC_2.34",
        ),
        ("echo 'slurmstepd: error: exec: Exec format error' >&2; exit 8", Level.ERROR, "Exec format"),
        ("echo 'srun: error: n1: task 0: Illegal instruction' >&2; exit 132", Level.ERROR, "Illegal instruction"),
        ("echo 'ImportError: /x/_ssl.so: undefined symbol: EVP_MD' >&2; exit 1", Level.ERROR, "undefined symbol"),
        ("echo 'srun: error: Unable to allocate resources' >&2; exit 1", Level.WARNING, "not be tried"),
    ],
)
def test_doctor_tries_the_sites_python_on_a_node(tmp_path: Path, srun: str, level: Level, said: str) -> None:
    (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n{srun}\n')
    (tmp_path / "srun").chmod(0o755)
    commands, harvest = Commands({"PATH": f"{tmp_path}:/usr/bin:/bin"}), Harvest("harvest", "hacct", "")
    (found,) = python_findings(commands, harvest, "/x/python")
    assert found.level is level
    assert said in found.what
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--partition=harvest --account=hacct --nodes=1 --ntasks=1 --time=1 --immediate=10")
    assert list(python_findings(commands, harvest, "")) == []
