"""What the demo trains: a small network on digits, alone (`python digits_search.py`) or as trials of a search.

The demo's nodes share this machine's processors. So that they scale as nodes of their own would, each step also waits
for the time that a larger model would compute (`--sample-s`); gradients, resizes and results are real.
"""

from __future__ import annotations

import argparse
import time

import optuna
import torch
from digits_data import digits
from torch import nn

from malletrain import elastic, study

#: Samples of the training set.
SAMPLES = 1437

#: Seconds that a sample takes on one node.
SAMPLE_S = 0.002

direction = "maximize"
sampler = optuna.samplers.TPESampler(seed=1, constant_liar=True)
pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
nodes = "1-2"


def fit(lr: float, momentum: float, width: int, epochs: int, sample_s: float = SAMPLE_S) -> None:
    """An ordinary elastic training."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = digits(image=False)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    s = elastic.Session(model, optimizer, train, batch_size=64)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        out = model(batch[0])
        return {
            "accuracy": (out.argmax(1) == batch[1]).sum(),
            "loss": nn.functional.cross_entropy(out, batch[1], reduction="sum"),
        }

    figures: dict[str, float] = {}
    for epoch in s.epochs(epochs):
        for pixels, labels in s.batches():
            with s.step():
                optimizer.zero_grad()
                time.sleep(sample_s * len(pixels))  # stands for a larger model's computation
                nn.functional.cross_entropy(model(pixels), labels).backward()
                optimizer.step()
        figures = s.evaluate(score, test)
        s.report(**figures)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures} on {s.size} nodes", flush=True)
    s.finish(figures)


def objective(trial: optuna.Trial) -> float:
    """Of one trial: how well it knows digits that it has not seen."""
    params = {
        "lr": trial.suggest_float("lr", 0.01, 1.0, log=True),
        "momentum": trial.suggest_float("momentum", 0.0, 0.95),
        "width": trial.suggest_int("width", 8, 128, log=True),
        "epochs": 4,
    }
    return float(study.train(trial, fit, params, watch="accuracy", samples_per_step=SAMPLES)["accuracy"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--sample-s", type=float, default=SAMPLE_S, help="seconds of one sample on one node")
    options = parser.parse_args()
    fit(0.05, 0.9, 128, options.epochs, options.sample_s)
