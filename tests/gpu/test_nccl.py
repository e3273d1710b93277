"""NCCL on a real GPU: the contract of groups, and training through resizes and faults that equals a static run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.elastic.coordinator import outside_slurm, running
from tests.elastic.digits import EPOCHS, SCRIPT, assert_equal, assert_every_sample_once, diary, run_alone
from tests.elastic.stores import serve
from tests.gpu import one_gpu
from tests.gpu.one_gpu import environment_of

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and torch.distributed.is_nccl_available()),
        reason="needs a GPU and a torch with NCCL: scripts/test-gpu runs these where there is one",
    ),
]


@pytest.mark.parametrize("connect", ["beside", "boundary"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_nccl_satisfies_the_contract(size: int, connect: str) -> None:
    server = serve()
    members = [
        subprocess.Popen(
            [sys.executable, one_gpu.__file__, server.address, str(rank), str(size), connect],
            env=outside_slurm(**environment_of(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [member.communicate(timeout=120)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    assert all("kept" in each for each in said), "\n".join(said)


@pytest.mark.parametrize("connect", ["beside", "boundary"])
@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_resizes_and_faults_on_a_gpu_equal_a_static_run(tmp_path: Path, connect: str, fault: str) -> None:
    options = ["--epochs", EPOCHS, "--device", "cuda", "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        for task in range(2):
            environ = {**environment_of(task), "MALLETRAIN_NCCL_CONNECT": connect}
            pod.spawn(daemon.url, task, [SCRIPT, *options], **environ)  # type: ignore[arg-type]  # text only
        daemon.wait_world([0, 1], 120)
        for task in (2, 3):
            environ = {**environment_of(task), "MALLETRAIN_NCCL_CONNECT": connect}
            pod.spawn(daemon.url, task, [SCRIPT, *options], **environ)  # type: ignore[arg-type]  # text only
        daemon.wait_world([0, 1, 2, 3], 120)
        if fault == "kill":
            pod.kill_after_a_step(1)
        else:
            pod.kill(1, signal.SIGSTOP)
        daemon.wait_world([0, 2, 3], 60)
        daemon.leave(2)
        daemon.wait_world([0, 3], 60)
        (tmp_path / "go").touch()
        assert pod.wait(0, 120) == 0
        assert pod.wait(3, 120) == 0
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    static = run_alone(tmp_path / "static", SCRIPT, "--epochs", EPOCHS, "--device", "cuda")
    assert_equal(torch.load(tmp_path / "final.pt"), static, 1e-12)
