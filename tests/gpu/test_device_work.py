"""What a step asks of a real GPU: no synchronisation; and a newcomer's state."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from malletrain import elastic
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.finiteness import LateRead
from malletrain.elastic.state.buffer_copies import FIRST_STEPS
from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT, assert_equal, run_alone
from tests.gpu.one_gpu import environment_of

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and torch.distributed.is_nccl_available()),
        reason="needs a GPU and a torch with NCCL: scripts/test-gpu runs these where there is one",
    ),
]


def session_of(rows: int, batch: int) -> tuple[elastic.Session, nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 1)).cuda()
    model.register_buffer("mask", torch.ones(64, device="cuda"))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    return elastic.Session(model, optimizer, [torch.ones(64)] * rows, batch_size=batch), model, optimizer


def test_a_step_alone_synchronises_nowhere() -> None:
    s, model, optimizer = session_of(4 * 100, 4)
    said: list[str] = []
    for _ in s.epochs(1):
        for number, x in enumerate(s.batches()):
            on_device = x.cuda()
            watched = number > FIRST_STEPS and number % 64 not in (0, 63)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn" if watched else "default")
                try:
                    with s.step():
                        optimizer.zero_grad()
                        model(on_device).mean().backward()
                        optimizer.step()
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            said += [str(each.message) for each in found if "synchroniz" in str(each.message)]
    s.finish()
    assert not said, said[0]


def test_a_bad_step_alone_is_noticed_before_the_state_is_used() -> None:
    s, model, _ = session_of(8, 4)
    with pytest.raises(ElasticError, match=r"alone .*finite"):
        for _ in s.epochs(1):
            for x in s.batches():
                with s.step():
                    (model(x.cuda()).mean() * math.nan).backward()
        s.finish()


def test_a_late_read_has_the_values_of_its_time() -> None:
    tensor = torch.ones(3, device="cuda")
    read = LateRead(tensor)
    tensor.zero_()
    assert read.values() == [1.0, 1.0, 1.0]


def test_a_newcomer_gets_the_state(tmp_path: Path) -> None:
    given = ["--epochs", EPOCHS, "--device", "cuda", "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        for task in range(3):
            pod.spawn(daemon.url, task, [SCRIPT, *given], **environment_of(task))  # type: ignore[arg-type]  # text
            daemon.wait_world(range(task + 1), 120)
        (tmp_path / "go").touch()
        assert [pod.wait(task, 120) for task in range(3)] == [0, 0, 0]
    static = run_alone(tmp_path / "static", SCRIPT, "--epochs", EPOCHS, "--device", "cuda")
    assert_equal(torch.load(tmp_path / "final.pt"), static, 1e-12)
