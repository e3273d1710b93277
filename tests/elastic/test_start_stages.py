"""A worker's start: compiled code of another pilot, and the stages it tells."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from malletrain.cli.profile import lines
from malletrain.domain.event import EventKind
from malletrain.elastic.launch.job_folder import compile_cache_environment, leave_compiled
from malletrain.elastic.launch.start_stages import StartStages
from malletrain.wire.compiled_code import CACHE_VARIABLE
from malletrain.wire.rows import ProfileRow
from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT
from tests.waiting import wait_until
from tests.world import data_of

COMPILED = str(Path(__file__).parents[1] / "elastic_more" / "train_live.py")


# --- Stages -------------------------------------------------------------------------------------------------------


def test_loading_nccl_and_compiling_are_stages_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    stages = StartStages()
    stages.load_beside(lambda: None)
    with stages.warming():
        compiled = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
        compiled(torch.ones(1, 2)).sum().backward()
    wait_until(lambda: "nccl" in stages.finished(), 90, "what runs beside is over")
    with caplog.at_level("INFO"):
        told = stages.finished()
    assert told.keys() == {"build", "warm_up", "compile", "nccl", "import", "all"}
    assert told["compile"] > 0.0
    assert f"import {told['import']:.2f} s" in caplog.text


def test_nccl_that_cannot_be_loaded_ahead_is_no_fault_yet(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> None:
        raise RuntimeError("no network")

    stages = StartStages()
    with caplog.at_level("INFO"):
        stages.load_beside(load)
        wait_until(lambda: "no network" in caplog.text, 90, "it is logged")
    assert "nccl" not in stages.finished()


def test_a_worker_tells_its_stages(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, "--epochs", EPOCHS], STANDIN="20")
        assert pod.wait(0, 60) == 0
        (warm,) = daemon.seen(EventKind.WORKER_WARM)
    stages = data_of(warm)["stages"]
    assert isinstance(stages, dict)
    assert {"import", "build", "warm_up", "all"} <= set(stages)


# --- Compiled code ------------------------------------------------------------------------------------------------


@pytest.fixture
def pilot(tmp_path: Path) -> dict[str, str]:
    return {"MALLETRAIN_URL": "u", "MALLETRAIN_JOB": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}


def test_where_files_cannot_be_locked_a_pilot_compiles_for_itself(
    pilot: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    given = compile_cache_environment(pilot)
    own = Path(given[CACHE_VARIABLE])
    assert tmp_path not in own.parents
    (own / "kernel.so").touch()
    leave_compiled(given, is_over=False)
    assert not own.exists()
    assert own.parent.exists()


def test_what_is_compiled_stays_until_the_job_is_over(pilot: dict[str, str], tmp_path: Path) -> None:
    given = compile_cache_environment(pilot)
    kernel = Path(given[CACHE_VARIABLE]) / "xy" / "kernel.so"
    kernel.parent.mkdir()
    kernel.touch()
    leave_compiled(given, is_over=False)
    assert kernel.exists()
    assert compile_cache_environment(pilot) == given
    leave_compiled(given, is_over=True)
    assert not (tmp_path / ".malletrain" / "7").exists()
    leave_compiled(given, is_over=True)
    leave_compiled({}, is_over=True)


def test_where_nothing_was_compiled_no_folder_stays(pilot: dict[str, str], tmp_path: Path) -> None:
    leave_compiled(compile_cache_environment(pilot), is_over=False)
    assert not (tmp_path / ".malletrain" / "7").exists()


USES = """
import json, sys
from malletrain.elastic.launch.job_folder import compile_cache_environment, leave_compiled
given = compile_cache_environment(json.loads(sys.argv[1]))
print(json.dumps(given), flush=True)
sys.stdin.readline()
leave_compiled(given, is_over=True)
"""


def test_what_another_pilot_still_uses_stays(pilot: dict[str, str]) -> None:
    """The main worker may still evaluate when the others have ended."""
    other = subprocess.Popen(
        [sys.executable, "-c", USES, json.dumps(pilot)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdin is not None
        assert other.stdout is not None
        given = json.loads(other.stdout.readline())
        kernel = Path(given[CACHE_VARIABLE]) / "kernel.so"
        kernel.touch()
        leave_compiled(compile_cache_environment(pilot), is_over=True)
        assert kernel.exists()
        other.communicate("\n", timeout=60)
    assert not kernel.exists()


def test_a_job_that_was_submitted_in_a_pilot_has_a_folder_of_its_own(pilot: dict[str, str], tmp_path: Path) -> None:
    first = compile_cache_environment(pilot)
    kernel = Path(first[CACHE_VARIABLE]) / "kernel.so"
    kernel.touch()
    second = compile_cache_environment({**pilot, **first, "MALLETRAIN_JOB": "8"})
    assert Path(second[CACHE_VARIABLE]).parent == tmp_path / ".malletrain" / "8"
    leave_compiled({**first, CACHE_VARIABLE: "/mine"}, is_over=True)
    assert kernel.exists()


@pytest.mark.nightly
def test_a_pilot_on_another_node_need_not_compile(tmp_path: Path) -> None:
    """Torch's compiler for CPUs, of which the C++ compiler takes most."""
    compiled = []
    for _ in range(2):
        with running(tmp_path) as (daemon, pod):
            script = [COMPILED, "compiled", "--batch", "50", "--backend", "inductor"]
            pod.spawn(daemon.url, 0, script, 0, **{CACHE_VARIABLE: str(tmp_path / "compiled")})
            assert pod.wait(0, 300) == 0
            stages = data_of(daemon.seen(EventKind.WORKER_WARM)[0])["stages"]
        assert isinstance(stages, dict)
        compiled.append(float(str(stages["compile"])))
    assert compiled[1] < 0.5 * compiled[0], compiled


def test_profile_shows_what_ran_beside_apart() -> None:
    row = ProfileRow(1, "passive", (), stages={"import": 3.0, "compile": 9.0, "cuda": 0.5, "nccl": 0.4})
    *_, stages, beside = lines(row)
    assert stages == "an activation is: import 3 s, compile 9 s"
    assert beside == "at the same time: cuda 0.5 s, nccl 0.4 s"
