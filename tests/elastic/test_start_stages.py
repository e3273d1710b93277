"""A worker's start: compiled code of another pilot, and the stages it tells."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from malletrain.domain.event import EventKind
from malletrain.elastic.launch.job_folder import compile_cache_environment, leave_compiled
from malletrain.wire.compiled_code import CACHE_VARIABLE
from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT
from tests.world import data_of

COMPILED = str(Path(__file__).parents[1] / "elastic_more" / "train_live.py")


# --- Stages -------------------------------------------------------------------------------------------------------


def test_a_worker_tells_its_stages(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, "--epochs", EPOCHS], STANDIN="20")
        assert pod.wait(0, 60) == 0
        (warm,) = daemon.seen(EventKind.WORKER_WARM)
    stages = data_of(warm)["stages"]
    assert isinstance(stages, dict)
    assert set(stages) == {"build", "warm_up"}


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
        compiled.append(float(str(stages["warm_up"])))
    assert compiled[1] < 0.5 * compiled[0], compiled
