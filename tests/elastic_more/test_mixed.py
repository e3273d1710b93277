"""Autocast, a gradient scaler, unused parameters and accumulation in one loop: equal to a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from malletrain import elastic


class Branches(nn.Module):
    """Alternates between two layers and never uses the third."""

    def __init__(self) -> None:
        super().__init__()
        self.odd, self.even, self.never = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (self.odd if self.turn % 2 else self.even)(x)
        return out


def made() -> tuple[Branches, torch.optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(0)
    model = Branches()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cpu")


@pytest.mark.parametrize("accumulate", [False, True], ids=["whole", "accumulated"])
def test_a_session_alone_is_the_plain_loop(accumulate: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(24, 6, generator=generator), torch.randint(0, 3, (24,), generator=generator))

    def train(model: Branches, x: torch.Tensor, y: torch.Tensor, scaler: torch.amp.GradScaler, part: float) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y) * part
        scaler.scale(loss).backward()

    model, optimizer, scaler = made()
    for epoch in range(3):
        for cursor in range(0, 24, 8):
            model.turn = epoch
            optimizer.zero_grad()
            x, y = data.tensors[0][cursor : cursor + 8], data.tensors[1][cursor : cursor + 8]
            if accumulate:
                train(model, x[:4], y[:4], scaler, 0.5)
                train(model, x[4:], y[4:], scaler, 0.5)
            else:
                train(model, x, y, scaler, 1.0)
            scaler.step(optimizer)
            scaler.update()

    ours, its, loss_scaler = made()
    s = elastic.Session(ours, its, data, batch_size=8, shuffle=False, options=elastic.Options(noise_scale=True))
    s.track(scaler=loss_scaler)
    for epoch in s.epochs(3):
        for x, y in s.batches():
            with s.step() as step:
                ours.turn = epoch
                its.zero_grad()
                if accumulate:  # halves of what this worker has: a step may be tried with fewer samples
                    half = len(x) // 2
                    with step.accumulate():
                        train(ours, x[:half], y[:half], loss_scaler, half / len(x))
                    train(ours, x[half:], y[half:], loss_scaler, 1 - half / len(x))
                else:
                    train(ours, x, y, loss_scaler, 1.0)
                loss_scaler.step(its)
                loss_scaler.update()
    assert ours.never.weight.grad is None
    torch.testing.assert_close(ours.state_dict(), model.state_dict())
    assert loss_scaler.state_dict() == scaler.state_dict()
