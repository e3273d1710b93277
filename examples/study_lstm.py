"""A search for a recurrent network that reads a digit row by row: width, layers, learning rate, batch.

After optuna/optuna-examples, pytorch/pytorch_simple_lstm.py (https://github.com/optuna/optuna-examples). Licence of
the original: MIT. There each trial is a training on one device; here it is a malleable job.

malletrain study run examples/study_lstm.py --trials 30            as malleable jobs
malletrain study run examples/study_lstm.py --trials 30 --local    as processes of this machine
"""

from __future__ import annotations

import optuna
import torch
from digits_data import digits
from torch import nn
from torch.nn import functional

from malletrain import elastic, study

direction = "minimize"
sampler = optuna.samplers.TPESampler(seed=1)
pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=3)
nodes = "1-4"


class Rows(nn.Module):
    """An LSTM over the eight rows of a digit, and a linear layer on its last output."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, layers, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.lstm(images.squeeze(1))[0][:, -1])
        return out


def fit(width: int, layers: int, lr: float, batch_size: int, epochs: int = 12) -> None:
    """Train one network."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = digits(image=True)
    model = Rows(width, layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    s = elastic.Session(model, optimizer, train, batch_size=batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")}

    figures: dict[str, float] = {}
    for _epoch in s.epochs(epochs):
        for images, labels in s.batches():
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        figures = s.evaluate(score, test)
        s.report(**figures)
    s.finish(figures)


def objective(trial: optuna.Trial) -> float:
    params = {
        "width": trial.suggest_int("width", 8, 64, log=True),
        "layers": trial.suggest_int("layers", 1, 2),
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
    }
    result = study.train(trial, fit, params, watch="loss", samples_per_step=1437)
    return float(result["loss"])
