"""Sharpness-aware minimisation: two passes a batch, the second one where the loss is highest nearby.

After davda54/sam, example/train.py and sam.py (https://github.com/davda54/sam). Licence of the original: MIT.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional

from malletrain import elastic

RHO = 0.05


@torch.no_grad()
def climb(model: nn.Module) -> list[torch.Tensor]:
    """Move the parameters by RHO up the gradient; gives the move."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    scale = RHO / (torch.stack([each.norm() for each in gradients]).norm() + 1e-12)
    moves = [scale * each for each in gradients]
    for parameter, move in zip(model.parameters(), moves, strict=True):
        parameter.add_(move)
    return moves


@torch.no_grad()
def descend(model: nn.Module, moves: list[torch.Tensor]) -> None:
    for parameter, move in zip(model.parameters(), moves, strict=True):
        parameter.sub_(move)


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for inputs, targets in s.batches():
            with s.step(backwards=2):
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets, label_smoothing=0.1).backward()
                moves = climb(model)
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets, label_smoothing=0.1).backward()
                descend(model, moves)
                optimizer.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
