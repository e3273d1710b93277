"""A search for the shape of a network, with its dropout, optimizer and learning rate, on digits.

After optuna/optuna-examples, pytorch/pytorch_simple.py (https://github.com/optuna/optuna-examples). Licence of the
original: MIT. There each trial is a training on one device; here it is a malleable job.

malletrain study run examples/study_pytorch_simple.py --trials 30            as malleable jobs
malletrain study run examples/study_pytorch_simple.py --trials 30 --local    as processes of this machine
"""

from __future__ import annotations

from collections.abc import Sequence

import optuna
import torch
from digits_data import digits
from torch import nn
from torch.nn import functional

from malletrain import elastic, study

direction = "maximize"
pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)
nodes = "1-4"


def build(units: Sequence[int], dropout: Sequence[float]) -> nn.Sequential:
    """Hidden layers of these widths, each with its dropout."""
    layers: list[nn.Module] = []
    inputs = 64
    for width, chance in zip(units, dropout, strict=True):
        layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(chance)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def fit(units: Sequence[int], dropout: Sequence[float], optimizer: str, lr: float, epochs: int = 10) -> None:
    """Train one network. Dropout is drawn by virtual shard, so a trial's result does not depend on its nodes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = digits(image=False)
    model = build(units, dropout)
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "Adam": torch.optim.Adam, "RMSprop": torch.optim.RMSprop, "SGD": torch.optim.SGD,
    }  # fmt: skip
    steps = kinds[optimizer](model.parameters(), lr=lr)  # type: ignore[call-arg]
    s = elastic.Session(model, steps, train, batch_size=128, virtual_shards=4, drop_last=True)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for _epoch in s.epochs(epochs):
        for batch in s.batches():
            steps.zero_grad()
            for pixels, labels in batch:
                functional.cross_entropy(model(pixels), labels).backward()
            steps.step()
        figures = s.evaluate(score, test)
        s.report(**figures)
    s.finish(figures)


def objective(trial: optuna.Trial) -> float:
    layers = trial.suggest_int("n_layers", 1, 3)
    params = {
        "units": [trial.suggest_int(f"n_units_l{i}", 4, 128) for i in range(layers)],
        "dropout": [trial.suggest_float(f"dropout_l{i}", 0.2, 0.5) for i in range(layers)],
        "optimizer": trial.suggest_categorical("optimizer", ["Adam", "RMSprop", "SGD"]),
        "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
    }
    result = study.train(trial, fit, params, watch="accuracy", samples_per_step=1437)
    return float(result["accuracy"])
