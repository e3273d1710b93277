"""Communication hooks: linear ones train as without other workers, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from malletrain import elastic
from malletrain.elastic.comm.group import Group, SoloGroup
from malletrain.elastic.comm.step_commit import StepCommitter, TrainingWorld
from malletrain.elastic.errors import ElasticError
from malletrain.elastic.gradients.comm_hook import CommHook, check_hook
from malletrain.elastic.gradients.reducer import GradientReducer
from scripts.bench.elastic.overhead import Calm
from tests.elastic.coordinator import running
from tests.elastic.digits import EPOCHS, SCRIPT, Static, assert_equal, assert_every_sample_once, diary
from tests.elastic.test_transfer import run
from tests.elastic.train_digits import Half
from tests.waiting import wait_until


class Cast(Half):
    def compress(self, gradients: torch.Tensor, step: int, bucket: int) -> torch.Tensor:
        return gradients.to(torch.bfloat16)

    def decompress(self, total: torch.Tensor, gradients: torch.Tensor, step: int, bucket: int) -> None:
        gradients.copy_(total)


class Signs(Cast):
    def compress(self, gradients: torch.Tensor, step: int, bucket: int) -> torch.Tensor:
        return gradients.sign()


class Chance(Cast):
    def compress(self, gradients: torch.Tensor, step: int, bucket: int) -> torch.Tensor:
        return gradients * torch.rand(1)


class Longer(Cast):
    def decompress(self, total: torch.Tensor, gradients: torch.Tensor, step: int, bucket: int) -> None:
        gradients.copy_(total[:-1])


class Forgets(Half):
    def decompress(self, total: torch.Tensor, gradients: torch.Tensor, step: int, bucket: int) -> None:
        gradients[: len(total)] = total


@pytest.mark.parametrize(("hook", "exact"), [(Half(), True), (Cast(), False)])
def test_linear_hooks_are_accepted_and_roundings_are_found(hook: CommHook, exact: bool) -> None:
    assert check_hook(hook, torch.float32, torch.device("cpu")) is exact


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (Signs(), "does not commute with weights and sums"),
        (Forgets(), "does not commute with weights and sums"),
        (Chance(), "something else for the same gradients, step and bucket"),
        (Longer(), "cannot be used: RuntimeError"),
        (object(), "cannot be used: AttributeError"),
    ],
)
def test_other_hooks_are_refused(hook: Any, says: str) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ElasticError, match=says):
        elastic.Session(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            [1.0],
            batch_size=1,
            options=elastic.Options(comm_hook=hook),
        )


def test_what_excludes_a_hook_is_named() -> None:
    model = nn.Linear(2, 1)
    both = elastic.Options(comm_hook=Half(), sum_dtype=torch.bfloat16)
    with pytest.raises(ElasticError, match="comm_hook bears neither sum_dtype"):
        elastic.Session(model, torch.optim.SGD(model.parameters(), 0.1), [1.0], batch_size=1, options=both)


def test_a_session_says_that_its_hook_rounds() -> None:
    for hook, rounds in ((Half(), False), (Cast(), True)):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        s = elastic.Session(model, optimizer, [torch.ones(1)], batch_size=1, options=elastic.Options(comm_hook=hook))
        assert ("comm_hook" in str(s._runtime.judgement)) is rounds
        s.finish()


def trained(group: Group) -> list[torch.Tensor]:
    """The gradients of three steps; of each, the batch lies on members in another way."""
    parameter, other = nn.Parameter(torch.zeros(1001, dtype=torch.float64)), nn.Parameter(torch.zeros(3, 5))
    committer = StepCommitter(Calm())
    committer.world = TrainingWorld(1, tuple(f"w{rank}" for rank in range(group.size)), group)
    counted = [0]
    reducer = GradientReducer(
        [("p", parameter), ("q", other)], committer, mean=True, step=lambda: counted[0], comm_hook=Half()
    )
    found: list[torch.Tensor] = []
    for step in range(3):
        counted[0] = step
        for each in (parameter, other):
            each.grad = None
        rows = torch.arange(12, dtype=torch.float64).tensor_split(group.size)[group.rank]
        reducer.arm(len(rows), 12, lambda outcome: None)
        part = (parameter * torch.linspace(-1, 1, 1001, dtype=torch.float64)).sum() + other.double().sum()
        (part * (rows + step).mean()).backward()
        found += [each.grad.clone() for each in (parameter, other) if each.grad is not None]
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_those_of_a_worker_alone_with_the_hook(size: int) -> None:
    alone = trained(SoloGroup())
    assert int((alone[0] == 0).sum()) >= 500, "half of them are left out"
    for found in run(size, trained):
        assert isinstance(found, list), found
        for mine, expected in zip(found, alone, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-6 if mine.dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.parametrize("more", [{}, {"STANDIN": "20"}], ids=["gloo", "stand-in"])
def test_a_resized_run_with_a_hook_equals_a_static_one(tmp_path: Path, static: Static, more: dict[str, str]) -> None:
    options = ["--epochs", EPOCHS, "--half", "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go")]
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, *options], 0, **more)
        daemon.wait_world([0])
        wait_until(lambda: len(diary(tmp_path)) > 2, 60, "steps alone")
        for task in (1, 2):
            pod.spawn(daemon.url, task, [SCRIPT, *options], 0, **more)
        daemon.wait_world([0, 1, 2])
        pod.kill_after_a_step(0)
        daemon.wait_world([1, 2], 90)
        (tmp_path / "go").touch()
        assert pod.wait(1) == pod.wait(2) == 0
    assert_every_sample_once(diary(tmp_path), int(EPOCHS))
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS, "--half"), 1e-12)
