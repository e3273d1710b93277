"""A worker's start: the GPU's context beside imports, compiled code of another pilot, and the stages it tells."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain.cli.profile import lines
from malletrain.domain.event import EventKind
from malletrain.elastic.comm.carrier import DeviceCarrier
from malletrain.elastic.launch import early_cuda
from malletrain.elastic.launch.compile_cache import CACHE_VARIABLE, SHARED_VARIABLE, code_key
from malletrain.elastic.launch.compiled_code import CompiledCode
from malletrain.elastic.launch.early_cuda import EarlyContext
from malletrain.elastic.launch.start_stages import StartStages
from malletrain.wire.rows import ProfileRow
from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT
from tests.waiting import wait_until
from tests.world import data_of

COMPILED = str(Path(__file__).parents[1] / "elastic_more" / "train_compiled.py")


class Driver:
    """CUDA's driver with `count` GPUs; `fails` names the call that does not succeed."""

    def __init__(self, count: int, fails: str = "") -> None:
        self.count, self.fails = count, fails
        self.retained: list[int] = []

    def __call__(self, name: str) -> Driver:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.fails:
                return 100
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.count
            elif name == "cuDeviceGet":
                arguments[0]._obj.value = arguments[1]
            elif name == "cuDevicePrimaryCtxRetain":
                self.retained.append(arguments[1].value)
            return 0

        return call


@pytest.mark.parametrize(
    ("place", "count", "made"),
    [
        (None, 1, [0]),
        (None, 4, []),
        (2, 4, [2]),
        (2, 1, [0]),  # bound to one by Slurm
        (4, 4, []),
        (None, 0, []),
    ],
)
def test_a_context_is_made_where_the_gpu_is_certain(place: int | None, count: int, made: list[int]) -> None:
    driver = Driver(count)
    context = EarlyContext(place, driver)
    context.thread.join(90.0)
    assert driver.retained == made
    assert (context.seconds is not None) == bool(made)


