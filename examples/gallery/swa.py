"""Stochastic weight averaging: from the fifth epoch on, a constant rate and the mean of the weights after each epoch.

After pytorch/pytorch, the examples of torch.optim.swa_utils (https://github.com/pytorch/pytorch). Licence of the
original: BSD-3-Clause.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel

from malletrain import elastic

SWA_START = 5


def main() -> None:
    options = options_of(__doc__)
    train, test = digits(samples=640)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    swa_model = AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    s = elastic.Session(model, optimizer, train, batch_size=options.batch_size)
    s.track(swa_model=swa_model, scheduler=scheduler, swa_scheduler=swa_scheduler)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            "accuracy": (model(batch[0]).argmax(1) == batch[1]).sum(),
            "averaged": (swa_model(batch[0]).argmax(1) == batch[1]).sum(),
        }

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for inputs, targets in s.batches():
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if epoch >= SWA_START:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
