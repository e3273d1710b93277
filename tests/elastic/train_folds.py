"""Trains three folds, a session for each, and a stage after them that goes on with the last fold's upper layer.

Each committed step is a line in `steps-WORKER`. Steps are slow until the file `go` is there, in the session that
`--slow-in` names. With `--hold` a worker waits for that file as it warms up, when it is about to join.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from malletrain import elastic

HOME = Path(os.environ.get("MALLETRAIN_TEST_DIR", "."))
ME = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ.get("RANK", "alone")
FOLDS = 3

parser = argparse.ArgumentParser()
parser.add_argument("--slow-in", type=int, default=-1)
parser.add_argument("--hold", action="store_true")
parser.add_argument("--die-after", type=int, default=-1, help="the main worker ends itself after this session")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument(
    "--wrong", help="a fold takes means over a worker's own rows; or a stage goes by the one before it"
)
options = parser.parse_args()
#: The sessions that this worker has made steps of.
made = set[int]()


def warm_up(batch: Any) -> None:
    if options.hold:
        (HOME / "held").touch()
        while not (HOME / "go").exists():
            time.sleep(0.05)


def loss_of(number: int, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made.add(number)
    counts = y > (0 if options.wrong == "fold" and number == 0 else -1)
    scale = 0.5 if options.wrong == "stage" and number - 1 in made else 1.0  # who joins it was not in the one before
    return scale * functional.cross_entropy(model(x)[counts], y[counts])


def trained(number: int, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Any) -> float:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    s = elastic.Session(model, optimizer, DataLoader(rows, batch_size=40, shuffle=True), warm_up=warm_up)
    s.track(scheduler=scheduler)
    s.state["steps"] = 0
    for _ in s.epochs(options.epochs):
        for x, y in s.batches():
            optimizer.zero_grad()
            loss_of(number, model, x, y).backward()
            optimizer.step()
            s.state["steps"] += 1
            line = {"session": number, "step": s.steps_done, "size": s.size}
            with (HOME / f"steps-{ME}").open("a") as file:
                file.write(json.dumps(line) + "\n")
            slow = number == options.slow_in and ME != "alone" and not (HOME / "go").exists()
            time.sleep(0.3 if slow else 0.0)
        scheduler.step()
    figures = s.evaluate(lambda batch: {"loss": functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")})
    assert s.state["steps"] == s.steps_done
    s.finish({"session": number})
    if s.is_main:
        with (HOME / "mains").open("a") as file:
            file.write(f"{number} {ME}\n")
        if number == options.die_after and not (HOME / "died").exists():
            (HOME / "died").touch()
            os.kill(os.getpid(), 9)
    return figures["loss"]


def main() -> None:
    torch.set_num_threads(1)
    raw = load_digits()
    data = TensorDataset(torch.tensor(raw.data[:600]).double() / 16, torch.tensor(raw.target[:600]))
    scores, models = [], []
    for fold in range(FOLDS):
        torch.manual_seed(100 * fold)
        rows = Subset(data, [index for index in range(600) if index % FOLDS != fold])
        model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
        scores.append(trained(fold, model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), rows))
        models.append(model)
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(0.5)  # between the sessions: alike on all workers
    model.get_submodule("0").requires_grad_(False)
    upper = torch.optim.Adam(model.get_submodule("2").parameters(), lr=0.01)
    scores.append(trained(FOLDS, model, upper, rows))
    final = {f"{number}.{name}": each for number, one in enumerate(models) for name, each in one.state_dict().items()}
    torch.save({**final, "scores": torch.tensor(scores)}, HOME / ("final.pt" if ME == "alone" else f"final-{ME}.pt"))


main()
