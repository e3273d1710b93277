"""A hyper-parameter search for a small network on digits.

malletrain study run examples/study_hpo.py --trials 30            as malleable jobs
malletrain study run examples/study_hpo.py --trials 30 --local    as processes of this machine
"""

from __future__ import annotations

import optuna
import torch
from digits_data import digits
from torch import nn

from malletrain import elastic, study

direction = "maximize"
sampler = optuna.samplers.TPESampler(seed=1, multivariate=True, constant_liar=True)
pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=4)
nodes = "1-4"


def fit(lr: float, momentum: float, weight_decay: float, width: int, batch_size: int, epochs: int) -> None:
    """An ordinary elastic training."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = digits(image=False)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    s = elastic.Session(model, optimizer, train, batch_size=batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for _epoch in s.epochs(epochs):
        for pixels, labels in s.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
        figures = s.evaluate(score, test)
        s.report(**figures)
    s.finish(figures)


def objective(trial: optuna.Trial) -> float:
    params = {
        "lr": trial.suggest_float("lr", 1e-3, 1.0, log=True),
        "momentum": trial.suggest_float("momentum", 0.0, 0.95),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
        "width": trial.suggest_int("width", 8, 128, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
        "epochs": 12,
    }
    result = study.train(trial, fit, params, watch="accuracy", samples_per_step=1437)
    return float(result["accuracy"])