@pytest.mark.parametrize("fails", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_a_driver_that_fails_is_left_to_torch(fails: str) -> None:
    context = EarlyContext(0, Driver(1, fails))
    context.thread.join(90.0)
    assert context.seconds is None


def test_a_machine_without_a_driver_has_no_context() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    context = EarlyContext(0, missing)
    context.thread.join(90.0)
    assert context.seconds is None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(early_cuda, "_made", None)
    return  # type: ignore[return-value]  # nothing to undo


@pytest.mark.usefixtures("fresh")
def test_a_context_is_begun_once_and_for_the_local_rank() -> None:
    driver = Driver(4)
    first = early_cuda.begin({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, driver)
    assert first is not None
    assert early_cuda.begin({}, driver) is first
    first.thread.join(90.0)
    assert driver.retained == [3]
    assert early_cuda.seconds() == first.seconds


@pytest.mark.usefixtures("fresh")
def test_a_script_can_keep_the_context_for_itself() -> None:
    assert early_cuda.begin({"MALLETRAIN_EARLY_CUDA": "0"}, Driver(1)) is None
    assert early_cuda.seconds() is None


# --- Stages -------------------------------------------------------------------------------------------------------


def test_loading_nccl_and_compiling_are_stages_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    stages = StartStages()
    stages.load_beside(lambda: None)
    with stages.warming():
        compiled = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
        compiled(torch.ones(1, 2)).sum().backward()
    wait_until(lambda: "nccl" in stages.finished({}), 90, "what runs beside is over")
    with caplog.at_level("INFO"):
        told = stages.finished({"import": 1.0, "all": 3.0})
    assert told.keys() == {"build", "warm_up", "compile", "nccl", "import", "all"}
    assert told["compile"] == stages.compile_s > 0.0
    assert "import 1.00 s" in caplog.text


def test_nccl_that_cannot_be_loaded_ahead_is_no_fault_yet(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> None:
        raise RuntimeError("no network")

    stages = StartStages()
    with caplog.at_level("INFO"):
        stages.load_beside(load)
        wait_until(lambda: "no network" in caplog.text, 90, "it is logged")
    assert "nccl" not in stages.finished({})


def test_a_carrier_loads_nothing_by_default() -> None:
    assert DeviceCarrier(lambda _: True, lambda *_: None, torch.device("cpu")).load is None  # type: ignore[arg-type]


def test_a_worker_tells_its_stages(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, "--epochs", EPOCHS], STANDIN="20")
        assert pod.wait(0, 60) == 0
        (warm,) = daemon.seen(EventKind.WORKER_WARM)
    stages = data_of(warm)["stages"]
    assert isinstance(stages, dict)
    assert {"import", "build", "warm_up", "all"} <= set(stages)


# --- Compiled code ------------------------------------------------------------------------------------------------


def pilot(home: Path, node: str, settled_s: float = 0.0) -> tuple[Path, CompiledCode]:
    cache = home / node / "0123456789abcdef"
    cache.mkdir(parents=True, mode=0o700)
    return cache, CompiledCode(cache, home / "job", settled_s)


def test_what_one_node_has_compiled_is_there_on_another(tmp_path: Path) -> None:
    first, shares = pilot(tmp_path, "a")
    (first / "xy").mkdir()
    (first / "xy" / "kernel.so").write_bytes(b"code")
    (first / "xy" / "kernel.so").chmod(0o700)
    (first / "xy" / "kernel.lock").touch()
    assert shares.fetch() == 0, "nothing is shared yet"
    assert shares.share()
    assert not shares.share(), "once is enough"
    second, takes = pilot(tmp_path, "b")
    (second / "own").write_bytes(b"own")
    assert takes.fetch() == 1
    assert (second / "xy" / "kernel.so").read_bytes() == b"code"
    assert os.access(second / "xy" / "kernel.so", os.X_OK)
    assert not (second / "xy" / "kernel.lock").exists()
    assert takes.fetch() == 0, "another process of the node has unpacked it"
    assert [path.name for path in (tmp_path / "job").iterdir()] == [shares.name], "no draft is left"


def test_files_that_are_being_written_are_not_shared(tmp_path: Path) -> None:
    cache, code = pilot(tmp_path, "a", settled_s=0.2)
    (cache / "old").touch()
    os.utime(cache / "old", (1.0, 1.0))
    (cache / "new").touch()
    os.utime(cache / "new", (time.time() + 60.0,) * 2)
    assert code.share()
    with tarfile.open(tmp_path / "job" / code.name) as archive:
        assert archive.getnames() == ["old"]


def test_nothing_is_taken_from_outside_the_cache_or_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, code = pilot(tmp_path, "a")
    (tmp_path / "evil").write_text("evil")
    (tmp_path / "job").mkdir(mode=0o700)
    with tarfile.open(tmp_path / "job" / code.name, "w") as archive:
        archive.add(tmp_path / "evil", arcname="../evil-too")
    (tmp_path / "job" / code.name).chmod(0o600)
    assert code.fetch() == 0
    assert "is no file below the cache" in caplog.text
    assert not (tmp_path / "a" / "evil-too").exists()
    (tmp_path / "job").chmod(0o777)
    assert code.fetch() == 0
    assert "other users can write" in caplog.text
    assert not code.share()
    assert sorted(path.name for path in cache.iterdir()) == [".malletrain-lock"]


def test_an_archive_that_is_cut_off_spoils_nothing(tmp_path: Path) -> None:
    cache, code = pilot(tmp_path, "a")
    (cache / "kernel").write_bytes(bytes(100_000))
    assert code.share()
    shared = tmp_path / "job" / code.name
    shared.write_bytes(shared.read_bytes()[:50_000])
    second, takes = pilot(tmp_path, "b")
    assert takes.fetch() == 0
    assert not (second / "kernel").exists()


def test_jobs_of_one_script_share_a_cache(tmp_path: Path) -> None:
    def key(text: str) -> str:
        (tmp_path / "script").write_text(text)
        return code_key({"MALLETRAIN_BATCH_SCRIPT": str(tmp_path / "script")})

    first = key("#!/bin/bash\n# for malleable job 3.\n# The script as submitted:\npython train.py\n")
    assert first == key("#!/bin/bash\n# for malleable job 4.\n# The script as submitted:\npython train.py\n")
    assert first != key("#!/bin/bash\n# for malleable job 4.\n# The script as submitted:\npython other.py\n")
    assert len(code_key({"MALLETRAIN_BATCH_SCRIPT": "/nowhere"})) == 16


@pytest.mark.nightly
def test_a_pilot_on_another_node_need_not_compile(tmp_path: Path) -> None:
    """Torch's compiler for CPUs, of which the C++ compiler takes most."""
    compiled = []
    for node in ("a", "b"):
        cache = tmp_path / node / "0123456789abcdef"
        cache.mkdir(parents=True, mode=0o700)
        with running(tmp_path) as (daemon, pod):
            for name in ("start-0", "go"):
                (tmp_path / name).touch()
            kept = {CACHE_VARIABLE: str(cache), SHARED_VARIABLE: str(cache)}
            more = {"MALLETRAIN_CHECKPOINT_DIR": str(tmp_path / "kept")}
            pod.spawn(daemon.url, 0, [COMPILED, "inductor"], 0, **kept, **more)
            assert pod.wait(0, 300) == 0
            stages = data_of(daemon.seen(EventKind.WORKER_WARM)[0])["stages"]
        assert isinstance(stages, dict)
        compiled.append(float(str(stages["compile"])))
        if node == "a":  # the training's end has removed the copy, as it removes checkpoints
            assert not (tmp_path / "kept").exists()
            CompiledCode(cache, tmp_path / "kept", 0.0).share()
    assert compiled[1] < 0.5 * compiled[0], compiled


def test_profile_shows_what_ran_beside_apart() -> None:
    row = ProfileRow(1, "passive", (), stages={"import": 3.0, "compile": 9.0, "cuda": 0.5, "nccl": 0.4})
    assert lines(row)[-2:] == ["an activation is: import 3 s, compile 9 s", "beside these: cuda 0.5 s, nccl 0.4 s"]
