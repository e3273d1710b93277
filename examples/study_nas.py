"""An architecture of convolutional cells for handwritten digits: accuracy against the number of parameters.

malletrain study run examples/study_nas.py --trials 30
malletrain study best examples/study_nas.py --json > best.json
python examples/study_nas.py best.json --export best.pt     trains the most accurate one and writes it out
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import optuna
import torch
from digits_data import Shifted, digits
from torch import nn

from malletrain import elastic, study

directions = ["maximize", "minimize"]  # accuracy, number of parameters
sampler = optuna.samplers.NSGAIISampler(seed=1, population_size=10)
nodes = "1-4"


class Cell(nn.Module):
    """One cell: an operation, a norm, an activation, and perhaps a way around them."""

    def __init__(self, kind: str, inputs: int, outputs: int, activation: str, skip: bool) -> None:
        super().__init__()
        operations = {
            "conv3": lambda: nn.Conv2d(inputs, outputs, 3, padding=1),
            "conv5": lambda: nn.Conv2d(inputs, outputs, 5, padding=2),
            "separable": lambda: nn.Sequential(
                nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs), nn.Conv2d(inputs, outputs, 1)
            ),
            "bottleneck": lambda: nn.Sequential(
                nn.Conv2d(inputs, max(1, outputs // 2), 1), nn.Conv2d(max(1, outputs // 2), outputs, 3, padding=1)
            ),
        }
        self.operation = operations[kind]()
        self.norm = nn.GroupNorm(4, outputs)
        self.activation = {"relu": nn.ReLU, "silu": nn.SiLU}[activation]()
        self.around = nn.Conv2d(inputs, outputs, 1) if skip else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.activation(self.norm(self.operation(x)))
        return y if self.around is None else y + self.around(x)


def build(architecture: dict[str, Any]) -> nn.Module:
    """The network that an architecture describes."""
    layers: list[nn.Module] = []
    inputs = 1
    for position, cell in enumerate(architecture["cells"]):
        outputs = architecture["width"] * (1 if position == 0 else 2)
        layers.append(Cell(cell["kind"], inputs, outputs, architecture["activation"], cell["skip"]))
        if cell["pool"]:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(inputs * 4, 10))


def fit(architecture: dict[str, Any], epochs: int, export: str = "") -> None:
    """An ordinary elastic training."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = digits(image=True)
    model = build(architecture)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    s = elastic.Session(model, optimizer, Shifted(train), batch_size=64)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    for _epoch in s.epochs(epochs):
        for pixels, labels in s.batches():
            with s.step():
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(pixels), labels).backward()
                optimizer.step()
        s.report(**s.evaluate(score, test))
    figures = s.evaluate(score, test)
    if export and s.is_main:
        torch.save({"architecture": architecture, "state": model.state_dict(), **figures}, export)
    s.finish({**figures, "parameters": sum(p.numel() for p in model.parameters())})


def objective(trial: optuna.Trial) -> tuple[float, float]:
    depth = trial.suggest_int("depth", 1, 3)
    architecture = {
        "width": trial.suggest_categorical("width", [4, 8, 16]),
        "activation": trial.suggest_categorical("activation", ["relu", "silu"]),
        "cells": [
            {
                "kind": trial.suggest_categorical(f"kind{i}", ["conv3", "conv5", "separable", "bottleneck"]),
                "skip": trial.suggest_categorical(f"skip{i}", [False, True]),
                "pool": trial.suggest_categorical(f"pool{i}", [False, True]),
            }
            for i in range(depth)
        ],
    }
    trial.set_user_attr("architecture", architecture)
    result = study.train(trial, fit, {"architecture": architecture, "epochs": 5})
    return float(result["accuracy"]), float(result["parameters"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("best", type=Path, help="what `malletrain study best --json` printed")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--export", default="best.pt")
    options = parser.parse_args()
    front = json.loads(options.best.read_text())
    chosen = max(front, key=lambda trial: float(trial["values"][0]))
    fit(chosen["kept"]["architecture"], options.epochs, options.export)
    print(f"trial {chosen['trial']} written to {options.export}")


if __name__ == "__main__":
    main()
