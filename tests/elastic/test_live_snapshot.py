"""A snapshot that shares memory with the training state finds out what changes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from malletrain.elastic.state.live_snapshot import LiveSnapshot
from malletrain.elastic.state.training_state import Position, TrainingState


def state() -> TrainingState:
    model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 600)).sum().backward()
    optimizer.step()
    return TrainingState(model, [optimizer], Position())


def changed(snapshot: LiveSnapshot) -> bool:
    counted, row = snapshot.changes()
    return counted or (row is not None and bool(row.any()))


def weight(kept: TrainingState) -> torch.nn.Parameter:
    return kept.model.get_parameter("0.weight")


def step(kept: TrainingState) -> None:
    kept.optimizers[0].step()


def in_place(kept: TrainingState) -> None:
    with torch.no_grad():
        weight(kept)[17, 3] += 1.0


def behind_the_back(kept: TrainingState) -> None:
    weight(kept).data.mul_(1.001)


def of_the_optimizer(kept: TrainingState) -> None:
    kept.optimizers[0].state[weight(kept)]["momentum_buffer"].zero_()


@pytest.mark.parametrize("change", [step, in_place, behind_the_back, of_the_optimizer])
def test_a_change_of_shared_tensors_is_detected(change: Callable[[TrainingState], None]) -> None:
    kept = state()
    lent = LiveSnapshot(kept)
    assert not changed(lent)
    change(kept)
    assert changed(lent)


def test_forward_and_backward_change_no_shared_tensor() -> None:
    kept = state()
    lent = LiveSnapshot(kept)
    before = [tensor.clone() for tensor in lent.tensors]
    buffer = kept.model.get_buffer("1.running_mean").clone()
    kept.model(torch.randn(4, 600)).sum().backward()
    assert not torch.equal(buffer, kept.model.get_buffer("1.running_mean"))
    assert not changed(lent)
    assert all(torch.equal(now, then) for now, then in zip(lent.tensors, before, strict=True))
