"""An architecture search for convolutional networks on images: accuracy against the number of parameters.

On scikit-learn's digits, or with NAS_DATA=FOLDER on CIFAR-10 or folders of images (see images_data.py). With
NAS_INHERIT=1 a child starts from the weights of the best child so far that have the same name and shape.

malletrain study run examples/study_nas.py --trials 30
malletrain study status examples/study_nas.py --json > best.json
python examples/study_nas.py best.json --export best.pt     trains the most accurate one and writes it out
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import torch
from digits_data import Shifted, digits
from images_data import images
from torch import nn

from malletrain import elastic, study

directions = ["maximize", "minimize"]  # accuracy, number of parameters
sampler = optuna.samplers.NSGAIISampler(seed=1, population_size=10)
nodes = "1-4"


class Cell(nn.Module):
    """One cell: an operation, a norm, an activation, and optionally a residual connection."""

    def __init__(self, kind: str, inputs: int, outputs: int, activation: str, skip: bool) -> None:
        super().__init__()
        operations: dict[str, Callable[[], nn.Module]] = {
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


def build(architecture: dict[str, Any], inputs: int = 1, classes: int = 10) -> nn.Module:
    """The network that an architecture describes."""
    layers: list[nn.Module] = []
    for position, cell in enumerate(architecture["cells"]):
        outputs = architecture["width"] * (1 if position == 0 else 2)
        layers.append(Cell(cell["kind"], inputs, outputs, architecture["activation"], cell["skip"]))
        if cell["pool"]:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(inputs * 4, classes))


def inherit(model: nn.Module, parent: str) -> int:
    """Copy the parent's weights of the same name and shape; returns the number of tensors."""
    theirs, own = torch.load(parent, weights_only=True)["state"], model.state_dict()
    same = {name: value for name, value in theirs.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict({**own, **same})
    return len(same)


def fit(architecture: dict[str, Any], epochs: int, export: str = "", data: str = "", parent: str = "") -> None:
    """Train one architecture in an elastic session."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    channels, classes = 1, 10
    if data:
        train, test, channels, classes = images(data)
    else:
        digits_train, test = digits(image=True)
        train = Shifted(digits_train)
    model = build(architecture, channels, classes)
    if parent:
        inherit(model, parent)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    s = elastic.Session(model, optimizer, train, batch_size=64)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    for _epoch in s.epochs(epochs):
        for pixels, labels in s.batches():
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
    params: dict[str, Any] = {"architecture": architecture, "epochs": 5, "data": os.environ.get("NAS_DATA", "")}
    if os.environ.get("NAS_INHERIT"):
        params |= {"export": str(Path(__file__).with_name(f"child-{trial.number}.pt")), "parent": best_so_far(trial)}
        trial.set_user_attr("weights", params["export"])
    result = study.train(trial, fit, params)
    return float(result["accuracy"]), float(result["parameters"])


def best_so_far(trial: optuna.Trial) -> str:
    """The weights of the most accurate completed child; empty if there is none."""
    done = trial.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    kept = [each for each in done if Path(each.user_attrs.get("weights", "")).is_file()]
    return str(max(kept, key=lambda each: each.values[0]).user_attrs["weights"]) if kept else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("best", type=Path, help="what `malletrain study status --json` printed")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--export", default="best.pt")
    options = parser.parse_args()
    front = json.loads(options.best.read_text())["best"]
    chosen = max(front, key=lambda trial: float(trial["values"][0]))
    fit(chosen["kept"]["architecture"], options.epochs, options.export)
    print(f"trial {chosen['trial']} written to {options.export}")


if __name__ == "__main__":
    main()
