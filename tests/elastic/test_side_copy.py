"""Checkpoints whose copy a device makes beside the next step: whole, or left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from malletrain.domain.event import EventKind
from malletrain.elastic.comm.step_commit import StepCommitter
from malletrain.elastic.gradients.reducer import GradientReducer
from malletrain.elastic.state.checkpoint_store import CheckpointStore
from malletrain.elastic.state.side_copy import SideCopies, side_copies
from malletrain.elastic.state.training_state import Position, TrainingState
from scripts.bench.elastic.overhead import Calm
from tests.elastic.coordinator import running
from tests.elastic.device_stand_in import LateCopies
from tests.elastic.digits import EPOCHS, SCRIPT, Static, assert_equal, diary
from tests.waiting import wait_until

LARGE = 600  # 600 x 600 float32 are more than 1 MiB, so that they are copied from where they lie


def state_of(size: int = LARGE) -> TrainingState:
    model = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(4, size)).sum().backward()
    optimizer.step()
    return TrainingState(model, [optimizer], Position(step=5))


def prepared(state: TrainingState) -> SideCopies:
    side = SideCopies(LateCopies())
    wait_until(lambda: side.prepare(state), 90, "memory")
    return side


def kept(directory: Path) -> dict[str, torch.Tensor]:
    other = state_of()
    store = CheckpointStore(directory)
    wait_until(lambda: bool(list(directory.glob("step-*"))), 90, "a checkpoint")
    store.load(other)
    return {name: value.clone() for name, value in other.model.state_dict().items()}


def values(state: TrainingState) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.model.state_dict().items()}


def change(state: TrainingState) -> None:
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.add_(1.0)


def test_what_changes_after_the_hold_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    state = state_of()
    side, store, before = prepared(state), CheckpointStore(tmp_path), values(state)
    store.save_async(state, side)
    for buffer in state.model.buffers():  # as forward does
        buffer.add_(1)
    side.hold()
    change(state)
    store.confirm()
    found = kept(tmp_path)
    assert all(torch.equal(found[name], before[name]) for name in before)


@pytest.mark.parametrize("counted", [True, False], ids=["by its version", "around its version"])
def test_a_checkpoint_of_a_state_that_changed_too_early_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, counted: bool
) -> None:
    state = state_of()
    side, store = prepared(state), CheckpointStore(tmp_path)
    store.save_async(state, side)
    if counted:
        change(state)
    else:
        for parameter in state.model.parameters():
            parameter.data.add_(1.0)
    side.hold()
    with caplog.at_level("INFO"):
        store.confirm()
        wait_until(lambda: "step 5 is left out" in caplog.text, 90, "it is said")
    assert not list(tmp_path.glob("*step*"))
    assert side.take(state) is None, "from now on training waits for the copy"
    store.save_async(state, side)
    store.confirm()
    found = kept(tmp_path)
    assert all(torch.equal(found[name], value) for name, value in values(state).items())


def test_a_state_is_loaded_after_the_copy(tmp_path: Path) -> None:
    state = state_of()
    packed = state_of().copy()
    side, store, before = prepared(state), CheckpointStore(tmp_path), values(state)
    state.before_restore = side.hold
    store.save_async(state, side)
    state.restore(*packed)
    store.confirm()
    found = kept(tmp_path)
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_without_memory_the_copy_is_made_at_once_and_memory_for_the_next(tmp_path: Path) -> None:
    state, side = state_of(), SideCopies(LateCopies())
    assert side.take(state) is None
    wait_until(lambda: side.prepare(state), 90, "memory")
    copy = side.take(state)
    assert copy is not None
    larger = state_of(LARGE + 100)
    assert not side.prepare(larger)
    wait_until(lambda: side.prepare(larger), 90, "more memory")


def test_training_ends_while_a_copy_is_under_way(tmp_path: Path) -> None:
    state = state_of()
    side, store = prepared(state), CheckpointStore(tmp_path / "kept")
    store.save_async(state, side)
    store.discard()
    assert not (tmp_path / "kept").exists()


def test_a_backward_pass_holds_before_it_returns() -> None:
    model = nn.Linear(2, 1)
    reducer = GradientReducer(list(model.named_parameters()), StepCommitter(Calm()), mean=True)
    held: list[Any] = []
    reducer.before_return = lambda: held.append(model.weight.grad is not None)
    reducer.arm(1, 1, lambda outcome: held.append("committed"), passes=2)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    assert held == [True, True, "committed"]


def test_models_on_the_host_have_no_side_copies() -> None:
    assert side_copies(state_of(2)) is None


def test_a_job_goes_on_from_a_checkpoint_that_was_copied_beside_its_steps(tmp_path: Path, static: Static) -> None:
    options = ["--epochs", EPOCHS, "--step-seconds", "0.1", "--slow-until", str(tmp_path / "go"), "--width", "1200"]
    with running(tmp_path) as (daemon, pod):
        pod.spawn(daemon.url, 0, [SCRIPT, *options, "--checkpoint-s", "0.3"], STANDIN="20")
        wait_until(lambda: bool(list((tmp_path / "checkpoints").glob("step-*"))), 60, "a checkpoint")
        pod.kill(0)
        wait_until(lambda: bool(daemon.seen(EventKind.WORKER_LOST)), 90, "it is lost")
        made = len(diary(tmp_path))
        pod.spawn(daemon.url, 0, [SCRIPT, *options, "--checkpoint-s", "600"], restart=1, STANDIN="20")
        wait_until(lambda: len(diary(tmp_path)) > made, 60, "steps")
        (tmp_path / "go").touch()
        assert pod.wait(0, 120) == 0
    assert_equal(torch.load(tmp_path / "final.pt"), static("--epochs", EPOCHS, "--width", "1200"), 1e-12)
