"""What a script forgot to track is named."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from malletrain.elastic.session import Session
from malletrain.elastic.state.training_state import Position, TrainingState
from malletrain.elastic.state.untracked import forgotten


def test_schedulers_averages_and_second_models_are_found() -> None:
    model, head, teacher = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = TrainingState(model, optimizer, Position())
    state.track("kept", kept)
    variables = {
        "model": model, "layer": model, "optimizer": optimizer, "kept": kept, "head": head, "teacher": teacher,
        "average": AveragedModel(model), "loss": nn.CrossEntropyLoss(), "number": 3,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "other": torch.optim.SGD(head.parameters(), lr=0.1), "scaler": torch.amp.GradScaler("cpu"),
    }  # fmt: skip
    found = [name for name, _ in forgotten(model, state, variables)]
    assert found == ["head", "average", "scheduler", "other", "scaler"]


def test_what_belongs_to_something_tracked_is_not_forgotten() -> None:
    model, head = nn.Linear(2, 2), nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1), Position())
    state.track("both", nn.Sequential(head))
    assert not list(forgotten(model, state, {"head": head}))


def test_a_variable_of_the_calling_script_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with caplog.at_level(logging.WARNING, "malletrain.elastic"):
        Session(model, optimizer, torch.utils.data.TensorDataset(torch.zeros(4, 2)), batch_size=2).join()
    assert "s.track(scheduler=scheduler)" in caplog.text
    del scheduler
